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
}

impl Expected {
    fn start(&mut self, engine: &mut Engine) {
        match engine.new_sequence() {
            Ok(slot) => self.live.push((slot, Vec::new())),
            Err(ReplayError::NoSlot { slots: 3 }) => assert_eq!(self.live.len(), 3),
            Err(other) => panic!("{other}"),
        }
    }

    /// Rows of several sequences, in any order; all that happens is checked.
    fn run(&mut self, engine: &mut Engine, random: &mut Random) {
        let logits = random.below(2) == 0;
        let limit = if logits { MAX_LOGIT_ROWS } else { MAX_ROWS };
        let mut after: Vec<Vec<u32>> = self.live.iter().map(|(_, tokens)| tokens.clone()).collect();
        let (mut rows, mut hashes) = (Vec::new(), Vec::new());
        for _ in 0..=random.below(limit) {
            let which = random.below(self.live.len());
            let token = random.below(VOCAB) as u32;
            rows.push(Row { token, slot: self.live[which].0, logits });
            after[which].push(token);
            hashes.push(hash(&after[which]) as f32);
        }
        let free = engine.free_pages();
        match engine.run(&rows) {
            Ok(output) => {
                let found: Vec<f32> = (0..output.count()).map(|i| output.logits(i)[0]).collect();
                assert_eq!(found, if logits { hashes } else { Vec::new() });
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
                let position = random.below(tokens.len() + 1);
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
            _ => self.run(engine, random),
        }
    }

    fn check(&self, engine: &mut Engine) {
        for (slot, tokens) in &self.live {
            assert_eq!(engine.position(*slot).unwrap() as usize, tokens.len());
        }
        for slot in &self.gone {
            assert!(engine.position(*slot).is_err());
        }
    }
}

#[test]
fn sequences_hold_what_was_appended() {
    let plan = TestPlan::new("random");
    for seed in 1..=4 {
        let mut engine = plan.open_with_threads(if seed == 1 { 2 } else { 1 });
        let mut random = Random(seed * 0x9e37_79b9);
        let mut expected = Expected::default();
        for _ in 0..3_000 {
            expected.call(&mut engine, &mut random);
            expected.check(&mut engine);
        }
        assert!(expected.full > 10, "the pages must have run out");
        assert!(expected.windows > 500, "{} windows", expected.windows);
        expected.live.iter().for_each(|(slot, _)| engine.release(*slot));
        (0..2).for_each(|index| engine.drop_snapshot(index).unwrap());
        assert_eq!(engine.free_pages() as usize, PAGES, "a page was lost");
    }
}
