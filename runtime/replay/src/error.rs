//! Why an engine did not open, or did not run a window.

use std::fmt;
use std::io;
use std::path::PathBuf;

use strata_plan::PlanError;

use crate::pack::PackFault;
use crate::save::StateFault;

/// Why an engine did not open, or refused a call. After a refused call it is as it was before, and
/// can be used on.
#[derive(Debug)]
pub enum ReplayError {
    Plan(PlanError),
    /// A file that the plan names.
    File {
        path: PathBuf,
        error: io::Error,
    },
    /// The packed file, which is made where the plan lies.
    Pack {
        path: PathBuf,
        fault: PackFault,
    },
    /// Something the operating system refused.
    System {
        doing: &'static str,
        error: io::Error,
    },
    /// No variant of the plan's code runs here: the features that each one lacks.
    NoTarget {
        lacking: Vec<(String, Vec<&'static str>)>,
    },
    Memory(MemoryNeeds),
    NoSlot {
        slots: u32,
    },
    /// The sequence was released, or is another engine's.
    SlotGone {
        slot: u32,
    },
    NoRows,
    Token {
        row: usize,
        token: u32,
        vocab: u32,
    },
    /// Rows, or rows with logits, that no window of the plan holds.
    Window {
        rows: usize,
        logit_rows: usize,
        max_rows: u32,
        max_logit_rows: u32,
    },
    Context {
        slot: u32,
        position: u32,
        rows: u32,
        context_tokens: u32,
    },
    NoPage {
        needed: u32,
        free: u32,
        pages: u32,
    },
    Truncate {
        position: u32,
        asked: u32,
    },
    /// A state that cannot go back to an earlier position by itself.
    TruncateState {
        state: String,
        position: u32,
        asked: u32,
    },
    /// Rows of the sequence's last window have yet to be committed.
    Uncommitted {
        slot: u32,
        rows: u32,
    },
    /// More rows than the sequence has to commit.
    Commit {
        slot: u32,
        rows: u32,
        accepted: u32,
    },
    /// Rows of a sequence do not stand together.
    Segment {
        row: usize,
        slot: u32,
    },
    /// More rows than can be rejected.
    VerifyWindow {
        rows: usize,
        logit_rows: usize,
        verify_rows: u32,
    },
    /// The model has no draft head.
    NoDraft,
    /// More sequences than can be drafted at once.
    DraftWindow {
        rows: usize,
        draft_rows: u32,
    },
    /// Drafting the sequence has not begun, or it has more than a row.
    DraftRow {
        slot: u32,
        rows: u32,
    },
    /// A file of a sequence that is not of this plan, or damaged.
    StateFile {
        path: PathBuf,
        fault: StateFault,
    },
    SnapshotIndex {
        index: u32,
        snapshots: u32,
    },
    SnapshotEmpty {
        index: u32,
    },
}

/// What a plan takes of this machine's memory, and what there is. Weights that are read in place
/// from their file are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeeds {
    pub weights_bytes: u64,
    pub states_bytes: u64,
    pub arena_bytes: u64,
    pub snapshots_bytes: u64,
    pub other_bytes: u64,
    pub available_bytes: u64,
}

impl MemoryNeeds {
    pub fn total_bytes(&self) -> u64 {
        let parts = [self.states_bytes, self.arena_bytes, self.snapshots_bytes, self.other_bytes];
        parts.iter().fold(self.weights_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl fmt::Display for MemoryNeeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let total = self.total_bytes();
        write!(
            f,
            "the plan takes {} MiB of memory (weights {}, states {}, arena {}, snapshots {}, other \
             {}) and {} MiB are available: {} MiB too few; free memory, or compile with a shorter \
             context, fewer slots or a budget_mib that leaves weights in files",
            mib(total),
            mib(self.weights_bytes),
            mib(self.states_bytes),
            mib(self.arena_bytes),
            mib(self.snapshots_bytes),
            mib(self.other_bytes),
            self.available_bytes >> 20,
            mib(total.saturating_sub(self.available_bytes))
        )
    }
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => write!(f, "{error}"),
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::StateFile { path, fault } => write!(f, "{}: {fault}", path.display()),
            Self::Pack { path, fault } => write!(f, "packed file {}: {fault}", path.display()),
            Self::System { doing, error } => write!(f, "{doing}: {error}"),
            Self::NoTarget { lacking } => {
                write!(f, "no code in the plan runs on this CPU")?;
                for (target, features) in lacking {
                    write!(f, "; {target} needs {}", features.join(", "))?;
                }
                write!(f, "; compile for a target that this CPU has")
            }
            Self::Memory(needs) => write!(f, "{needs}"),
            Self::NoSlot { slots } => write!(
                f,
                "all {slots} sequences of the plan are in use: release one, or compile with more \
                 slots"
            ),
            Self::SlotGone { slot } => {
                write!(f, "the sequence in slot {slot} was released: start a new one")
            }
            _ => self.call(f),
        }
    }
}

impl ReplayError {
    fn call(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRows => write!(f, "a window needs at least one row"),
            Self::Token { row, token, vocab } => write!(
                f,
                "row {row} has token {token}, the vocabulary ends before {vocab}: is the text \
                 tokenized for another model?"
            ),
            Self::Window { rows, logit_rows, max_rows, max_logit_rows } => write!(
                f,
                "no window of the plan holds {rows} rows with {logit_rows} rows of logits; the \
                 largest ones have {max_rows} rows and {max_logit_rows} rows of logits: split them"
            ),
            Self::Context { slot, position, rows, context_tokens } => write!(
                f,
                "the context is full: slot {slot} stands at position {position}, {rows} more do \
                 not fit into {context_tokens}; truncate it, or compile with a longer context"
            ),
            Self::NoPage { needed, free, pages } => write!(
                f,
                "{needed} more pages are needed, {free} of {pages} are free: release a sequence or \
                 a snapshot"
            ),
            Self::Truncate { position, asked } => {
                write!(f, "cannot truncate to {asked}, the sequence stands at {position}")
            }
            Self::TruncateState { state, position, asked } => write!(
                f,
                "state {state} cannot go back from position {position} to {asked}: restore a \
                 snapshot, or truncate to 0"
            ),
            Self::Uncommitted { slot, rows } => write!(
                f,
                "{rows} rows of the sequence in slot {slot} are not committed: commit those that \
                 are accepted, or 0"
            ),
            Self::Commit { slot, rows, accepted } => write!(
                f,
                "cannot commit {accepted} rows of the sequence in slot {slot}, its last window has \
                 {rows} that are not committed"
            ),
            Self::Segment { row, slot } => write!(
                f,
                "row {row} is of the sequence in slot {slot}, whose other rows stand before \
                 another sequence's: put the rows of a sequence together"
            ),
            Self::SnapshotIndex { index, snapshots } => {
                write!(f, "there is no snapshot {index}, the engine was opened with {snapshots}")
            }
            Self::SnapshotEmpty { index } => {
                write!(f, "snapshot {index} is empty: take it before it is restored")
            }
            _ => self.speculation(f),
        }
    }

    fn speculation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VerifyWindow { rows, logit_rows, verify_rows } => write!(
                f,
                "{rows} rows with {logit_rows} rows of logits are too many to be rejected later, \
                 the largest VERIFY window has {verify_rows} rows: run fewer at once"
            ),
            Self::NoDraft => write!(
                f,
                "the plan has no draft head: draft by prompt lookup, or compile a model that has one"
            ),
            Self::DraftWindow { rows, draft_rows } => write!(
                f,
                "{rows} sequences cannot be drafted at once, the largest DRAFT window has \
                 {draft_rows} rows: draft fewer at once, at least one"
            ),
            Self::DraftRow { slot, rows: 0 } => write!(
                f,
                "drafting the sequence in slot {slot} has not begun: call draft_begin after each \
                 window of it"
            ),
            Self::DraftRow { slot, .. } => write!(
                f,
                "the sequence in slot {slot} stands in a draft twice: one row a sequence at a time"
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ReplayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Plan(error) => Some(error),
            Self::File { error, .. }
            | Self::System { error, .. }
            | Self::Pack { fault: PackFault::Io { error, .. }, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<PlanError> for ReplayError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}
