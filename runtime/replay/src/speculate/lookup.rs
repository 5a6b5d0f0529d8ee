//! Prompt lookup: what followed the last tokens when they stood in the text before (Saxena, 2023).

use super::{Drafter, Offer};
use crate::error::ReplayError;
use crate::sequences::SlotId;
use crate::session::Engine;

const SHORTEST: usize = 2;
const LONGEST: usize = 4;

/// Finds the last tokens earlier in the text. Of several places the one with the longest match
/// counts, up to [`LONGEST`] tokens, and of equal ones the last.
#[derive(Debug, Default)]
pub struct LookupDrafter {
    /// Where the text goes on behind the match.
    next: usize,
}

/// Where the text goes on behind the longest match of its last tokens, and how long that is.
fn find(context: &[u32]) -> Option<(usize, usize)> {
    let (&last, before) = context.split_last()?;
    let mut best: Option<(usize, usize)> = None;
    for end in (SHORTEST..=before.len()).rev() {
        if before[end - 1] != last {
            continue;
        }
        let earlier = before[..end].iter().rev();
        let same = earlier.zip(context.iter().rev()).take(LONGEST).take_while(|(a, b)| a == b);
        let length = same.count();
        if length >= SHORTEST && best.is_none_or(|(_, longest)| length > longest) {
            best = Some((end, length));
            if length == LONGEST {
                break;
            }
        }
    }
    best
}

impl Drafter for LookupDrafter {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn offer(&mut self, context: &[u32]) -> Option<Offer> {
        let (next, length) = find(context)?;
        self.next = next;
        Some(Offer { class: length - SHORTEST, most: usize::MAX })
    }

    fn draft(
        &mut self,
        _: &mut Engine,
        _: SlotId,
        context: &[u32],
        (count, drafts): (usize, &mut Vec<u32>),
    ) -> Result<(), ReplayError> {
        let begin = drafts.len();
        for index in self.next..self.next + count {
            // A text that repeats itself goes on in what was drafted just now.
            let drafted = || drafts.get(begin + index - context.len());
            match context.get(index).or_else(drafted) {
                Some(&token) => drafts.push(token),
                None => break,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_then_the_last_match_counts() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[1]), None);
        assert_eq!(find(&[5, 1, 5]), None, "one token is too few");
        assert_eq!(find(&[1, 2, 3, 1, 2]), Some((2, 2)));
        // Three match at the beginning, two later.
        assert_eq!(find(&[7, 1, 2, 8, 9, 1, 2, 6, 7, 1, 2]), Some((3, 3)));
        assert_eq!(find(&[1, 2, 3, 1, 2, 4, 1, 2]), Some((5, 2)));
        assert_eq!(find(&[1, 2, 3, 4, 5, 9, 0, 2, 3, 4, 5, 8, 2, 3, 4, 5]), Some((11, 4)));
        // It may overlap what is looked for.
        assert_eq!(find(&[3, 3, 3]), Some((2, 2)));
    }
}
