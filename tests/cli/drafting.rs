//! Drafts, saved states, routing traces and needles on the small trained model of the repository.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{repository, scratch, strata, strata_fed, strata_ok, text_of};

/// The plan of strata-nano, compiled once for all tests.
fn nano() -> PathBuf {
    support::shared_plan("nano", |_| repository().join("models/strata-nano-Q8_0.gguf"))
}

fn run(dir: &Path, more: &[&str]) -> Value {
    let plan = nano();
    let args = ["--quiet", "run", text_of(&plan), "--json"];
    serde_json::from_str(&strata_ok(dir, &[&args, more].concat())).unwrap()
}

#[test]
fn drafts_change_the_speed_only() {
    let dir = scratch("speculation-drafts");
    let warm = ["--temp", "0.9", "--top-p", "0.95", "--seed", "5"];
    for prompt in ["The file is opened in", "a b c a b c a b"] {
        for sampling in [&[][..], &warm] {
            let base = [&["--raw", "--prompt", prompt, "-n", "60", "--ignore-eos"], sampling];
            let base = base.concat();
            let plain = run(&dir, &[&base[..], &["--draft", "off"]].concat());
            assert_eq!(plain["speculation"]["drafted"], 0);
            assert_eq!(plain["speculation"]["rounds"], 59, "the first token comes with the prompt");
            for draft in ["auto", "1", "3", "99"] {
                let found = run(&dir, &[&base[..], &["--draft", draft]].concat());
                assert_eq!(found["tokens"], plain["tokens"], "--draft {draft} {sampling:?}");
                let facts = &found["speculation"];
                let (rounds, accepted) = (&facts["rounds"], facts["accepted"].as_u64().unwrap());
                assert_eq!(rounds.as_u64().unwrap() + accepted, 59, "{facts}");
            }
        }
    }
}

#[test]
fn the_draft_head_is_right_about_a_text_that_the_model_knows() {
    let dir = scratch("speculation-head");
    let prompt = "Tell me a story about a fox named Iris.";
    let facts = run(&dir, &["--prompt", prompt, "-n", "80", "--draft", "1"]);
    let acceptance = facts["speculation"]["acceptance"].as_f64().unwrap();
    assert!(acceptance > 0.8, "{facts}");
}

#[test]
fn a_saved_prompt_is_not_read_again() {
    let dir = scratch("speculation-state");
    let state = dir.join("prompt.state");
    let state = text_of(&state);
    let prompt = ["--raw", "--prompt", "The file is opened in the directory of", "-n", "24"];
    let plain = run(&dir, &prompt);
    let saving = run(&dir, &[&prompt[..], &["--save-state", state]].concat());
    assert_eq!(saving["tokens"], plain["tokens"]);
    let loaded = run(&dir, &[&prompt[..], &["--load-state", state]].concat());
    assert_eq!(loaded["tokens"], plain["tokens"]);
    let all = plain["prompt_tokens"].as_u64().unwrap();
    assert_eq!((&loaded["cached_tokens"], &plain["cached_tokens"]), (&(all - 1).into(), &0.into()));

    // A longer prompt begins with it; another one is read whole, as states cannot go back.
    let longer = ["--raw", "--prompt", "The file is opened in the directory of the", "-n", "8"];
    let found = run(&dir, &[&longer[..], &["--load-state", state]].concat());
    assert_eq!(found["tokens"], run(&dir, &longer)["tokens"]);
    assert_eq!(found["cached_tokens"], all - 1);
    let other = ["--raw", "--prompt", "The file is closed", "-n", "8"];
    let found = run(&dir, &[&other[..], &["--load-state", state]].concat());
    assert_eq!(found["tokens"], run(&dir, &other)["tokens"]);
    assert_eq!(found["cached_tokens"], 0);

    let plan = nano();
    let args = ["run", text_of(&plan), "--prompt", "x", "--load-state", text_of(&plan)];
    let refused = strata(&dir, &args);
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && text.contains("a saved sequence with"), "{text}");
}

#[test]
fn a_trace_has_the_experts_of_each_token() {
    let dir = scratch("speculation-trace");
    let trace = |draft: &str| {
        let file = dir.join(format!("{draft}.trace"));
        let prompt = ["--raw", "--prompt", "The file is opened in", "-n", "30", "--ignore-eos"];
        let more = ["--draft", draft, "--trace-routing", text_of(&file)];
        (run(&dir, &[&prompt[..], &more].concat()), fs::read(&file).unwrap())
    };
    let (facts, plain) = trace("off");
    assert_eq!(&plain[..8], b"STRATART");
    let words: Vec<u32> =
        plain[8..56].chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).collect();
    // Format, layers, experts, experts of a token; then the layers.
    assert_eq!(words, [1, 8, 24, 4, 0, 1, 2, 3, 4, 5, 6, 7]);
    let records = &plain[56..];
    let tokens = facts["prompt_tokens"].as_u64().unwrap() + 29;
    assert_eq!(records.len() as u64, tokens * 8 * 4 * 2);
    for chosen in records.chunks_exact(8) {
        let mut ids: Vec<u16> =
            chosen.chunks_exact(2).map(|id| u16::from_le_bytes(id.try_into().unwrap())).collect();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() == 4 && ids[3] < 24, "{ids:?}");
    }
    assert!(trace("3").1 == plain, "rejected drafts are in the trace");
}

#[test]
fn needles_are_found() {
    let dir = scratch("speculation-needle");
    let plan = nano();
    let args =
        ["--quiet", "needle", text_of(&plan), "--lengths", "256,400", "--depths", "0,50,100"];
    let run = |more: &[&str]| strata_ok(&dir, &[&args[..], more].concat());
    let facts: Value = serde_json::from_str(&run(&["--count", "1", "--json"])).unwrap();
    assert_eq!((&facts["total"], facts["cells"].as_array().unwrap().len()), (&6.into(), 6));
    assert!(facts["found"].as_u64().unwrap() >= 5, "{facts}");
    let text = run(&["--count", "1"]);
    assert!(text.contains(&format!("found {} of 6", facts["found"])), "{text}");
    let long = strata(&dir, &["needle", text_of(&plan), "--lengths", "1000000"]);
    assert_eq!(long.status.code(), Some(2));
}

/// The stop string takes the end of an answer away that the sequence holds: the next turn goes back
/// to what both have in common, and must answer as if all were read anew.
#[test]
fn a_turn_goes_back_where_states_cannot_be_truncated() {
    let dir = scratch("speculation-turn");
    let plan = nano();
    let (one, two) = ("Tell me a story about a fox named Iris.", "Count from 1 to 5.");
    let chat = ["--quiet", "run", text_of(&plan), "--chat", "-n", "40", "--stop", "One morning"];
    let found = strata_fed(&dir, &chat, &format!("{one}\n{two}\n/quit\n"));
    let (first, second) = found.trim_end().split_once('\n').unwrap();
    let open = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let turn = |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n{open}");
    let prompt = format!("{}{first}<|im_end|>\n{}", turn(one), turn(two));
    let more = ["--raw", "--prompt", &prompt, "-n", "40", "--stop", "One morning"];
    let fresh = run(&dir, &more);
    assert_eq!(fresh["text"].as_str().unwrap().trim_end(), second);
}

#[test]
fn inspect_says_what_states_and_experts_cost() {
    let dir = scratch("speculation-inspect");
    let plan = nano();
    let text = strata_ok(&dir, &["inspect", text_of(&plan)]);
    assert!(text.contains("experts: 9 layers of 24"), "{text}");
    assert!(text.contains("6 x delta.*") && text.contains("of them pending rows"), "{text}");
    let facts: Value =
        serde_json::from_str(&strata_ok(&dir, &["inspect", text_of(&plan), "--json"])).unwrap();
    assert_eq!(facts["experts"]["count"], 24);
    assert!(facts["states"]["delta.0"]["pending_bytes"].as_u64().unwrap() > 0);
    assert!(facts["windows"]["verify 1"]["launches_per_layer"].as_f64().unwrap() > 1.0);
}
