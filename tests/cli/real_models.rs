//! Real models, where they were fetched: text and perplexity.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod support;

use std::path::Path;

use serde_json::Value;
use support::{compile, real_model, repository, scratch, strata_ok, text_of};

/// Relative distance from the reference's perplexity.
const TOLERANCE: f64 = 0.005;

/// Perplexity over four chunks of 512 tokens, as llama.cpp computes it on the same file:
/// `llama-perplexity -m MODEL -f tests/data/text.txt -c 512 --chunks 4 -t 2`.
fn check_perplexity(dir: &Path, plan: &Path, expected: f64) {
    let text = repository().join("tests/data/text.txt");
    let args = ["perplexity", text_of(plan), text_of(&text), "--chunks", "4", "--json"];
    let found: Value = serde_json::from_str(&strata_ok(dir, &args)).unwrap();
    let perplexity = found["perplexity"].as_f64().unwrap();
    let distance = (perplexity / expected - 1.0).abs();
    println!("perplexity {perplexity:.4}, expected {expected}: {:.3} %", distance * 100.0);
    assert_eq!(found["chunks"], 4);
    assert!(distance <= TOLERANCE, "perplexity {perplexity}, expected {expected}");
}

/// Greedy text of 64 tokens. It was read and is good text for a model of this size.
fn check_text(dir: &Path, run: &[&str], expected: &str) {
    let args = [&["run"], run, &["-n", "64", "--json"]].concat();
    let found: Value = serde_json::from_str(&strata_ok(dir, &args)).unwrap();
    assert_eq!(found["text"], expected);
}

#[test]
fn smollm2() {
    let Some(file) = real_model("SmolLM2-135M-Instruct-Q4_1.gguf") else { return };
    let dir = scratch("real-smollm2");
    let plan = compile(&dir, &file, &[]);
    let prompt = "Explain in two sentences why the sky is blue.";
    check_text(&dir, &[text_of(&plan), "--prompt", prompt], SMOLLM2_TEXT);
    check_perplexity(&dir, &plan, 55.3313);
}

#[test]
fn gemma_3_270m() {
    let Some(file) = real_model("gemma-3-270m-Q4_K_M.gguf") else { return };
    let dir = scratch("real-gemma");
    let plan = compile(&dir, &file, &[]);
    let prompt = "The capital of France is Paris. The capital of Germany is";
    check_text(&dir, &[text_of(&plan), "--raw", "--prompt", prompt], GEMMA_TEXT);
    check_perplexity(&dir, &plan, 57.7758);
}

const SMOLLM2_TEXT: &str = "The sky is blue because of a process called Rayleigh scattering, where \
light encounters tiny molecules of air and is deflected by them. When sunlight reaches our \
atmosphere, it encounters molecules of air that scatter the shorter wavelengths of light, which \
includes blue and violet. This scattering of light is a fundamental phenomenon in the natural world";

const GEMMA_TEXT: &str = " Berlin. The capital of the United States is Washington, D.C.\n\n\
The capital of the United Kingdom is London.\n\n\
The capital of the Commonwealth of Independent States is Moscow.\n\n\
The capital of the Republic of the Congo is Kinshasa.\n\n\
The capital of the Republic of the Congo is Brazzaville";
