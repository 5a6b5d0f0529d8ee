//! Checks of a definition that its types do not make. `build` starts with them, so that a block
//! builder may rely on every size.

use std::fmt::Display;

use crate::error::ModelError;
use crate::schema::{Attention, Block, Gqa, Mlp, ModelDef, Moe, Rope, Scaling};

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
    check_runs(def)?;
    for (index, block) in def.blocks.iter().enumerate() {
        check_block(&format!("blocks[{index}]"), block)?;
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

fn check_block(at: &str, block: &Block) -> Result<(), ModelError> {
    let Attention::Gqa(gqa) = &block.attention;
    check_gqa(&format!("{at}.attention"), gqa)?;
    match &block.mlp {
        Mlp::Gated(gated) => {
            within(&format!("{at}.mlp.intermediate"), gated.intermediate, 1, MAX_WIDTH)
        }
        Mlp::Moe(moe) => check_moe(&format!("{at}.mlp"), moe),
    }
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
    check_rope(&format!("{at}.rope"), &gqa.rope, gqa.head_dim)
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
