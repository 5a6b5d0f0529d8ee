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

    /// Tokens that the sequence holds; those that are not committed do not count.
    ///
    /// # Errors
    /// [`ReplayError::SlotGone`] if it was released; so in all calls that name a sequence.
    pub fn position(&self, sequence: SlotId) -> Result<u32, ReplayError> {
        self.sequences.position(sequence)
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

    /// Appends `rows` to their sequences, in order, in the smallest window that holds them, and
    /// commits all of them.
    ///
    /// # Errors
    /// A sequence was released, has rows to commit or its context is full, there are too few pages, no window is large
    /// enough, or a token is not of the vocabulary. A page that several sequences of `rows` share
    /// and write to counts once for each of them, though the last could keep it.
    pub fn run(&mut self, rows: &[Row]) -> Result<Output<'_>, ReplayError> {
        let window = self.window_for(rows)?;
        self.run_in(window, rows, false)?;
        self.sequences.commit_all();
        Ok(self.output(window, rows))
    }

    /// As [`Engine::run`], but the sequences of `rows` stay at their positions and take no other
    /// call than [`Engine::commit`] and [`Engine::release`], until it is known which of the rows
    /// are accepted. Other sequences can be run meanwhile.
    ///
    /// # Errors
    /// As [`Engine::run`]; [`ReplayError::CommitState`] if the model has a recurrent state or a
    /// tail, of which no part can be committed yet.
    pub fn run_uncommitted(&mut self, rows: &[Row]) -> Result<Output<'_>, ReplayError> {
        if let Some(state) = self.states.not_truncatable() {
            return Err(ReplayError::CommitState { state: self.plan.name(state).to_owned() });
        }
        let window = self.window_for(rows)?;
        self.run_in(window, rows, false)?;
        self.sequences.wait_for_commit();
        Ok(self.output(window, rows))
    }

    /// Keeps the first `accepted` rows of `sequence` in its last window, which was run by
    /// [`Engine::run_uncommitted`]; the others are as if they had never been run.
    ///
    /// # Errors
    /// [`ReplayError::Commit`] if there are fewer rows to commit.
    pub fn commit(&mut self, sequence: SlotId, accepted: u32) -> Result<(), ReplayError> {
        self.sequences.commit(sequence, accepted)
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
        self.run_in(window, rows, false)?;
        self.sequences.commit_all();
        Ok(self.output(window, rows))
    }

    /// As [`Engine::run`], measuring each command. Slower by two looks at the clock a command.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_timed(&mut self, rows: &[Row]) -> Result<Timed<'_>, ReplayError> {
        let window = self.window_for(rows)?;
        self.run_in(window, rows, true)?;
        self.sequences.commit_all();
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
        // Taken out, so that the engine can be run on it.
        let mut rows = std::mem::take(&mut self.rows);
        let ran = self.prefill_in(&mut rows, sequence, tokens, chunk);
        self.rows = rows;
        Ok(self.output(ran?, &self.rows))
    }

    /// Leaves the rows of the last window in `rows`.
    fn prefill_in(
        &mut self,
        rows: &mut Vec<Row>,
        sequence: SlotId,
        tokens: &[u32],
        chunk: Option<usize>,
    ) -> Result<Window, ReplayError> {
        let largest = self.windows.iter().map(|window| window.rows).max().unwrap_or(1);
        let chunk = chunk.unwrap_or(largest).clamp(1, largest);
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
                self.run(rows)?;
            }
        }
        let window = self.window_for(rows)?;
        self.run_in(window, rows, false)?;
        self.sequences.commit_all();
        Ok(window)
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

    /// Runs `rows` in `window` and leaves it to the caller to commit them.
    fn run_in(&mut self, window: Window, rows: &[Row], timed: bool) -> Result<(), ReplayError> {
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
        Ok(())
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

    /// What `rows`, the last ones that were run, computed in `window`.
    fn output(&self, window: Window, rows: &[Row]) -> Output<'_> {
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
