use super::*;
use crate::sample::Sampling;
use crate::test_plan::{CONTEXT, VERIFY_ROWS, VOCAB};
use crate::tests::{TestPlan, expected, rows};

/// Drafts that a test makes up: `tokens(step)` of so many tokens, right or wrong.
#[derive(Debug)]
struct Scripted {
    state: u64,
    kinds: u64,
}

impl Drafter for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn offer(&mut self, _: &[u32]) -> Option<Offer> {
        Some(Offer { class: 3, most: usize::MAX })
    }

    fn draft(
        &mut self,
        _: &mut Engine,
        _: SlotId,
        _: &[u32],
        (count, drafts): (usize, &mut Vec<u32>),
    ) -> Result<(), ReplayError> {
        for _ in 0..count {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            drafts.push(((self.state >> 40) % self.kinds) as u32);
        }
        Ok(())
    }
}

fn scripted(kinds: u64) -> Vec<Box<dyn Drafter>> {
    vec![Box::new(Scripted { state: 1, kinds })]
}

/// Hashes are large: with this temperature they make a distribution of all tokens.
fn warm(seed: u64) -> Sampling {
    Sampling { temperature: 4e5, seed, ..Sampling::default() }
}

fn writing<'a>(
    sequence: SlotId,
    context: &'a mut Vec<u32>,
    sampler: &'a mut Sampler,
    limit: usize,
) -> Writing<'a> {
    Writing { sequence, context, sampler, limit }
}

/// A text of the test plan, and what it took.
fn text(
    engine: &mut Engine,
    speculator: &mut Speculator,
    sampling: Sampling,
) -> (Vec<u32>, SpeculationStats) {
    let slot = engine.new_sequence().unwrap();
    let mut context = vec![1, 2, 3];
    engine.run(&rows(slot, &context[..2])).unwrap();
    let mut sampler = Sampler::new(sampling, VOCAB);
    let mut told = Vec::new();
    while context.len() < CONTEXT {
        let limit = CONTEXT - context.len();
        let go_on = &mut |token| {
            told.push(token);
            true
        };
        let text = writing(slot, &mut context, &mut sampler, limit);
        speculator.round(engine, text, go_on).unwrap();
        assert_eq!(engine.tokens(slot).unwrap(), &context[..context.len() - 1]);
    }
    assert_eq!(told, context[3..]);
    // The states are those of the tokens that were chosen.
    let last = *context.last().unwrap();
    let logits = engine.run(&rows(slot, &[last])).unwrap().logits(0)[..3].to_vec();
    assert_eq!(logits, expected(&context));
    engine.release(slot);
    (context, speculator.take_stats())
}

#[test]
fn drafts_change_no_token() {
    let plan = TestPlan::recurrent("speculate");
    let mut engine = plan.open_with_threads(1);
    for sampling in [Sampling::default(), warm(7), Sampling { repeat_penalty: 1.3, ..warm(8) }] {
        let mut off = Speculator::new(&engine, Draft::Off);
        let (plain, stats) = text(&mut engine, &mut off, sampling);
        assert_eq!((stats.rounds, stats.tokens, stats.drafted), (27, 27, 0));
        for mode in [Draft::Auto, Draft::Fixed(1), Draft::Fixed(2), Draft::Fixed(99)] {
            for drafters in [scripted(1), scripted(2), scripted(VOCAB as u64), Vec::new()] {
                let mut speculator = Speculator::with_drafters(&engine, mode, drafters);
                for _ in 0..3 {
                    let (found, stats) = text(&mut engine, &mut speculator, sampling);
                    assert_eq!(found, plain, "{mode:?}");
                    assert_eq!(stats.tokens, 27);
                    assert_eq!(stats.tokens, stats.rounds + stats.accepted);
                }
            }
            let mut speculator = Speculator::new(&engine, mode);
            let (found, stats) = text(&mut engine, &mut speculator, sampling);
            assert_eq!(found, plain, "{mode:?}");
            assert_eq!(stats.chosen.iter().sum::<u64>(), stats.rounds);
        }
    }
}

#[test]
fn right_drafts_are_accepted_and_counted() {
    let plan = TestPlan::recurrent("speculate-right");
    let mut engine = plan.open_with_threads(1);
    // Greedy text of the test plan is nothing but token 0.
    let mut speculator = Speculator::with_drafters(&engine, Draft::Fixed(3), scripted(1));
    let (_, stats) = text(&mut engine, &mut speculator, Sampling::default());
    // 27 tokens: six rounds of four, and one of three.
    assert_eq!((stats.rounds, stats.drafted, stats.accepted), (7, 20, 20));
    assert_eq!(stats.chosen, [0, 0, 1, 6]);
    assert_eq!((&stats.checked_at[..], &stats.accepted_at[..]), (&[7, 7, 6][..], &[7, 7, 6][..]));
    assert!((stats.acceptance() - 1.0).abs() < 1e-12);
    assert!(stats.window_s > 0.0);
    let heads: Vec<Box<dyn Drafter>> = vec![Box::new(HeadDrafter)];
    let mut speculator = Speculator::with_drafters(&engine, Draft::Fixed(2), heads);
    let (_, stats) = text(&mut engine, &mut speculator, Sampling::default());
    assert!(stats.drafted > 0 && stats.draft_s > 0.0);
}

#[test]
fn a_text_ends_where_it_is_told() {
    let plan = TestPlan::recurrent("speculate-end");
    let mut engine = plan.open_with_threads(1);
    let mut speculator = Speculator::with_drafters(&engine, Draft::Fixed(3), scripted(1));
    let mut sampler = Sampler::new(Sampling::default(), VOCAB);
    for end in 1..=VERIFY_ROWS {
        let slot = engine.new_sequence().unwrap();
        let mut context = vec![1, 2, 3];
        engine.run(&rows(slot, &context[..2])).unwrap();
        let mut left = end;
        let go_on = &mut |_| {
            left -= 1;
            left > 0
        };
        let text = writing(slot, &mut context, &mut sampler, 9);
        let round = speculator.round(&mut engine, text, go_on).unwrap();
        assert_eq!(round.tokens, end);
        assert_eq!(context.len(), 3 + end);
        assert_eq!(engine.tokens(slot).unwrap(), &context[..2 + end]);
        engine.release(slot);
    }
}

#[test]
fn drafts_that_find_no_page_are_left_out() {
    let plan = TestPlan::recurrent("speculate-pages");
    let mut engine = plan.open_with_threads(1);
    let slots = [(); 2].map(|()| engine.new_sequence().unwrap());
    engine.prefill(slots[0], &[1; 23], None).unwrap();
    // 14 pages: 6 and 8 leave none, and one more row has its place.
    engine.prefill(slots[1], &[1; CONTEXT], None).unwrap();
    assert_eq!(engine.free_pages(), 0);
    let mut speculator = Speculator::with_drafters(&engine, Draft::Fixed(3), scripted(1));
    let mut sampler = Sampler::new(Sampling::default(), VOCAB);
    let mut context = vec![1; 24];
    let text = writing(slots[0], &mut context, &mut sampler, 9);
    let round = speculator.round(&mut engine, text, &mut |_| true).unwrap();
    assert_eq!((round.drafted, round.tokens, context.len()), (0, 1, 25));
}

/// Pearson's statistic of counts against probabilities.
fn chi_square(counts: &[f64], probabilities: &[f64]) -> f64 {
    let total: f64 = counts.iter().sum();
    let part = |(count, p): (&f64, &f64)| (count - p * total).powi(2) / (p * total);
    counts.iter().zip(probabilities).map(part).sum()
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// Accepted or not, the tokens of a round follow the distribution that they have without drafts.
#[test]
fn sampled_tokens_follow_their_distribution() {
    let plan = TestPlan::recurrent("speculate-chi");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    // A hash in the middle of what it can be, so that all tokens are probable.
    let prompt = [7, 7, 7, 7];
    let logits = engine.run(&rows(slot, &prompt)).unwrap().logits(0).to_vec();
    engine.truncate(slot, 0).unwrap();
    engine.run(&rows(slot, &prompt[..3])).unwrap();
    engine.snapshot(slot, 0).unwrap();
    let wanted = softmax(&logits, f64::from(warm(1).temperature));
    assert!(wanted.iter().all(|p| *p > 0.02), "{wanted:?}");
    for kinds in [1, 3, VOCAB as u64] {
        let mut speculator = Speculator::with_drafters(&engine, Draft::Fixed(2), scripted(kinds));
        let mut sampler = Sampler::new(warm(5), VOCAB);
        let (mut counts, mut accepted) = (vec![0.0; VOCAB], 0);
        for _ in 0..6_000 {
            engine.restore(slot, 0).unwrap();
            let mut context = prompt.to_vec();
            let text = writing(slot, &mut context, &mut sampler, 3);
            let round = speculator.round(&mut engine, text, &mut |_| true).unwrap();
            counts[context[4] as usize] += 1.0;
            accepted += round.accepted;
        }
        assert!(accepted > 100, "drafts must be accepted now and then");
        // 7 degrees of freedom: above 24.3 once in a thousand times.
        let found = chi_square(&counts, &wanted);
        assert!(found < 24.3, "chi square {found}: {counts:?} for {wanted:?}");
    }
}

/// A machine of which a test knows everything.
struct Machine {
    /// Of windows of 1, 2... rows.
    window_s: [f64; 8],
    step_s: f64,
    acceptance: f64,
    state: u64,
}

impl Machine {
    /// Seconds and tokens of `tokens` tokens with the chooser, and of `depth` drafts always.
    fn run(&mut self, chooser: &mut DepthChooser, fixed: Option<usize>, tokens: usize) -> f64 {
        let offers = [Some(Offer { class: CLASSES - 1, most: 7 })];
        let (mut seconds, mut made) = (0.0, 0);
        while made < tokens {
            let depth = fixed.unwrap_or_else(|| chooser.choose(&offers).1);
            let right = (0..depth).take_while(|_| self.unit() < self.acceptance).count();
            let noise = 0.95 + 0.1 * self.unit();
            let round = Round {
                drafted: depth,
                checked: (right + 1).min(depth),
                accepted: right,
                tokens: right + 1,
                window_s: self.window_s[depth] * noise,
                draft_s: self.step_s * depth as f64,
            };
            chooser.note((0, CLASSES - 1), &round);
            seconds += round.window_s + round.draft_s;
            made += round.tokens;
        }
        seconds / made as f64
    }

    fn unit(&mut self) -> f64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }
}

const FLAT: [f64; 8] = [1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35];
const STEEP: [f64; 8] = [1.0, 1.6, 2.2, 2.8, 3.4, 4.0, 4.6, 5.2];

#[test]
fn the_chosen_depth_is_nearly_the_best_one() {
    for (window_s, step_s) in [(FLAT, 0.02), (FLAT, 0.2), (STEEP, 0.05)] {
        for acceptance in [0.0, 0.3, 0.6, 0.8, 0.95] {
            let mut machine = Machine { window_s, step_s, acceptance, state: 9 };
            let speed = |machine: &mut Machine, fixed| {
                machine.run(&mut DepthChooser::new(1, 7), fixed, 4_000)
            };
            let plain = speed(&mut machine, Some(0));
            let fixed = (0..8).map(|depth| speed(&mut machine, Some(depth)));
            let best = fixed.fold(f64::INFINITY, f64::min);
            let found = speed(&mut machine, None);
            let case = format!("{step_s} {acceptance}: {found:.3}, best {best:.3}, {plain:.3}");
            assert!(found < best * 1.06, "{case}");
            assert!(found < plain * 1.025, "{case}");
        }
    }
}

#[test]
fn drafts_that_are_always_wrong_cost_next_to_nothing() {
    for window_s in [FLAT, STEEP] {
        let mut machine = Machine { window_s, step_s: 0.3, acceptance: 0.0, state: 3 };
        let mut chooser = DepthChooser::new(1, 7);
        // Four windows at the beginning, then 2 %.
        let first = machine.run(&mut chooser, None, 100) * 100.0;
        assert!(first < 110.0, "{first}");
        let later = machine.run(&mut chooser, None, 3_000);
        assert!(later < 1.025, "{later}");
    }
}

#[test]
fn it_follows_a_text_that_changes() {
    let mut machine = Machine { window_s: FLAT, step_s: 0.05, acceptance: 0.0, state: 3 };
    let mut chooser = DepthChooser::new(1, 7);
    machine.run(&mut chooser, None, 1_000);
    machine.acceptance = 0.9;
    machine.run(&mut chooser, None, 500);
    let good = machine.run(&mut chooser, None, 1_000);
    assert!(good < 0.4, "{good}");
    machine.acceptance = 0.0;
    machine.run(&mut chooser, None, 100);
    let bad = machine.run(&mut chooser, None, 1_000);
    assert!(bad < 1.03, "{bad}");
}
