//! A row's logits are the same bits whatever window it is in, who shares it, how many threads
//! compute it, and whether it was cut off and computed again: for every stored format.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod support;
mod tiny;

use std::path::Path;

use strata_formats::TensorType::{self, *};
use strata_replay::{Engine, EngineOptions, Row, SlotId};
use support::{compile, logits_in_windows, scratch};
use tiny::{Family, Random, Tiny};

const PROMPT: usize = 600;
/// Rows of a window, and the threads that compute it.
const SPLITS: [(usize, u32); 13] = [
    (32, 1),
    (1, 2),
    (2, 2),
    (3, 2),
    (4, 2),
    (6, 2),
    (8, 2),
    (32, 2),
    (128, 2),
    (512, 2),
    (3, 1),
    (8, 3),
    (512, 3),
];

/// On a thread of its own, since an engine keeps the thread that opens it on one core.
fn with_engine<T: Send>(plan: &Path, threads: u32, work: impl FnOnce(Engine) -> T + Send) -> T {
    let options =
        EngineOptions { threads: Some(threads), snapshots: 1, ..EngineOptions::default() };
    std::thread::scope(|scope| {
        let open = || work(Engine::open(plan, &options, &mut |_, _| {}).unwrap());
        scope.spawn(open).join().unwrap()
    })
}

fn assert_same(what: &str, found: &[Vec<f32>], expected: &[Vec<f32>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (position, (a, b)) in found.iter().zip(expected).enumerate() {
        let same = a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same && a.len() == b.len(), "{what}: other bits at position {position}");
    }
}

/// The logits must be worth comparing: finite, and other ones at each position.
fn assert_alive(logits: &[Vec<f32>]) {
    assert!(logits.iter().flatten().all(|value| value.is_finite()));
    assert!(logits.windows(2).all(|pair| pair[0] != pair[1]));
    let best: std::collections::BTreeSet<u32> =
        logits.iter().map(|row| strata_replay::argmax(row)).collect();
    assert!(best.len() > 20, "the model says {} different tokens only", best.len());
}

fn check(name: &str, family: Family, formats: &[TensorType], cache: &str) {
    let dir = scratch(&format!("windows-{name}"));
    let kv_heads = if formats == FLOATS { 2 } else { 4 };
    let tiny = Tiny { family, layers: formats, table: formats[0], context: 2048, kv_heads };
    let config = dir.join("config.ron");
    let text = format!(
        "(windows: (prefill_logit_rows: 512), kv: (element: {cache}), \
         sequences: (slots: 2, context_tokens: 1024))"
    );
    std::fs::write(&config, text).unwrap();
    let began = std::time::Instant::now();
    let plan = compile(&dir, &tiny.write(&dir, "tiny"), &["--config", config.to_str().unwrap()]);
    println!("{name}: compiled in {:.1} s", began.elapsed().as_secs_f32());
    let prompt = Random(7).tokens(PROMPT);
    let mut expected = Vec::new();
    for threads in [1, 2, 3] {
        let began = std::time::Instant::now();
        with_engine(&plan, threads, |mut engine| {
            for (window, _) in SPLITS.into_iter().filter(|split| split.1 == threads) {
                let slot = engine.new_sequence().unwrap();
                let logits = logits_in_windows(&mut engine, slot, &prompt, window);
                engine.release(slot);
                if expected.is_empty() {
                    assert_alive(&logits);
                    expected = logits;
                } else {
                    let what = format!("{name}, windows of {window}, {threads} threads");
                    assert_same(&what, &logits, &expected);
                }
            }
        });
        println!("{name}: {threads} threads {:.1} s", began.elapsed().as_secs_f32());
    }
    with_engine(&plan, 2, |mut engine| check_states(name, &mut engine, &prompt, &expected));
}

/// Companions in a window, truncation, snapshots.
fn check_states(name: &str, engine: &mut Engine, prompt: &[u32], expected: &[Vec<f32>]) {
    let one = engine.new_sequence().unwrap();
    let other = engine.new_sequence().unwrap();
    let strange = Random(8).tokens(prompt.len());
    let found = beside(engine, (one, prompt), (other, &strange));
    assert_same(&format!("{name}, beside another sequence"), &found, expected);

    engine.truncate(one, 130).unwrap();
    let again = logits_in_windows(engine, one, &prompt[130..], 4);
    assert_same(&format!("{name}, truncated to 130"), &again, &expected[130..]);

    engine.truncate(one, 70).unwrap();
    engine.snapshot(one, 0).unwrap();
    let detour = logits_in_windows(engine, one, &strange[..100], 8);
    assert_ne!(detour[99], expected[169], "{name}: another text gives the same logits");
    engine.restore(one, 0).unwrap();
    assert_eq!(engine.position(one).unwrap(), 70);
    let again = logits_in_windows(engine, one, &prompt[70..200], 6);
    assert_same(&format!("{name}, restored to 70"), &again, &expected[70..200]);
    // Into the slot of another sequence.
    engine.restore(other, 0).unwrap();
    let again = logits_in_windows(engine, other, &prompt[70..200], 32);
    assert_same(&format!("{name}, restored elsewhere"), &again, &expected[70..200]);
}

/// Logits of the first sequence, run in windows of changing size beside rows of the second one,
/// before or after its own.
fn beside(
    engine: &mut Engine,
    (one, tokens): (SlotId, &[u32]),
    (other, strange): (SlotId, &[u32]),
) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    let mut at = 0;
    for rows in [1, 3, 5, 2, 60, 20, 4].into_iter().cycle() {
        let end = (at + rows).min(tokens.len());
        let own = (at..end).map(|i| Row { token: tokens[i], slot: one, logits: true });
        let foreign = |i| Row { token: strange[i], slot: other, logits: i % 2 == 0 };
        let foreign = (at..end).map(foreign);
        // Rows of a sequence stand together.
        let window: Vec<Row> = match rows % 2 {
            0 => own.chain(foreign).collect(),
            _ => foreign.chain(own).collect(),
        };
        let output = engine.run(&window).unwrap();
        let wanted = window.iter().filter(|row| row.logits).enumerate();
        let own = wanted.filter(|(_, row)| row.slot == one);
        logits.extend(own.map(|(index, _)| output.logits(index).to_vec()));
        at = end;
        if at == tokens.len() {
            break;
        }
    }
    logits
}

const LEGACY: &[TensorType] = &[Q8_0, Q4_0, Q4_1, Q5_0, Q5_1];
const K_QUANTS: &[TensorType] = &[Q6_K, Q4_K, Q5_K];
const FLOATS: &[TensorType] = &[F16, BF16, F32];

#[test]
fn llama_legacy_f16_cache() {
    check("llama-legacy", Family::Llama, LEGACY, "F16");
}

#[test]
fn llama_k_quants_int8_cache() {
    check("llama-k", Family::Llama, K_QUANTS, "Int8");
}

#[test]
fn llama_floats_f16_cache() {
    check("llama-floats", Family::Llama, FLOATS, "F16");
}

#[test]
fn qwen3moe_legacy_int8_cache() {
    check("moe-legacy", Family::Qwen3Moe, LEGACY, "Int8");
}

#[test]
fn qwen3moe_k_quants_f16_cache() {
    check("moe-k", Family::Qwen3Moe, K_QUANTS, "F16");
}

#[test]
fn qwen3moe_floats_int8_cache() {
    check("moe-floats", Family::Qwen3Moe, FLOATS, "Int8");
}
