//! Commands that read and write text, on a tiny model whose vocabulary can write any.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod support;
mod tiny;

use std::fs;

use serde_json::Value;
use support::{repository, scratch, strata_fed, strata_ok, text_of};
use tiny::{IM_END, VOCAB, text_plan};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn run_prints_text_or_all_facts() {
    let dir = scratch("conversation-run");
    let plan = text_plan();
    let run = |more: &[&str]| {
        let args = ["--quiet", "run", text_of(&plan), "--prompt", "and the hill"];
        strata_ok(&dir, &[&args, more].concat())
    };
    let facts = json(&run(&["-n", "24", "--ignore-eos", "--json"]));
    // Control tokens, and pieces of `user\n`, of the prompt, of `\n` and of `assistant\n`.
    let prompt = 3 + 5 + "and| the| |h|i|ll".split('|').count() + 1 + 9;
    assert_eq!(facts["prompt_tokens"], prompt);
    let tokens = ids(&facts["tokens"]);
    assert_eq!(tokens.len(), 24);
    assert!(tokens.iter().all(|&id| id < VOCAB));
    assert_eq!(facts["finish_reason"], "length");
    for key in ["prefill_tokens_per_s", "decode_tokens_per_s", "first_token_ms"] {
        assert!(facts[key].as_f64().unwrap() > 0.0, "{key} in {facts}");
    }
    let text = facts["text"].as_str().unwrap();
    assert_eq!(run(&["-n", "24", "--ignore-eos"]), format!("{text}\n"));

    // One token fewer is a beginning of the same text.
    let shorter = json(&run(&["-n", "23", "--ignore-eos", "--json"]));
    assert_eq!(ids(&shorter["tokens"]), tokens[..23]);
    let system = json(&run(&["-n", "1", "--system", "a", "--json"]));
    let more = system["prompt_tokens"].as_u64().unwrap() - prompt as u64;
    assert_eq!(more, 1 + 7 + 1 + 2, "<|im_start|>system\\na<|im_end|>\\n");
}

#[test]
fn stops_end_a_text_before_them() {
    let dir = scratch("conversation-stop");
    let plan = text_plan();
    let base = ["run", text_of(&plan), "--raw", "--prompt", "x", "-n", "60", "--json"];
    let run = |more: &[&str]| json(&strata_ok(&dir, &[&base, more].concat()));
    let whole = run(&["--ignore-eos"]);
    let text = whole["text"].as_str().unwrap();
    // The first printable character that is not at the beginning.
    let stop = text.chars().skip(3).find(char::is_ascii_graphic).unwrap().to_string();
    let cut = run(&["--ignore-eos", "--stop", &stop, "--stop", "never in it"]);
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["text"].as_str().unwrap(), &text[..text.find(&stop).unwrap()]);
    assert!(ids(&cut["tokens"]).len() < ids(&whole["tokens"]).len());
}

#[test]
fn a_seed_gives_the_same_text_twice_and_another_one_another() {
    let dir = scratch("conversation-seed");
    let plan = text_plan();
    let run = |seed: &str, threads: &str| {
        let args = ["run", text_of(&plan), "--prompt", "hello", "-n", "40", "--ignore-eos"];
        let sampling = ["--temp", "0.9", "--top-p", "0.95", "--min-p", "0.001", "--top-k", "200"];
        let rest = ["--repeat-penalty", "1.1", "--seed", seed, "--threads", threads, "--json"];
        ids(&json(&strata_ok(&dir, &[&args[..], &sampling, &rest].concat()))["tokens"])
    };
    let one = run("1", "2");
    assert_eq!(run("1", "1"), one);
    assert_ne!(run("2", "2"), one);
}

#[test]
fn chat_from_a_pipe() {
    let dir = scratch("conversation-chat");
    let plan = text_plan();
    let args = ["--quiet", "run", text_of(&plan), "--chat", "-n", "5", "--ignore-eos"];
    let chat = |input: &str| strata_fed(&dir, &args, input);
    let answer = chat("hello\n");
    let prompted = ["--quiet", "run", text_of(&plan), "--prompt", "hello", "-n", "5"];
    assert_eq!(strata_ok(&dir, &[&prompted[..], &["--ignore-eos"]].concat()), answer);

    let input = "hello\n\n/nonsense\n/save one.json\nagain\n/save two.json\n/save\n/reset\nhello\n\
                 /save three.json\n/quit\nnot read";
    let output = chat(input);
    assert!(output.starts_with(&answer) && output.contains("no command /nonsense"), "{output}");
    assert!(output.contains("saved one.json") && output.contains("needs the name of a file"));
    let saved = |name: &str| json(&fs::read_to_string(dir.join(name)).unwrap());
    let (one, two) = (saved("one.json"), saved("two.json"));
    let roles = |conversation: &Value| -> Vec<String> {
        let all = conversation.as_array().unwrap().iter();
        all.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles(&two), ["user", "assistant", "user", "assistant"]);
    assert_eq!(two.as_array().unwrap()[..2], one.as_array().unwrap()[..]);
    assert_eq!(two[2]["content"], "again");
    assert_eq!(format!("{}\n", one[1]["content"].as_str().unwrap()), answer);
    assert_eq!(saved("three.json"), one, "/reset starts over");
    assert_eq!(chat(""), "");
}

#[test]
fn a_full_context_ends_a_turn_but_not_the_chat() {
    let dir = scratch("conversation-full");
    let plan = text_plan();
    let long = "z".repeat(300);
    let args = ["--quiet", "run", text_of(&plan), "--chat", "-n", "3", "--ignore-eos"];
    let output = strata_fed(&dir, &args, &format!("{long}\nhello\n"));
    assert!(output.contains("the context is full") && output.contains("/reset"), "{output}");
    let answer = strata_fed(&dir, &args, "hello\n");
    assert!(output.ends_with(&answer), "`{output}` does not end with `{answer}`");
    // Without a limit a text ends where the context does.
    let args = ["run", text_of(&plan), "--raw", "--prompt", "x", "--ignore-eos", "--json"];
    let facts = json(&strata_ok(&dir, &args));
    assert_eq!(facts["finish_reason"], "length");
    assert_eq!(ids(&facts["tokens"]).len(), 256, "the last token is sampled and not read");
}

#[test]
fn a_definition_is_compiled_into_the_cache_once() {
    let dir = scratch("conversation-cache");
    let definition = text_plan().with_file_name("model.ron");
    let args = ["--quiet", "run", text_of(&definition), "--prompt", "hello", "-n", "4"];
    let first = strata_ok(&dir, &args);
    let plans = || -> Vec<_> {
        let entries = fs::read_dir(dir.join("cache/strata")).unwrap();
        entries.map(|e| e.unwrap()).map(|e| (e.path(), e.metadata().unwrap().modified())).collect()
    };
    let compiled = plans();
    assert_eq!(compiled.len(), 1);
    assert_eq!(strata_ok(&dir, &args), first);
    let modified = |all: &[(std::path::PathBuf, std::io::Result<std::time::SystemTime>)]| {
        *all[0].1.as_ref().unwrap()
    };
    assert_eq!(modified(&plans()), modified(&compiled), "compiled again");
}

/// K1, K7 and K9: control tokens stand where the template or `--special` puts them, and a user's
/// text never makes one.
#[test]
fn text_of_a_user_makes_no_control_token() {
    let dir = scratch("conversation-control");
    let plan = text_plan();
    let tokenize = |args: &[&str]| {
        let all = [&["tokenize", text_of(&plan)], args, &["--json"]].concat();
        ids(&json(&strata_ok(&dir, &all))["tokens"])
    };
    let spelled = tokenize(&["<|im_end|>"]);
    assert_eq!(spelled.len(), "<|im_end|>".len());
    assert!(!spelled.contains(&IM_END));
    assert_eq!(tokenize(&["--special", "X.<|im_end|>"]), [88, 46, IM_END]);
    assert_eq!(tokenize(&["--special", "<|im_start|>system"])[0], IM_END - 1);

    let prompt_tokens = |prompt: &str| {
        let args = ["run", text_of(&plan), "--prompt", prompt, "-n", "1", "--json"];
        json(&strata_ok(&dir, &args))["prompt_tokens"].as_u64().unwrap()
    };
    assert_eq!(prompt_tokens("<|im_end|>") - prompt_tokens("z"), 9);
}

#[test]
fn tokenize_reads_plans_files_and_folders() {
    let dir = scratch("conversation-tokenize");
    let plan = text_plan();
    let text = "the hand in 東京 — 🙂";
    let line = strata_ok(&dir, &["tokenize", text_of(&plan), text]);
    let gguf = plan.with_file_name("tiny.gguf");
    assert_eq!(strata_ok(&dir, &["tokenize", text_of(&gguf), text]), line);
    let decoded = line.trim().replace(' ', ",");
    let back = strata_ok(&dir, &["tokenize", text_of(&plan), "--decode", &decoded]);
    assert_eq!(back, format!("{text}\n"));

    let nano = repository().join("runtime/text/tests/fixtures/nano_tokenizer.json");
    fs::copy(&nano, dir.join("tokenizer.json")).unwrap();
    let of_folder = strata_ok(&dir, &["tokenize", text_of(&dir), "--json", text]);
    assert_eq!(strata_ok(&dir, &["tokenize", text_of(&nano), "--json", text]), of_folder);
    let decoded: Vec<String> =
        ids(&json(&of_folder)["tokens"]).iter().map(u32::to_string).collect();
    let back = strata_ok(&dir, &["tokenize", text_of(&nano), "--decode", &decoded.join(",")]);
    assert_eq!(back, format!("{text}\n"));
}

#[test]
fn perplexity_is_that_of_the_logits() {
    let dir = scratch("conversation-perplexity");
    let plan = text_plan();
    let file = dir.join("text.txt");
    fs::write(&file, "the hill and the hand in a bin. ".repeat(12)).unwrap();
    let args = ["perplexity", text_of(&plan), text_of(&file), "--context", "64", "--json"];
    let found = json(&strata_ok(&dir, &[&args[..], &["--chunks", "2"]].concat()));
    assert_eq!((&found["chunks"], &found["tokens"]), (&2.into(), &62.into()));

    let text = fs::read_to_string(&file).unwrap();
    let line = strata_ok(&dir, &["tokenize", text_of(&plan), &text]);
    let tokens: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
    let mut engine = support::open(&plan, 1);
    let mut nats = 0.0;
    for chunk in tokens.chunks(64).take(2) {
        let slot = engine.new_sequence().unwrap();
        let logits = support::logits_in_windows(&mut engine, slot, chunk, 8);
        engine.release(slot);
        for position in 32..63 {
            let row: Vec<f64> = logits[position].iter().map(|&logit| logit.into()).collect();
            let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
            nats += sum.ln() - row[chunk[position + 1] as usize];
        }
    }
    let expected = (nats / 62.0).exp();
    let perplexity = found["perplexity"].as_f64().unwrap();
    assert!((perplexity / expected - 1.0).abs() < 1e-6, "{perplexity}, expected {expected}");
}
