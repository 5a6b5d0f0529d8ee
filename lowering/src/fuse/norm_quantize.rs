use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// Quantises a normalised row while it is in cache.
///
/// ```text
/// h = rms_norm(x, g)    q = quantize(h)
/// ; becomes
/// q = rms_norm_quantize(x, g)
/// ```
///
/// A norm with a second reader (a router in f32) is left alone.
pub fn fuse_norm_quantize(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "norm + quantize", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Quantize {} = node.op else { return None };
    let norm = uses.sole_producer(node.operands[0])?;
    let Op::RmsNorm { eps } = *norm.op else { return None };
    Some(Fusion {
        op: Op::RmsNormQuantize { eps },
        operands: norm.operands.to_vec(),
        results: vec![node.id],
        dropped: vec![norm.id],
    })
}
