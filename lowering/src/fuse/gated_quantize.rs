use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// A gated product, or the gate of one in two halves, writes 8-bit rows when only products read it.
///
/// ```text
/// y = gated_matmul(x, wg, wu)    y8 = quantize(y)
/// ; becomes
/// y8 = gated_matmul(x, wg, wu) quantize=true
/// ```
///
/// Needs a width of whole 32-blocks.
pub fn fuse_gated_quantize(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "gated + quantize", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Quantize {} = node.op else { return None };
    let gated = uses.sole_producer(node.operands[0])?;
    let op = match *gated.op {
        Op::GatedMatmul { act, quantize: false } => Op::GatedMatmul { act, quantize: true },
        Op::ActMul { act, quantize: false } => Op::ActMul { act, quantize: true },
        _ => return None,
    };
    let width = uses.graph.ty(gated.result()).last_dim();
    width.is_multiple_of(32).then(|| Fusion {
        op,
        operands: gated.operands.to_vec(),
        results: vec![node.id],
        dropped: vec![gated.id],
    })
}
