//! How many tokens to draft: as many as give the most tokens a second by what was measured.
//!
//! For `n` drafts a round gives `1 + e(n)` tokens, where `e(n)` is the sum over the drafts of the
//! probability that it and all before it are accepted, and takes a window of `n + 1` rows and `n`
//! steps of the drafter. 0 drafts are one of the choices.

use super::cost::{Mean, WindowCosts};
use super::{CLASSES, Offer, Round};

/// Share of all time that speculation may lose against drafting nothing.
const MOST_LOSS: f64 = 0.02;
/// What may be lost before there was time to earn it, in windows of one row.
const FIRST_LOSS_WINDOWS: f64 = 4.0;
/// In one of so many rounds another choice than the best one is tried, so that what is known of it
/// does not grow old.
const EXPLORE_EVERY: u64 = 32;
/// What each round counts for in those after it.
const MEMORY: f64 = 0.95;
/// How many rounds the guess of a class that was never checked is worth.
const GUESS_WEIGHT: f64 = 2.0;
/// Acceptance that a class is taken to have; lookups by the tokens that match, the draft head last.
const GUESSES: [f64; CLASSES] = [0.3, 0.5, 0.7, 0.5, 0.5, 0.5, 0.5, 0.75];

/// How often the draft at each place was accepted, those before it being accepted.
#[derive(Clone, Debug)]
struct Acceptance {
    guess: f64,
    places: Vec<Place>,
}

/// All of it fades by [`MEMORY`] when the place is checked.
#[derive(Clone, Copy, Debug)]
struct Place {
    checked: f64,
    accepted: f64,
    /// What the guess is worth.
    guessed: f64,
}

impl Place {
    const UNKNOWN: Self = Self { checked: 0.0, accepted: 0.0, guessed: GUESS_WEIGHT };
}

impl Acceptance {
    fn note(&mut self, round: &Round) {
        for (index, place) in self.places.iter_mut().take(round.checked).enumerate() {
            place.checked = place.checked * MEMORY + 1.0;
            place.accepted = place.accepted * MEMORY + f64::from(u8::from(index < round.accepted));
            place.guessed *= MEMORY;
        }
    }

    /// Expected accepted drafts of 1, 2... drafts. A place that was never checked is taken to be as
    /// good as the one before.
    fn expected(&self) -> impl Iterator<Item = f64> {
        let (mut guess, mut all, mut sum) = (self.guess, 1.0, 0.0);
        self.places.iter().map(move |place| {
            guess = (place.accepted + guess * place.guessed) / (place.checked + place.guessed);
            all *= guess;
            sum += all;
            sum
        })
    }
}

/// What is known of one drafter.
#[derive(Clone, Debug)]
struct Known {
    /// Of one drafted token.
    step: Mean,
    classes: Vec<Acceptance>,
}

/// Chooses how many tokens are drafted and by whom.
#[derive(Clone, Debug)]
pub struct DepthChooser {
    windows: WindowCosts,
    drafters: Vec<Known>,
    rounds: u64,
    /// Seconds of all rounds.
    total_s: f64,
    /// Seconds that rounds with drafts took longer than their tokens would have without; negative
    /// for a gain, of which only as much is remembered as may be lost.
    lost_s: f64,
    /// The last round was a trial and all its drafts were accepted: one more is worth its time.
    hopeful: bool,
    trying: bool,
}

impl DepthChooser {
    /// For `drafters` drafters of at most `most` tokens.
    pub fn new(drafters: usize, most: usize) -> Self {
        let acceptance = |&guess: &f64| Acceptance { guess, places: vec![Place::UNKNOWN; most] };
        let known =
            Known { step: Mean::default(), classes: GUESSES.iter().map(acceptance).collect() };
        Self {
            windows: WindowCosts::new(most + 1),
            drafters: vec![known; drafters],
            rounds: 0,
            total_s: 0.0,
            lost_s: 0.0,
            hopeful: false,
            trying: false,
        }
    }

    /// The number of a drafter and of the tokens that it shall draft, 0 for none; `offers` has what
    /// each drafter offers.
    pub fn choose(&mut self, offers: &[Option<Offer>]) -> (usize, usize) {
        self.trying = false;
        let Some(one) = self.windows.measured(1) else { return (0, 0) };
        let (mut best, mut choice) = (1.0 / one, (0, 0));
        for (drafter, offer) in offers.iter().enumerate() {
            let Some(offer) = offer else { continue };
            let acceptance = &self.drafters[drafter].classes[offer.class];
            for (index, accepted) in acceptance.expected().take(offer.most).enumerate() {
                let cost = self.cost(drafter, index + 1);
                if !self.may_lose(cost - one) {
                    break;
                }
                let rate = (1.0 + accepted) / cost;
                if rate > best {
                    (best, choice) = (rate, (drafter, index + 1));
                }
            }
        }
        if self.hopeful || self.rounds % EXPLORE_EVERY == EXPLORE_EVERY - 1 {
            self.explore(choice, offers, one)
        } else {
            choice
        }
    }

    /// The drafter of which the most of `depth` drafts are expected to be accepted, and how many it
    /// can draft of them.
    pub fn most_accepted(&self, offers: &[Option<Offer>], depth: usize) -> (usize, usize) {
        let (mut best, mut choice) = (0.0, (0, 0));
        for (drafter, offer) in offers.iter().enumerate() {
            let Some(offer) = offer else { continue };
            let drafts = depth.min(offer.most);
            let acceptance = &self.drafters[drafter].classes[offer.class];
            let accepted = acceptance.expected().take(drafts).last().unwrap_or(0.0);
            // What was never accepted is still better than nothing.
            if accepted > best || (choice.1 == 0 && drafts > 0) {
                (best, choice) = (accepted, (drafter, drafts));
            }
        }
        choice
    }

    /// Another choice near the best one, if its loss can be borne.
    fn explore(
        &mut self,
        (drafter, depth): (usize, usize),
        offers: &[Option<Offer>],
        one: f64,
    ) -> (usize, usize) {
        let turn = usize::try_from(self.rounds / EXPLORE_EVERY).unwrap_or(0);
        let other = match depth {
            0 => (turn % offers.len().max(1), 1),
            _ if turn % 4 == 3 => (drafter, 0),
            _ if turn % 2 == 0 => (drafter, depth + 1),
            _ => (drafter, depth - 1),
        };
        let most = offers.get(other.0).copied().flatten().map_or(0, |offer| offer.most);
        if other.1 > most || !self.may_lose(self.cost(other.0, other.1) - one) {
            return (drafter, depth);
        }
        self.trying = true;
        other
    }

    /// Seconds of a round of `depth` drafts.
    fn cost(&self, drafter: usize, depth: usize) -> f64 {
        let step = self.drafters[drafter].step.get();
        // Before it was measured: a layer or so of many.
        let one = self.windows.measured(1).unwrap_or(0.0);
        let step = step.unwrap_or(one * 0.1);
        self.windows.estimate(depth + 1).unwrap_or(0.0) + depth as f64 * step
    }

    fn may_lose(&self, seconds: f64) -> bool {
        self.lost_s + seconds <= self.loss_limit()
    }

    fn loss_limit(&self) -> f64 {
        let one = self.windows.measured(1).unwrap_or(0.0);
        MOST_LOSS * self.total_s + FIRST_LOSS_WINDOWS * one
    }

    /// Learns from a round of a drafter and the class of its offer.
    pub fn note(&mut self, (drafter, class): (usize, usize), round: &Round) {
        self.rounds += 1;
        let seconds = round.window_s + round.draft_s;
        self.total_s += seconds;
        self.windows.note(round.drafted + 1, round.window_s);
        self.hopeful = self.trying && round.drafted > 0 && round.accepted == round.drafted;
        if round.drafted == 0 {
            return;
        }
        let Some(known) = self.drafters.get_mut(drafter) else { return };
        known.step.note(round.draft_s / round.drafted as f64);
        known.classes[class].note(round);
        if let Some(one) = self.windows.measured(1) {
            let lost = self.lost_s + seconds - round.tokens as f64 * one;
            self.lost_s = lost.max(-self.loss_limit());
        }
    }
}
