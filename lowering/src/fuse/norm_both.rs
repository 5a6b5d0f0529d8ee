use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// A norm that is read in f32 and in 8 bit gives both.
///
/// ```text
/// h = rms_norm(x, g)    h8 = quantize(h)    r = matmul(h, router)
/// ; becomes
/// h, h8 = rms_norm_both(x, g)    r = matmul(h, router)
/// ```
///
/// For what [`fuse_norm_quantize`](super::fuse_norm_quantize) leaves.
pub fn fuse_norm_both(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "norm in two types", find)
}

fn find(uses: &Uses<'_>, norm: Node<'_>) -> Option<Fusion> {
    let Op::RmsNorm { eps } = *norm.op else { return None };
    let quantize =
        uses.readers(norm.result()).find(|reader| matches!(reader.op, Op::Quantize {}))?;
    Some(Fusion {
        op: Op::RmsNormBoth { eps },
        operands: norm.operands.to_vec(),
        results: vec![norm.id, quantize.id],
        dropped: vec![quantize.id],
    })
}
