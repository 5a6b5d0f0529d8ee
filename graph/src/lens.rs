//! Views of a graph for petgraph's algorithms. They are built when asked for and never stored.

use std::cmp::Reverse;
use std::fmt::Write;

use petgraph::Direction::Incoming;
use petgraph::algo::has_path_connecting;
use petgraph::dot::{Config, Dot};
use petgraph::graph::{DiGraph, EdgeReference, NodeIndex};

use crate::graph::{Graph, Node, ValueDef};
use crate::table::{Id, NodeId, Table, ValueId};

/// Nodes, and an edge for each operand that a node makes; versions of states are edges like any
/// other. Node indices are those of the graph.
pub fn data_flow(graph: &Graph) -> DiGraph<NodeId, ValueId> {
    let mut flow = DiGraph::with_capacity(graph.node_count(), graph.value_count());
    for node in graph.nodes() {
        flow.add_node(node.id);
    }
    for node in graph.nodes() {
        for &operand in node.operands {
            if let ValueDef::Result { node: producer, .. } = graph.value(operand) {
                flow.add_edge(place(producer), place(node.id), operand);
            }
        }
    }
    flow
}

/// The largest sum of `cost` along a path of dependent nodes, and the nodes of that path in order.
///
/// What no order of nodes and no number of devices can go below. Of paths that cost the same, the
/// one through earlier nodes is given. Empty for a graph without nodes.
pub fn critical_path(graph: &Graph, cost: impl Fn(&Node<'_>) -> u64) -> (u64, Vec<NodeId>) {
    let flow = data_flow(graph);
    let mut reached: Table<NodeId, (u64, Option<NodeId>)> = Table::new();
    for node in graph.nodes() {
        // Producers are earlier rows, so their sums are there.
        let before = flow
            .neighbors_directed(place(node.id), Incoming)
            .map(|producer| flow[producer])
            .max_by_key(|&producer| (reached[producer].0, Reverse(producer)));
        let sum = before.map_or(0, |producer| reached[producer].0);
        reached.push((sum.saturating_add(cost(&node)), before));
    }
    let last = reached.keys().max_by_key(|&node| (reached[node].0, Reverse(node)));
    let mut path: Vec<NodeId> = std::iter::successors(last, |&node| reached[node].1).collect();
    path.reverse();
    (last.map_or(0, |node| reached[node].0), path)
}

/// Whether `to` depends on `from`, or is it.
pub fn reaches(graph: &Graph, from: NodeId, to: NodeId) -> bool {
    has_path_connecting(&data_flow(graph), place(from), place(to), None)
}

/// The data flow as Graphviz text: nodes with op, name and device, edges with value and type.
/// Weights are left out. The same graph gives the same text.
pub fn dot(graph: &Graph) -> String {
    let flow = data_flow(graph);
    let edge = |_: &_, edge: EdgeReference<'_, ValueId>| {
        let value = *edge.weight();
        format!("label=\"{value} {}\"", graph.ty(value))
    };
    let node = |_: &_, (_, &id): (NodeIndex, &NodeId)| {
        let node = graph.node(id);
        format!("label=\"{id} {}\\n{}\\n{}\"", node.op.name(), escape(node.name), node.device)
    };
    let config = [Config::EdgeNoLabel, Config::NodeNoLabel];
    Dot::with_attr_getters(&flow, &config, &edge, &node).to_string()
}

fn place(node: NodeId) -> NodeIndex {
    NodeIndex::new(node.index())
}

/// Text that may stand in a quoted label.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                write!(out, "\\\\u{{{:x}}}", u32::from(c)).expect("a string takes any text");
            }
            c => out.push(c),
        }
    }
    out
}
