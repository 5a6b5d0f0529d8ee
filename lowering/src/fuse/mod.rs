//! Fusions, one pattern a file. Each finds its matches with a pure function and leaves the copying
//! to [`Fusions`].

mod act_mul;
mod attention_prologue;
mod attention_quantize;
mod expert_quantize;
mod gate_up;
mod gated_quantize;
mod norm_add;
mod norm_quantize;
mod residual_add;

use std::collections::{BTreeMap, BTreeSet};

use strata_graph::{Graph, Node, NodeId, Op, Rebuild, Rebuilt, Table, ValueId};

pub use act_mul::fuse_act_mul;
pub use attention_prologue::fuse_attention_prologue;
pub use attention_quantize::fuse_attention_quantize;
pub use expert_quantize::fuse_expert_quantize;
pub use gate_up::fuse_gate_up;
pub use gated_quantize::fuse_gated_quantize;
pub use norm_add::fuse_norm_add;
pub use norm_quantize::fuse_norm_quantize;
pub use residual_add::fuse_residual_add;

/// One match: `op` over `operands` stands in the place of the node it was found at.
struct Fusion {
    op: Op,
    operands: Vec<ValueId>,
    /// The old nodes, of one result each, whose results the results of `op` are, in order.
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
                for (&old, &new) in fusion.results.iter().zip(&results) {
                    next.bind(graph.node(old), &[new]);
                }
                next.count_replaced();
            }
            None if dropped.contains(&node.id) => {}
            None => next.keep(node),
        }
    }
    next.finish()
}
