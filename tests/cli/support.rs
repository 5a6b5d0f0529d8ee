//! Running the command and reading what tests compare with.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test binary uses a part; tests may panic and tell why they skip"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use strata_formats::Checkpoint;
use strata_replay::{Engine, EngineOptions, Row, SlotId};

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder of its own for the test called `name`, empty.
pub fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Runs the command; the cache is a folder of the test's.
pub fn strata(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strata"))
        .args(args)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .output()
        .unwrap()
}

/// Runs the command, which must succeed, and returns its standard output.
pub fn strata_ok(dir: &Path, args: &[&str]) -> String {
    let output = strata(dir, args);
    assert!(
        output.status.success(),
        "strata {args:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Imports and compiles a checkpoint into `dir`; returns the plan.
pub fn compile(dir: &Path, checkpoint: &Path, extra: &[&str]) -> PathBuf {
    let definition = dir.join("model.ron");
    let plan = dir.join("model.plan");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    strata_ok(dir, &["import", &text(checkpoint), "-o", &text(&definition)]);
    let (definition, plan_text) = (text(&definition), text(&plan));
    let mut args = vec!["compile", &definition, "-o", &plan_text];
    args.extend_from_slice(extra);
    strata_ok(dir, &args);
    plan
}

pub fn open(plan: &Path, threads: u32) -> Engine {
    let options = EngineOptions { threads: Some(threads), ..EngineOptions::default() };
    Engine::open(plan, &options, &mut |_, _| {}).unwrap()
}

/// Runs `tokens` in windows of at most `window` rows and returns the logits of every position.
pub fn logits_in_windows(
    engine: &mut Engine,
    slot: SlotId,
    tokens: &[u32],
    window: usize,
) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for chunk in tokens.chunks(window) {
        let rows: Vec<Row> = chunk.iter().map(|&token| Row { token, slot, logits: true }).collect();
        let output = engine.run(&rows).unwrap();
        all.extend((0..rows.len()).map(|i| output.logits(i).to_vec()));
    }
    all
}

/// A tensor of 4-byte elements of a safetensors file.
pub fn tensor_words(file: &Checkpoint, name: &str) -> Vec<u32> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let bytes = file.bytes_of(tensor);
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// A real model of `make models`, or `None` with the reason printed.
pub fn real_model(file: &str) -> Option<PathBuf> {
    let path = repository().join("model-files").join(file);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {} is not there; `make models` fetches it", path.display());
    None
}
