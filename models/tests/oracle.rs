//! Imported definitions against checkpoints: every weight of the graph is in the file with fitting
//! dimensions, and every tensor of the file is read.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its functions")]

use std::path::{Path, PathBuf};

use strata_formats::Checkpoint;
use strata_graph::verify::verify;
use strata_graph::{DType, Graph, TensorSlice, WeightDef, WeightSource, Window, WindowKind};
use strata_models::{
    Attention, Block, ModelDef, OutputGate, ValueHeads, build, hash_constants, import, parse,
    to_ron, unused_tensors,
};

/// A folder of the small reference models.
fn oracle(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/oracle").join(name)
}

fn window(rows: u32) -> Window {
    Window { kind: WindowKind::Verify, rows, logit_rows: rows.min(8) }
}

/// Elements that a slice of a tensor gives, from dimensions innermost first.
fn slice_elements(checkpoint: &Checkpoint, slice: &TensorSlice) -> u64 {
    let tensor = checkpoint.tensor(&slice.tensor);
    let tensor = tensor.unwrap_or_else(|| panic!("the file has no tensor {}", slice.tensor));
    match slice.rows {
        None => tensor.elements(),
        Some((begin, end)) => {
            let rows = tensor.dims[1];
            assert!(u64::from(begin) < u64::from(end) && u64::from(end) <= rows);
            tensor.elements() / rows * u64::from(end - begin)
        }
    }
}

/// The innermost dimension and the number of elements agree; of a whole tensor all dimensions do.
fn fits(checkpoint: &Checkpoint, weight: &WeightDef) {
    let WeightSource::Named(slices) = &weight.source else {
        let constant = match &weight.source {
            WeightSource::Constant(values) => !values.is_empty(),
            WeightSource::Integers(values) => !values.is_empty(),
            _ => false,
        };
        assert!(constant, "{}", weight.name);
        return;
    };
    assert_eq!(weight.ty.dtype, DType::Unresolved, "{}", weight.name);
    let total: u64 = slices.iter().map(|slice| slice_elements(checkpoint, slice)).sum();
    assert_eq!(total, weight.ty.elements(), "{}", weight.name);
    let row = u64::from(weight.ty.last_dim());
    for slice in slices {
        let tensor = checkpoint.tensor(&slice.tensor).unwrap();
        let joined = slices.len() > 1 && 2 * tensor.dims[0] == row;
        assert!(tensor.dims[0] == row || joined, "{}: {slice:?} {row}", weight.name);
    }
    if let [TensorSlice { tensor, rows: None }] = slices.as_slice() {
        // Dimensions of 1 carry no meaning: filters have one in some files and none in others.
        let found = checkpoint.tensor(tensor).unwrap().dims.iter().copied();
        let found: Vec<u64> = found.filter(|&d| d != 1).collect();
        let need = weight.ty.dims().iter().rev().map(|&d| u64::from(d));
        let need: Vec<u64> = need.filter(|&d| d != 1).collect();
        assert_eq!(found, need, "{}", weight.name);
    }
}

/// Published n-gram models store the numbers of the hash, which follow from the configuration.
fn is_hash_buffer(name: &str) -> bool {
    let ends = ["layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes"];
    ends.iter().any(|end| name.ends_with(end))
}

fn verified(def: &ModelDef, window: Window) -> Graph {
    let graph = build(def, window).unwrap_or_else(|error| panic!("{error}"));
    if let Err(errors) = verify(&graph) {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("{window:?}: {}", errors.join("\n"));
    }
    graph
}

/// Imports, writes and reads the definition, builds it and holds it against the file.
fn check(path: &Path) -> (ModelDef, Graph) {
    let def = import(path).unwrap_or_else(|error| panic!("{error}"));
    let text = to_ron(&def);
    assert_eq!(parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")), def);
    let checkpoint = Checkpoint::open(path).unwrap();
    let graph = verified(&def, window(1));
    let prefill = Window { kind: WindowKind::Prefill, ..window(512) };
    let draft = Window { kind: WindowKind::Draft, ..window(4) };
    let others = [Some(prefill), def.draft.is_some().then_some(draft)];
    for window in others.into_iter().flatten() {
        let other = verified(&def, window);
        assert_eq!(other.weights(), graph.weights());
        assert_eq!(other.states(), graph.states());
    }
    for weight in graph.weights().values() {
        fits(&checkpoint, weight);
    }
    let left: Vec<String> = unused_tensors(&graph, &checkpoint)
        .into_iter()
        .filter(|name| name != "rope_freqs.weight" && !is_hash_buffer(name))
        .collect();
    assert_eq!(left, Vec::<String>::new());
    (def, graph)
}

/// Imports both files of a model and returns the two definitions.
fn both(name: &str) -> [ModelDef; 2] {
    let dir = oracle(name);
    let (gguf, _) = check(&dir.join("model-f32.gguf"));
    let (hf, _) = check(&dir.join("model.safetensors"));
    let by_folder = import(&dir).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ModelDef { weights: hf.weights.clone(), ..by_folder }, hf);
    assert_eq!(gguf.hidden, hf.hidden);
    assert_eq!(gguf.layers, hf.layers);
    assert_eq!(gguf.vocab, hf.vocab);
    assert_eq!(gguf.head, hf.head);
    [gguf, hf]
}

#[test]
fn llama_turns_the_same_angles_from_divisors_and_from_the_definition() {
    let defs = both("llama");
    let angles = defs.map(|def| {
        let graph = build(&def, window(1)).unwrap();
        let constant = graph.weights().values().find_map(|weight| match &weight.source {
            WeightSource::Constant(values) => Some(values.clone()),
            _ => None,
        });
        constant.unwrap()
    });
    assert_eq!(angles[0].len(), 16);
    for (gguf, hf) in angles[0].iter().zip(&angles[1]) {
        assert!((gguf - hf).abs() <= 2e-7 * hf, "{gguf} {hf}");
    }
}

#[test]
fn llama_pairs_differ_by_layout() {
    use strata_models::Pairs;
    let defs = both("llama");
    let pairs = defs.map(|def| match &def.blocks[0].attention {
        Attention::Gqa(gqa) => gqa.rope.pairing,
        other => panic!("{other:?}"),
    });
    assert_eq!(pairs, [Pairs::Adjacent, Pairs::Halves]);
}

#[test]
fn gemma3_has_the_same_blocks_from_both_files() {
    let [gguf, hf] = both("gemma3");
    assert_eq!(gguf.blocks, hf.blocks);
    let runs: Vec<u32> = gguf.blocks.iter().map(|block| block.repeat).collect();
    assert_eq!(runs, [5, 1]);
    assert_eq!(gguf.embed_scale, 8.0);
    assert!(hf.norm.zero_centred() && !gguf.norm.zero_centred());
}

#[test]
fn qwen3moe_has_the_same_blocks_from_both_files() {
    let [gguf, hf] = both("qwen3moe");
    assert_eq!(gguf.blocks, hf.blocks);
}

/// What a file's order of value heads is, and the blocks as if it were the other one.
fn grouped(def: &ModelDef) -> (Vec<ValueHeads>, Vec<Block>) {
    let mut blocks = def.blocks.clone();
    let mut orders = Vec::new();
    for block in &mut blocks {
        if let Attention::GatedDelta(delta) = &mut block.attention {
            orders.push(delta.order);
            delta.order = ValueHeads::Grouped;
        }
    }
    (orders, blocks)
}

#[test]
fn qwen3next_has_the_same_blocks_from_both_files() {
    let [gguf, hf] = both("qwen3next");
    assert_eq!(gguf.blocks, hf.blocks);
    let runs: Vec<u32> = gguf.blocks.iter().map(|block| block.repeat).collect();
    assert_eq!(runs, [3, 1]);
    let Attention::GatedDelta(delta) = &gguf.blocks[0].attention else { panic!("recurrent") };
    assert_eq!(delta.gate, OutputGate::Silu);
    assert!(hf.norm.zero_centred() && gguf.draft.is_none() && gguf.ngram.is_none());
}

#[test]
fn qwen4exp_has_the_same_blocks_from_both_files() {
    let [gguf, hf] = both("qwen4exp");
    let ([tiled, in_order], [of_gguf, of_hf]) = {
        let (a, b) = (grouped(&gguf), grouped(&hf));
        ([a.0, b.0], [a.1, b.1])
    };
    assert_eq!((tiled, in_order), (vec![ValueHeads::Tiled], vec![ValueHeads::Grouped]));
    assert_eq!(of_gguf, of_hf);
    assert_eq!((gguf.residual, &gguf.draft), (hf.residual, &hf.draft));
    assert!(gguf.draft.is_some());
    let [given, derived] = [&gguf, &hf].map(|def| {
        let ngram = def.ngram.as_ref().unwrap();
        (hash_constants(ngram, def.vocab), ngram.table_rows, ngram.layer, ngram.width, ngram.eos)
    });
    assert_eq!(given, derived);
    assert_eq!(hf.ngram.unwrap().table_tensors, 4);
}

/// What the published model stores beside its table.
#[derive(serde::Deserialize)]
struct Published {
    eos: u32,
    multipliers: Vec<u64>,
    sizes: Vec<u64>,
    offsets: Vec<u64>,
}

#[test]
fn the_released_hash_has_the_published_numbers() {
    let text = std::fs::read_to_string(oracle("ngram").join("released.ron")).unwrap();
    let Published { eos, multipliers, sizes, offsets } = ron::from_str(&text).unwrap();
    for file in ["qwen3.8-flash-next.ron", "qwen3.8-flash-next.gguf.ron"] {
        let def = strata_models::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let ngram = def.ngram.as_ref().unwrap();
        let constants = hash_constants(ngram, def.vocab);
        assert_eq!((&constants.multipliers, ngram.eos), (&multipliers, eos));
        assert_eq!((&constants.sizes, &constants.offsets), (&sizes, &offsets));
    }
}

/// The trained model that is shipped, from the file beside its definition.
#[test]
fn strata_nano_is_what_its_file_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shipped = strata_models::open(&folder.join("strata-nano.ron")).unwrap();
    let (imported, _) = check(&folder.join("strata-nano-Q8_0.gguf"));
    let (name, weights) = (shipped.name.clone(), shipped.weights.clone());
    assert_eq!(ModelDef { name, weights, ..imported }, shipped);
    assert_eq!(shipped.weights.files, ["strata-nano-Q8_0.gguf"]);
}

/// Real models, where `make models` or `STRATA_MODELS` has put some.
#[test]
fn real_models_are_described_in_full() {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model-files");
    let dir = std::env::var_os("STRATA_MODELS").map_or(fetched, PathBuf::from);
    let Ok(entries) = std::fs::read_dir(&dir) else {
        println!("skipped: {} is not there", dir.display());
        return;
    };
    for path in entries.map(|entry| entry.unwrap().path()) {
        let known = |arch: Option<&str>| matches!(arch, Some("llama" | "qwen2" | "gemma3"));
        if path.extension().is_none_or(|end| end != "gguf") {
            continue;
        }
        let checkpoint = Checkpoint::open(&path).unwrap();
        let arch = checkpoint.metadata().unwrap().str("general.architecture").unwrap();
        if known(arch) {
            println!("{}\n{}", path.display(), to_ron(&check(&path).0));
        }
    }
}
