//! A better order of nodes: fewer barriers, then a lower peak of memory.

use std::collections::{BTreeMap, BTreeSet};

use strata_graph::{DType, Graph, Id, Node, NodeId, Rebuild, ValueId};

use crate::compute_lifetimes::{compute_lifetimes, window_name, writes_state};
use crate::report::PassReport;

/// Orders nodes greedily: next comes a node that needs no barrier, of these one that reads what the
/// node before read (so that products of one input are neighbours), of these the one that leaves
/// the fewest bytes alive, and of these the one that came first.
///
/// The old order stays if the new one is not better.
pub fn order_nodes(graph: &Graph) -> (Graph, PassReport) {
    let next = rebuilt(graph, &greedy_order(graph));
    let cost = |graph: &Graph| {
        let (lifetimes, _) = compute_lifetimes(graph);
        (lifetimes.groups.count.saturating_sub(1), lifetimes.peak().0)
    };
    let (before, after) = (cost(graph), cost(&next));
    let kept_old = after >= before;
    let report = PassReport::new("order_nodes", window_name(graph))
        .count("barriers_before_count", before.0.into())
        .count("barriers_count", before.0.min(after.0).into())
        .count("peak_before_bytes", before.1)
        .count("peak_bytes", if kept_old { before.1 } else { after.1 });
    if kept_old {
        let old: Vec<NodeId> = graph.nodes().map(|n| n.id).collect();
        return (rebuilt(graph, &old), report);
    }
    (next, report)
}

fn rebuilt(graph: &Graph, order: &[NodeId]) -> Graph {
    let mut next = Rebuild::of(graph, "ordered");
    for &id in order {
        next.keep(graph.node(id));
    }
    next.finish().0
}

/// What is known of the nodes that are not placed yet.
struct Pending<'g> {
    graph: &'g Graph,
    /// Nodes that a node waits for, and how many of them are left.
    waits: Vec<u32>,
    followers: Vec<Vec<NodeId>>,
    readers_left: BTreeMap<ValueId, u32>,
}

impl<'g> Pending<'g> {
    fn of(graph: &'g Graph) -> Self {
        let count = graph.node_count();
        let mut before: Vec<BTreeSet<NodeId>> = vec![BTreeSet::new(); count];
        let mut readers: BTreeMap<ValueId, Vec<NodeId>> = BTreeMap::new();
        for node in graph.nodes() {
            for &operand in node.operands {
                readers.entry(operand).or_default().push(node.id);
                before[node.id.index()].extend(graph.producer(operand).map(|p| p.id));
            }
        }
        // A state is rewritten in place: who reads a version comes before who replaces it.
        for node in graph.nodes().filter(writes_state) {
            let state = node.operands.iter().filter(|&&v| graph.ty(v).dtype == DType::State);
            let others = state.flat_map(|v| &readers[v]).filter(|&&reader| reader != node.id);
            before[node.id.index()].extend(others);
        }
        let mut followers = vec![Vec::new(); count];
        for (node, before) in graph.nodes().zip(&before) {
            before.iter().for_each(|b| followers[b.index()].push(node.id));
        }
        let waits = before.iter().map(|b| b.len() as u32).collect();
        let readers_left = graph.use_counts().iter().map(|(v, &n)| (v, n)).collect();
        Self { graph, waits, followers, readers_left }
    }

    /// Bytes that become alive, less the bytes of values that nobody needs any more.
    fn growth_bytes(&self, node: &Node<'_>) -> i64 {
        let bytes = |v: ValueId| self.graph.ty(v).bytes().min(i64::MAX as u64 / 64) as i64;
        let made: i64 = node.results().map(bytes).sum();
        let distinct: BTreeSet<ValueId> = node.operands.iter().copied().collect();
        let freed = distinct.into_iter().filter(|v| {
            let here = node.operands.iter().filter(|o| *o == v).count() as u32;
            self.graph.producer(*v).is_some() && self.readers_left[v] == here
        });
        made - freed.map(bytes).sum::<i64>()
    }

    /// Marks `node` as placed and returns the nodes that became ready.
    fn place(&mut self, node: &Node<'_>) -> Vec<NodeId> {
        for operand in node.operands {
            if let Some(left) = self.readers_left.get_mut(operand) {
                *left -= 1;
            }
        }
        let followers = std::mem::take(&mut self.followers[node.id.index()]);
        let mut ready = Vec::new();
        for follower in followers {
            let waits = &mut self.waits[follower.index()];
            *waits -= 1;
            if *waits == 0 {
                ready.push(follower);
            }
        }
        ready
    }
}

fn greedy_order(graph: &Graph) -> Vec<NodeId> {
    let mut pending = Pending::of(graph);
    let mut ready: BTreeSet<NodeId> =
        graph.nodes().map(|n| n.id).filter(|id| pending.waits[id.index()] == 0).collect();
    let mut order = Vec::with_capacity(graph.node_count());
    // Nodes that became ready within the group: they need what the group makes.
    let mut behind_barrier: BTreeSet<NodeId> = BTreeSet::new();
    let mut last_input = None;
    while let Some(&id) = ready.iter().min_by_key(|&&id| {
        let node = graph.node(id);
        let barrier = behind_barrier.contains(&id);
        let other_input = node.operands.first().copied() != last_input;
        (barrier, other_input, pending.growth_bytes(&node), id)
    }) {
        if behind_barrier.contains(&id) {
            behind_barrier.clear();
        }
        let node = graph.node(id);
        ready.remove(&id);
        last_input = node.operands.first().copied();
        let freed = pending.place(&node);
        behind_barrier.extend(&freed);
        ready.extend(freed);
        order.push(id);
    }
    order
}
