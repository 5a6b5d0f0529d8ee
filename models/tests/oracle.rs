//! Imported definitions against checkpoints: every weight of the graph is in the file with fitting
//! dimensions, and every tensor of the file is read.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its functions")]

use std::path::{Path, PathBuf};

use strata_formats::Checkpoint;
use strata_graph::{DType, Graph, TensorSlice, WeightDef, WeightSource, Window, WindowKind};
use strata_models::{ModelDef, build, import, parse, to_ron, unused_tensors};

/// The small reference models, which lie beside the repository.
fn oracle(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle").join(name);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: {} is not there", path.display());
    None
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
        assert!(matches!(&weight.source, WeightSource::Constant(c) if !c.is_empty()));
        return;
    };
    assert_eq!(weight.ty.dtype, DType::Unresolved, "{}", weight.name);
    let total: u64 = slices.iter().map(|slice| slice_elements(checkpoint, slice)).sum();
    assert_eq!(total, weight.ty.elements(), "{}", weight.name);
    for slice in slices {
        let tensor = checkpoint.tensor(&slice.tensor).unwrap();
        assert_eq!(tensor.dims[0], u64::from(weight.ty.last_dim()), "{}", weight.name);
    }
    if let [TensorSlice { tensor, rows: None }] = slices.as_slice() {
        let found: Vec<u64> = checkpoint.tensor(tensor).unwrap().dims.clone();
        let need: Vec<u64> = weight.ty.dims().iter().rev().map(|&d| u64::from(d)).collect();
        assert_eq!(found, need, "{}", weight.name);
    }
}

/// Imports, writes and reads the definition, builds it and holds it against the file.
fn check(path: &Path) -> (ModelDef, Graph) {
    let def = import(path).unwrap_or_else(|error| panic!("{error}"));
    let text = to_ron(&def);
    assert_eq!(parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")), def);
    let checkpoint = Checkpoint::open(path).unwrap();
    build(&def, window(512)).unwrap();
    let graph = build(&def, window(1)).unwrap();
    for weight in graph.weights().values() {
        fits(&checkpoint, weight);
    }
    let left: Vec<String> = unused_tensors(&graph, &checkpoint)
        .into_iter()
        .filter(|name| name != "rope_freqs.weight")
        .collect();
    assert_eq!(left, Vec::<String>::new());
    (def, graph)
}

/// Imports both files of a model and returns the two definitions.
fn both(name: &str) -> Option<[ModelDef; 2]> {
    let dir = oracle(name)?;
    let (gguf, _) = check(&dir.join("model-f32.gguf"));
    let (hf, _) = check(&dir.join("model.safetensors"));
    let by_folder = import(&dir).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ModelDef { weights: hf.weights.clone(), ..by_folder }, hf);
    assert_eq!(gguf.hidden, hf.hidden);
    assert_eq!(gguf.layers, hf.layers);
    assert_eq!(gguf.vocab, hf.vocab);
    assert_eq!(gguf.head, hf.head);
    Some([gguf, hf])
}

#[test]
fn llama_turns_the_same_angles_from_divisors_and_from_the_definition() {
    let Some(defs) = both("llama") else { return };
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
    use strata_models::{Attention, Pairs};
    let Some(defs) = both("llama") else { return };
    let pairs = defs.map(|def| {
        let Attention::Gqa(gqa) = &def.blocks[0].attention;
        gqa.rope.pairing
    });
    assert_eq!(pairs, [Pairs::Adjacent, Pairs::Halves]);
}

#[test]
fn gemma3_has_the_same_blocks_from_both_files() {
    let Some([gguf, hf]) = both("gemma3") else { return };
    assert_eq!(gguf.blocks, hf.blocks);
    let runs: Vec<u32> = gguf.blocks.iter().map(|block| block.repeat).collect();
    assert_eq!(runs, [5, 1]);
    assert_eq!(gguf.embed_scale, 8.0);
    assert!(hf.norm.zero_centred() && !gguf.norm.zero_centred());
}

#[test]
fn qwen3moe_has_the_same_blocks_from_both_files() {
    let Some([gguf, hf]) = both("qwen3moe") else { return };
    assert_eq!(gguf.blocks, hf.blocks);
}

#[test]
fn a_family_without_builders_is_refused_with_the_known_ones() {
    let Some(dir) = oracle("qwen3next") else { return };
    for (file, found, known) in [
        ("model-f32.gguf", "qwen3next", "llama, qwen2, qwen3, qwen3moe, gemma3"),
        ("model.safetensors", "qwen3_next", "llama, mistral, qwen2, qwen3, qwen3_moe, gemma3_text"),
    ] {
        let error = import(&dir.join(file)).unwrap_err().to_string();
        assert!(error.contains(&format!("{found:?} is not known; known are {known}")), "{error}");
    }
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
