//! Plans whose repacked weights are larger than the budget: the same bits as in RAM, from a packed
//! file that is made once.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests may panic and tell why they skip"
)]

mod requantise;
mod subjects;
mod support;
mod tiny;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use strata_formats::TensorType;
use subjects::{NANO_Q8, with_engine};
use support::{logits_in_windows, repository, scratch, strata_ok, text_of};
use tiny::{Family, Random, Tiny};

const MIB: u64 = 1 << 20;

/// The numbers of `place_experts` in what `strata compile --json` says.
fn placed(report: &str) -> impl Fn(&str) -> u64 + use<> {
    let report: Value = serde_json::from_str(report).unwrap();
    let passes = report["passes"].as_array().unwrap();
    let pass = passes.iter().find(|pass| pass["pass"] == "place_experts").unwrap().clone();
    move |name| pass["numbers"][name].as_u64().unwrap_or_else(|| panic!("{name} in {pass}"))
}

/// A model compiled with a budget.
struct Compiler<'a> {
    dir: &'a Path,
    definition: &'a Path,
    weights: &'a Path,
}

impl Compiler<'_> {
    fn compile(&self, name: &str, budget_mib: Option<u64>) -> (PathBuf, String) {
        let config = self.dir.join(format!("{name}.config.ron"));
        let text = format!(
            "(devices: [Cpu(budget_mib: {budget_mib:?})], windows: (verify_rows: [1, 4], \
             prefill_rows: [32], prefill_logit_rows: 32), sequences: (slots: 3, context_tokens: 512))"
        );
        fs::write(&config, text).unwrap();
        let plan = self.dir.join(format!("{name}.plan"));
        let files = ["compile", text_of(self.definition), "--weights", text_of(self.weights)];
        let more = ["--config", text_of(&config), "-o", text_of(&plan), "--json"];
        let report = strata_ok(self.dir, &[&files[..], &more[..]].concat());
        (plan, report)
    }
}

/// Logits of every position, in windows of one size and of another.
fn logits(plan: &Path, tokens: &[u32]) -> Vec<u32> {
    with_engine(plan, |mut engine| {
        let mut all = Vec::new();
        for window in [1, 4, 32] {
            let slot = engine.new_sequence().unwrap();
            let rows = logits_in_windows(&mut engine, slot, tokens, window);
            all.extend(rows.into_iter().flatten().map(f32::to_bits));
            engine.release(slot);
        }
        all
    })
}

fn stamp(path: &Path) -> (u64, i64, i64) {
    let found = fs::metadata(path).unwrap();
    (found.ino(), found.mtime(), found.mtime_nsec())
}

/// With a budget that is just too small, and with the smallest if `all`, the model says what it says
/// in RAM.
fn check(compiler: &Compiler<'_>, tokens: &[u32], all: bool) {
    let (in_ram, report) = compiler.compile("ram", None);
    let number = placed(&report);
    assert_eq!(number("packed_bytes"), 0);
    let wanted = logits(&in_ram, tokens);
    assert!(!compiler.dir.join("ram.pack").exists());
    let other = number("states_bytes") + number("arena_bytes") + number("step_bytes");
    let small = (number("ram_bytes") + other - 1) / MIB;
    let least = other.div_ceil(MIB) + 1;
    assert!(least < small, "the model is too small for this test");
    let mut packed_bytes = Vec::new();
    for (name, budget_mib) in
        [("small", small), ("least", least)].into_iter().take(1 + usize::from(all))
    {
        let (plan, report) = compiler.compile(name, Some(budget_mib));
        let number = placed(&report);
        packed_bytes.push(number("packed_bytes"));
        assert!(number("ram_bytes") + other <= budget_mib * MIB);
        let shown = strata_ok(compiler.dir, &["inspect", text_of(&plan), "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let space = &shown["spaces"][format!("{name}.pack")];
        assert_eq!((&space["kind"], &space["mapped"]), (&"pack".into(), &true.into()));
        assert_eq!(space["bytes"], number("packed_bytes"));
        assert!(shown["memory_bytes"].as_u64().unwrap() <= budget_mib * MIB);

        let pack = compiler.dir.join(format!("{name}.pack"));
        assert!(logits(&plan, tokens) == wanted, "{name}: other logits than in RAM");
        let made = stamp(&pack);
        assert_eq!(fs::metadata(&pack).unwrap().len(), number("packed_bytes"));
        assert!(logits(&plan, tokens) == wanted, "{name}: other logits than at first");
        assert_eq!(stamp(&pack), made, "{name}: made again");
    }
    assert!(packed_bytes.is_sorted_by(|a, b| a < b), "{packed_bytes:?}");
}

#[test]
fn the_trained_model_says_the_same() {
    let dir = scratch("packed-nano");
    let definition = repository().join("models/strata-nano.ron");
    let weights = repository().join("models/strata-nano-Q8_0.gguf");
    let compiler = Compiler { dir: &dir, definition: &definition, weights: &weights };
    check(&compiler, &NANO_Q8.prompt(1, 40), false);
}

fn tiny_moe(dir: &Path) -> (PathBuf, PathBuf) {
    let tiny = Tiny {
        family: Family::Qwen3Moe,
        layers: &[TensorType::Q4_K, TensorType::Q5_0, TensorType::Q6_K],
        table: TensorType::Q8_0,
        context: 512,
        kv_heads: 4,
    };
    let weights = tiny.write(dir, "tiny");
    let definition = dir.join("model.ron");
    strata_ok(dir, &["import", text_of(&weights), "-o", text_of(&definition)]);
    (definition, weights)
}

#[test]
fn blocks_of_several_types_say_the_same() {
    let dir = scratch("packed-tiny");
    let (definition, weights) = tiny_moe(&dir);
    let compiler = Compiler { dir: &dir, definition: &definition, weights: &weights };
    let tokens = Random(7).tokens(40);
    check(&compiler, &tokens, true);
    // Another plan of the same weights has the same packed file.
    let (pack, shorter) = (dir.join("least.pack"), dir.join("shorter.config.ron"));
    let made = stamp(&pack);
    let config = fs::read_to_string(dir.join("least.config.ron")).unwrap();
    fs::write(&shorter, config.replace("[1, 4]", "[1]")).unwrap();
    let (definition, weights) = (text_of(&definition), text_of(&weights));
    let plan = dir.join("least.plan");
    let before = fs::read(&plan).unwrap();
    let files = ["compile", definition, "--weights", weights, "-o", text_of(&plan)];
    strata_ok(&dir, &[&files[..], &["--config", text_of(&shorter)]].concat());
    assert_ne!(fs::read(&plan).unwrap(), before);
    with_engine(&plan, drop);
    assert_eq!(stamp(&pack), made, "made again");
}

/// Runs the command as a user who may not write into the folder of a test.
fn run_as_reader(args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strata"));
    command.args(args).env("HOME", "/");
    // Permissions do not bind root.
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_folder_that_cannot_be_written_to_is_named() {
    let dir = scratch("packed-read-only");
    let (definition, weights) = tiny_moe(&dir);
    let compiler = Compiler { dir: &dir, definition: &definition, weights: &weights };
    let (plan, report) = compiler.compile("tiny", None);
    let number = placed(&report);
    let all = ["ram_bytes", "states_bytes", "arena_bytes", "step_bytes"].map(number);
    compiler.compile("tiny", Some((all.iter().sum::<u64>() - 1) / MIB));
    if !run_as_reader(&["inspect", text_of(&plan)]).0 {
        println!("skipped: other users cannot read {}", dir.display());
        return;
    }
    let read = ["--quiet", "logits", text_of(&plan), "--tokens", "1,2"];
    let allow = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    let (good, message) = run_as_reader(&read);
    allow(0o755);
    assert!(!good);
    let pack = dir.join("tiny.pack");
    for word in [text_of(&pack), "Permission denied", "make its folder writable", "budget_mib"] {
        assert!(message.contains(word), "no `{word}` in: {message}");
    }
    assert!(!pack.exists());
    // Once it is there nothing has to be written.
    strata_ok(&dir, &read);
    allow(0o555);
    let (good, message) = run_as_reader(&read);
    allow(0o755);
    assert!(good, "{message}");
}
