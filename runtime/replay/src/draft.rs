//! Drafting: guesses of a model's draft head, of which nothing stays.

use strata_plan::layout::schedule;

use crate::error::ReplayError;
use crate::sequences::{Purpose, Row, SlotId};
use crate::session::{Engine, Output, Window};

impl Engine {
    /// Whether the model has a draft head.
    pub fn can_draft(&self) -> bool {
        self.model().draft_rows > 0
    }

    /// Rows that can ask for logits and wait to be committed together.
    pub fn verify_rows(&self) -> usize {
        let verify = self.windows.iter().filter(|window| window.kind == schedule::VERIFY);
        verify.map(|window| window.rows.min(window.logit_rows)).max().unwrap_or(0)
    }

    /// Begins to draft behind the last committed token of `sequence`. What was drafted before is
    /// forgotten.
    ///
    /// # Errors
    /// The sequence was released or has rows to commit, or the model has no draft head.
    pub fn draft_begin(&mut self, sequence: SlotId) -> Result<(), ReplayError> {
        if !self.can_draft() {
            return Err(ReplayError::NoDraft);
        }
        self.sequences.begin_draft(sequence)?;
        self.states.seed(self.spaces.states.bytes_mut(), sequence.slot);
        Ok(())
    }

    /// Runs the draft head on one more token of each sequence, which follows what was drafted of it
    /// before, and returns the logits of what comes next, in the order of `tokens`. The next window
    /// of a sequence begins behind its committed tokens, whatever was drafted.
    ///
    /// # Errors
    /// As [`Engine::run`]; [`ReplayError::DraftRow`] if drafting a sequence has not begun or it
    /// stands there twice, [`ReplayError::DraftWindow`] if there are more sequences than the
    /// largest DRAFT window has rows.
    pub fn draft(&mut self, tokens: &[(SlotId, u32)]) -> Result<Output<'_>, ReplayError> {
        // Taken out, so that the engine can be run on it.
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        let ran = self.draft_in(&mut rows, tokens);
        self.rows = rows;
        Ok(self.output(ran?, &self.rows))
    }

    fn draft_in(
        &mut self,
        rows: &mut Vec<Row>,
        tokens: &[(SlotId, u32)],
    ) -> Result<Window, ReplayError> {
        if !self.can_draft() {
            return Err(ReplayError::NoDraft);
        }
        let fits = |w: &&Window| w.kind == schedule::DRAFT && w.rows >= tokens.len();
        let draft_rows = self.model().draft_rows;
        let none = ReplayError::DraftWindow { rows: tokens.len(), draft_rows };
        let window = self.windows.iter().find(fits).copied().ok_or(none)?;
        rows.extend(tokens.iter().map(|&(slot, token)| Row { token, slot, logits: true }));
        self.run_in(window, rows, Purpose::Draft, false)?;
        self.sequences.drafted();
        Ok(window)
    }
}
