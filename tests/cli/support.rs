//! Running the command and reading what tests compare with.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test binary uses a part; tests may panic and tell why they skip"
)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use strata_formats::Checkpoint;
use strata_replay::{Engine, EngineOptions, Row, SlotId};

pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A folder of its own for the test called `name`, empty.
pub fn scratch(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
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

/// Runs the command with `input` as its standard input; it must succeed.
pub fn strata_fed(dir: &Path, args: &[&str], input: &str) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_strata"))
        .args(args)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "strata {args:?}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, which must fail with this exit code and say all of `words`.
pub fn strata_fails(dir: &Path, args: &[&str], code: i32, words: &[&str]) {
    let output = strata(dir, args);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "strata {args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "strata {args:?}: no `{word}` in: {message}");
    }
}

pub fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The plan of a model that tests share, compiled once for each build of the command, also if the
/// tests run in processes of their own. Nobody may write into its folder.
pub fn shared_plan(name: &str, checkpoint: impl FnOnce(&Path) -> PathBuf) -> PathBuf {
    shared_plan_by(name, |dir| {
        compile(dir, &checkpoint(dir), &[]);
    })
}

/// As [`shared_plan`], of a plan that `make` writes to `model.plan` in the folder that it is given.
pub fn shared_plan_by(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("shared-{name}"));
    fs::create_dir_all(&dir).unwrap();
    let lock = fs::File::create(dir.join("lock")).unwrap();
    lock.lock().unwrap();
    let plan = dir.join("model.plan");
    let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    let builds = [env!("CARGO_BIN_EXE_strata").into(), std::env::current_exe().unwrap()];
    if !builds.iter().all(|build| modified(&plan) > modified(build)) {
        make(&dir);
    }
    plan
}

/// The plan of the oracle's llama model.
pub fn oracle_plan() -> PathBuf {
    shared_plan("oracle-llama", |_| repository().join("tests/oracle/llama/model-f32.gguf"))
}

/// Imports and compiles a checkpoint into `dir`; returns the plan.
pub fn compile(dir: &Path, checkpoint: &Path, extra: &[&str]) -> PathBuf {
    compile_edited(dir, checkpoint, extra, |definition| definition)
}

/// As [`compile`], of the definition that `edit` makes of the imported one.
pub fn compile_edited(
    dir: &Path,
    checkpoint: &Path,
    extra: &[&str],
    edit: impl FnOnce(String) -> String,
) -> PathBuf {
    let definition = dir.join("model.ron");
    let plan = dir.join("model.plan");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    strata_ok(dir, &["import", &text(checkpoint), "-o", &text(&definition)]);
    let edited = edit(fs::read_to_string(&definition).unwrap());
    fs::write(&definition, edited).unwrap();
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
