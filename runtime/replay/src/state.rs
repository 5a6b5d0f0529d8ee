//! States of sequences, typed by how they change. The operations are the same for every model.
//!
//! | kind | begin | commit | snapshot, restore |
//! |---|---|---|---|
//! | append | copies shared pages that rows are written to | the position moves on by the accepted rows, pages of the others are freed | pages are shared |
//! | recurrent | nothing | all rows only | bytes of the slot are copied |
//! | tail | nothing | all rows only | bytes of the slot are copied |
//!
//! A window writes recurrent states and tails in place: what it applied cannot be taken back, and
//! an engine with such a state refuses [`run_uncommitted`](crate::Engine::run_uncommitted). To leave
//! out rows, these kinds need schedules of kind COMMIT, which no compiler writes yet.
//!
//! Positions and pages are the business of [`crate::sequences`]; this file moves bytes.

use std::ops::Range;

use strata_plan::Plan;
use strata_plan::layout::{State, state};

use crate::sequences::PageCopy;

/// How a state changes with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateKind {
    /// Rows are appended on pages; goes back to any position.
    Append,
    /// One value a sequence, rewritten by each window.
    Recurrent,
    /// The last rows of a sequence.
    Tail { rows: u32 },
}

#[derive(Clone, Debug)]
struct TypedState {
    kind: StateKind,
    name: u32,
    offset: usize,
    stride_bytes: usize,
}

impl TypedState {
    fn new(row: &State) -> Self {
        let narrow = |bytes| usize::try_from(bytes).expect("inside a space that is mapped");
        let kind = match row.kind {
            state::APPEND => StateKind::Append,
            state::RECURRENT => StateKind::Recurrent,
            _ => StateKind::Tail { rows: row.tail_rows },
        };
        let (offset, stride_bytes) = (narrow(row.offset), narrow(row.stride_bytes));
        Self { kind, name: row.name, offset, stride_bytes }
    }

    /// Bytes of page or slot `index`.
    fn place(&self, index: u32) -> Range<usize> {
        let start = self.offset + index as usize * self.stride_bytes;
        start..start + self.stride_bytes
    }
}

/// All states of a plan. `memory` is the STATES space in all calls.
#[derive(Debug)]
pub(crate) struct States {
    append: Box<[TypedState]>,
    /// Recurrent ones and tails.
    fixed: Box<[TypedState]>,
}

impl States {
    pub fn new(plan: &Plan) -> Self {
        let all = || plan.states().iter().map(TypedState::new);
        let append = |state: &TypedState| state.kind == StateKind::Append;
        Self {
            append: all().filter(append).collect(),
            fixed: all().filter(|state| !append(state)).collect(),
        }
    }

    /// Bytes of a snapshot beyond its pages.
    pub fn snapshot_bytes(&self) -> usize {
        self.fixed.iter().map(|state| state.stride_bytes).sum()
    }

    /// Name of a state that cannot be truncated, if there is one.
    pub fn not_truncatable(&self) -> Option<u32> {
        self.fixed.first().map(|state| state.name)
    }

    /// Before a window: gives sequences their own copy of the pages that they share and will write.
    pub fn begin(&self, memory: &mut [u8], copies: &[PageCopy]) {
        for copy in copies {
            for state in &self.append {
                memory.copy_within(state.place(copy.from), state.place(copy.to).start);
            }
        }
    }

    /// A sequence without positions.
    pub fn clear(&self, memory: &mut [u8], slot: u32) {
        for state in &self.fixed {
            memory[state.place(slot)].fill(0);
        }
    }

    /// Copies what does not lie on pages to `saved`, which has [`States::snapshot_bytes`].
    pub fn snapshot(&self, memory: &[u8], slot: u32, saved: &mut [u8]) {
        let mut rest = saved;
        for state in &self.fixed {
            let (place, next) = rest.split_at_mut(state.stride_bytes);
            place.copy_from_slice(&memory[state.place(slot)]);
            rest = next;
        }
    }

    /// Copies back what [`States::snapshot`] saved, to any slot.
    pub fn restore(&self, memory: &mut [u8], slot: u32, saved: &[u8]) {
        let mut rest = saved;
        for state in &self.fixed {
            let (place, next) = rest.split_at(state.stride_bytes);
            memory[state.place(slot)].copy_from_slice(place);
            rest = next;
        }
    }
}
