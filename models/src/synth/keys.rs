//! The keys of a GGUF file that say what a definition says; what `import` reads.

use strata_formats::{GgufWriter, ValueType, WriteValue};

use crate::error::ModelError;
use crate::hash_constants;
use crate::schema::{
    Attention, Bias, Block, GatedDelta, Gqa, HashConstants, Mlp, ModelDef, Moe, Ngram, Pairs,
    Residual, Scaling, Shared, ValueHeads,
};

/// Keys in the making.
struct Keys<'k> {
    arch: &'static str,
    out: &'k mut GgufWriter,
}

impl Keys<'_> {
    fn set(&mut self, key: &str, value: WriteValue) -> Result<(), ModelError> {
        self.out.set(&format!("{}.{key}", self.arch), value).map_err(ModelError::Write)
    }

    fn number(&mut self, key: &str, value: impl Into<u32>) -> Result<(), ModelError> {
        self.set(key, WriteValue::U32(value.into()))
    }

    fn float(&mut self, key: &str, value: f32) -> Result<(), ModelError> {
        self.set(key, WriteValue::F32(value))
    }

    fn i32s(&mut self, key: &str, values: impl Iterator<Item = u32>) -> Result<(), ModelError> {
        let values = values.map(|value| WriteValue::I32(value as i32)).collect();
        self.set(key, WriteValue::Array(ValueType::I32, values))
    }

    fn u64s(&mut self, key: &str, values: Vec<u64>) -> Result<(), ModelError> {
        let values = values.into_iter().map(WriteValue::U64).collect();
        self.set(key, WriteValue::Array(ValueType::U64, values))
    }
}

fn unknown(field: &str, found: impl Into<String>, need: &str) -> ModelError {
    ModelError::Field {
        field: field.into(),
        found: found.into(),
        need: format!("{need}, to write a GGUF file"),
    }
}

/// Of the layers and the draft head: one of each kind of attention and MLP that GGUF keys describe.
struct Kinds<'d> {
    gqa: &'d Gqa,
    delta: Option<&'d GatedDelta>,
    mlp: &'d Mlp,
}

/// # Errors
/// Blocks differ in what GGUF has one key for.
fn kinds(def: &ModelDef) -> Result<Kinds<'_>, ModelError> {
    let (mut gqa, mut delta) = (None, None);
    let mlp = &def.block(0).mlp;
    for block in def.all_blocks() {
        match &block.attention {
            Attention::Gqa(found) => {
                if *gqa.get_or_insert(found) != found {
                    return Err(unknown("blocks", "two kinds of softmax attention", "one"));
                }
            }
            Attention::GatedDelta(found) => {
                if *delta.get_or_insert(found) != found {
                    return Err(unknown("blocks", "two kinds of recurrent layer", "one"));
                }
            }
        }
        if block.post_norms {
            return Err(unknown("blocks", "with post norms", "without them"));
        }
        if block.mlp != *mlp {
            return Err(unknown("blocks", "two kinds of MLP", "one"));
        }
    }
    let gqa = gqa.ok_or_else(|| {
        unknown("blocks", "recurrent layers only", "softmax attention in one at least")
    })?;
    Ok(Kinds { gqa, delta, mlp })
}

const KNOWN: &str = "one of llama, qwen2, qwen3, qwen3moe, qwen3next or qwen4exp";

/// The architecture whose files have blocks like these.
fn architecture(def: &ModelDef, kinds: &Kinds<'_>) -> Result<&'static str, ModelError> {
    let Kinds { gqa, delta, mlp } = kinds;
    if gqa.window.is_some() || gqa.scale.is_some() || gqa.rope.scaling != Scaling::None {
        let found = "attention with a window, a scale of its own or a scaled rope";
        return Err(unknown("blocks", found, "attention without those"));
    }
    let connected = def.residual != Residual::Plain;
    let tiled = delta.is_some_and(|delta| delta.order == ValueHeads::Tiled);
    let moe = matches!(mlp, Mlp::Moe(_));
    match (connected, delta.is_some(), gqa.bias, gqa.qk_norm) {
        (true, true, Bias::None, true) if tiled => Ok("qwen4exp"),
        (false, true, Bias::None, true) if !tiled => Ok("qwen3next"),
        (false, false, Bias::None, true) if moe => Ok("qwen3moe"),
        (false, false, Bias::None, true) => Ok("qwen3"),
        (false, false, Bias::Qkv, false) if !moe => Ok("qwen2"),
        (false, false, Bias::None, false) if !moe && gqa.rope.pairing == Pairs::Adjacent => {
            Ok("llama")
        }
        _ => Err(unknown("blocks", "a stack of no architecture that is known here", KNOWN)),
    }
}

/// Writes the keys of `def`.
///
/// # Errors
/// The definition has what files of no known architecture have.
pub(super) fn write(def: &ModelDef, out: &mut GgufWriter) -> Result<(), ModelError> {
    let kinds = kinds(def)?;
    let arch = architecture(def, &kinds)?;
    for (key, value) in [
        ("general.architecture", WriteValue::Str(arch.into())),
        ("general.name", WriteValue::Str(format!("synthetic {}", def.name))),
        ("general.quantization_version", WriteValue::U32(2)),
    ] {
        out.set(key, value).map_err(ModelError::Write)?;
    }
    let mut keys = Keys { arch, out };
    let drafts = u32::from(def.draft.is_some());
    keys.number("block_count", def.layers + drafts)?;
    if drafts > 0 {
        keys.number("nextn_predict_layers", drafts)?;
    }
    keys.number("context_length", def.context)?;
    keys.number("embedding_length", def.hidden)?;
    keys.float("attention.layer_norm_rms_epsilon", def.norm.eps())?;
    attention(&mut keys, kinds.gqa)?;
    match kinds.mlp {
        Mlp::Gated(gated) => keys.number("feed_forward_length", gated.intermediate)?,
        Mlp::Moe(moe) => experts(&mut keys, moe)?,
    }
    if let Some(delta) = kinds.delta {
        recurrent(&mut keys, delta)?;
        layers(&mut keys, def)?;
    }
    if let Residual::HyperConnections { streams, low_rank } = def.residual {
        keys.number("hyper_connection.count", streams)?;
        keys.number("hyper_connection.low_rank", low_rank)?;
    }
    indexer(&mut keys, def, kinds.gqa)?;
    match &def.ngram {
        Some(ngram) => self::ngram(&mut keys, def, ngram),
        None => Ok(()),
    }
}

fn attention(keys: &mut Keys<'_>, gqa: &Gqa) -> Result<(), ModelError> {
    keys.number("attention.head_count", gqa.heads)?;
    keys.number("attention.head_count_kv", gqa.kv_heads)?;
    keys.number("attention.key_length", gqa.head_dim)?;
    keys.number("attention.value_length", gqa.head_dim)?;
    keys.float("rope.freq_base", gqa.rope.theta as f32)?;
    let dims = gqa.rope.dims.unwrap_or(gqa.head_dim);
    keys.number("rope.dimension_count", dims)?;
    if keys.arch == "qwen4exp" {
        // Pairs that turn by time, height and width: for texts all three are the position.
        let pairs = u32::from(dims) / 2;
        let sections = [pairs.div_ceil(3), (pairs + 1) / 3, pairs / 3, 0];
        keys.i32s("rope.dimension_sections", sections.into_iter())?;
    }
    Ok(())
}

fn experts(keys: &mut Keys<'_>, moe: &Moe) -> Result<(), ModelError> {
    keys.number("expert_count", moe.experts)?;
    keys.number("expert_used_count", moe.top_k)?;
    keys.number("expert_feed_forward_length", moe.intermediate)?;
    match moe.shared {
        Some(Shared { intermediate, .. }) => {
            keys.number("expert_shared_feed_forward_length", intermediate)
        }
        None => Ok(()),
    }
}

fn recurrent(keys: &mut Keys<'_>, delta: &GatedDelta) -> Result<(), ModelError> {
    keys.number("ssm.conv_kernel", delta.conv_taps)?;
    keys.number("ssm.state_size", delta.head_dim)?;
    keys.number("ssm.group_count", delta.key_heads)?;
    keys.number("ssm.time_step_rank", delta.value_heads)?;
    keys.number("ssm.inner_size", delta.value_width())
}

fn is_recurrent(block: &Block) -> bool {
    matches!(block.attention, Attention::GatedDelta(_))
}

/// The interval of attention layers, or which layers are recurrent if they have none.
fn layers(keys: &mut Keys<'_>, def: &ModelDef) -> Result<(), ModelError> {
    let recurrent: Vec<bool> =
        (0..def.layers).map(|layer| is_recurrent(def.block(layer))).collect();
    let interval = 1 + recurrent.iter().take_while(|&&recurrent| recurrent).count();
    let regular = (1..).zip(&recurrent).all(|(n, &found)| found == (n % interval != 0));
    if regular {
        return keys.number("full_attention_interval", interval as u32);
    }
    let flags = recurrent.into_iter().map(WriteValue::Bool).collect();
    keys.set("attention.recurrent_layers", WriteValue::Array(ValueType::Bool, flags))
}

fn indexer(keys: &mut Keys<'_>, def: &ModelDef, gqa: &Gqa) -> Result<(), ModelError> {
    let Some(indexer) = &gqa.indexer else { return Ok(()) };
    keys.number("attention.indexer.head_count", indexer.heads)?;
    keys.number("attention.indexer.key_length", indexer.head_dim)?;
    keys.number("attention.indexer.top_k", indexer.budget_tokens)?;
    let ratio = |layer: u32| match layer < def.layers && !is_recurrent(def.block(layer)) {
        true => u32::from(indexer.block),
        false => 0,
    };
    let blocks = def.layers + u32::from(def.draft.is_some());
    keys.i32s("attention.compress_ratios", (0..blocks).map(ratio))
}

fn ngram(keys: &mut Keys<'_>, def: &ModelDef, ngram: &Ngram) -> Result<(), ModelError> {
    let HashConstants { multipliers, sizes, offsets } = hash_constants(ngram, def.vocab);
    keys.i32s("ple.layers", [ngram.layer].into_iter())?;
    keys.number("ple.ngram_size", ngram.ngram_size)?;
    keys.number("ple.heads_per_ngram", ngram.heads_per_ngram)?;
    keys.number("ple.conv_kernel", ngram.taps)?;
    keys.number("ple.eos_token_id", ngram.eos)?;
    keys.number("embedding_length_per_layer_input", ngram.width)?;
    keys.u64s("ple.layer_multipliers", multipliers)?;
    keys.u64s("ple.head_vocab_sizes", sizes)?;
    keys.u64s("ple.head_offsets", offsets)
}
