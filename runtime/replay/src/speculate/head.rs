//! Drafts of the model's own draft head, one after the other.

use super::{CLASSES, Drafter, Offer};
use crate::error::ReplayError;
use crate::sample::argmax;
use crate::sequences::SlotId;
use crate::session::Engine;

/// Takes the most probable token at each step.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadDrafter;

impl Drafter for HeadDrafter {
    fn name(&self) -> &'static str {
        "head"
    }

    fn offer(&mut self, _: &[u32]) -> Option<Offer> {
        Some(Offer { class: CLASSES - 1, most: usize::MAX })
    }

    fn draft(
        &mut self,
        engine: &mut Engine,
        sequence: SlotId,
        context: &[u32],
        (count, drafts): (usize, &mut Vec<u32>),
    ) -> Result<(), ReplayError> {
        let Some(&last) = context.last() else { return Ok(()) };
        let mut token = last;
        engine.draft_begin(sequence)?;
        for _ in 0..count {
            match engine.draft(&[(sequence, token)]) {
                Ok(output) => token = argmax(output.logits(0)),
                // Pages are for texts first. What was drafted is good.
                Err(ReplayError::NoPage { .. }) => break,
                Err(error) => return Err(error),
            }
            drafts.push(token);
        }
        Ok(())
    }
}
