//! Commands that need no text: compile, inspect, logits, bench, probe, completions.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod support;

use std::fs;

use serde_json::Value;
use strata_formats::Checkpoint;
use support::{
    logits_in_windows, open, oracle_plan, scratch, strata, strata_ok, tensor_words, text_of,
};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn definition() -> String {
    text_of(&oracle_plan().with_file_name("model.ron")).to_owned()
}

#[test]
fn compile_reports_every_pass_and_gives_the_same_bytes() {
    let dir = scratch("commands-compile");
    let (one, other) = (dir.join("one.plan"), dir.join("other.plan"));
    let report = strata_ok(&dir, &["compile", &definition(), "-o", text_of(&one), "--json"]);
    let text = strata_ok(&dir, &["--quiet", "compile", &definition(), "-o", text_of(&other)]);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap());

    let report = json(&report);
    assert_eq!(report["plan"], text_of(&one));
    let passes = report["passes"].as_array().unwrap();
    for pass in strata_lowering::PASSES {
        let of_pass: Vec<&Value> = passes.iter().filter(|row| row["pass"] == *pass).collect();
        assert!(!of_pass.is_empty(), "no report of {pass}");
        for row in of_pass {
            assert!(row["numbers"].is_object() && row["seconds"].is_f64(), "{row}");
        }
        assert!(text.contains(pass), "no line of {pass}");
    }
    assert!(text.ends_with(&format!("wrote {}\n", other.display())));
}

#[test]
fn stop_after_prints_a_graph_that_reads_back() {
    let dir = scratch("commands-stop");
    let plan = dir.join("none.plan");
    for pass in ["resolve_weights", "fuse_norm_quantize", "order_nodes"] {
        let args = ["compile", &definition(), "-o", text_of(&plan), "--stop-after", pass];
        let text = strata_ok(&dir, &args);
        // One graph a window; the first line of each names the window.
        let first = text.split("\n; strata graph").next().unwrap();
        let graph = strata_graph::parse::parse(first).unwrap();
        assert_eq!(graph.window.rows, 1, "{pass}");
        assert_eq!(graph.to_string().trim(), first.trim(), "{pass}");
    }
    let args = ["compile", &definition(), "-o", text_of(&plan), "--stop-after", "emit_schedule"];
    assert!(strata_ok(&dir, &args).contains("barrier"));
    assert!(!plan.exists(), "nothing is written when it stops");
}

#[test]
fn dump_phases_writes_a_file_for_each_pass() {
    let dir = scratch("commands-dump");
    let (plan, phases) = (dir.join("model.plan"), dir.join("phases"));
    let phases_text = text_of(&phases).to_owned();
    let definition = definition();
    let args = ["compile", &definition, "-o", text_of(&plan), "--dump-phases", &phases_text];
    strata_ok(&dir, &args);
    let mut names: Vec<String> = fs::read_dir(&phases)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let passes = strata_lowering::PASSES.iter().take(names.len());
    let expected: Vec<String> =
        passes.enumerate().map(|(i, pass)| format!("{:02}-{pass}.txt", i + 1)).collect();
    assert_eq!(names, expected);
    assert!(names.len() + 1 >= strata_lowering::PASSES.len(), "only writing has no text");
    for name in &names {
        assert!(fs::metadata(phases.join(name)).unwrap().len() > 0, "{name} is empty");
    }
}

#[test]
fn inspect_shows_summary_graph_schedule_and_code() {
    let dir = scratch("commands-inspect");
    let plan = oracle_plan();
    let plan = text_of(&plan);
    let inspect = |args: &[&str]| strata_ok(&dir, &[&["inspect", plan], args].concat());

    let summary = inspect(&[]);
    for word in ["memory", "weights", "states", "launches", "arena at its peak", "verify 1"] {
        assert!(summary.contains(word), "no {word} in: {summary}");
    }
    let facts = json(&inspect(&["--format", "json"]));
    assert_eq!(facts["vocab"], 256);
    assert_eq!(facts["layers"], 3);
    let window = &facts["windows"]["verify 1"];
    let launches = window["launches"].as_u64().unwrap();
    // The whole budget of launches: at most 12 a layer, and a few before and behind the layers.
    assert!((1..=3 * 12 + 6).contains(&launches), "{launches} launches");

    let schedule = inspect(&["--schedule", "verify 1"]);
    let launched = schedule.lines().filter(|line| line.contains(" launch ")).count();
    assert_eq!(launched as u64, launches);
    let lines = json(&inspect(&["--schedule", "verify 1", "--format", "json"]));
    assert_eq!(lines["schedule"].as_array().unwrap().len(), schedule.lines().count());

    let graph = strata_graph::parse::parse(&inspect(&["--graph", "prefill 512"])).unwrap();
    assert_eq!(graph.window.rows, 512);
    let base = strata_graph::parse::parse(&inspect(&["--graph", "base"])).unwrap();
    assert!(base.nodes().count() > graph.nodes().count(), "passes fuse");
    let dot = inspect(&["--graph", "verify 1", "--format", "dot"]);
    assert!(dot.starts_with("digraph") && dot.contains("->"));

    let assembly = inspect(&["--asm", "rmsnorm"]);
    assert!(assembly.contains("ymm") || assembly.contains("zmm"), "vector code: {assembly}");
    assert!(assembly.lines().any(|line| line.ends_with("ret")));
}

#[test]
fn diff_names_what_differs() {
    let dir = scratch("commands-diff");
    let plan = oracle_plan();
    let (config, other) = (dir.join("config.ron"), dir.join("other.plan"));
    fs::write(&config, "(sequences: (slots: 3), windows: (verify_rows: [1], prefill_rows: [32]))")
        .unwrap();
    let definition = definition();
    let args = ["compile", &definition, "--config", text_of(&config), "-o", text_of(&other)];
    strata_ok(&dir, &args);
    let same = strata_ok(&dir, &["inspect", text_of(&plan), "--diff", text_of(&plan)]);
    assert_eq!(same, "the plans are the same\n");
    let text = strata_ok(&dir, &["inspect", text_of(&plan), "--diff", text_of(&other)]);
    assert!(text.lines().any(|line| line == "/slots: 1 -> 3"), "{text}");
    let args = ["inspect", text_of(&plan), "--diff", text_of(&other), "--format", "json"];
    let rows = json(&strata_ok(&dir, &args));
    let gone = rows.as_array().unwrap().iter().find(|row| row["path"] == "/windows/verify 2");
    assert!(gone.unwrap()["other"].is_null(), "{rows}");
}

#[test]
fn logits_are_the_engines() {
    let dir = scratch("commands-logits");
    let plan = oracle_plan();
    let tokens: Vec<u32> = (0..70).map(|i| i * 31 % 256).collect();
    let list: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let file = dir.join("logits.safetensors");
    let list = list.join(",");
    strata_ok(&dir, &["logits", text_of(&plan), "--tokens", &list, "-o", text_of(&file)]);
    let best = strata_ok(&dir, &["logits", text_of(&plan), "--tokens", "3,7,9"]);

    let written = Checkpoint::open(&file).unwrap();
    assert_eq!(written.tensor("logits").unwrap().dims, [256, 70], "innermost first");
    let mut engine = open(&plan, 1);
    let slot = engine.new_sequence().unwrap();
    let logits = logits_in_windows(&mut engine, slot, &tokens, 8);
    let bits: Vec<u32> = logits.iter().flatten().map(|value| value.to_bits()).collect();
    assert_eq!(tensor_words(&written, "logits"), bits);

    engine.truncate(slot, 0).unwrap();
    let logits = logits_in_windows(&mut engine, slot, &[3, 7, 9], 1);
    assert_eq!(best.lines().count(), 3);
    for (line, row) in best.lines().zip(&logits) {
        let best = strata_replay::argmax(row);
        let expected = format!("->  {best} ({:.4})", row[best as usize]);
        assert!(line.contains(&expected), "no `{expected}` in `{line}`");
    }
}

#[test]
fn bench_and_probe_give_numbers() {
    let dir = scratch("commands-bench");
    let plan = oracle_plan();
    let args = ["bench", text_of(&plan), "-p", "40", "-n", "8", "-r", "3", "--ops", "--json"];
    let report = json(&strata_ok(&dir, &args));
    assert_eq!((&report["prompt_tokens"], &report["decode_tokens"]), (&40.into(), &8.into()));
    for key in [
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "decode_gb_per_s",
        "decode_fraction_of_read",
        "prefill_fraction_of_int8",
        "read_gb_per_s",
        "int8_gop_per_s",
    ] {
        assert!(report[key].as_f64().unwrap() > 0.0, "{key} in {report}");
    }
    for phase in ["prefill", "decode"] {
        let spread = ["min", "median", "max"].map(|key| report[phase][key].as_f64().unwrap());
        assert!(spread.is_sorted(), "{phase}: {spread:?}");
        assert_eq!(spread[1], report[format!("{phase}_tokens_per_s")].as_f64().unwrap());
        let ops = report["ops"][phase].as_array().unwrap();
        let share: f64 = ops.iter().map(|op| op["share"].as_f64().unwrap()).sum();
        assert!((share - 1.0).abs() < 1e-3, "the shares of {phase} sum to {share}");
    }
    // The measurements of the machine were kept, and a probe of as many threads replaces them.
    let threads = report["threads"].to_string();
    let kept = dir.join(format!("cache/strata/machine-{threads}.json"));
    let of_bench = json(&fs::read_to_string(&kept).unwrap());
    assert_eq!(of_bench["int8_gop_per_s"], report["int8_gop_per_s"]);
    let probe = json(&strata_ok(&dir, &["probe", "--threads", &threads, "--json"]));
    assert_eq!(json(&fs::read_to_string(&kept).unwrap()), probe);
}

#[test]
fn completions_and_help_need_no_model() {
    let dir = scratch("commands-completions");
    for shell in ["bash", "zsh", "fish"] {
        let script = strata_ok(&dir, &["completions", shell]);
        assert!(script.contains("perplexity") && script.contains("stop-after"), "{shell}");
        assert!(!script.contains("codegen-worker --"), "{shell} offers what is hidden");
    }
    let help = strata_ok(&dir, &["--help"]);
    assert!(help.contains("Examples:") && !help.contains("codegen-worker"), "{help}");
    assert!(strata_ok(&dir, &["--version"]).starts_with("strata "));
    assert_eq!(strata(&dir, &["nonsense"]).status.code(), Some(2));
}
