//! Running windows of rows, and deciding which of the rows stay.

use std::time::Instant;

use strata_plan::layout::schedule;

use crate::error::ReplayError;
use crate::replay::{HostQueue, TimedQueue, replay};
use crate::sequences::{Purpose, Row, SlotId};
use crate::session::{Engine, Output, Ran, Timed, Window};

impl Engine {
    /// Appends `rows` to their sequences, in order, in the smallest window that holds them, and
    /// commits all of them. Rows of a sequence stand together.
    ///
    /// # Errors
    /// A sequence was released, has rows to commit or its context is full, its rows do not stand
    /// together, there are too few pages, no window is large enough, or a token is not of the
    /// vocabulary. A page that several sequences of `rows` share and write to counts once for each
    /// of them, though the last could keep it.
    pub fn run(&mut self, rows: &[Row]) -> Result<Output<'_>, ReplayError> {
        let window = self.window_for(rows)?;
        self.run_all(window, rows, false)?;
        Ok(self.output(window, rows))
    }

    /// As [`Engine::run`], but the sequences of `rows` stay at their positions and take no other
    /// call than [`Engine::commit`] and [`Engine::release`], until it is known which of the rows
    /// are accepted. Other sequences can be run meanwhile.
    ///
    /// # Errors
    /// As [`Engine::run`]; [`ReplayError::VerifyWindow`] if the model has a recurrent state or a
    /// tail, and there are more rows than its largest VERIFY window holds.
    pub fn run_uncommitted(&mut self, rows: &[Row]) -> Result<Output<'_>, ReplayError> {
        let window = if self.states.not_truncatable().is_some() {
            self.verify_window_for(rows)?
        } else {
            self.window_for(rows)?
        };
        self.run_in(window, rows, Purpose::Append, false)?;
        self.sequences.wait_for_commit();
        Ok(self.output(window, rows))
    }

    /// Keeps the first `accepted` rows of `sequence` in its last window, which was run by
    /// [`Engine::run_uncommitted`]; the others are as if they had never been run.
    ///
    /// # Errors
    /// [`ReplayError::Commit`] if there are fewer rows to commit.
    pub fn commit(&mut self, sequence: SlotId, accepted: u32) -> Result<(), ReplayError> {
        self.commit_many(&[(sequence, accepted)])
    }

    /// As [`Engine::commit`], of several sequences at once.
    ///
    /// # Errors
    /// [`ReplayError::Commit`] if one has fewer rows to commit, or stands there twice. Then none is
    /// committed.
    pub fn commit_many(&mut self, commits: &[(SlotId, u32)]) -> Result<(), ReplayError> {
        self.sequences.check_commits(commits)?;
        if let Some(schedule) = self.commit {
            let list = commits.iter().map(|(id, accepted)| (id.slot, *accepted));
            if self.step.write_commits(self.spaces.step.bytes_mut(), list) > 0 {
                self.last_window_ns += self.replay(schedule, false);
            }
        }
        for &(id, accepted) in commits {
            self.sequences.commit(id, accepted);
        }
        Ok(())
    }

    /// As [`Engine::run`], in the window of row `schedule` of SCHEDULES.
    ///
    /// # Errors
    /// As [`Engine::run`]; also if that schedule is not a window or is too small.
    pub fn run_window(&mut self, schedule: usize, rows: &[Row]) -> Result<Output<'_>, ReplayError> {
        let logit_rows = rows.iter().filter(|row| row.logits).count();
        let found = self.windows.iter().find(|window| window.schedule == schedule).copied();
        let fits = |w: &Window| w.appends() && w.rows >= rows.len() && w.logit_rows >= logit_rows;
        let window = found.filter(fits).ok_or_else(|| self.no_window(rows.len(), logit_rows))?;
        self.run_all(window, rows, false)?;
        Ok(self.output(window, rows))
    }

    /// As [`Engine::run`], measuring each command. Slower by two looks at the clock a command.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_timed(&mut self, rows: &[Row]) -> Result<Timed<'_>, ReplayError> {
        let window = self.window_for(rows)?;
        self.run_all(window, rows, true)?;
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
        let largest = self.appending().map(|window| window.rows).max().unwrap_or(1);
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
        self.run_all(window, rows, false)?;
        Ok(window)
    }

    fn appending(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| window.appends())
    }

    fn window_for(&self, rows: &[Row]) -> Result<Window, ReplayError> {
        let logit_rows = rows.iter().filter(|row| row.logits).count();
        let fits = |w: &&Window| w.rows >= rows.len() && w.logit_rows >= logit_rows;
        let found = self.appending().find(fits).copied();
        found.ok_or_else(|| self.no_window(rows.len(), logit_rows))
    }

    /// The window of rows that leave the values of states as they are.
    fn verify_window_for(&self, rows: &[Row]) -> Result<Window, ReplayError> {
        let logit_rows = rows.iter().filter(|row| row.logits).count();
        let fits = |w: &&Window| {
            w.kind == schedule::VERIFY && w.rows >= rows.len() && w.logit_rows >= logit_rows
        };
        let verify_rows = self.model().verify_rows;
        let none = ReplayError::VerifyWindow { rows: rows.len(), logit_rows, verify_rows };
        self.windows.iter().find(fits).copied().ok_or(none)
    }

    fn no_window(&self, rows: usize, logit_rows: usize) -> ReplayError {
        let model = self.model();
        let (max_rows, max_logit_rows) = (model.max_rows, model.max_logit_rows);
        ReplayError::Window { rows, logit_rows, max_rows, max_logit_rows }
    }

    /// Runs `rows` in `window` and commits them.
    fn run_all(&mut self, window: Window, rows: &[Row], timed: bool) -> Result<(), ReplayError> {
        self.run_in(window, rows, Purpose::Append, timed)?;
        if window.kind == schedule::VERIFY
            && let Some(schedule) = self.commit
        {
            let list = self.sequences.rows_of_window();
            self.step.write_commits(self.spaces.step.bytes_mut(), list);
            self.last_window_ns += self.replay(schedule, false);
        }
        self.sequences.commit_all();
        Ok(())
    }

    /// Runs `rows` in `window` and leaves it to the caller what becomes of them.
    pub(crate) fn run_in(
        &mut self,
        window: Window,
        rows: &[Row],
        purpose: Purpose,
        timed: bool,
    ) -> Result<(), ReplayError> {
        self.check_tokens(rows)?;
        let positions = &mut self.positions[..rows.len()];
        let copies = self.sequences.begin(rows, purpose, positions)?;
        self.states.begin(self.spaces.states.bytes_mut(), copies);
        self.step.write(self.spaces.step.bytes_mut(), rows, positions, &self.sequences);
        if self.poison_arena {
            self.spaces.arena.bytes_mut().fill(0xff);
        }
        self.last_window_ns = self.replay(window.schedule, timed);
        self.last = Some(Ran { schedule: window.schedule, rows: rows.len() });
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

    /// Runs the commands of a schedule on all parts, and returns how long that took.
    fn replay(&mut self, schedule: usize, timed: bool) -> u64 {
        let began = Instant::now();
        let run = self.plan.schedules()[schedule].commands;
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
        u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
