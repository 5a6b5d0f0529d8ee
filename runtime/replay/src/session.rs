//! A plan in use: sequences, and windows of rows that are run.

use strata_plan::Plan;
use strata_plan::layout::{Model, NONE, schedule};

use crate::bind::Spaces;
use crate::error::ReplayError;
use crate::host::{Code, HugeMemory, Pool};
use crate::sequences::{Row, Sequences, SlotId};
use crate::state::States;
use crate::step::StepLayout;

/// A plan whose weights are loaded. From then on nothing here allocates.
///
/// Calls that fail leave it as it was.
#[derive(Debug)]
pub struct Engine {
    // Threads stop first, memory goes last.
    pub(crate) pool: Pool,
    pub(crate) code: Code,
    /// Addresses of all operands, as in ARGS.
    pub(crate) args: Box<[u64]>,
    pub(crate) spaces: Spaces,
    /// Smallest first.
    pub(crate) windows: Box<[Window]>,
    /// Row of SCHEDULES that commits pending rows.
    pub(crate) commit: Option<usize>,
    /// What [`Engine::outputs`](crate::Engine::outputs) are of.
    pub(crate) last: Option<Ran>,
    pub(crate) sequences: Sequences,
    pub(crate) states: States,
    /// Bytes of snapshots that do not lie on pages.
    pub(crate) saved: HugeMemory,
    pub(crate) step: StepLayout,
    pub(crate) positions: Box<[u32]>,
    /// Of a window of [`Engine::prefill`]; has room for the largest window.
    pub(crate) rows: Vec<Row>,
    pub(crate) nanoseconds: Box<[u64]>,
    pub(crate) target: usize,
    pub(crate) poison_arena: bool,
    pub(crate) last_window_ns: u64,
    pub(crate) plan: Plan,
}

/// A schedule that rows can be run in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Row of SCHEDULES.
    pub schedule: usize,
    pub kind: u32,
    pub rows: usize,
    pub logit_rows: usize,
}

impl Window {
    /// Whether sequences can be appended to in it.
    pub fn appends(&self) -> bool {
        matches!(self.kind, schedule::PREFILL | schedule::VERIFY)
    }
}

/// A window that was run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    /// Row of SCHEDULES.
    pub schedule: usize,
    /// Live rows.
    pub rows: usize,
}

/// What a window computed.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    pub(crate) logits: &'a [f32],
    pub(crate) vocab: usize,
}

impl<'a> Output<'a> {
    /// Rows with logits.
    pub fn count(&self) -> usize {
        self.logits.len() / self.vocab
    }

    /// Logits, one for each token of the vocabulary, of the `index`-th row that asked for them.
    ///
    /// # Panics
    /// If fewer rows asked.
    pub fn logits(&self, index: usize) -> &'a [f32] {
        &self.logits[index * self.vocab..(index + 1) * self.vocab]
    }
}

/// How long the commands of a window took on the first part.
#[derive(Clone, Copy, Debug)]
pub struct Timed<'a> {
    /// Row of SCHEDULES that was run.
    pub schedule: usize,
    /// One for each command of the schedule, commits not among them. What other parts took longer stands at the barriers.
    pub nanoseconds: &'a [u64],
}

impl Engine {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn model(&self) -> &Model {
        self.plan.model()
    }

    /// Threads that compute.
    pub fn threads(&self) -> u32 {
        self.pool.parts()
    }

    /// Name of the code variant that is run.
    pub fn target(&self) -> &str {
        self.plan.name(self.plan.targets()[self.target].name)
    }

    /// Duration of the last window's commands, and of those that committed its rows.
    pub fn last_window_ns(&self) -> u64 {
        self.last_window_ns
    }

    /// Pages that no sequence or snapshot holds.
    pub fn free_pages(&self) -> u32 {
        self.sequences.free_pages()
    }

    /// Whether `rows` more rows of the sequence find pages, if nobody takes them before.
    pub(crate) fn has_pages(&self, sequence: SlotId, rows: usize) -> bool {
        self.sequences.has_pages(sequence, rows)
    }

    /// Starts an empty sequence.
    ///
    /// # Errors
    /// [`ReplayError::NoSlot`] if all are in use.
    pub fn new_sequence(&mut self) -> Result<SlotId, ReplayError> {
        let id = self.sequences.start()?;
        self.states.clear(self.spaces.states.bytes_mut(), id.slot);
        Ok(id)
    }

    /// Ends a sequence; its pages are free again unless somebody else holds them.
    pub fn release(&mut self, sequence: SlotId) {
        self.sequences.release(sequence);
    }

    /// Tokens that the sequence holds; those that are not committed do not count.
    ///
    /// # Errors
    /// [`ReplayError::SlotGone`] if it was released; so in all calls that name a sequence.
    pub fn position(&self, sequence: SlotId) -> Result<u32, ReplayError> {
        self.sequences.position(sequence)
    }

    /// The tokens that the sequence holds; those that are not committed do not count.
    ///
    /// # Errors
    /// As [`Engine::position`].
    pub fn tokens(&self, sequence: SlotId) -> Result<&[u32], ReplayError> {
        self.sequences.tokens(sequence)
    }

    /// Whether sequences can be truncated to any position; if not, only to none.
    pub fn can_truncate(&self) -> bool {
        self.states.not_truncatable().is_none()
    }

    /// Makes the sequence forget all tokens from `position` on.
    ///
    /// # Errors
    /// It holds fewer tokens or has rows to commit, or the model has a state that can only go back
    /// to its beginning.
    pub fn truncate(&mut self, sequence: SlotId, position: u32) -> Result<(), ReplayError> {
        self.sequences.check_committed(sequence)?;
        let found = self.sequences.position(sequence)?;
        if let Some(state) = self.states.not_truncatable()
            && (1..found).contains(&position)
        {
            let state = self.plan.name(state).to_owned();
            return Err(ReplayError::TruncateState { state, position: found, asked: position });
        }
        self.sequences.truncate(sequence, position)?;
        if position == 0 {
            self.states.clear(self.spaces.states.bytes_mut(), sequence.slot);
        }
        Ok(())
    }

    /// Keeps what the sequence holds now as snapshot `index`. Pages are shared, not copied.
    ///
    /// # Errors
    /// The engine was opened with fewer snapshots, or the sequence has rows to commit.
    pub fn snapshot(&mut self, sequence: SlotId, index: u32) -> Result<(), ReplayError> {
        self.sequences.snapshot(sequence, index)?;
        let place = self.saved_range(index);
        let saved = &mut self.saved.bytes_mut()[place];
        self.states.snapshot(self.spaces.states.bytes(), sequence.slot, saved);
        Ok(())
    }

    /// Makes the sequence hold what snapshot `index` does, whichever sequence that was taken of.
    ///
    /// # Errors
    /// The snapshot is empty, the engine was opened with fewer, or the sequence has rows to commit.
    pub fn restore(&mut self, sequence: SlotId, index: u32) -> Result<(), ReplayError> {
        self.sequences.restore(sequence, index)?;
        let saved = &self.saved.bytes()[self.saved_range(index)];
        self.states.restore(self.spaces.states.bytes_mut(), sequence.slot, saved);
        Ok(())
    }

    /// Lets go of the pages that snapshot `index` holds.
    ///
    /// # Errors
    /// The engine was opened with fewer snapshots.
    pub fn drop_snapshot(&mut self, index: u32) -> Result<(), ReplayError> {
        self.sequences.drop_snapshot(index)
    }

    fn saved_range(&self, index: u32) -> std::ops::Range<usize> {
        let bytes = self.states.snapshot_bytes();
        index as usize * bytes..(index as usize + 1) * bytes
    }

    /// What `rows`, the last ones that were run, computed in `window`.
    pub(crate) fn output(&self, window: Window, rows: &[Row]) -> Output<'_> {
        let logit_rows = rows.iter().filter(|row| row.logits).count();
        let vocab = self.model().vocab as usize;
        let logits = self.plan.schedules()[window.schedule].logits;
        if logits == NONE || logit_rows == 0 {
            return Output { logits: &[], vocab };
        }
        let offset = self.plan.args()[logits as usize].offset;
        let start = usize::try_from(offset).expect("inside the arena");
        let bytes = &self.spaces.arena.bytes()[start..start + logit_rows * vocab * 4];
        Output { logits: bytemuck::cast_slice(bytes), vocab }
    }
}
