//! Made-up checkpoints of both kinds.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::path::{Path, PathBuf};

use strata_formats::{GgufWriter, TensorType, WriteValue};
use strata_models::{Attention, Block, Gqa, ModelDef, import};

pub type Key<'k> = (&'k str, WriteValue);

pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("imports").join(name);
    fs::create_dir_all(&path).unwrap();
    path
}

/// Writes a GGUF file of `arch` with the sizes that every one has, `keys` and `tensors`. A key of
/// `keys` replaces one of those; keys without a dot in front belong to the architecture.
pub fn gguf(name: &str, arch: &str, keys: &[Key<'_>], tensors: &[&str]) -> PathBuf {
    let base = [
        ("block_count", 4),
        ("context_length", 512),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", WriteValue::Str(arch.into())).unwrap();
    let eps = ("attention.layer_norm_rms_epsilon", WriteValue::F32(1e-5));
    let base = base.map(|(key, value)| (key, WriteValue::U32(value)));
    for (key, value) in base.into_iter().chain([eps]) {
        if !keys.iter().any(|(other, _)| *other == key) {
            writer.set(&format!("{arch}.{key}"), value).unwrap();
        }
    }
    for (key, value) in keys {
        let full =
            if key.starts_with("tokenizer.") { (*key).into() } else { format!("{arch}.{key}") };
        writer.set(&full, value.clone()).unwrap();
    }
    let mut sizes = vec![writer.declare("token_embd.weight", TensorType::F32, &[64, 32]).unwrap()];
    for tensor in tensors {
        sizes.push(writer.declare(tensor, TensorType::F32, &[8]).unwrap());
    }
    let path = folder("gguf").join(format!("{name}.gguf"));
    writer
        .write_file(&path, |index, out| {
            let value = (index as f32).to_le_bytes();
            out.write_all(&value.repeat(sizes[index] as usize / 4))
        })
        .unwrap();
    path
}

pub fn imported(path: &Path) -> ModelDef {
    import(path).unwrap_or_else(|error| panic!("{error}"))
}

pub fn refused(path: &Path) -> String {
    import(path).expect_err("the file is to be refused").to_string()
}

pub fn gqa(block: &Block) -> &Gqa {
    match &block.attention {
        Attention::Gqa(gqa) => gqa,
        other => panic!("{other:?}"),
    }
}

pub fn u32s(values: &[u32]) -> WriteValue {
    WriteValue::u32s(values.iter().copied())
}

/// Writes a folder with `config.json`, the files of `others` and tensors of two bytes.
pub fn published(name: &str, config: &str, tensors: &[&str], others: &[(&str, &str)]) -> PathBuf {
    let path = folder(name);
    fs::write(path.join("config.json"), config).unwrap();
    for (file, text) in others {
        fs::write(path.join(file), text).unwrap();
    }
    let rows: Vec<String> = tensors
        .iter()
        .enumerate()
        .map(|(i, tensor)| {
            let (begin, end) = (2 * i, 2 * i + 2);
            format!(r#""{tensor}":{{"dtype":"BF16","shape":[1],"data_offsets":[{begin},{end}]}}"#)
        })
        .collect();
    let header = format!("{{{}}}", rows.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![0; 2 * tensors.len()]);
    fs::write(path.join("model.safetensors"), bytes).unwrap();
    path
}

pub fn config(model_type: &str, more: &str) -> String {
    format!(
        r#"{{"model_type": "{model_type}", "hidden_size": 64, "num_hidden_layers": 4,
        "vocab_size": 32, "max_position_embeddings": 512, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "rms_norm_eps": 1e-6,
        "hidden_act": "silu"{more}}}"#
    )
}

pub const EMBEDDING: &str = "model.embed_tokens.weight";
