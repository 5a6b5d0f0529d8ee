//! A whole small model: its text, its rules and its longest path.

mod common;

use common::{WINDOW, named, two_layers};
use strata_graph::verify::verify;
use strata_graph::{
    DType, Graph, GraphBuilder, Id, NodeId, Op, Rebuild, StateDef, StateKind, TensorType, cost,
};
use strata_graph::{lens, parse::parse};

fn node_named(graph: &Graph, name: &str) -> NodeId {
    graph.nodes().find(|node| node.name == name).expect("a node of the model").id
}

#[test]
fn text() {
    insta::assert_snapshot!(two_layers());
}

#[test]
fn text_reads_back() {
    let graph = two_layers();
    let read = parse(&graph.to_string()).unwrap();
    assert_eq!(read, graph);
    assert_eq!(read.to_string(), graph.to_string());
}

#[test]
fn a_rebuilt_graph_reads_back() {
    let graph = two_layers();
    let mut next = Rebuild::of(&graph, "copied");
    graph.nodes().for_each(|node| next.keep(node));
    let (copy, report) = next.finish();
    assert_eq!((report.nodes_before, report.nodes_after), (35, 35));
    assert_eq!(report.nodes_replaced, 0);
    assert_eq!(parse(&copy.to_string()).unwrap(), copy);
}

#[test]
fn replaced_weights_are_dropped() {
    let graph = two_layers();
    let old = node_named(&graph, "blk.0.attn_k");
    let mut next = Rebuild::of(&graph, "replaced");
    let weight = graph.weight_of(graph.node(old).operands[1]).unwrap();
    let mut def = graph.weights()[weight].clone();
    def.name = "another".into();
    for node in graph.nodes() {
        if node.id == old {
            let operands = [next.mapped(node.operands[0]), next.weight(def.clone())];
            let results = next.insert(node, *node.op, &operands);
            next.bind(node, &results);
            next.count_replaced();
        } else {
            next.keep(node);
        }
    }
    let (graph, report) = next.finish();
    assert_eq!((report.nodes_replaced, graph.weights().len()), (1, 25));

    let mut next = Rebuild::without_unread_weights(&graph, "swept");
    graph.nodes().for_each(|node| next.keep(node));
    let (graph, _) = next.finish();
    let names: Vec<&str> = graph.weights().values().map(|def| def.name.as_str()).collect();
    assert_eq!(names.len(), 24);
    assert!(names.contains(&"another") && !names.contains(&"blk.0.attn_k"));
    assert_eq!(verify(&graph), Ok(()));
}

#[test]
fn odd_names_read_back() {
    let mut graph = GraphBuilder::new(" a|b \"c\"\\\n", WINDOW, "; stage |");
    let x = named(&mut graph, "w\"; \\ | \u{7}é", DType::F32, &[4, 16]);
    let row = TensorType::new(DType::F32, &[]);
    graph.state(StateDef::new("", StateKind::Tail(3), row));
    let x = graph.push_one(Op::Embed { scale: -0.0 }, &[x], "a\tb ; \"\\u{7}").unwrap();
    graph.output(x);
    graph.state(StateDef::new("late", StateKind::Recurrent, row));
    let graph = graph.finish();
    assert_eq!(parse(&graph.to_string()).unwrap(), graph);
}

#[test]
fn a_well_made_graph_has_no_faults() {
    assert_eq!(verify(&two_layers()), Ok(()));
}

#[test]
fn the_critical_path_is_the_dearest_chain() {
    let graph = two_layers();
    let (nodes, path) = lens::critical_path(&graph, |_| 1);
    assert_eq!(nodes, path.len() as u64);
    for pair in path.windows(2) {
        assert!(pair[0] < pair[1] && lens::reaches(&graph, pair[0], pair[1]));
    }
    // Per layer: norm, key, rope, append, attention, output; then what the block takes.
    let (layer, gated, experts, ends) = (6, 3, 7, 4);
    assert_eq!(nodes, 2 * layer + gated + experts + 2 + ends);

    let value_first = node_named(&graph, "blk.0.attn_v");
    let (_, path) = lens::critical_path(&graph, |node| if node.id == value_first { 9 } else { 1 });
    assert!(path.contains(&value_first));
    let bytes = |node: &strata_graph::Node<'_>| {
        cost(node.op, &graph.operand_types(node), &graph.result_types(node)).bytes
    };
    assert!(lens::critical_path(&graph, bytes).0 < graph.nodes().map(|n| bytes(&n)).sum());
}

#[test]
fn only_what_depends_is_reached() {
    let graph = two_layers();
    let [q, k] = ["blk.1.attn_q", "blk.1.attn_k"].map(|name| node_named(&graph, name));
    let embed = node_named(&graph, "token_embd");
    assert!(lens::reaches(&graph, embed, k) && lens::reaches(&graph, k, k));
    assert!(!lens::reaches(&graph, q, k) && !lens::reaches(&graph, k, embed));
}

#[test]
fn data_flow_has_an_edge_for_each_computed_operand() {
    let graph = two_layers();
    let flow = lens::data_flow(&graph);
    let computed = graph.nodes().flat_map(|node| node.operands);
    let computed = computed.filter(|&&v| graph.producer(v).is_some()).count();
    assert_eq!((flow.node_count(), flow.edge_count()), (graph.node_count(), computed));
}

#[test]
fn dot_text() {
    let text = "\
; strata graph 1 | dot | verify 2 (logits 2) | case
w0 = weight \"table\" : f32[8, 16]
  %1 = embed(w0) scale=1.0 : f32[2, 16] @d1 \"a \\\"b\\\"\"
  %2 = mul(%1, %1) : f32[2, 16]
output %2
";
    insta::assert_snapshot!(lens::dot(&parse(text).unwrap()));
}

#[test]
fn an_empty_graph_has_an_empty_path() {
    let graph = GraphBuilder::new("none", WINDOW, "built").finish();
    assert_eq!(lens::critical_path(&graph, |_| 1), (0, vec![]));
    assert_eq!(NodeId::from_index(3).to_string(), "n3");
}
