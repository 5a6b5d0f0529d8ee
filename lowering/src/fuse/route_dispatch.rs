use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};
use crate::select_kernels::FEW_ROWS;

/// Routing of few rows, and their list by expert, in one launch.
///
/// ```text
/// ids, w = route(logits)    d = expert_dispatch(ids)
/// ; becomes
/// ids, w, d = route_dispatch(logits)
/// ```
///
/// One thread does it, which for many rows would take longer than a second launch.
pub fn fuse_route_dispatch(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "route + dispatch", find)
}

fn find(uses: &Uses<'_>, route: Node<'_>) -> Option<Fusion> {
    let Op::Route { top_k, norm } = *route.op else { return None };
    let logits = uses.graph.ty(route.operands[0]);
    let dispatch = uses.readers(route.result()).find(|reader| match *reader.op {
        Op::ExpertDispatch { experts } => u32::from(experts) == logits.last_dim(),
        _ => false,
    })?;
    (logits.dims()[0] <= FEW_ROWS).then(|| Fusion {
        op: Op::RouteDispatch { top_k, norm },
        operands: route.operands.to_vec(),
        results: vec![route.id, dispatch.id],
        dropped: vec![dispatch.id],
    })
}
