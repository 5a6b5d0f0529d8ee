//! Properties of packing and of order, over random inputs.

mod common;

use proptest::prelude::*;
use strata_graph::{Activation, DType, Graph, GraphBuilder, Op, TensorType, ValueId, WeightDef};
use strata_graph::{WeightSource, Window, WindowKind, verify};
use strata_lowering::{
    ARENA_ALIGN_BYTES, Lifetime, compute_lifetimes, group_nodes, order_nodes, pack_spans,
    split_experts,
};

fn lifetime() -> impl Strategy<Value = Lifetime> {
    (0u32..40, 0u32..12, 1u64..5000).prop_map(|(first, length, bytes)| Lifetime {
        first,
        last: first + length,
        bytes,
    })
}

proptest! {
    #[test]
    fn values_that_live_together_never_overlap(spans in prop::collection::vec(lifetime(), 0..60)) {
        let (offsets, bytes) = pack_spans(&spans);
        for (i, a) in spans.iter().enumerate() {
            prop_assert!(offsets[i].is_multiple_of(ARENA_ALIGN_BYTES));
            prop_assert!(offsets[i] + a.bytes <= bytes);
            for (j, b) in spans.iter().enumerate().skip(i + 1) {
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                prop_assert!(apart || !a.overlaps(b), "{i} {a:?} at {} and {j} {b:?} at {}",
                    offsets[i], offsets[j]);
            }
        }
        let alive = |group| spans.iter().filter(move |s| s.first <= group && group <= s.last);
        let peak = (0..52).map(|g| alive(g).map(|s| s.bytes).sum::<u64>()).max().unwrap_or(0);
        prop_assert!(bytes >= peak);
    }

    #[test]
    fn order_keeps_the_nodes_and_is_never_worse(choices in prop::collection::vec(any::<u8>(), 1..40)) {
        let graph = random_graph(&choices);
        let (ordered, _) = order_nodes(&graph);
        prop_assert_eq!(verify::verify(&ordered), Ok(()));
        let names = |graph: &Graph| {
            let mut names: Vec<String> = graph.nodes().map(|n| n.name.to_owned()).collect();
            names.sort();
            names
        };
        prop_assert_eq!(names(&graph), names(&ordered));
        let cost = |graph: &Graph| {
            let (lifetimes, _) = compute_lifetimes(graph);
            (lifetimes.groups.count, lifetimes.peak().0)
        };
        prop_assert!(cost(&ordered) <= cost(&graph));
        // Every node computes the same from the same.
        for node in graph.nodes() {
            let same = ordered.nodes().find(|n| n.name == node.name).unwrap();
            let sources = |graph: &Graph, operands: &[ValueId]| {
                let of = |&v: &ValueId| graph.producer(v).map(|p| p.name.to_owned());
                operands.iter().map(of).collect::<Vec<_>>()
            };
            prop_assert_eq!(sources(&graph, node.operands), sources(&ordered, same.operands));
        }
    }

    #[test]
    fn groups_hold_no_dependent_nodes(choices in prop::collection::vec(any::<u8>(), 1..40)) {
        let graph = random_graph(&choices);
        let groups = group_nodes(&graph);
        for node in graph.nodes() {
            for &operand in node.operands {
                if let Some(producer) = graph.producer(operand) {
                    prop_assert!(groups.of_node[producer.id] < groups.of_node[node.id]);
                }
            }
        }
    }
}

/// A graph of sums, gates and norms; each byte picks an op and its operands.
fn random_graph(choices: &[u8]) -> Graph {
    let window = Window { kind: WindowKind::Verify, rows: 4, logit_rows: 4 };
    let mut b = GraphBuilder::new("random", window, "base");
    let mut weight = |name: &str, dims: &[u32]| {
        b.weight(WeightDef {
            name: name.into(),
            ty: TensorType::new(DType::F32, dims),
            source: WeightSource::Named(vec![]),
            transform: strata_graph::Transform::None,
        })
    };
    let table = weight("table", &[64, 32]);
    let gain = weight("gain", &[32]);
    let matrix = weight("matrix", &[32, 32]);
    let mut values =
        vec![b.push_one(Op::Embed { scale: 1.0 }, &[table], "embed").expect("well typed")];
    for (i, &choice) in choices.iter().enumerate() {
        let at = |n: u8| values[usize::from(n) % values.len()];
        let (a, c) = (at(choice / 8), at(choice / 3));
        let (op, operands) = match choice % 5 {
            0 => (Op::Add {}, vec![a, c]),
            1 => (Op::Mul {}, vec![a, c]),
            2 => (Op::Silu {}, vec![a]),
            3 => (Op::RmsNorm { eps: 1e-6 }, vec![a, gain]),
            _ => (Op::Matmul { bias: false, residual: false }, vec![a, matrix]),
        };
        values.push(b.push_one(op, &operands, format!("n{i}")).expect("well typed"));
    }
    b.output(values[values.len() - 1]);
    b.finish()
}

#[test]
fn experts_are_split_into_four_launches() {
    let window = Window { kind: WindowKind::Verify, rows: 4, logit_rows: 4 };
    let graph = common::base_graph(common::MOE, window);
    let (split, rebuilt) = split_experts(&graph);
    assert_eq!(rebuilt.nodes_after, rebuilt.nodes_before + 3 * common::MOE.layers);
    let gated = split.nodes().find(|n| matches!(n.op, Op::ExpertGated { .. })).unwrap();
    assert_eq!(*gated.op, Op::ExpertGated { act: Activation::Silu, quantize: false });
    assert_eq!(verify::verify(&split), Ok(()));
}
