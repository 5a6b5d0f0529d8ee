//! Tiny random models of each architecture against expectations computed in float64.
//!
//! The tolerance of 2e-4 on logits is what a float32 engine needs: the reference implementation run
//! in float32 differs from itself in float64 by up to 4e-5 on these models, and the largest
//! difference between the two best logits that greedy text depends on is above 8e-4. Keys and values
//! are kept in f32 for these tests: rounding them to f16 alone moves logits by about 1e-3.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod reference;
mod support;

use reference::{Oracle, worst};
use strata_replay::Engine;
use support::{compile, logits_in_windows, open, repository, scratch};

const TOLERANCE: f32 = 2e-4;
const PROMPTS: [usize; 4] = [1, 7, 64, 300];

fn fresh(engine: &mut Engine, tokens: &[u32], window: usize) -> Vec<Vec<f32>> {
    let slot = engine.new_sequence().unwrap();
    let logits = logits_in_windows(engine, slot, tokens, window);
    engine.release(slot);
    logits
}

fn check_greedy(engine: &mut Engine, prompt: &[u32], expected: &[u32]) {
    let slot = engine.new_sequence().unwrap();
    let mut last = logits_in_windows(engine, slot, prompt, 32).pop().unwrap();
    let mut tokens = Vec::new();
    while tokens.len() < expected.len() {
        tokens.push(strata_replay::argmax(&last));
        last = logits_in_windows(engine, slot, &tokens[tokens.len() - 1..], 1).pop().unwrap();
    }
    engine.release(slot);
    assert_eq!(tokens, expected);
}

/// All prompts, all positions; greedy text; the same bits for every split into windows.
fn check(name: &str, checkpoint: &str) {
    let oracle = Oracle::open(name);
    let dir = scratch(&format!("oracle-{name}-{}", checkpoint.replace('.', "-")));
    let config = repository().join("configs/exact-f32-cache.ron");
    let config = ["--config", config.to_str().unwrap()];
    let plan = compile(&dir, &oracle.dir.join(checkpoint), &config);
    let mut engine = open(&plan, 2);
    for length in PROMPTS {
        let prompt = oracle.prompt(length);
        let rows = fresh(&mut engine, &prompt, 32);
        let expected = oracle.logits(length);
        let found: Vec<f32> = rows.iter().flatten().copied().collect();
        let worst = worst(&found, &expected);
        println!("{name} {checkpoint} {length} tokens: max abs logit error {worst:e}");
        assert!(worst <= TOLERANCE, "{name}, {length} tokens: error {worst}");
        for window in [1, 2, 3, 4, 6, 7, 8, 128, 512] {
            let window = window.min(engine.model().max_logit_rows as usize);
            let other = fresh(&mut engine, &prompt, window);
            let same = rows.iter().flatten().zip(other.iter().flatten());
            assert!(
                same.clone().all(|(a, b)| a.to_bits() == b.to_bits()),
                "{name}, {length} tokens: windows of {window} rows give other bits"
            );
        }
        check_greedy(&mut engine, &prompt, &oracle.greedy(length));
    }
}

#[test]
fn llama_from_gguf() {
    check("llama", "model-f32.gguf");
}

#[test]
fn llama_from_safetensors() {
    check("llama", "");
}

#[test]
fn gemma3_from_gguf() {
    check("gemma3", "model-f32.gguf");
}

#[test]
fn gemma3_from_safetensors() {
    check("gemma3", "");
}

#[test]
fn qwen3moe_from_gguf() {
    check("qwen3moe", "model-f32.gguf");
}

#[test]
fn qwen3moe_from_safetensors() {
    check("qwen3moe", "");
}

#[test]
fn qwen3next_from_gguf() {
    check("qwen3next", "model-f32.gguf");
}

#[test]
fn qwen3next_from_safetensors() {
    check("qwen3next", "");
}

#[test]
fn qwen4exp_from_gguf() {
    check("qwen4exp", "model-f32.gguf");
}

#[test]
fn qwen4exp_from_safetensors() {
    check("qwen4exp", "");
}
