//! When values are alive, counted in groups of nodes that no barrier separates.

use std::collections::BTreeSet;

use strata_graph::{DType, Graph, Id, Node, NodeId, Op, StateId, Table, ValueDef, ValueId};
use strata_kernels::ops::dispatch::DispatchLayout;

use crate::report::PassReport;

/// Nodes of one group run without a barrier between them: none reads or overwrites what another
/// one of the group writes. Groups are runs of neighbours in node order.
#[derive(Clone, Debug)]
pub struct Groups {
    pub of_node: Table<NodeId, u32>,
    pub count: u32,
}

/// Alive from the first to the last group, both included.
///
/// Parts of a group run in no order, so that two values of one group never share bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    pub first: u32,
    pub last: u32,
    pub bytes: u64,
}

impl Lifetime {
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// The lifetime of each value that lies in the arena; `None` for weights and states.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    pub groups: Groups,
    pub of_value: Table<ValueId, Option<Lifetime>>,
}

impl Lifetimes {
    /// The most bytes that are alive in one group, and that group: no packing can need less.
    pub fn peak(&self) -> (u64, u32) {
        let groups = 0..self.groups.count;
        let alive = |group: u32| -> u64 {
            let of = self.of_value.values().flatten();
            of.filter(|l| l.first <= group && group <= l.last).map(|l| l.bytes).sum()
        };
        // The first of equal groups.
        groups.map(|g| (alive(g), g)).fold((0, 0), |best, at| if at.0 > best.0 { at } else { best })
    }
}

/// Whether `node` makes a new version of a state, in place.
pub(crate) fn writes_state(node: &Node<'_>) -> bool {
    matches!(
        node.op,
        Op::StateAppend {}
            | Op::AttentionPrologue { .. }
            | Op::Conv1d { .. }
            | Op::GatedDelta { .. }
            | Op::BlockKeys { .. }
            | Op::NgramRows { .. }
            | Op::ShiftRows {}
    )
}

/// Cuts the order of nodes where a barrier has to stand.
pub fn group_nodes(graph: &Graph) -> Groups {
    let mut of_node: Table<NodeId, u32> = Table::new();
    let mut group = 0;
    let mut states: BTreeSet<StateId> = BTreeSet::new();
    for node in graph.nodes() {
        let from_group = node.operands.iter().any(|&operand| match graph.value(operand) {
            ValueDef::Result { node: producer, .. } => of_node[producer] == group,
            ValueDef::Weight(_) | ValueDef::State(_) => false,
        });
        let touched: Vec<StateId> =
            node.operands.iter().filter_map(|&operand| graph.state_of(operand)).collect();
        let overwrites = writes_state(&node) && touched.iter().any(|s| states.contains(s));
        if from_group || overwrites {
            group += 1;
            states.clear();
        }
        states.extend(touched);
        of_node.push(group);
    }
    let count = if graph.node_count() == 0 { 0 } else { group + 1 };
    Groups { of_node, count }
}

/// The lifetime of every value. Outputs live to the end of the window.
pub fn compute_lifetimes(graph: &Graph) -> (Lifetimes, PassReport) {
    let groups = group_nodes(graph);
    let mut of_value: Table<ValueId, Option<Lifetime>> = graph.values().map(|_| None).collect();
    for value in graph.values() {
        let in_arena = graph.ty(value).dtype != DType::State;
        if let (ValueDef::Result { node, .. }, true) = (graph.value(value), in_arena) {
            let first = groups.of_node[node];
            let bytes = arena_bytes(graph, value);
            of_value.set(value, Some(Lifetime { first, last: first, bytes }));
        }
    }
    let mut extend = |value: ValueId, group: u32| {
        if let Some(lifetime) = of_value[value] {
            let last = lifetime.last.max(group);
            of_value.set(value, Some(Lifetime { last, ..lifetime }));
        }
    };
    for node in graph.nodes() {
        node.operands.iter().for_each(|&operand| extend(operand, groups.of_node[node.id]));
    }
    graph.outputs().iter().for_each(|&output| extend(output, groups.count.saturating_sub(1)));
    let lifetimes = Lifetimes { groups, of_value };
    let all = lifetimes.of_value.values().flatten();
    let (values, bytes) = all.fold((0, 0), |(n, sum), l| (n + 1, sum + l.bytes));
    let report = PassReport::new("compute_lifetimes", window_name(graph))
        .count("values_count", values)
        .count("values_bytes", bytes)
        .count("peak_bytes", lifetimes.peak().0)
        .count("groups_count", lifetimes.groups.count.into());
    (lifetimes, report)
}

/// Bytes of a value in the arena: those of its type, or of the list that a dispatch kernel writes.
fn arena_bytes(graph: &Graph, value: ValueId) -> u64 {
    let ty = graph.ty(value);
    let dispatch = graph.producer(value).and_then(|node| match *node.op {
        Op::ExpertDispatch { experts } => Some((u32::from(experts), graph.ty(node.operands[0]))),
        Op::RouteDispatch { .. } if node.results().nth(2) == Some(value) => {
            Some((graph.ty(node.operands[0]).last_dim(), graph.ty(node.result())))
        }
        _ => None,
    });
    match dispatch {
        Some((experts, ids)) => {
            DispatchLayout { experts, top_k: ids.last_dim() }.bytes(ids.dims()[0])
        }
        None => ty.bytes(),
    }
}

/// "verify 4": what a report calls a graph's window.
pub fn window_name(graph: &Graph) -> String {
    format!("{} {}", graph.window.kind.name(), graph.window.rows)
}

/// A value for people: its number and the node that makes it.
pub(crate) fn value_name(graph: &Graph, value: ValueId) -> String {
    match graph.producer(value) {
        Some(node) => format!("{value} {} {}", node.op, node.name),
        None => format!("%{}", value.index()),
    }
}
