//! Values that stay readable behind a window: the choices of routers always, all values on demand.

use strata_graph::{DType, Graph, Node, Op, Rebuild, ValueId};

/// Adds outputs behind the logits. Behind all fusions, so that what is kept changes nothing of what
/// is computed.
pub fn mark_outputs(graph: &Graph, keep_values: bool) -> Graph {
    let mut next = Rebuild::of(graph, "outputs");
    for node in graph.nodes() {
        next.keep(node);
    }
    for node in graph.nodes() {
        for value in kept(graph, &node, keep_values) {
            next.output(value);
        }
    }
    next.finish().0
}

/// The results of `node` that stay.
fn kept(graph: &Graph, node: &Node<'_>, keep_values: bool) -> Vec<ValueId> {
    let is_list = matches!(node.op, Op::ExpertDispatch { .. });
    match node.op {
        Op::Route { .. } | Op::RouteDispatch { .. } => {
            let ids = node.result();
            if graph.outputs().contains(&ids) { vec![] } else { vec![ids] }
        }
        _ if keep_values && !is_list => {
            let plain = |v: &ValueId| {
                matches!(graph.ty(*v).dtype, DType::F32 | DType::U32)
                    && !graph.outputs().contains(v)
            };
            node.results().filter(plain).collect()
        }
        _ => Vec::new(),
    }
}
