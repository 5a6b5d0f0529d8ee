//! What the layers of small hybrid models compute, against expectations in float64: residuals,
//! chosen experts and blocks, rows of the n-gram table, states.
//!
//! The tolerance is that of the logits, see oracle.rs: what is compared here is of the size of logits
//! and passes through no more layers. The largest difference that was seen is 4e-5. Integers must be
//! equal: the models were made so that no choice is closer than 1e-4.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod reference;
mod support;

use std::collections::BTreeMap;

use reference::{Oracle, worst};
use strata_plan::layout::{NONE, state};
use strata_replay::{Engine, Row, SlotId};
use support::{compile, open, repository, scratch};

const TOLERANCE: f32 = 2e-4;
const PROMPTS: [usize; 4] = [1, 7, 64, 300];
/// Positions in a block of the sparse layers.
const BLOCK: usize = 4;

/// The words of all rows of each value, by its name.
type Values = BTreeMap<String, Vec<u32>>;

fn engine(oracle: &Oracle, name: &str, checkpoint: &str) -> Engine {
    let dir = scratch(&format!("values-{name}-{}", checkpoint.replace('.', "-")));
    let config = repository().join("configs/debug-values.ron");
    let extra = ["--config", config.to_str().unwrap()];
    open(&compile(&dir, &oracle.dir.join(checkpoint), &extra), 2)
}

/// What the last window left. Values with a name that another one has, too, are left out: such are
/// the two steps of experts.
fn add_values(engine: &Engine, values: &mut Values) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    engine.outputs().for_each(|output| *counts.entry(output.name).or_default() += 1);
    for output in engine.outputs().filter(|output| counts[output.name] == 1) {
        assert!(["f32", "u32"].contains(&output.dtype), "{}: {}", output.name, output.dtype);
        let words = output.live().chunks_exact(4);
        let words = words.map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
        values.entry(output.name.to_owned()).or_default().extend(words);
    }
}

/// Runs a prompt in a sequence of its own.
fn run(engine: &mut Engine, slot: SlotId, prompt: &[u32]) -> Values {
    let mut values = Values::new();
    for chunk in prompt.chunks(32) {
        let rows: Vec<Row> = chunk.iter().map(|&token| Row { token, slot, logits: true }).collect();
        engine.run(&rows).unwrap();
        add_values(engine, &mut values);
    }
    values
}

/// The last `count` words of a value.
fn last<'a>(values: &'a Values, name: &str, count: usize) -> &'a [u32] {
    let words = values.get(name);
    let words = words.unwrap_or_else(|| panic!("no value {name}: {:?}", values.keys()));
    &words[words.len() - count..]
}

fn floats(values: &Values, name: &str, count: usize) -> Vec<f32> {
    last(values, name, count).iter().map(|&word| f32::from_bits(word)).collect()
}

fn near(what: &str, found: &[f32], expected: &[f32]) {
    let error = worst(found, expected);
    println!("{what}: max abs error {error:e}");
    assert!(error <= TOLERANCE, "{what}: error {error}");
}

/// Residuals behind the layers, `blk.N.{node}`, and the experts that each chose.
fn check_layers(oracle: &Oracle, length: usize, values: &Values, node: &str) {
    let name = format!("layers_{length}");
    let (dims, expected) = (oracle.dims(&name), oracle.floats(&name));
    let count = dims[1] * dims[2];
    for (layer, expected) in expected.chunks(count).enumerate() {
        let found = floats(values, &format!("blk.{layer}.{node}"), count);
        near(&format!("layer {layer}, {length} tokens"), &found, expected);
    }
    let name = format!("router_{length}");
    let dims = oracle.dims(&name);
    for (layer, expected) in oracle.words(&name).chunks(dims[1] * dims[2]).enumerate() {
        let found = last(values, &format!("blk.{layer}.route"), expected.len());
        assert_eq!(found, expected, "experts of layer {layer}, {length} tokens");
    }
}

/// 1 for each of `length` positions that a selection lets a row attend to, else 0.
fn attended(selection: &[u32], length: usize) -> Vec<u8> {
    let mut all = vec![0; length];
    let mut left = selection[0] as usize;
    for &block in &selection[1..] {
        let count = left.min(BLOCK);
        left -= count;
        let start = block as usize * BLOCK;
        if count > 0 {
            all[start..start + count].fill(1);
        }
    }
    assert_eq!(left, 0, "{selection:?}");
    all
}

fn check_selections(oracle: &Oracle, length: usize, values: &Values, layers: &[usize]) {
    let name = format!("qsa_allow_{length}");
    let (dims, expected) = (oracle.dims(&name), oracle.bytes(&name));
    assert_eq!((dims[0], dims[2]), (layers.len(), length));
    for (layer, expected) in layers.iter().zip(expected.chunks(dims[1] * length)) {
        let name = format!("blk.{layer}.indexer.top");
        let width = values[&name].len() / length;
        let selections = last(values, &name, dims[1] * width).chunks(width);
        for (row, (selection, expected)) in selections.zip(expected.chunks(length)).enumerate() {
            let found = attended(selection, length);
            assert_eq!(found, expected, "row {row} of layer {layer}, {length} tokens");
        }
    }
}

/// Streams of the residual.
const STREAMS: usize = 4;

/// What each half of a layer reads, with which weight and what it adds to the streams.
fn check_details(oracle: &Oracle, values: &Values, layers: usize, sparse: &[usize]) {
    for layer in 0..layers {
        for (half, hc) in [("mixer", "hc_attn"), ("mlp", "hc_ffn")] {
            let compare = |what: &str, found: Vec<f32>| {
                let name = format!("detail_7.L{layer}.{half}_{what}");
                near(&name, &found, &oracle.floats(&name));
            };
            let expected = |what: &str| oracle.floats(&format!("detail_7.L{layer}.{half}_{what}"));
            let value =
                |node: &str, len: usize| floats(values, &format!("blk.{layer}.{node}"), len);
            compare("in", value(&format!("{hc}_read"), expected("in").len()));
            // The second product of the launch that begins with the projection down.
            let logits = value(&format!("{hc}_down.1"), expected("inject").len());
            let inject: Vec<f32> = logits.iter().map(|x| 2.0 / (1.0 + (-x / 4.0).exp())).collect();
            compare("inject", inject.clone());
            let width = expected("out").len();
            let out = match half {
                "mixer" if sparse.contains(&layer) => value("attn_output", width),
                "mixer" => value("ssm_out", width),
                _ => {
                    let after = value("hc_ffn_write", STREAMS * width);
                    added(&value("hc_attn_write", STREAMS * width), &after, &inject)
                }
            };
            compare("out", out);
        }
    }
}

/// What was added to the streams of each row, by the stream that took most of it: the sum of experts
/// is joined with the write and has no place of its own.
fn added(before: &[f32], after: &[f32], inject: &[f32]) -> Vec<f32> {
    let rows = inject.len() / STREAMS;
    let width = before.len() / rows / STREAMS;
    let mut out = Vec::new();
    for (row, weights) in inject.chunks(STREAMS).enumerate() {
        let stream = (0..STREAMS).max_by(|&a, &b| weights[a].total_cmp(&weights[b])).unwrap();
        let start = (row * STREAMS + stream) * width;
        let pairs = after[start..start + width].iter().zip(&before[start..start + width]);
        out.extend(pairs.map(|(after, before)| (after - before) / weights[stream]));
    }
    out
}

/// The value of a state that is not kept on pages, from the file of a saved sequence: such values
/// end it, before a checksum.
fn state_value(engine: &Engine, saved: &[u8], name: &str) -> Vec<f32> {
    let plan = engine.plan();
    let mut end = saved.len() - 8;
    for row in plan.states().iter().rev() {
        if row.kind == state::APPEND || row.seed != NONE {
            continue;
        }
        let start = end - row.value_bytes as usize;
        if plan.name(row.name) == name {
            let words = saved[start..end].chunks_exact(4);
            return words.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        }
        end = start;
    }
    panic!("no state {name}");
}

/// Matrices of the delta rule. Some files hold value heads by their number among those of a key
/// head, then by key head; `key_heads` is their number then.
fn check_states(oracle: &Oracle, engine: &Engine, slot: SlotId, key_heads: Option<usize>) {
    let path = scratch(&format!("values-state-{}", key_heads.is_some())).join("sequence");
    engine.save_sequence(slot, &path).unwrap();
    let saved = std::fs::read(&path).unwrap();
    for layer in [0, 1, 2, 4, 5, 6] {
        let name = format!("detail_7.L{layer}.gdn_state");
        let (heads, expected) = (oracle.dims(&name)[0], oracle.floats(&name));
        let found = state_value(engine, &saved, &format!("delta.{layer}"));
        let size = expected.len() / heads;
        let found = (0..heads).flat_map(|head| {
            let place = match key_heads {
                Some(keys) => head % (heads / keys) * keys + head / (heads / keys),
                None => head,
            };
            found[place * size..(place + 1) * size].iter().copied()
        });
        near(&name, &found.collect::<Vec<f32>>(), &expected);
    }
}

fn check_qwen4exp(checkpoint: &str, key_heads: Option<usize>) {
    let sparse = [3, 7];
    let oracle = Oracle::open("qwen4exp");
    let mut engine = engine(&oracle, "qwen4exp", checkpoint);
    for length in PROMPTS {
        let slot = engine.new_sequence().unwrap();
        let values = run(&mut engine, slot, &oracle.prompt(length));
        let rows = oracle.words(&format!("ple_rows_{length}"));
        assert_eq!(last(&values, "ngram_rows", rows.len()), rows, "{length} tokens");
        check_layers(&oracle, length, &values, "hc_ffn_write");
        check_selections(&oracle, length, &values, &sparse);
        let head = oracle.floats(&format!("final_{length}"));
        near("head", &floats(&values, "output_hc_read", head.len()), &head);
        if length == 7 {
            check_details(&oracle, &values, 8, &sparse);
            check_states(&oracle, &engine, slot, key_heads);
        }
        engine.release(slot);
    }
}

fn check_qwen3next(checkpoint: &str) {
    let oracle = Oracle::open("qwen3next");
    let mut engine = engine(&oracle, "qwen3next", checkpoint);
    for length in PROMPTS {
        let slot = engine.new_sequence().unwrap();
        let values = run(&mut engine, slot, &oracle.prompt(length));
        check_layers(&oracle, length, &values, "ffn_residual");
        engine.release(slot);
    }
}

#[test]
fn qwen4exp_from_gguf() {
    check_qwen4exp("model-f32.gguf", Some(2));
}

#[test]
fn qwen4exp_from_safetensors() {
    check_qwen4exp("", None);
}

#[test]
fn qwen3next_from_gguf() {
    check_qwen3next("model-f32.gguf");
}

#[test]
fn qwen3next_from_safetensors() {
    check_qwen3next("");
}
