use strata_graph::{Graph, Node, Op, Rebuilt, ValueId};

use super::{Fusion, Uses, fuse};

/// The residual sum joins the product, or the sum of experts, that makes one of its terms.
///
/// ```text
/// o = matmul(x, w)    y = add(r, o)
/// ; becomes
/// y = matmul(x, w, r) residual=true
/// ```
///
/// The sum is the last step of the product in the contract's order, so the bits stay the same.
pub fn fuse_residual_add(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "residual adds", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Add {} = node.op else { return None };
    let [a, b] = *node.operands else { return None };
    joined(uses, node, [b, a]).or_else(|| joined(uses, node, [a, b]))
}

fn joined(uses: &Uses<'_>, add: Node<'_>, [term, residual]: [ValueId; 2]) -> Option<Fusion> {
    let product = uses.sole_producer(term)?;
    let op = match *product.op {
        Op::Matmul { bias, residual: false } => Op::Matmul { bias, residual: true },
        Op::ExpertCombine { residual: false } => Op::ExpertCombine { residual: true },
        _ => return None,
    };
    let mut operands = product.operands.to_vec();
    operands.push(residual);
    Some(Fusion { op, operands, results: vec![add.id], dropped: vec![product.id] })
}
