//! What is wrong is said: the file, what was found, what is needed, what to do; with exit code 1 for
//! work that failed and 2 for a wrong command line, and no half file is left.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod support;
mod tiny;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use strata_formats::TensorType;
use support::{oracle_plan, repository, scratch, strata_fails, strata_ok, text_of};
use tiny::{Family, Tiny, text_plan};

/// What lies in a test's folder, but for the cache.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != "cache");
    names.sort();
    names
}

/// The oracle's plan with some bytes changed, and its checksum made right again if `sealed`.
fn changed_plan(dir: &Path, sealed: bool, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(oracle_plan()).unwrap();
    change(&mut bytes);
    if sealed {
        let checksum = strata_plan::checksum(&bytes[64..]);
        bytes[24..32].copy_from_slice(&checksum.to_le_bytes());
    }
    let path = dir.join("changed.plan");
    fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn files_that_are_not_there() {
    let dir = scratch("refusals-missing");
    let plan = dir.join("gone.plan");
    let plan = text_of(&plan);
    for args in [
        &["run", plan, "--prompt", "x"][..],
        &["inspect", plan],
        &["logits", plan, "--tokens", "1"],
        &["bench", plan],
        &["tokenize", plan, "x"],
        &["compile", "gone.ron"],
        &["import", "gone.gguf", "-o", "model.ron"],
    ] {
        strata_fails(&dir, args, 1, &["gone.", "No such file"]);
    }
    let text = dir.join("gone.txt");
    let text_plan = text_plan();
    let args = ["perplexity", text_of(&text_plan), text_of(&text)];
    strata_fails(&dir, &args, 1, &["cannot read", "gone.txt"]);
}

#[test]
fn damaged_plans() {
    let dir = scratch("refusals-plans");
    let refused = |plan: &Path, words: &[&str]| {
        for command in ["run", "inspect"] {
            let args = [command, text_of(plan), "--prompt", "x"];
            let count = if command == "run" { 4 } else { 2 };
            strata_fails(&dir, &args[..count], 1, &[&["changed.plan"], words].concat());
        }
    };
    let length = fs::metadata(oracle_plan()).unwrap().len().to_string();
    let cut = changed_plan(&dir, false, |bytes| bytes.truncate(5000));
    refused(&cut, &["5000 bytes", &length, "compile the model again"]);
    let short = changed_plan(&dir, false, |bytes| bytes.truncate(20));
    refused(&short, &["20 bytes are too few", "compile the model again"]);
    let other = changed_plan(&dir, true, |bytes| bytes[8] = 200);
    refused(&other, &["plan format 200", "reads 2", "compile the model again"]);
    let flipped = changed_plan(&dir, false, |bytes| *bytes.last_mut().unwrap() ^= 1);
    refused(&flipped, &["checksum", "compile the model again"]);
    let strange = changed_plan(&dir, true, |bytes| bytes[..8].copy_from_slice(b"GGUFGGUF"));
    refused(&strange, &["not a plan", "GGUFGGUF", "strata compile"]);
    // A count of sections that lies, under a right checksum.
    let lying = changed_plan(&dir, true, |bytes| bytes[12..16].fill(0xff));
    refused(&lying, &["changed.plan"]);
}

#[test]
fn a_plan_that_others_can_write_is_not_run() {
    let dir = scratch("refusals-writable");
    let plan = changed_plan(&dir, false, |_| ());
    fs::set_permissions(&plan, fs::Permissions::from_mode(0o666)).unwrap();
    let words = ["changed.plan", "written by every user", "666", "chmod o-w"];
    strata_fails(&dir, &["logits", text_of(&plan), "--tokens", "1"], 1, &words);
    fs::set_permissions(&plan, fs::Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn weights_that_were_replaced() {
    let dir = scratch("refusals-weights");
    let tiny = |context| Tiny {
        family: Family::Llama,
        layers: &[TensorType::F32],
        table: TensorType::F32,
        context,
        kv_heads: 4,
    };
    let config = dir.join("config.ron");
    fs::write(&config, "(windows: (verify_rows: [1], prefill_rows: []))").unwrap();
    let weights = tiny(64).write(&dir, "weights");
    let plan = support::compile(&dir, &weights, &["--config", text_of(&config)]);
    let args = ["logits", text_of(&plan), "--tokens", "1"];
    let answer = strata_ok(&dir, &args);
    let bytes = fs::read(&weights).unwrap();

    let mut longer = bytes.clone();
    longer.extend([0; 32]);
    fs::write(&weights, &longer).unwrap();
    let (found, needed) = (longer.len().to_string(), bytes.len().to_string());
    strata_fails(&dir, &args, 1, &["weights.gguf", &found, &needed, "compile again"]);
    tiny(65).write(&dir, "weights");
    strata_fails(&dir, &args, 1, &["weights.gguf", "header hash", "compile again"]);
    fs::remove_file(&weights).unwrap();
    strata_fails(&dir, &args, 1, &["weights.gguf", "No such file", "put it there"]);
    fs::write(&weights, &bytes).unwrap();
    assert_eq!(strata_ok(&dir, &args), answer);
}

#[test]
fn definitions_and_configurations() {
    let dir = scratch("refusals-definitions");
    let definition = fs::read_to_string(oracle_plan().with_file_name("model.ron")).unwrap();
    let (ron, config) = (dir.join("model.ron"), dir.join("config.ron"));
    let (ron, config) = (text_of(&ron), text_of(&config));
    let plan = dir.join("out.plan");
    let compile = ["compile", ron, "-o", text_of(&plan)];

    // The strange field stands in the line behind the first one.
    let (first, rest) = definition.split_once("hidden:").unwrap();
    let line = first.matches('\n').count() + 1;
    fs::write(ron, format!("{first}hiden: 1,\n    hidden:{rest}")).unwrap();
    strata_fails(&dir, &compile, 1, &["model.ron", &format!("{line}:"), "hiden"]);

    fs::write(ron, &definition).unwrap();
    let with_config = [&compile[..], &["--config", config]].concat();
    fs::write(config, "(\n  kv: (page_tokens: 64),\n  slots: 2,\n)").unwrap();
    strata_fails(&dir, &with_config, 1, &["config.ron", "3:", "slots"]);
    fs::write(config, "(kv: (page_tokens: 65))").unwrap();
    strata_fails(&dir, &with_config, 1, &["kv.page_tokens is 65", "a power of two"]);
    fs::write(config, "(devices: [Cpu(budget_mib: Some(2))])").unwrap();
    let words = ["budget is 2.0 MiB", "MiB short", "states", "context_tokens", "raise budget_mib"];
    strata_fails(&dir, &with_config, 1, &words);

    let stop = [&compile[..], &["--stop-after", "fuse_everything"]].concat();
    strata_fails(&dir, &stop, 1, &["fuse_everything", "order_nodes", "write_plan"]);
    let wrong = definition.replace("vocab: 256", "vocab: 300");
    assert_ne!(wrong, definition);
    fs::write(ron, wrong).unwrap();
    strata_fails(&dir, &compile, 1, &["token_embd.weight", "model-f32.gguf", "256", "300"]);
    assert_eq!(names_in(&dir), ["config.ron", "model.ron"], "no half files");
}

#[test]
fn pages_hold_enough_pooled_keys() {
    let dir = scratch("refusals-pages");
    let config = dir.join("config.ron");
    fs::write(&config, "(kv: (page_tokens: 32))").unwrap();
    let model = repository().join("models/strata-nano.ron");
    let args = ["compile", text_of(&model), "-o", "nano.plan", "--config", text_of(&config)];
    strata_fails(&dir, &args, 1, &["kv.page_tokens is 32", "blocks.3", "64 positions"]);
    assert_eq!(names_in(&dir), ["config.ron"], "no half files");
}

/// F16 of the cases of model files: a stored type without kernels is refused when compiling.
#[test]
fn formats_without_kernels_are_refused_when_compiling() {
    let dir = scratch("refusals-formats");
    let mut gguf = strata_formats::GgufWriter::new();
    let tiny = Tiny {
        family: Family::Qwen3Moe,
        layers: &[TensorType::F16, TensorType::IQ4_XS],
        table: TensorType::F16,
        context: 64,
        kv_heads: 4,
    };
    tiny.declare(&mut gguf);
    let path = dir.join("strange.gguf");
    gguf.write_file(&path, |index, sink| sink.write_all(&vec![0; tiny.bytes_of(index) as usize]))
        .unwrap();
    let ron = dir.join("model.ron");
    strata_ok(&dir, &["import", text_of(&path), "-o", text_of(&ron)]);
    let words = ["blk.1.", "strange.gguf", "IQ4_XS", "supported", "q4_k", "convert"];
    strata_fails(&dir, &["compile", text_of(&ron)], 1, &words);
    assert_eq!(names_in(&dir), ["model.ron", "strange.gguf"], "no half files");
}

#[test]
fn calls_that_do_not_fit() {
    let dir = scratch("refusals-calls");
    let (plan, text) = (oracle_plan(), text_plan());
    let (plan, text) = (text_of(&plan), text_of(&text));
    let out = dir.join("out.safetensors");
    let logits = ["logits", plan, "-o", text_of(&out), "--tokens"];
    let too_high = [&logits[..], &["1,2,256"]].concat();
    strata_fails(&dir, &too_high, 1, &["row 2", "token 256", "256"]);
    assert!(!out.exists());
    strata_fails(&dir, &["logits", plan, "--tokens", "1,x"], 2, &["invalid value 'x'", "--tokens"]);
    strata_fails(&dir, &["logits", plan], 2, &["--tokens"]);
    strata_fails(&dir, &["tokenize", text, "--decode", "9999"], 2, &["9999", "267"]);

    let long = "x".repeat(300);
    let run = ["run", text, "--raw", "--prompt"];
    strata_fails(
        &dir,
        &[&run[..], &[&long]].concat(),
        1,
        &["context is full", "256", "longer context"],
    );
    strata_fails(&dir, &[&run[..], &[""]].concat(), 2, &["prompt has no tokens"]);
    strata_fails(&dir, &[&run[..], &["x", "--top-p", "1.5"]].concat(), 2, &["--top-p is 1.5", "1"]);
    strata_fails(&dir, &[&run[..], &["x", "--temp", "NaN"]].concat(), 2, &["--temp is NaN"]);
    strata_fails(&dir, &["run", text], 2, &["--prompt"]);
    strata_fails(&dir, &["bench", text, "-p", "200", "-n", "100"], 2, &["300", "256"]);
    strata_fails(&dir, &["inspect", plan, "--graph", "verify 5"], 2, &["verify 5", "verify 6"]);
    strata_fails(&dir, &["inspect", plan, "--schedule", "x"], 2, &["prefill 512"]);
    strata_fails(&dir, &["inspect", plan, "--asm", "nothing"], 2, &["nothing", "rmsnorm"]);
    strata_fails(&dir, &["inspect", plan, "--format", "dot"], 2, &["--graph"]);
    let short = dir.join("short.txt");
    fs::write(&short, "a few words").unwrap();
    strata_fails(
        &dir,
        &["perplexity", text, text_of(&short)],
        2,
        &["short.txt", "512", "--context"],
    );
    // A folder that is not there cannot be written into.
    let nowhere = dir.join("nowhere/out.safetensors");
    let args = ["logits", plan, "--tokens", "1", "-o", text_of(&nowhere)];
    strata_fails(&dir, &args, 1, &["cannot write", "nowhere"]);
    assert_eq!(names_in(&dir), ["short.txt"], "no half files");
}
