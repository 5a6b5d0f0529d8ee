//! From logits to a token.
//!
//! In this order: repeat penalty, top-k, top-p, min-p, temperature, and a draw. Probabilities of
//! top-p and min-p are those before the temperature. The same seed and logits give the same tokens.

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most probable token.
    pub temperature: f32,
    /// Keeps so many of the most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest most probable tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens below this fraction of the most probable one; 0 drops none.
    pub min_p: f32,
    /// Positive logits of recent tokens are divided by it, negative ones multiplied; 1 is off.
    pub repeat_penalty: f32,
    /// Tokens that count as recent.
    pub repeat_tokens: u32,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_tokens: 64,
            seed: 0,
        }
    }
}

/// Chooses tokens; allocates once.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: SplitMix,
    candidates: Vec<Candidate>,
    /// The call in which each token was penalised last.
    penalised: Vec<u32>,
    call: u32,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    token: u32,
}

/// The token with the largest logit; of equal ones the lowest. NaN is never chosen unless all are.
pub fn argmax(logits: &[f32]) -> u32 {
    let (mut best, mut found) = (f32::NEG_INFINITY, 0);
    for (&logit, token) in logits.iter().zip(0..) {
        if logit > best {
            (best, found) = (logit, token);
        }
    }
    found
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens.
    pub fn new(sampling: Sampling, vocab: usize) -> Self {
        Self {
            sampling,
            random: SplitMix(sampling.seed),
            candidates: Vec::with_capacity(vocab),
            penalised: vec![0; vocab],
            call: 0,
        }
    }

    /// Chooses what follows `tokens`, of which the last are the recent ones.
    pub fn sample(&mut self, logits: &[f32], tokens: &[u32]) -> u32 {
        let penalty = self.sampling.repeat_penalty;
        let greedy = self.sampling.temperature <= 0.0;
        #[allow(clippy::float_cmp, reason = "1 is the value that turns it off")]
        let penalised = penalty != 1.0;
        if greedy && !penalised {
            return argmax(logits);
        }
        let logit = |&logit: &f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        self.candidates.clear();
        let all = logits.iter().zip(0..);
        self.candidates.extend(all.map(|(value, token)| Candidate { logit: logit(value), token }));
        if penalised {
            self.penalise(tokens);
        }
        if greedy {
            return self.most_probable();
        }
        self.draw()
    }

    fn penalise(&mut self, tokens: &[u32]) {
        self.call = self.call.wrapping_add(1);
        let penalty = self.sampling.repeat_penalty;
        let recent = tokens.len().saturating_sub(self.sampling.repeat_tokens as usize);
        for &token in &tokens[recent..] {
            let Some(candidate) = self.candidates.get_mut(token as usize) else { continue };
            let Some(call) = self.penalised.get_mut(token as usize) else { continue };
            if *call != self.call {
                *call = self.call;
                let logit = candidate.logit;
                candidate.logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
            }
        }
    }

    fn most_probable(&self) -> u32 {
        let first = Candidate { logit: f32::NEG_INFINITY, token: 0 };
        let better = |best: Candidate, &next: &Candidate| {
            if next.logit > best.logit { next } else { best }
        };
        self.candidates.iter().fold(first, better).token
    }

    fn draw(&mut self) -> u32 {
        let Sampling { top_k, top_p, min_p, temperature, .. } = self.sampling;
        let vocab = self.candidates.len();
        let max = self.candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
        if max == f32::NEG_INFINITY {
            return self.most_probable();
        }
        let mut kept = vocab;
        if top_k > 0 && (top_k as usize) < vocab {
            kept = top_k as usize;
            self.sort_first(kept);
        }
        if top_p < 1.0 {
            kept = self.cut_top_p(kept, max);
        }
        let candidates = &mut self.candidates[..kept];
        let temperature = f64::from(temperature);
        let mut total = 0.0;
        // Weights stay in order of the candidates; a dropped one weighs nothing.
        let weight = |candidate: &Candidate| {
            let below = f64::from(candidate.logit) - f64::from(max);
            if below.exp() < f64::from(min_p) { 0.0 } else { (below / temperature).exp() }
        };
        for candidate in candidates.iter() {
            total += weight(candidate);
        }
        let mut rest = self.random.unit() * total;
        let mut chosen = candidates[0].token;
        for candidate in candidates.iter() {
            let weight = weight(candidate);
            if weight > 0.0 {
                chosen = candidate.token;
                rest -= weight;
                if rest < 0.0 {
                    break;
                }
            }
        }
        chosen
    }

    /// Brings the `count` most probable candidates to the front, in order.
    fn sort_first(&mut self, count: usize) {
        let order =
            |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token));
        if count < self.candidates.len() {
            self.candidates.select_nth_unstable_by(count, order);
        }
        self.candidates[..count].sort_unstable_by(order);
    }

    /// How many of the first `kept` candidates top-p keeps; they then stand in order.
    fn cut_top_p(&mut self, kept: usize, max: f32) -> usize {
        let weight = |c: &Candidate| (f64::from(c.logit) - f64::from(max)).exp();
        let total: f64 = self.candidates[..kept].iter().map(weight).sum();
        let wanted = f64::from(self.sampling.top_p) * total;
        // Few candidates are mostly enough, so that the vocabulary is seldom sorted whole.
        let mut sorted = 256.min(kept);
        loop {
            self.sort_first(sorted);
            let mut sum = 0.0;
            for (index, candidate) in self.candidates[..sorted].iter().enumerate() {
                sum += weight(candidate);
                if sum >= wanted {
                    return index + 1;
                }
            }
            if sorted == kept {
                return kept;
            }
            sorted = (sorted * 8).min(kept);
        }
    }
}

/// A small random generator that is the same everywhere (Steele, Lea and Flood, 2014).
#[derive(Clone, Copy, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, 1.0, -1.0];

    fn counts(sampling: Sampling, draws: usize) -> [usize; 4] {
        let mut sampler = Sampler::new(sampling, 4);
        let mut counts = [0; 4];
        for _ in 0..draws {
            counts[sampler.sample(&LOGITS, &[]) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, f32::NAN]), 1);
        assert_eq!(counts(Sampling::default(), 3), [0, 3, 0, 0]);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let draws = 20_000;
        let counts = counts(Sampling { temperature: 1.0, ..Sampling::default() }, draws);
        let total: f64 = LOGITS.iter().map(|&x| f64::from(x).exp()).sum();
        for (count, logit) in counts.iter().zip(LOGITS) {
            let expected = f64::from(logit).exp() / total * draws as f64;
            // Five standard deviations.
            assert!((*count as f64 - expected).abs() < 5.0 * expected.sqrt(), "{counts:?}");
        }
    }

    #[test]
    fn cuts_keep_what_they_say() {
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        let kept = |sampling| counts(sampling, 2_000).map(|count| count > 0);
        assert_eq!(kept(Sampling { top_k: 2, ..warm }), [false, true, true, false]);
        // 0.64, 0.24, 0.09, 0.03.
        assert_eq!(kept(Sampling { top_p: 0.9, ..warm }), [true, true, true, false]);
        assert_eq!(kept(Sampling { top_p: 0.6, ..warm }), [false, true, false, false]);
        assert_eq!(kept(Sampling { min_p: 0.3, ..warm }), [false, true, true, false]);
    }

    #[test]
    fn top_p_of_a_large_flat_vocabulary_sorts_enough() {
        let logits = vec![0.0; 5_000];
        let mut sampler =
            Sampler::new(Sampling { temperature: 1.0, top_p: 0.5, ..Sampling::default() }, 5_000);
        for _ in 0..50 {
            assert!(sampler.sample(&logits, &[]) < 2_500);
        }
    }

    #[test]
    fn recent_tokens_are_penalised_once() {
        let sampling = Sampling { repeat_penalty: 1.5, repeat_tokens: 3, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling, 4);
        // 2 / 1.5 is still the largest; twice penalised it would not be.
        assert_eq!(sampler.sample(&LOGITS, &[1, 1]), 1);
        let strong = Sampling { repeat_penalty: 2.5, ..sampling };
        let mut sampler = Sampler::new(strong, 4);
        assert_eq!(sampler.sample(&LOGITS, &[1]), 2);
        assert_eq!(sampler.sample(&LOGITS, &[1, 0, 0, 0]), 1, "no longer recent");
    }

    #[test]
    fn a_seed_gives_the_same_tokens() {
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        let run = || {
            let mut sampler = Sampler::new(sampling, 4);
            (0..20).map(|_| sampler.sample(&LOGITS, &[])).collect::<Vec<_>>()
        };
        assert_eq!(run(), run());
    }
}
