//! Hybrid models whose states are tested: the trained one and the oracle's, in several stored types,
//! and how they are run plainly.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part; tests may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use strata_formats::TensorType;
use strata_replay::{Engine, EngineOptions, Row, SlotId, argmax};

use crate::requantise::{q4_mix, q8_0, requantise};
use crate::support::{repository, scratch, shared_plan_by, strata_ok, text_of};

/// Snapshots of engines that [`with_engine`] opens.
pub const SNAPSHOTS: u32 = 3;

/// A model in a stored type, and how its plan keeps keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    pub name: &'static str,
    /// The trained model, else the oracle's.
    trained: bool,
    /// Another type than the file's.
    rewrite: Option<fn(u64) -> Option<TensorType>>,
    cache: &'static str,
}

pub const NANO_Q8: Subject =
    Subject { name: "nano-q8_0", trained: true, rewrite: None, cache: "F16" };
pub const NANO_MIX: Subject =
    Subject { name: "nano-q4-mix", rewrite: Some(q4_mix), cache: "Int8", ..NANO_Q8 };
pub const ORACLE_F32: Subject =
    Subject { name: "oracle-f32", trained: false, rewrite: None, cache: "F32" };
pub const ORACLE_Q8: Subject =
    Subject { name: "oracle-q8_0", rewrite: Some(q8_0), cache: "F16", ..ORACLE_F32 };
pub const ORACLE_MIX: Subject =
    Subject { name: "oracle-q4-mix", rewrite: Some(q4_mix), cache: "Int8", ..ORACLE_F32 };

impl Subject {
    /// Its plan, for three sequences of 4096 positions.
    pub fn plan(&self) -> PathBuf {
        shared_plan_by(self.name, |dir| self.compile(dir))
    }

    fn compile(&self, dir: &Path) {
        let stored = if self.trained {
            repository().join("models/strata-nano-Q8_0.gguf")
        } else {
            repository().join("tests/oracle/qwen4exp/model-f32.gguf")
        };
        let definition = if self.trained {
            repository().join("models/strata-nano.ron")
        } else {
            let definition = dir.join("model.ron");
            strata_ok(dir, &["import", text_of(&stored), "-o", text_of(&definition)]);
            definition
        };
        let weights = match self.rewrite {
            Some(choose) => {
                let file = dir.join("model.gguf");
                requantise(&stored, &file, choose);
                file
            }
            None => stored,
        };
        let config = dir.join("config.ron");
        let text =
            format!("(kv: (element: {}), sequences: (slots: 3, context_tokens: 4096))", self.cache);
        fs::write(&config, text).unwrap();
        let plan = dir.join("model.plan");
        let files = ["compile", text_of(&definition), "-o", text_of(&plan)];
        let more = ["--weights", text_of(&weights), "--config", text_of(&config)];
        strata_ok(dir, &[files, more].concat());
    }

    /// Ordinary text for the trained model, any tokens for the other one.
    pub fn prompt(&self, which: usize, count: usize) -> Vec<u32> {
        let words = ["short", "chat", "code", "tool", "needle600"];
        let vocab = if self.trained { 4000 } else { 512 };
        if self.trained && which < words.len() {
            let file = repository().join("tests/oracle/strata-nano/expected.safetensors");
            let file = strata_formats::Checkpoint::open(file).unwrap();
            let all = crate::support::tensor_words(&file, &format!("{}.tokens", words[which]));
            return all.into_iter().cycle().take(count).collect();
        }
        let mut random = Random(which as u64 + 11);
        (0..count).map(|_| random.below(vocab) as u32).collect()
    }
}

/// On a thread of its own, since an engine keeps the thread that opens it on one core.
pub fn with_engine<T: Send>(plan: &Path, work: impl FnOnce(Engine) -> T + Send) -> T {
    let options =
        EngineOptions { threads: Some(2), snapshots: SNAPSHOTS, ..EngineOptions::default() };
    std::thread::scope(|scope| {
        let open = || work(Engine::open(plan, &options, &mut |_, _| {}).unwrap());
        scope.spawn(open).join().unwrap()
    })
}

/// What plain decoding makes of a prompt: one row a window, nothing rejected.
#[derive(Clone, Debug)]
pub struct Plain {
    /// The prompt and what follows it.
    pub tokens: Vec<u32>,
    /// Behind each token.
    pub logits: Vec<Vec<f32>>,
    /// Behind the last token, as in [`state_bytes`].
    pub state: Vec<u8>,
}

impl Plain {
    /// Greedy text up to `total` tokens, a multiple of the page.
    pub fn greedy(engine: &mut Engine, prompt: &[u32], total: usize) -> Self {
        let slot = engine.new_sequence().unwrap();
        let mut tokens = prompt.to_vec();
        let mut logits: Vec<Vec<f32>> = Vec::new();
        while logits.len() < total {
            if tokens.len() == logits.len() {
                tokens.push(argmax(logits.last().unwrap()));
            }
            logits.push(read(engine, slot, &tokens[logits.len()..=logits.len()]));
        }
        let state = state_bytes(engine, slot);
        engine.release(slot);
        let kinds: BTreeSet<u32> = logits.iter().map(|row| argmax(row)).collect();
        assert!(kinds.len() > 10, "the model says {} different tokens only", kinds.len());
        assert!(logits.iter().flatten().all(|logit| logit.is_finite()));
        Self { tokens, logits, state }
    }
}

/// Appends tokens in one window and returns the logits behind the last one.
pub fn read(engine: &mut Engine, slot: SlotId, tokens: &[u32]) -> Vec<f32> {
    let row = |(i, &token): (usize, &u32)| Row { token, slot, logits: i + 1 == tokens.len() };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    engine.run(&rows).unwrap().logits(0).to_vec()
}

/// All that a sequence of whole pages holds. A row that is rejected comes first: the draft head's
/// entry of a position is stored by the row behind it, and would otherwise be whatever was there.
pub fn state_bytes(engine: &mut Engine, slot: SlotId) -> Vec<u8> {
    let page = engine.model().page_tokens;
    assert_eq!(engine.position(slot).unwrap() % page, 0, "what is behind the end is not stated");
    engine.run_uncommitted(&[Row { token: 1, slot, logits: false }]).unwrap();
    engine.commit(slot, 0).unwrap();
    let thread = std::thread::current().id();
    let dir = scratch(&format!("state-{}-{thread:?}", std::process::id()));
    let file = dir.join("sequence.state");
    engine.save_sequence(slot, &file).unwrap();
    let bytes = fs::read(&file).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    bytes
}

pub fn assert_bits(what: &str, found: &[f32], expected: &[f32]) {
    let same = found.iter().zip(expected).filter(|(a, b)| a.to_bits() == b.to_bits()).count();
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(same == found.len(), "{what}: {same} of {} logits are the same", found.len());
}

pub fn assert_state(what: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{what}: bytes of the state");
    let first = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(first, None, "{what}: the first byte of the state that differs");
}

/// xorshift64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit as u64) as usize
    }
}
