//! Speculation: guessing the next tokens, and checking all guesses in one window.
//!
//! A round reads the last token and some drafts behind it in a VERIFY window, chooses a token behind
//! each row as if there were no drafts, and keeps the rows up to the first draft that was not
//! chosen. For a draft that is one token this is rejection sampling (Leviathan, Kalman and Matias,
//! 2023): it is accepted with the probability that the sampler gives it, and what replaces it
//! follows the same distribution without it. Each token takes one draw, so that a seed gives the
//! same text with any drafts or none.
//!
//! Nothing here knows a model; drafts come from a [`Drafter`].

mod cost;
mod depth;
mod head;
mod lookup;
#[cfg(test)]
mod tests;

use std::time::Instant;

use crate::error::ReplayError;
use crate::sample::Sampler;
use crate::sequences::{Row, SlotId};
use crate::session::{Engine, Output};

pub use depth::DepthChooser;
pub use head::HeadDrafter;
pub use lookup::LookupDrafter;

/// Kinds of drafts whose acceptance is counted apart.
pub const CLASSES: usize = 8;

/// What a drafter has to offer behind a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Less than [`CLASSES`]: drafts of a class are about as good as each other.
    pub class: usize,
    /// Tokens at most.
    pub most: usize,
}

/// Guesses what follows a text.
pub trait Drafter: std::fmt::Debug + Send {
    /// A word for people.
    fn name(&self) -> &'static str;

    /// What it could draft behind `context`, if anything.
    fn offer(&mut self, context: &[u32]) -> Option<Offer>;

    /// Appends tokens that may follow `context` to the vector of `wanted`, at most as many as its
    /// number says. The engine has read all of `context` but its last token.
    ///
    /// # Errors
    /// Those of [`Engine::draft`].
    fn draft(
        &mut self,
        engine: &mut Engine,
        sequence: SlotId,
        context: &[u32],
        wanted: (usize, &mut Vec<u32>),
    ) -> Result<(), ReplayError>;
}

/// How many tokens are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Draft {
    /// As many as pay.
    #[default]
    Auto,
    /// Always so many, where there is something to draft.
    Fixed(u32),
    Off,
}

/// What speculation has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeculationStats {
    pub rounds: u64,
    /// Tokens that were chosen.
    pub tokens: u64,
    pub drafted: u64,
    pub accepted: u64,
    /// Rounds that drafted so many tokens, from 0 on.
    pub chosen: Vec<u64>,
    /// Times that the first, second... draft of a round was checked, those before it being accepted.
    pub checked_at: Vec<u64>,
    /// Times that it was accepted.
    pub accepted_at: Vec<u64>,
    /// Seconds of windows, commits included.
    pub window_s: f64,
    /// Seconds of drafting.
    pub draft_s: f64,
}

impl SpeculationStats {
    fn new(most: usize) -> Self {
        Self {
            chosen: vec![0; most + 1],
            checked_at: vec![0; most],
            accepted_at: vec![0; most],
            ..Self::default()
        }
    }

    /// Of all drafted tokens; 0 if there were none.
    pub fn acceptance(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }

    fn note(&mut self, round: &Round) {
        self.rounds += 1;
        self.tokens += round.tokens as u64;
        self.drafted += round.drafted as u64;
        self.accepted += round.accepted as u64;
        self.chosen[round.drafted] += 1;
        for depth in 0..round.checked {
            self.checked_at[depth] += 1;
            self.accepted_at[depth] += u64::from(depth < round.accepted);
        }
        self.window_s += round.window_s;
        self.draft_s += round.draft_s;
    }
}

/// One round, as it went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Tokens that were drafted.
    pub drafted: usize,
    /// Drafts that a token was chosen for: accepted ones, and the first that was not.
    pub checked: usize,
    pub accepted: usize,
    /// Tokens that were chosen: the accepted ones, and one more unless the text ended.
    pub tokens: usize,
    /// Seconds of the window and its commit.
    pub window_s: f64,
    /// Seconds of drafting.
    pub draft_s: f64,
}

/// A text that is being generated.
#[derive(Debug)]
pub struct Writing<'a> {
    /// Holds all of `context` but its last token.
    pub sequence: SlotId,
    pub context: &'a mut Vec<u32>,
    pub sampler: &'a mut Sampler,
    /// Tokens that may be chosen at most, at least one.
    pub limit: usize,
}

/// Generates a text by rounds. One for each sequence; costs and acceptances stay from text to text.
#[derive(Debug)]
pub struct Speculator {
    drafters: Vec<Box<dyn Drafter>>,
    offers: Vec<Option<Offer>>,
    chooser: DepthChooser,
    mode: Draft,
    /// Drafts of a round at most.
    most: usize,
    drafts: Vec<u32>,
    rows: Vec<Row>,
    stats: SpeculationStats,
}

impl Speculator {
    /// With all drafters that `engine` can use: prompt lookup, and the draft head if there is one.
    pub fn new(engine: &Engine, mode: Draft) -> Self {
        let mut drafters: Vec<Box<dyn Drafter>> = vec![Box::new(LookupDrafter::default())];
        if engine.can_draft() {
            drafters.push(Box::new(HeadDrafter));
        }
        Self::with_drafters(engine, mode, drafters)
    }

    /// With drafters of the caller.
    pub fn with_drafters(engine: &Engine, mode: Draft, drafters: Vec<Box<dyn Drafter>>) -> Self {
        let most = match mode {
            Draft::Off => 0,
            Draft::Auto => engine.verify_rows().saturating_sub(1),
            Draft::Fixed(count) => engine.verify_rows().saturating_sub(1).min(count as usize),
        };
        Self {
            offers: vec![None; drafters.len()],
            chooser: DepthChooser::new(drafters.len(), most),
            drafts: Vec::with_capacity(most),
            rows: Vec::with_capacity(most + 1),
            stats: SpeculationStats::new(most),
            drafters,
            mode,
            most,
        }
    }

    /// Of all rounds since it was made or taken last.
    pub fn take_stats(&mut self) -> SpeculationStats {
        std::mem::replace(&mut self.stats, SpeculationStats::new(self.most))
    }

    /// Reads the last token of the context and appends the tokens that the sampler chooses behind
    /// it. `go_on` is told each of them and ends the text by `false`. Again the sequence holds all
    /// of the context but its last token.
    ///
    /// # Errors
    /// As [`Engine::run_uncommitted`] and [`Engine::draft`]. Nothing was chosen then.
    ///
    /// # Panics
    /// If the context is empty or the limit is 0.
    pub fn round(
        &mut self,
        engine: &mut Engine,
        Writing { sequence, context, sampler, limit }: Writing<'_>,
        go_on: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Round, ReplayError> {
        assert!(limit > 0, "a round chooses a token");
        let last = *context.last().expect("a context has a token that is to be read");
        let room = engine.model().context_tokens as usize - engine.position(sequence)? as usize;
        let most = self.most.min(limit - 1).min(room.saturating_sub(1));
        let (drafter, depth) = self.choose(context, most);
        self.drafts.clear();
        let began = Instant::now();
        if depth > 0 {
            let place = (depth, &mut self.drafts);
            self.drafters[drafter].draft(engine, sequence, context, place)?;
            self.drafts.truncate(depth);
        }
        let draft_s = if depth > 0 { began.elapsed().as_secs_f64() } else { 0.0 };
        let output = run_rows(engine, sequence, (last, &mut self.drafts), &mut self.rows)?;
        let mut round = Round { drafted: self.drafts.len(), draft_s, ..Round::default() };
        for index in 0..=round.drafted {
            let token = sampler.sample(output.logits(index), context);
            context.push(token);
            round.tokens += 1;
            round.checked += usize::from(index < round.drafted);
            let accepted = self.drafts.get(index) == Some(&token);
            round.accepted += usize::from(accepted);
            if !go_on(token) || !accepted {
                break;
            }
        }
        if round.drafted > 0 {
            let rows = u32::try_from(round.tokens).expect("windows have few rows");
            engine.commit(sequence, rows)?;
        }
        round.window_s = engine.last_window_ns() as f64 * 1e-9;
        self.note(drafter, &round);
        Ok(round)
    }

    /// A drafter and how many tokens it shall draft.
    fn choose(&mut self, context: &[u32], most: usize) -> (usize, usize) {
        if most == 0 {
            return (0, 0);
        }
        for (offer, drafter) in self.offers.iter_mut().zip(&mut self.drafters) {
            *offer = drafter.offer(context).map(|o| Offer { most: o.most.min(most), ..o });
        }
        if self.mode == Draft::Auto {
            return self.chooser.choose(&self.offers);
        }
        self.chooser.most_accepted(&self.offers, most)
    }

    fn note(&mut self, drafter: usize, round: &Round) {
        self.stats.note(round);
        let class = self.offers.get(drafter).copied().flatten().map_or(0, |offer| offer.class);
        self.chooser.note((drafter, class), round);
    }
}

/// Runs a window of `last` and the drafts behind it, whose rows wait to be committed; or `last`
/// alone, which is committed, if there are no drafts or no pages for them.
fn run_rows<'e>(
    engine: &'e mut Engine,
    slot: SlotId,
    (last, drafts): (u32, &mut Vec<u32>),
    rows: &mut Vec<Row>,
) -> Result<Output<'e>, ReplayError> {
    let row = |token| Row { token, slot, logits: true };
    rows.clear();
    rows.extend([last].iter().chain(&*drafts).map(|&token| row(token)));
    if !drafts.is_empty() && !engine.has_pages(slot, rows.len()) {
        drafts.clear();
        rows.truncate(1);
    }
    if drafts.is_empty() { engine.run(rows) } else { engine.run_uncommitted(rows) }
}
