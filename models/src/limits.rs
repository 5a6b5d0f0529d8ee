//! Checks of a definition that its types do not make. `build` starts with them, so that a block
//! builder may rely on every size.

use std::fmt::Display;

use crate::error::ModelError;
use crate::ngram::hash_constants;
use crate::schema::{
    Attention, Bias, Block, Draft, GatedDelta, Gqa, Hash, Indexer, Mlp, ModelDef, Moe, Ngram,
    Residual, Rope, Scaling,
};

/// Bounds that keep every product of sizes inside 64 bits, far above any released model.
const MAX_WIDTH: u32 = 1 << 20;
const MAX_VOCAB: u32 = 1 << 26;
const MAX_CONTEXT: u32 = 1 << 28;
pub(crate) const MAX_LAYERS: u32 = 4096;

/// Refuses a definition whose sizes do not fit each other.
///
/// # Errors
/// [`ModelError::Field`] names the first field that does not fit.
pub(crate) fn check(def: &ModelDef) -> Result<(), ModelError> {
    within("hidden", def.hidden, 1, MAX_WIDTH)?;
    within("vocab", def.vocab, 1, MAX_VOCAB)?;
    within("context", def.context, 1, MAX_CONTEXT)?;
    within("layers", def.layers, 1, MAX_LAYERS)?;
    positive("norm.eps", f64::from(def.norm.eps()))?;
    positive("embed_scale", f64::from(def.embed_scale))?;
    check_residual(def.residual)?;
    check_runs(def)?;
    for (index, block) in def.blocks.iter().enumerate() {
        check_block(&format!("blocks[{index}]"), def.residual, block)?;
    }
    if let Some(ngram) = &def.ngram {
        check_ngram(def, ngram)?;
    }
    if let Some(Draft::Mtp(mtp)) = &def.draft {
        check_draft(def.residual, &mtp.block)?;
    }
    if def.weights.files.is_empty() {
        return Err(field("weights.files", "[]", "at least one file"));
    }
    check_tokens(def)
}

fn check_runs(def: &ModelDef) -> Result<(), ModelError> {
    if def.blocks.is_empty() {
        return Err(field("blocks", "[]", "at least one block"));
    }
    let mut period = 0;
    for (index, block) in def.blocks.iter().enumerate() {
        let name = format!("blocks[{index}].repeat");
        within(&name, block.repeat, 1, def.layers)?;
        period += block.repeat;
        if period > def.layers {
            let need = format!("runs of at most {} layers together, as `layers` says", def.layers);
            return Err(field(name, block.repeat, need));
        }
    }
    Ok(())
}

fn check_residual(residual: Residual) -> Result<(), ModelError> {
    let Residual::HyperConnections { streams, low_rank } = residual else { return Ok(()) };
    within("residual.streams", streams.into(), 1, 64)?;
    within("residual.low_rank", low_rank, 1, MAX_WIDTH)
}

fn check_block(at: &str, residual: Residual, block: &Block) -> Result<(), ModelError> {
    match &block.attention {
        Attention::Gqa(gqa) => check_gqa(&format!("{at}.attention"), gqa)?,
        Attention::GatedDelta(delta) => check_delta(&format!("{at}.attention"), delta)?,
    }
    if block.post_norms && residual != Residual::Plain {
        return Err(field(format!("{at}.post_norms"), true, "false, with hyper-connections"));
    }
    match &block.mlp {
        Mlp::Gated(gated) => {
            within(&format!("{at}.mlp.intermediate"), gated.intermediate, 1, MAX_WIDTH)
        }
        Mlp::Moe(moe) => check_moe(&format!("{at}.mlp"), moe),
    }
}

fn check_delta(at: &str, delta: &GatedDelta) -> Result<(), ModelError> {
    within(&format!("{at}.key_heads"), delta.key_heads.into(), 1, 4096)?;
    within(&format!("{at}.value_heads"), delta.value_heads.into(), 1, 4096)?;
    within(&format!("{at}.head_dim"), delta.head_dim.into(), 1, 4096)?;
    within(&format!("{at}.conv_taps"), delta.conv_taps.into(), 2, 64)?;
    if delta.value_heads.is_multiple_of(delta.key_heads) {
        return Ok(());
    }
    let need = format!("a multiple of key_heads, which is {}", delta.key_heads);
    Err(field(format!("{at}.value_heads"), delta.value_heads, need))
}

fn check_gqa(at: &str, gqa: &Gqa) -> Result<(), ModelError> {
    within(&format!("{at}.heads"), gqa.heads.into(), 1, 4096)?;
    within(&format!("{at}.kv_heads"), gqa.kv_heads.into(), 1, gqa.heads.into())?;
    within(&format!("{at}.head_dim"), gqa.head_dim.into(), 1, 4096)?;
    if !gqa.heads.is_multiple_of(gqa.kv_heads) {
        let need = format!("a divisor of heads, which is {}", gqa.heads);
        return Err(field(format!("{at}.kv_heads"), gqa.kv_heads, need));
    }
    if let Some(window) = gqa.window {
        within(&format!("{at}.window"), window, 1, MAX_CONTEXT)?;
    }
    if let Some(scale) = gqa.scale {
        positive(&format!("{at}.scale"), f64::from(scale))?;
    }
    if gqa.gate && gqa.bias != Bias::None {
        return Err(field(format!("{at}.bias"), format!("{:?}", gqa.bias), "None, with a gate"));
    }
    check_rope(&format!("{at}.rope"), &gqa.rope, gqa.head_dim)?;
    match &gqa.indexer {
        Some(indexer) => check_indexer(&format!("{at}.indexer"), gqa, indexer),
        None => Ok(()),
    }
}

fn check_indexer(at: &str, gqa: &Gqa, indexer: &Indexer) -> Result<(), ModelError> {
    let Indexer { heads, head_dim, budget_tokens, block } = *indexer;
    within(&format!("{at}.heads"), heads.into(), 1, 4096)?;
    within(&format!("{at}.head_dim"), head_dim.into(), 1, 4096)?;
    within(&format!("{at}.block"), block.into(), 2, 1024)?;
    within(&format!("{at}.budget_tokens"), budget_tokens, block.into(), MAX_CONTEXT)?;
    if !budget_tokens.is_multiple_of(block.into()) {
        let need = format!("a multiple of block, which is {block}");
        return Err(field(format!("{at}.budget_tokens"), budget_tokens, need));
    }
    if gqa.window.is_some() {
        return Err(field(at, "present", "absent, with a sliding window"));
    }
    let dims = gqa.rope.dims.unwrap_or(gqa.head_dim);
    if dims > head_dim {
        let need = format!("at least the {dims} dimensions that rope turns");
        return Err(field(format!("{at}.head_dim"), head_dim, need));
    }
    Ok(())
}

fn check_draft(residual: Residual, block: &Block) -> Result<(), ModelError> {
    if residual == Residual::Plain {
        return Err(field("residual", "Plain", "HyperConnections(..), with a draft head"));
    }
    check_block("draft.block", residual, block)?;
    within("draft.block.repeat", block.repeat, 1, 1)?;
    match &block.attention {
        Attention::Gqa(gqa) if gqa.window.is_none() => Ok(()),
        Attention::Gqa(_) => Err(field("draft.block.attention.window", "present", "absent")),
        Attention::GatedDelta(_) => {
            Err(field("draft.block.attention", "GatedDelta(..)", "Gqa(..)"))
        }
    }
}

fn check_ngram(def: &ModelDef, ngram: &Ngram) -> Result<(), ModelError> {
    if def.residual == Residual::Plain {
        return Err(field("residual", "Plain", "HyperConnections(..), with n-grams"));
    }
    within("ngram.layer", ngram.layer, 0, def.layers - 1)?;
    within("ngram.width", ngram.width, 1, MAX_WIDTH)?;
    check_ngram_heads(ngram)?;
    within("ngram.taps", ngram.taps.into(), 2, 64)?;
    within("ngram.eos", ngram.eos, 0, def.vocab - 1)?;
    within("ngram.table_rows", ngram.table_rows, 1, u32::MAX - 1)?;
    within("ngram.table_tensors", ngram.table_tensors, 1, ngram.table_rows)?;
    if ngram.embedding() > MAX_WIDTH {
        let need = format!("with all heads at most {MAX_WIDTH} elements");
        return Err(field("ngram.width", ngram.width, need));
    }
    check_hash(def, ngram)
}

/// Bounds the numbers that a hash has, before they are derived.
pub(crate) fn check_ngram_heads(ngram: &Ngram) -> Result<(), ModelError> {
    within("ngram.ngram_size", ngram.ngram_size.into(), 2, 16)?;
    within("ngram.heads_per_ngram", ngram.heads_per_ngram.into(), 1, 64)?;
    match ngram.hash {
        Hash::Derived { base, .. } if !(2..=u64::from(u32::MAX)).contains(&base) => {
            Err(field("ngram.hash.base", base, "between 2 and 2^32 - 1"))
        }
        _ => Ok(()),
    }
}

/// Products with a token stay below 2^63, and every row that a hash gives is in the table.
fn check_hash(def: &ModelDef, ngram: &Ngram) -> Result<(), ModelError> {
    let constants = hash_constants(ngram, def.vocab);
    let heads = ngram.heads() as usize;
    for (name, found, need) in [
        ("multipliers", constants.multipliers.len(), usize::from(ngram.ngram_size)),
        ("sizes", constants.sizes.len(), heads),
        ("offsets", constants.offsets.len(), heads),
    ] {
        if found != need {
            let found = format!("a list of {found}");
            return Err(field(format!("ngram.hash.{name}"), found, format!("{need} numbers")));
        }
    }
    let most = i64::MAX as u64 / u64::from(def.vocab);
    if let Some(multiplier) = constants.multipliers.iter().find(|&&m| m > most) {
        let need = format!("at most {most}, so that products fit 63 bits");
        return Err(field("ngram.hash.multipliers", multiplier, need));
    }
    for (&size, &offset) in constants.sizes.iter().zip(&constants.offsets) {
        let rows = u64::from(ngram.table_rows);
        if size == 0 || offset > rows || size > rows - offset {
            let found = format!("{size} rows from row {offset}");
            let need = format!("at least one row, and rows of the {rows} of the table");
            return Err(field("ngram.hash.sizes", found, need));
        }
    }
    Ok(())
}

fn check_rope(at: &str, rope: &Rope, head_dim: u16) -> Result<(), ModelError> {
    positive(&format!("{at}.theta"), rope.theta)?;
    let dims = rope.dims.unwrap_or(head_dim);
    if dims == 0 || dims > head_dim || !dims.is_multiple_of(2) {
        let need = format!("an even number between 2 and head_dim, which is {head_dim}");
        return Err(field(format!("{at}.dims"), dims, need));
    }
    let at = format!("{at}.scaling");
    match &rope.scaling {
        Scaling::None => Ok(()),
        Scaling::Linear { factor } => positive(&format!("{at}.factor"), *factor),
        Scaling::Llama3 { factor, low, high, original_context } => {
            positive(&format!("{at}.factor"), *factor)?;
            positive(&format!("{at}.low"), *low)?;
            positive(&format!("{at}.high"), *high)?;
            within(&format!("{at}.original_context"), *original_context, 1, MAX_CONTEXT)?;
            if low < high {
                Ok(())
            } else {
                Err(field(format!("{at}.low"), low, format!("less than high, which is {high}")))
            }
        }
        Scaling::Divisors(divisors) => {
            let count = usize::from(dims) / 2;
            if divisors.len() != count {
                let found = format!("a list of {}", divisors.len());
                return Err(field(at, found, format!("{count} numbers, one for each pair")));
            }
            for (index, &divisor) in divisors.iter().enumerate() {
                positive(&format!("{at}[{index}]"), f64::from(divisor))?;
            }
            Ok(())
        }
    }
}

fn check_moe(at: &str, moe: &Moe) -> Result<(), ModelError> {
    within(&format!("{at}.experts"), moe.experts.into(), 1, 8192)?;
    within(&format!("{at}.top_k"), moe.top_k.into(), 1, moe.experts.into())?;
    within(&format!("{at}.intermediate"), moe.intermediate, 1, MAX_WIDTH)
}

fn check_tokens(def: &ModelDef) -> Result<(), ModelError> {
    let tokens = &def.tokens;
    let ids = tokens.bos.iter().map(|&id| ("tokens.bos", id));
    for (name, id) in ids.chain(tokens.eos.iter().map(|&id| ("tokens.eos", id))) {
        within(name, id, 0, def.vocab - 1)?;
    }
    if tokens.add_bos && tokens.bos.is_none() {
        return Err(field("tokens.bos", "absent", "a token id, because add_bos is true"));
    }
    Ok(())
}

fn within(name: &str, found: u32, low: u32, high: u32) -> Result<(), ModelError> {
    if (low..=high).contains(&found) {
        Ok(())
    } else {
        Err(field(name, found, format!("between {low} and {high}")))
    }
}

fn positive(name: &str, found: f64) -> Result<(), ModelError> {
    if found.is_finite() && found > 0.0 {
        Ok(())
    } else {
        Err(field(name, found, "a finite number above 0"))
    }
}

fn field(name: impl Into<String>, found: impl Display, need: impl Into<String>) -> ModelError {
    ModelError::Field { field: name.into(), found: found.to_string(), need: need.into() }
}
