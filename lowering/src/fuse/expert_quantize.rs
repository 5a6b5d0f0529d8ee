use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// The gated half of the experts writes 8-bit rows when only the second half reads it.
///
/// ```text
/// h = expert_gated(x, d, gate, up)    h8 = quantize(h)
/// ; becomes
/// h8 = expert_gated(x, d, gate, up) quantize=true
/// ```
///
/// Needs a width of whole 32-blocks.
pub fn fuse_expert_quantize(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "experts + quantize", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Quantize {} = node.op else { return None };
    let gated = uses.sole_producer(node.operands[0])?;
    let Op::ExpertGated { act, quantize: false } = *gated.op else { return None };
    let width = uses.graph.ty(gated.result()).last_dim();
    width.is_multiple_of(32).then(|| Fusion {
        op: Op::ExpertGated { act, quantize: true },
        operands: gated.operands.to_vec(),
        results: vec![node.id],
        dropped: vec![gated.id],
    })
}
