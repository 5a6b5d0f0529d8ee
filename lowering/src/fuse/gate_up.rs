use strata_graph::{Activation, Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// One pass over `x` for the gate and the up projection of a feed-forward block.
///
/// ```text
/// a = matmul(x, wg)    b = silu(a)    c = matmul(x, wu)    y = mul(b, c)
/// ; becomes
/// y = gated_matmul(x, wg, wu) act=silu
/// ```
///
/// Both weights must have one element type, and neither product a bias or a second reader.
pub fn fuse_gate_up(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "gate * up", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Mul {} = node.op else { return None };
    let [a, b] = node.operands else { return None };
    gated(uses, node, uses.sole_producer(*a)?, uses.sole_producer(*b)?)
        .or_else(|| gated(uses, node, uses.sole_producer(*b)?, uses.sole_producer(*a)?))
}

fn gated(uses: &Uses<'_>, mul: Node<'_>, act: Node<'_>, up: Node<'_>) -> Option<Fusion> {
    let kind = match act.op {
        Op::Silu {} => Activation::Silu,
        Op::Gelu {} => Activation::Gelu,
        _ => return None,
    };
    let gate = uses.sole_producer(act.operands[0])?;
    let plain = Op::Matmul { bias: false, residual: false };
    if *gate.op != plain || *up.op != plain || gate.operands[0] != up.operands[0] {
        return None;
    }
    let [gate_weight, up_weight] = [gate.operands[1], up.operands[1]];
    (uses.graph.ty(gate_weight) == uses.graph.ty(up_weight)).then(|| Fusion {
        op: Op::GatedMatmul { act: kind, quantize: false },
        operands: vec![gate.operands[0], gate_weight, up_weight],
        results: vec![mul.id],
        dropped: vec![gate.id, act.id, up.id],
    })
}
