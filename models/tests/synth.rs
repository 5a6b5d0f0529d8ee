//! Made-up weight sets: what is written is what the definition says, and reads back as it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its functions")]

use std::fs;
use std::path::{Path, PathBuf};

use strata_formats::Checkpoint;
use strata_graph::{Window, WindowKind};
use strata_models::{
    Hash, Mix, ModelDef, build, hash_constants, import, open, resize, synthesize, unused_tensors,
};

fn definition(name: &str) -> ModelDef {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    open(&path).unwrap_or_else(|error| panic!("{error}"))
}

fn folder() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("synth");
    fs::create_dir_all(&path).unwrap();
    path
}

/// As an import gives it: the name is the file's, the hash is listed.
fn plain(def: &ModelDef) -> ModelDef {
    let mut def = ModelDef { name: String::new(), ..def.clone() };
    def.weights.files.clear();
    if let Some(ngram) = &mut def.ngram {
        ngram.hash = Hash::Given(hash_constants(ngram, def.vocab));
    }
    def
}

#[test]
fn headers_read_back_as_the_definition_and_hold_all_weights() {
    for (name, layers) in [
        ("qwen3.8-flash-next.gguf.ron", 5),
        ("qwen3-next-80b-a3b.gguf.ron", 48),
        ("qwen3-30b-a3b.gguf.ron", 48),
        ("qwen3-0.6b.gguf.ron", 28),
        ("qwen2.5-coder-1.5b.gguf.ron", 28),
        ("strata-nano.ron", 8),
    ] {
        let def = resize(&definition(name), Some(layers), None);
        let path = folder().join(format!("{name}.gguf"));
        let file = synthesize(&def, &Mix::default()).unwrap_or_else(|error| panic!("{error}"));
        file.write_headers(&path).unwrap();
        assert!(fs::metadata(&path).unwrap().len() > file.bytes());
        let imported = import(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plain(&imported), plain(&def), "{name}");
        let checkpoint = Checkpoint::open(&path).unwrap();
        let window = Window { kind: WindowKind::Verify, rows: 1, logit_rows: 1 };
        let unused = unused_tensors(&build(&imported, window).unwrap(), &checkpoint);
        assert_eq!(unused, Vec::<String>::new());
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_same_definition_gives_the_same_bytes_and_none_is_left_out() {
    let def = resize(&definition("strata-nano.ron"), Some(4), Some(1000));
    let file = synthesize(&def, &"dense=Q4_K,down=F16,table=BF16".parse().unwrap()).unwrap();
    let paths = ["a", "b"].map(|name| folder().join(format!("{name}.gguf")));
    for path in &paths {
        let mut told = 0;
        file.write(path, |bytes| told += bytes).unwrap();
        assert_eq!(told, file.bytes());
    }
    let [a, b] = paths.each_ref().map(|path| fs::read(path).unwrap());
    assert!(a == b, "two files of one definition differ");
    let checkpoint = Checkpoint::open(&paths[0]).unwrap();
    assert_eq!(checkpoint.tensors().len(), file.tensor_count());
    let named = |name: &str| checkpoint.bytes_of(checkpoint.tensor(name).unwrap());
    assert_eq!(named("output_hc_norm.weight")[..4], 1f32.to_le_bytes());
    assert_eq!(named("blk.0.ssm_a")[..4], (-1f32).to_le_bytes());
    assert_ne!(named("blk.0.attn_qkv.weight")[..64], named("blk.0.attn_gate.weight")[..64]);
    assert!(import(&paths[0]).unwrap().ngram.unwrap().table_rows >= 1000);
}

#[test]
fn definitions_that_gguf_has_no_keys_for_are_refused_by_field() {
    for (name, need) in [
        ("qwen3.8-flash-next.ron", "weights.layout is HfFusedExperts, needs Gguf"),
        ("gemma-3-270m.gguf.ron", "blocks is with post norms, needs without them"),
    ] {
        let error = synthesize(&definition(name), &Mix::default()).err().unwrap().to_string();
        assert!(error.contains(need), "{name}: {error}");
    }
}
