//! Products with block-quantised weights get 8-bit activations.

use std::collections::BTreeMap;

use strata_graph::{DType, Graph, Op, Rebuild, Rebuilt, ValueId};

/// The operand positions of `x` and of one of its weights, for a product.
fn product_operands(op: &Op) -> Option<(usize, usize)> {
    match op {
        Op::Matmul { .. } | Op::GatedMatmul { .. } | Op::StreamMatmul { .. } => Some((0, 1)),
        Op::ExpertGated { .. } | Op::ExpertDown {} => Some((0, 2)),
        _ => None,
    }
}

/// Puts one `quantize` before all products of a value with block-quantised weights:
///
/// ```text
/// q = matmul(x, wq)    k = matmul(x, wk)
/// ; becomes
/// x8 = quantize(x)     q = matmul(x8, wq)    k = matmul(x8, wk)
/// ```
pub fn quantize_activations(graph: &Graph) -> (Graph, Rebuilt) {
    let mut next = Rebuild::of(graph, "quantised");
    let mut quantised: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for node in graph.nodes() {
        let x = product_operands(node.op).and_then(|(x, weight)| {
            let weight = graph.ty(node.operands[weight]).dtype;
            let from = graph.ty(node.operands[x]).dtype;
            (weight.is_block_quantised() && from == DType::F32).then_some(x)
        });
        let Some(x) = x else {
            next.keep(node);
            continue;
        };
        let wide = node.operands[x];
        let narrow = match quantised.get(&wide) {
            Some(&narrow) => narrow,
            None => {
                let of = next.mapped(wide);
                let narrow = next.insert(node, Op::Quantize {}, &[of])[0];
                quantised.insert(wide, narrow);
                narrow
            }
        };
        let mut operands: Vec<_> = node.operands.iter().map(|&v| next.mapped(v)).collect();
        operands[x] = narrow;
        let results = next.insert(node, *node.op, &operands);
        next.bind(node, &results);
        next.count_replaced();
    }
    next.finish()
}
