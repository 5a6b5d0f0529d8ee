//! The schedule that makes the accepted rows of verify windows permanent: one launch for each state
//! that has a value a slot. It is the same for all windows.

use strata_graph::{Graph, Op, StateId, StateKind};
use strata_kernels::KernelSpec;
use strata_kernels::spec::{DeltaCommit, TailCommit};

use crate::emit_schedule::{Places, place_of};
use crate::report::PassReport;
use crate::select_kernels::Operand;
use crate::states::{StateForm, find_op_of};
use strata_plan::layout::Arg;

/// One launch of the schedule.
#[derive(Clone, Debug)]
pub struct Commit {
    pub state: StateId,
    pub spec: KernelSpec,
    pub args: Vec<Arg>,
}

/// The launches, which share nothing and need no barrier, for the states of `graphs`.
pub fn emit_commit(graphs: &[Graph], places: Places<'_>) -> (Vec<Commit>, PassReport) {
    let mut commits = Vec::new();
    for state in graphs[0].states().keys() {
        let Some(spec) = spec_of(graphs, state, places) else { continue };
        let operands =
            [Operand::Step, Operand::CommitSlots, Operand::CommitRows, Operand::State(state)];
        let args = operands.iter().map(|&operand| place_of(operand, places)).collect();
        commits.push(Commit { state, spec, args });
    }
    let bytes = |commit: &Commit| match places.states.of_state[commit.state].form {
        StateForm::Slots { value_bytes, .. } => 2 * value_bytes,
        StateForm::Pages(_) => 0,
    };
    let report = PassReport::new("emit_schedule", "commit")
        .count("launches_count", commits.len() as u64)
        .count("sequence_bytes", commits.iter().map(bytes).sum());
    (commits, report)
}

/// What commits `state`; `None` if it has no pending rows.
fn spec_of(graphs: &[Graph], state: StateId, places: Places<'_>) -> Option<KernelSpec> {
    let StateForm::Slots { layout, .. } = places.states.of_state[state].form else { return None };
    if layout.pending_stride_bytes == 0 {
        return None;
    }
    let def = &graphs[0].states()[state];
    match def.kind {
        StateKind::Append => None,
        StateKind::Tail(rows) => {
            let row_bytes =
                u32::try_from(def.row.bytes()).expect("a row has fewer than 2^32 bytes");
            Some(KernelSpec::TailCommit(TailCommit { rows, row_bytes, layout }))
        }
        StateKind::Recurrent => find_op_of(graphs, state, |op| match *op {
            Op::GatedDelta { key_heads, value_heads, head_dim, tiled, .. } => {
                Some(KernelSpec::DeltaCommit(DeltaCommit {
                    key_heads: key_heads.into(),
                    value_heads: value_heads.into(),
                    head_dim: head_dim.into(),
                    tiled,
                    layout,
                }))
            }
            _ => None,
        }),
    }
}
