//! Tests of the engine on the plan of `test_plan`.

mod commit;
mod draft;
mod engine;
mod pack;
mod pool;
mod random;
mod refusals;
mod save;
mod states;

use std::path::PathBuf;

use strata_plan::PlanImage;

use crate::test_plan::{self, mix};
use crate::{Engine, EngineOptions, Row, SlotId};

/// A plan in a folder that is removed with it.
pub(crate) struct TestPlan {
    path: PathBuf,
}

impl TestPlan {
    fn new(name: &str) -> Self {
        Self::edited(name, &|_| {})
    }

    pub(crate) fn recurrent(name: &str) -> Self {
        Self { path: test_plan::write_kind(&std::env::temp_dir(), name, true, &|_| {}) }
    }

    fn edited(name: &str, edit: &dyn Fn(&mut PlanImage)) -> Self {
        Self { path: test_plan::write(&std::env::temp_dir(), name, edit) }
    }

    fn open(&self, options: &EngineOptions) -> Engine {
        Engine::open(&self.path, options, &mut |_, _| {}).unwrap()
    }

    pub(crate) fn open_with_threads(&self, threads: u32) -> Engine {
        self.open(&EngineOptions { threads: Some(threads), snapshots: 2, ..Default::default() })
    }
}

impl Drop for TestPlan {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.path.parent().unwrap());
    }
}

pub(crate) fn rows(slot: SlotId, tokens: &[u32]) -> Vec<Row> {
    let last = tokens.len() - 1;
    tokens.iter().enumerate().map(|(i, &token)| Row { token, slot, logits: i == last }).collect()
}

fn hash(tokens: &[u32]) -> u32 {
    tokens.iter().fold(0, |hash, &token| mix(hash, token))
}

/// What the logits behind the last of `tokens` begin with.
pub(crate) fn expected(tokens: &[u32]) -> [f32; 3] {
    let hash = hash(tokens) as f32;
    [hash, hash, *tokens.last().unwrap() as f32]
}
