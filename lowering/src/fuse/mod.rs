//! Fusions, one pattern a file. Each finds its matches with a pure function and leaves the copying
//! to [`Fusions`].

mod act_mul;
mod attention_prologue;
mod attention_quantize;
mod expert_quantize;
mod expert_sum;
mod gate_up;
mod gated_quantize;
mod hc_write_norm;
mod norm_add;
mod norm_both;
mod norm_quantize;
mod projections;
mod residual_add;
mod route_dispatch;
mod row_quantize;

use std::collections::{BTreeMap, BTreeSet};

use strata_graph::{Graph, Node, NodeId, Op, Rebuild, Rebuilt, Table, ValueId};

pub use act_mul::fuse_act_mul;
pub use attention_prologue::fuse_attention_prologue;
pub use attention_quantize::fuse_attention_quantize;
pub use expert_quantize::fuse_expert_quantize;
pub use expert_sum::fuse_expert_sum;
pub use gate_up::fuse_gate_up;
pub use gated_quantize::fuse_gated_quantize;
pub use hc_write_norm::fuse_hc_write_norm;
pub use norm_add::fuse_norm_add;
pub use norm_both::fuse_norm_both;
pub use norm_quantize::fuse_norm_quantize;
pub use projections::fuse_projections;
pub use residual_add::fuse_residual_add;
pub use route_dispatch::fuse_route_dispatch;
pub use row_quantize::fuse_row_quantize;

/// One match: `op` over `operands` stands in the place of the node it was found at.
struct Fusion {
    op: Op,
    operands: Vec<ValueId>,
    /// The old nodes whose results the results of `op` are, in order.
    results: Vec<NodeId>,
    /// Nodes that are not copied.
    dropped: Vec<NodeId>,
}

/// A graph under a matcher: values know how often they are read.
struct Uses<'g> {
    graph: &'g Graph,
    counts: Table<ValueId, u32>,
}

impl<'g> Uses<'g> {
    fn of(graph: &'g Graph) -> Self {
        Self { graph, counts: graph.use_counts() }
    }

    /// The node that makes `value`, if one node reads it and nothing else does.
    fn sole_producer(&self, value: ValueId) -> Option<Node<'g>> {
        (self.counts[value] == 1).then(|| self.graph.producer(value)).flatten()
    }

    fn readers(&self, value: ValueId) -> impl Iterator<Item = Node<'g>> {
        self.graph.nodes().filter(move |node| node.operands.contains(&value))
    }
}

/// Rewrites `graph` at every node where `find` has a match.
///
/// A match may stand later than the nodes that it replaces, so `find` must only drop values whose
/// readers are replaced with them or stand behind the match.
fn fuse(
    graph: &Graph,
    stage: &str,
    find: impl Fn(&Uses<'_>, Node<'_>) -> Option<Fusion>,
) -> (Graph, Rebuilt) {
    let uses = Uses::of(graph);
    let mut fusions: BTreeMap<NodeId, Fusion> = BTreeMap::new();
    let mut dropped: BTreeSet<NodeId> = BTreeSet::new();
    for node in graph.nodes() {
        let Some(fusion) = find(&uses, node) else { continue };
        if fusion.dropped.iter().any(|id| dropped.contains(id)) {
            continue;
        }
        dropped.extend(&fusion.dropped);
        fusions.insert(node.id, fusion);
    }
    let mut next = Rebuild::of(graph, stage);
    for node in graph.nodes() {
        match fusions.get(&node.id) {
            Some(fusion) => {
                let operands: Vec<_> = fusion.operands.iter().map(|&v| next.mapped(v)).collect();
                let results = next.insert(node, fusion.op, &operands);
                let mut results = &results[..];
                for &old in &fusion.results {
                    let old = graph.node(old);
                    let (own, others) = results.split_at(old.results().count());
                    next.bind(old, own);
                    results = others;
                }
                next.count_replaced();
            }
            None if dropped.contains(&node.id) => {}
            None => next.keep(node),
        }
    }
    next.finish()
}
