use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// A norm behind a block and the residual sum after it, as Gemma has them.
///
/// ```text
/// n = rms_norm(x, g)    y = add(r, n)
/// ; becomes
/// y = rms_norm_add(x, g, r)
/// ```
///
/// A norm with a second reader is left alone.
pub fn fuse_norm_add(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "norm + add", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Add {} = node.op else { return None };
    let [a, b] = *node.operands else { return None };
    normed(uses, node, [b, a]).or_else(|| normed(uses, node, [a, b]))
}

fn normed(
    uses: &Uses<'_>,
    add: Node<'_>,
    [term, residual]: [strata_graph::ValueId; 2],
) -> Option<Fusion> {
    let norm = uses.sole_producer(term)?;
    let Op::RmsNorm { eps } = *norm.op else { return None };
    Some(Fusion {
        op: Op::RmsNormAdd { eps },
        operands: vec![norm.operands[0], norm.operands[1], residual],
        results: vec![add.id],
        dropped: vec![norm.id],
    })
}
