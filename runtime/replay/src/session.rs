//! A plan in use: sequences, and windows of rows that are run.

use std::time::Instant;

use strata_plan::Plan;
use strata_plan::layout::{Model, NONE};

use crate::bind::Spaces;
use crate::error::ReplayError;
use crate::host::{Code, HugeMemory, Pool};
use crate::replay::{HostQueue, TimedQueue, replay};
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
    pub(crate) windows: Box<[Window]>,
    pub(crate) sequences: Sequences,
    pub(crate) states: States,
    /// Bytes of snapshots that do not lie on pages.
    pub(crate) saved: HugeMemory,
    pub(crate) step: StepLayout,
    pub(crate) positions: Box<[u32]>,
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
    pub rows: usize,
    pub logit_rows: usize,
}

/// What a window computed.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    logits: &'a [f32],
    vocab: usize,
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
    /// One for each command of the schedule. What other parts took longer stands at the barriers.
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

    /// Duration of the last window's commands.
    pub fn last_window_ns(&self) -> u64 {
        self.last_window_ns
    }

    /// Pages that no sequence or snapshot holds.
    pub fn free_pages(&self) -> u32 {
        self.sequences.free_pages()
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

    /// Tokens that the sequence holds.
    ///
    /// # Errors
    /// [`ReplayError::SlotGone`] if it was released; so in all calls that name a sequence.
    pub fn position(&self, sequence: SlotId) -> Result<u32, ReplayError> {
        self.sequences.position(sequence)
    }

    /// Makes the sequence forget all tokens from `position` on.
    ///
    /// # Errors
    /// It holds fewer tokens, or the model has a state that can only go back to its beginning.
    pub fn truncate(&mut self, sequence: SlotId, position: u32) -> Result<(), ReplayError> {
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
    /// The engine was opened with fewer snapshots.
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
    /// The snapshot is empty, or the engine was opened with fewer.
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

    /// Appends `rows` to their sequences, in order, in the smallest window that holds them.
    ///
    /// # Errors
    /// A sequence was released or its context is full, there are too few pages, no window is large
    /// enough, or a token is not of the vocabulary. A page that several sequences of `rows` share
    /// and write to counts once for each of them, though the last could keep it.
    pub fn run(&mut self, rows: &[Row]) -> Result<Output<'_>, ReplayError> {
        let window = self.window_for(rows)?;
        self.run_in(window, rows, false)
    }

    /// As [`Engine::run`], in the window of row `schedule` of SCHEDULES.
    ///
    /// # Errors
    /// As [`Engine::run`]; also if that schedule is not a window or is too small.
    pub fn run_window(&mut self, schedule: usize, rows: &[Row]) -> Result<Output<'_>, ReplayError> {
        let logit_rows = rows.iter().filter(|row| row.logits).count();
        let found = self.windows.iter().find(|window| window.schedule == schedule).copied();
        let fits = |w: &Window| w.rows >= rows.len() && w.logit_rows >= logit_rows;
        let window = found.filter(fits).ok_or_else(|| self.no_window(rows.len(), logit_rows))?;
        self.run_in(window, rows, false)
    }

    /// As [`Engine::run`], measuring each command. Slower by two looks at the clock a command.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_timed(&mut self, rows: &[Row]) -> Result<Timed<'_>, ReplayError> {
        let window = self.window_for(rows)?;
        self.run_in(window, rows, true)?;
        let count = self.plan.schedules()[window.schedule].commands.count as usize;
        Ok(Timed { schedule: window.schedule, nanoseconds: &self.nanoseconds[..count] })
    }

    /// Appends `tokens` in windows of at most `chunk` rows, or the largest there are, and returns
    /// the logits behind the last one.
    ///
    /// # Errors
    /// As [`Engine::run`]. Windows that ran before the error stay.
    pub fn prefill(
        &mut self,
        sequence: SlotId,
        tokens: &[u32],
        chunk: Option<usize>,
    ) -> Result<Output<'_>, ReplayError> {
        let largest = self.windows.iter().map(|window| window.rows).max().unwrap_or(1);
        let chunk = chunk.unwrap_or(largest).clamp(1, largest);
        let mut rows = Vec::with_capacity(chunk.min(tokens.len()));
        let last = tokens.len().saturating_sub(1) / chunk * chunk;
        for start in (0..=last).step_by(chunk) {
            let end = (start + chunk).min(tokens.len());
            rows.clear();
            rows.extend((start..end).map(|index| Row {
                token: tokens[index],
                slot: sequence,
                logits: index + 1 == tokens.len(),
            }));
            if start < last {
                self.run(&rows)?;
            }
        }
        self.run(&rows)
    }

    fn window_for(&self, rows: &[Row]) -> Result<Window, ReplayError> {
        let logit_rows = rows.iter().filter(|row| row.logits).count();
        let fits = |w: &&Window| w.rows >= rows.len() && w.logit_rows >= logit_rows;
        let found = self.windows.iter().find(fits).copied();
        found.ok_or_else(|| self.no_window(rows.len(), logit_rows))
    }

    fn no_window(&self, rows: usize, logit_rows: usize) -> ReplayError {
        let model = self.model();
        let (max_rows, max_logit_rows) = (model.max_rows, model.max_logit_rows);
        ReplayError::Window { rows, logit_rows, max_rows, max_logit_rows }
    }

    fn run_in(
        &mut self,
        window: Window,
        rows: &[Row],
        timed: bool,
    ) -> Result<Output<'_>, ReplayError> {
        self.check_tokens(rows)?;
        let positions = &mut self.positions[..rows.len()];
        let copies = self.sequences.begin(rows, positions)?;
        self.states.begin(self.spaces.states.bytes_mut(), copies);
        self.step.write(self.spaces.step.bytes_mut(), rows, positions, &self.sequences);
        if self.poison_arena {
            self.spaces.arena.bytes_mut().fill(0xff);
        }
        let began = Instant::now();
        self.replay(window, timed);
        self.last_window_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.sequences.commit();
        let logit_rows = rows.iter().filter(|row| row.logits).count();
        Ok(self.output(window, logit_rows))
    }

    fn check_tokens(&self, rows: &[Row]) -> Result<(), ReplayError> {
        if rows.is_empty() {
            return Err(ReplayError::NoRows);
        }
        let vocab = self.model().vocab;
        match rows.iter().position(|row| row.token >= vocab) {
            Some(row) => Err(ReplayError::Token { row, token: rows[row].token, vocab }),
            None => Ok(()),
        }
    }

    /// Runs the commands of a window on all parts.
    fn replay(&mut self, window: Window, timed: bool) {
        let run = self.plan.schedules()[window.schedule].commands;
        let commands = &self.plan.commands()[run.range()];
        let (kernels, args) = (self.code.entries(), &*self.args);
        let nanoseconds = &mut *self.nanoseconds;
        self.pool.run(
            |worker| {
                let mut queue = HostQueue::new(worker, kernels, args);
                if timed {
                    replay(commands, &mut TimedQueue { queue, nanoseconds, next: 0 });
                } else {
                    replay(commands, &mut queue);
                }
            },
            &|worker| replay(commands, &mut HostQueue::new(worker, kernels, args)),
        );
    }

    fn output(&self, window: Window, logit_rows: usize) -> Output<'_> {
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
