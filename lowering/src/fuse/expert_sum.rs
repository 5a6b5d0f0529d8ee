use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};
use crate::select_kernels::FEW_ROWS;

/// Rows of the down projection that one unit of the kernel makes.
const GROUP_ROWS: u64 = strata_kernels::formats::GROUP_ROWS as u64;
/// Weights that a core keeps near while it goes over a unit's pairs.
const NEAR_BYTES: u64 = 512 << 10;

/// The second half of the experts sums up what it makes.
///
/// ```text
/// o = expert_down(h, d, down)    y = expert_combine(o, w, r)    ; d = expert_dispatch(ids)
/// ; becomes
/// y = expert_sum(h, ids, w, down, r)
/// ```
///
/// Rows that share an expert read its weights once each, so that all that a unit reads must stay
/// near, unless there is one row. The order of the sum, and with it the bits, are the same.
pub fn fuse_expert_sum(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "experts + sum", find)
}

fn find(uses: &Uses<'_>, combine: Node<'_>) -> Option<Fusion> {
    let Op::ExpertCombine { residual } = *combine.op else { return None };
    let each = uses.sole_producer(combine.operands[0])?;
    let Op::ExpertDown {} = each.op else { return None };
    let [x, dispatch, down] = *each.operands else { return None };
    let dispatch = uses.graph.producer(dispatch)?;
    let Op::ExpertDispatch { .. } = dispatch.op else { return None };
    let ids = dispatch.operands[0];
    let route = uses.graph.producer(ids)?;
    let (rows, pairs) = (uses.graph.ty(ids).dims()[0], uses.graph.ty(ids).elements());
    let near = pairs * GROUP_ROWS * uses.graph.ty(down).row_bytes() <= NEAR_BYTES;
    let fits = matches!(route.op, Op::Route { .. }) && (rows == 1 || rows <= FEW_ROWS && near);
    fits.then(|| {
        let mut operands = vec![x, ids, combine.operands[1], down];
        operands.extend(&combine.operands[2..]);
        Fusion {
            op: Op::ExpertSum { residual },
            operands,
            results: vec![combine.id],
            dropped: vec![each.id],
        }
    })
}
