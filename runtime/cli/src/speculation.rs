//! `--draft`, and what drafting did.

use std::str::FromStr;

use serde::Serialize;
use strata_replay::speculate::{Draft, SpeculationStats};

/// The value of `--draft`: `auto`, a number or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftArg(pub Draft);

impl FromStr for DraftArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(Draft::Auto)),
            "off" | "0" => Ok(Self(Draft::Off)),
            _ => match text.parse() {
                Ok(count) => Ok(Self(Draft::Fixed(count))),
                Err(_) => Err("needs auto, off or a number of tokens".into()),
            },
        }
    }
}

/// What drafting did, for people and tools. Arrays begin with the first draft of a round; `chosen`
/// with no draft.
#[derive(Clone, Debug, Serialize)]
pub struct Speculation {
    pub rounds: u64,
    pub drafted: u64,
    pub accepted: u64,
    /// Accepted of all that were drafted.
    pub acceptance: f64,
    pub tokens_per_round: f64,
    /// Rounds that drafted so many tokens.
    pub chosen: Vec<u64>,
    /// Times that a draft was looked at, those before it being accepted.
    pub checked_at: Vec<u64>,
    /// Times that it was accepted.
    pub accepted_at: Vec<u64>,
    /// Time of all windows, commits included.
    pub window_ms: f64,
    /// Time of drafting.
    pub draft_ms: f64,
}

impl From<SpeculationStats> for Speculation {
    fn from(stats: SpeculationStats) -> Self {
        Self {
            rounds: stats.rounds,
            drafted: stats.drafted,
            accepted: stats.accepted,
            acceptance: stats.acceptance(),
            tokens_per_round: stats.tokens as f64 / stats.rounds.max(1) as f64,
            window_ms: stats.window_s * 1e3,
            draft_ms: stats.draft_s * 1e3,
            chosen: stats.chosen,
            checked_at: stats.checked_at,
            accepted_at: stats.accepted_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_a_word_or_a_number() {
        let parse = |text: &str| text.parse::<DraftArg>().map(|arg| arg.0);
        assert_eq!(parse("auto"), Ok(Draft::Auto));
        assert_eq!(parse("off"), Ok(Draft::Off));
        assert_eq!(parse("0"), Ok(Draft::Off));
        assert_eq!(parse("3"), Ok(Draft::Fixed(3)));
        assert!(parse("-1").is_err() && parse("some").is_err());
    }
}
