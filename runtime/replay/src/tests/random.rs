//! Random calls against a model of sequences that is nothing but vectors of tokens.

use super::{TestPlan, hash};
use crate::test_plan::{CONTEXT, MAX_LOGIT_ROWS, MAX_ROWS, PAGES, VOCAB};
use crate::{Engine, ReplayError, Row, SlotId};

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// What the engine should hold.
#[derive(Default)]
struct Expected {
    live: Vec<(SlotId, Vec<u32>)>,
    gone: Vec<SlotId>,
    snapshots: [Option<Vec<u32>>; 2],
    full: u32,
    windows: u32,
    drafts: u32,
    /// Of the plan with states of fixed size.
    recurrent: bool,
}

impl Expected {
    fn start(&mut self, engine: &mut Engine) {
        match engine.new_sequence() {
            Ok(slot) => self.live.push((slot, Vec::new())),
            Err(ReplayError::NoSlot { slots: 3 }) => assert_eq!(self.live.len(), 3),
            Err(other) => panic!("{other}"),
        }
    }

    /// Rows of several sequences; all that happens is checked. Some of them are not kept.
    fn run(&mut self, engine: &mut Engine, random: &mut Random) {
        let (logits, verify) = (random.below(2) == 0, random.below(2) == 0);
        let limit = if logits || verify { MAX_LOGIT_ROWS } else { MAX_ROWS };
        let mut after: Vec<Vec<u32>> = self.live.iter().map(|(_, tokens)| tokens.clone()).collect();
        let mut which: Vec<usize> =
            (0..=random.below(limit)).map(|_| random.below(self.live.len())).collect();
        which.sort_unstable();
        let (mut rows, mut hashes) = (Vec::new(), Vec::new());
        for which in which {
            let token = random.below(VOCAB) as u32;
            rows.push(Row { token, slot: self.live[which].0, logits });
            after[which].push(token);
            hashes.push(hash(&after[which]) as f32);
        }
        let free = engine.free_pages();
        let ran = if verify { engine.run_uncommitted(&rows) } else { engine.run(&rows) };
        match ran {
            Ok(output) => {
                let found: Vec<f32> = (0..output.count()).map(|i| output.logits(i)[0]).collect();
                if self.recurrent {
                    let kept = (0..output.count()).map(|i| output.logits(i)[1]);
                    assert_eq!(found, kept.collect::<Vec<f32>>());
                }
                assert_eq!(found, if logits { hashes } else { Vec::new() });
                if verify {
                    Self::commit(engine, random, &self.live, &mut after);
                }
                self.live.iter_mut().zip(after).for_each(|((_, tokens), after)| *tokens = after);
                self.windows += 1;
            }
            Err(ReplayError::Context { .. }) => {
                assert!(after.iter().any(|tokens| tokens.len() > CONTEXT));
                assert_eq!(engine.free_pages(), free);
            }
            Err(ReplayError::NoPage { needed, free: found, .. }) => {
                assert!(needed > found && found == free && engine.free_pages() == free);
                self.full += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Keeps some of the rows that made `before` to `after`.
    fn commit(
        engine: &mut Engine,
        random: &mut Random,
        before: &[(SlotId, Vec<u32>)],
        after: &mut [Vec<u32>],
    ) {
        let mut commits = Vec::new();
        for ((slot, before), after) in before.iter().zip(after) {
            let rows = after.len() - before.len();
            if rows > 0 {
                let accepted = random.below(rows + 1);
                after.truncate(before.len() + accepted);
                commits.push((*slot, accepted as u32));
            }
        }
        engine.commit_many(&commits).unwrap();
    }

    fn draft(&mut self, engine: &mut Engine, random: &mut Random) {
        let (slot, tokens) = &self.live[random.below(self.live.len())];
        if tokens.is_empty() || !self.recurrent {
            return;
        }
        engine.draft_begin(*slot).unwrap();
        let mut all = tokens.clone();
        for _ in 0..random.below(6) {
            let token = random.below(VOCAB) as u32;
            all.push(token);
            match engine.draft(&[(*slot, token)]) {
                Ok(output) => assert_eq!(output.logits(0)[0], hash(&all[1..]) as f32),
                Err(ReplayError::Context { .. } | ReplayError::NoPage { .. }) => return,
                Err(other) => panic!("{other}"),
            }
            self.drafts += 1;
        }
    }

    fn call(&mut self, engine: &mut Engine, random: &mut Random) {
        if self.live.is_empty() {
            return self.start(engine);
        }
        let which = random.below(self.live.len());
        let (slot, tokens) = &mut self.live[which];
        let index = random.below(2);
        match random.below(20) {
            0..=1 => self.start(engine),
            2 => {
                engine.release(*slot);
                self.gone.push(self.live.remove(which).0);
            }
            3..=4 => {
                let inside = if self.recurrent { 0 } else { random.below(tokens.len() + 1) };
                let position = if random.below(4) == 0 { tokens.len() } else { inside };
                if self.recurrent && random.below(6) > 0 {
                    return;
                }
                engine.truncate(*slot, position as u32).unwrap();
                tokens.truncate(position);
            }
            5..=6 => {
                engine.snapshot(*slot, index as u32).unwrap();
                self.snapshots[index] = Some(tokens.clone());
            }
            7..=8 => match &self.snapshots[index] {
                Some(kept) => {
                    engine.restore(*slot, index as u32).unwrap();
                    tokens.clone_from(kept);
                }
                None => assert!(engine.restore(*slot, index as u32).is_err()),
            },
            9 => {
                engine.drop_snapshot(index as u32).unwrap();
                self.snapshots[index] = None;
            }
            10..=11 => self.draft(engine, random),
            _ => self.run(engine, random),
        }
    }

    fn check(&self, engine: &mut Engine) {
        for (slot, tokens) in &self.live {
            assert_eq!(engine.position(*slot).unwrap() as usize, tokens.len());
            assert_eq!(engine.tokens(*slot).unwrap(), tokens);
        }
        for slot in &self.gone {
            assert!(engine.position(*slot).is_err());
        }
    }
}

fn hold_what_was_appended(plan: &TestPlan, recurrent: bool) {
    for seed in 1..=4 {
        let mut engine = plan.open_with_threads(if seed == 1 { 2 } else { 1 });
        let mut random = Random(seed * 0x9e37_79b9);
        let mut expected = Expected { recurrent, ..Expected::default() };
        for _ in 0..3_000 {
            expected.call(&mut engine, &mut random);
            expected.check(&mut engine);
        }
        assert!(expected.full > 10, "the pages must have run out");
        assert!(expected.windows > 500, "{} windows", expected.windows);
        assert_eq!(expected.drafts > 200, recurrent, "{} drafts", expected.drafts);
        expected.live.iter().for_each(|(slot, _)| engine.release(*slot));
        (0..2).for_each(|index| engine.drop_snapshot(index).unwrap());
        assert_eq!(engine.free_pages() as usize, PAGES, "a page was lost");
    }
}

#[test]
fn sequences_hold_what_was_appended() {
    hold_what_was_appended(&TestPlan::new("random"), false);
}

#[test]
fn states_hold_what_was_appended() {
    hold_what_was_appended(&TestPlan::recurrent("random-states"), true);
}
