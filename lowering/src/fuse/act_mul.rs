use strata_graph::{Activation, Graph, Node, Op, Rebuilt, ValueId};

use super::{Fusion, Uses, fuse};

/// The gate of a feed-forward block whose two projections stay apart.
///
/// ```text
/// b = silu(a)    y = mul(b, c)
/// ; becomes
/// y = act_mul(a, c) act=silu
/// ```
///
/// For what [`fuse_gate_up`](super::fuse_gate_up) leaves: projections of two element types, with a
/// bias, or with a second reader. An activation that is read elsewhere too is left alone.
pub fn fuse_act_mul(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "act * up", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Mul {} = node.op else { return None };
    let [a, b] = *node.operands else { return None };
    gated(uses, node, a, b).or_else(|| gated(uses, node, b, a))
}

fn gated(uses: &Uses<'_>, mul: Node<'_>, gate: ValueId, up: ValueId) -> Option<Fusion> {
    let activation = uses.sole_producer(gate)?;
    let act = match activation.op {
        Op::Silu {} => Activation::Silu,
        Op::Gelu {} => Activation::Gelu,
        _ => return None,
    };
    Some(Fusion {
        op: Op::ActMul { act, quantize: false },
        operands: vec![activation.operands[0], up],
        results: vec![mul.id],
        dropped: vec![activation.id],
    })
}
