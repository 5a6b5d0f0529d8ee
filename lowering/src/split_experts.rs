//! A block of experts becomes the four launches that it is made of.

use strata_graph::{Graph, Op, Rebuild, Rebuilt};

/// Splits every `expert_mlp`:
///
/// ```text
/// y = expert_mlp(x, ids, weights, gate, up, down)
/// ; becomes
/// d = expert_dispatch(ids)
/// h = expert_gated(x, d, gate, up)     ; one row a pair of row and expert
/// o = expert_down(h, d, down)
/// y = expert_combine(o, weights)       ; in the router's order
/// ```
pub fn split_experts(graph: &Graph) -> (Graph, Rebuilt) {
    let mut next = Rebuild::of(graph, "experts split");
    for node in graph.nodes() {
        let Op::ExpertMlp { act } = *node.op else {
            next.keep(node);
            continue;
        };
        let operands: Vec<_> = node.operands.iter().map(|&v| next.mapped(v)).collect();
        let [x, ids, weights, gate, up, down] = operands[..] else {
            unreachable!("the builder checked the operands of expert_mlp")
        };
        let experts = graph.ty(node.operands[3]).dims()[0];
        let experts = u16::try_from(experts).expect("a bank has fewer than 65536 experts");
        let dispatch = next.insert(node, Op::ExpertDispatch { experts }, &[ids])[0];
        let gated = Op::ExpertGated { act, quantize: false };
        let hidden = next.insert(node, gated, &[x, dispatch, gate, up])[0];
        let each = next.insert(node, Op::ExpertDown {}, &[hidden, dispatch, down])[0];
        let sum = next.insert(node, Op::ExpertCombine { residual: false }, &[each, weights]);
        next.bind(node, &sum);
        next.count_replaced();
    }
    next.finish()
}
