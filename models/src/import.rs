//! Definitions from checkpoints: what the metadata says, and what a family implies.

mod gguf;
mod hf;
mod periods;

use std::path::Path;

use strata_formats::{Checkpoint, Kind};

use crate::error::ModelError;
use crate::limits;
use crate::schema::{Act, Bias, ModelDef, OutputGate, Pairs, Projections, ValueHeads};

/// What the members of a family have in common and their metadata does not say.
#[derive(Debug)]
struct Family {
    /// `general.architecture` of GGUF files.
    gguf: &'static str,
    /// `model_type` of published configurations.
    hf: &'static [&'static str],
    /// Published checkpoints pair the halves of a head; converters may have reordered the rows.
    gguf_pairing: Pairs,
    bias: Bias,
    qk_norm: bool,
    act: Act,
    gemma: Option<Gemma>,
    hybrid: Option<Hybrid>,
    /// Keys that published configurations of the family leave out, and what that means.
    hf_defaults: &'static [(&'static str, f64)],
}

/// Four norms a layer with zero-centred gains in published files, a scaled embedding, and local
/// layers between global ones.
#[derive(Clone, Copy, Debug)]
struct Gemma {
    /// Every so many layers one is global, beginning with the last of the first period.
    pattern: u32,
    local_theta: f64,
}

/// Delta-rule layers between gated attention layers, zero-centred gains in published files, and
/// shared experts.
#[derive(Clone, Copy, Debug)]
struct Hybrid {
    /// Of GGUF files; published ones are grouped.
    gguf_order: ValueHeads,
    /// Of GGUF files; published ones say it.
    gguf_gate: OutputGate,
    projections: Projections,
    /// Parts of tensor names that GGUF files of the family spell otherwise.
    gguf_renamed: &'static [(&'static str, &'static str)],
}

/// Every so many layers of a hybrid model one has attention, if its files do not say.
const FULL_ATTENTION_INTERVAL: u32 = 4;

const PLAIN: Family = Family {
    gguf: "",
    hf: &[],
    gguf_pairing: Pairs::Halves,
    bias: Bias::None,
    qk_norm: false,
    act: Act::Silu,
    gemma: None,
    hybrid: None,
    hf_defaults: &[],
};

const HYBRID_DEFAULTS: &[(&str, f64)] = &[
    ("partial_rotary_factor", 0.25),
    ("linear_conv_kernel_dim", 4.0),
    ("ple_conv_kernel_size", 4.0),
    ("ngram_size", 3.0),
    ("seed", 1234.0),
    ("make_ngram_vocab_size_divisible_by", 128.0),
    ("split_ngram_parts", 1.0),
];

const GEMMA3_DEFAULTS: &[(&str, f64)] = &[
    ("vocab_size", 262_208.0),
    ("max_position_embeddings", 131_072.0),
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("head_dim", 256.0),
    ("query_pre_attn_scalar", 256.0),
    ("rms_norm_eps", 1e-6),
    ("rope_theta", 1e6),
    ("sliding_window", 4096.0),
];

const FAMILIES: &[Family] = &[
    Family { gguf: "llama", hf: &["llama", "mistral"], gguf_pairing: Pairs::Adjacent, ..PLAIN },
    Family { gguf: "qwen2", hf: &["qwen2"], bias: Bias::Qkv, ..PLAIN },
    Family { gguf: "qwen3", hf: &["qwen3"], qk_norm: true, ..PLAIN },
    Family { gguf: "qwen3moe", hf: &["qwen3_moe"], qk_norm: true, ..PLAIN },
    Family {
        gguf: "gemma3",
        hf: &["gemma3_text"],
        qk_norm: true,
        act: Act::Gelu,
        gemma: Some(Gemma { pattern: 6, local_theta: 10_000.0 }),
        hf_defaults: GEMMA3_DEFAULTS,
        ..PLAIN
    },
    Family {
        gguf: "qwen3next",
        hf: &["qwen3_next"],
        qk_norm: true,
        hybrid: Some(Hybrid {
            gguf_order: ValueHeads::Grouped,
            gguf_gate: OutputGate::Silu,
            projections: Projections::FusedByKeyHead,
            gguf_renamed: &[("ffn_norm.", "post_attention_norm.")],
        }),
        hf_defaults: HYBRID_DEFAULTS,
        ..PLAIN
    },
    Family {
        gguf: "qwen4exp",
        hf: &["qwen4_exp_text", "qwen4_exp", "qwen3_8_flash_next_text", "qwen3_8_flash_next"],
        qk_norm: true,
        hybrid: Some(Hybrid {
            gguf_order: ValueHeads::Tiled,
            gguf_gate: OutputGate::Sigmoid,
            projections: Projections::Separate,
            gguf_renamed: &[],
        }),
        hf_defaults: HYBRID_DEFAULTS,
        ..PLAIN
    },
];

/// Writes the definition of the checkpoint at `path`: a GGUF file (the first of a split one), a
/// safetensors file or a directory of them with `config.json`.
///
/// `weights.files` holds `path` made absolute, as the place of the definition is not known here.
///
/// # Errors
/// The checkpoint cannot be opened, its family is not known, or a key is missing or says what the
/// block builders do not do.
pub fn import(path: &Path) -> Result<ModelDef, ModelError> {
    let checkpoint = Checkpoint::open(path).map_err(ModelError::Open)?;
    let def = match checkpoint.kind() {
        Kind::Gguf => gguf::import(path, &checkpoint)?,
        Kind::Safetensors => hf::import(path, &checkpoint)?,
    };
    limits::check(&def)?;
    Ok(def)
}

/// The path as a definition holds it.
fn file_name(path: &Path) -> Result<String, ModelError> {
    let absolute =
        std::path::absolute(path).map_err(|error| ModelError::Read { path: path.into(), error })?;
    match absolute.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(ModelError::Field {
            field: "weights.files".into(),
            found: absolute.to_string_lossy().into_owned(),
            need: "a path in UTF-8: rename the file".into(),
        }),
    }
}

fn unknown_architecture(path: &Path, found: &str, known: &[&str]) -> ModelError {
    ModelError::Architecture { path: path.into(), found: found.into(), known: known.join(", ") }
}

/// Refuses a number of layers that no model has, before a block is made for each.
fn check_layers(path: &Path, key: &str, layers: u32) -> Result<u32, ModelError> {
    if (1..=limits::MAX_LAYERS).contains(&layers) {
        return Ok(layers);
    }
    Err(ModelError::Key {
        path: path.into(),
        key: key.into(),
        found: layers.to_string(),
        need: format!("between 1 and {}", limits::MAX_LAYERS),
    })
}

/// Narrows a size that the schema holds in 16 bits.
fn narrow(path: &Path, key: &str, value: u32) -> Result<u16, ModelError> {
    u16::try_from(value).map_err(|_| ModelError::Key {
        path: path.into(),
        key: key.into(),
        found: value.to_string(),
        need: format!("at most {}", u16::MAX),
    })
}
