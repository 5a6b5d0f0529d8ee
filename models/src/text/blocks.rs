//! Blocks, n-grams and draft heads as text.

use std::fmt::Write;

use super::Lines;
use crate::schema::{
    Attention, Bias, Block, Draft, GatedDelta, Gqa, Hash, HashConstants, Mlp, Mtp, Ngram, Pairs,
    Projections, Rope, Scaling, Shared, ValueHeads,
};

/// A block behind `open`, which ends in a parenthesis.
pub(super) fn write_block(out: &mut Lines, open: &str, block: &Block) {
    out.open(open);
    out.field("repeat", block.repeat, "layers");
    match &block.attention {
        Attention::Gqa(gqa) => write_gqa(out, gqa),
        Attention::GatedDelta(delta) => write_delta(out, delta),
    }
    if block.post_norms {
        out.field("post_norms", true, "");
    }
    match &block.mlp {
        Mlp::Gated(gated) => {
            let act = gated.act;
            let text = format!("Gated(intermediate: {}, act: {act:?})", gated.intermediate);
            out.field("mlp", text, "");
        }
        Mlp::Moe(moe) => {
            out.open("mlp: Moe(");
            out.field("experts", moe.experts, "");
            out.field("top_k", moe.top_k, "experts a token");
            out.field("intermediate", moe.intermediate, "width of one expert");
            out.field("norm_top_k", moe.norm_top_k, "weights of the chosen sum to 1");
            out.field("act", format!("{:?}", moe.act), "");
            if let Some(Shared { intermediate, gate }) = moe.shared {
                let text = format!("(intermediate: {intermediate}, gate: {gate})");
                out.field("shared", text, "an expert for every token");
            }
            out.close("),");
        }
    }
    out.close("),");
}

fn write_gqa(out: &mut Lines, gqa: &Gqa) {
    out.open("attention: Gqa(");
    out.field("heads", gqa.heads, "");
    out.field("kv_heads", gqa.kv_heads, "");
    out.field("head_dim", gqa.head_dim, "");
    if gqa.qk_norm {
        out.field("qk_norm", true, "");
    }
    if gqa.bias != Bias::None {
        out.field("bias", format!("{:?}", gqa.bias), "");
    }
    write_rope(out, &gqa.rope);
    if gqa.gate {
        out.field("gate", true, "query rows, then gate rows, for each head");
    }
    if let Some(scale) = gqa.scale {
        out.field("scale", format!("{scale:?}"), "factor on q . k");
    }
    if let Some(window) = gqa.window {
        out.field("window", window, "positions seen, the query's own included");
    }
    if let Some(indexer) = &gqa.indexer {
        out.open("indexer: (");
        out.field("heads", indexer.heads, "of queries");
        out.field("head_dim", indexer.head_dim, "");
        out.field("budget_tokens", indexer.budget_tokens, "positions in chosen blocks");
        out.field("block", indexer.block, "positions");
        out.close("),");
    }
    out.close("),");
}

fn write_delta(out: &mut Lines, delta: &GatedDelta) {
    out.open("attention: GatedDelta(");
    out.field("key_heads", delta.key_heads, "of queries and of keys");
    out.field("value_heads", delta.value_heads, "");
    out.field("head_dim", delta.head_dim, "");
    out.field("conv_taps", delta.conv_taps, "rows, the newest included");
    out.field("gate", format!("{:?}", delta.gate), "");
    if delta.order != ValueHeads::Grouped {
        out.field("order", format!("{:?}", delta.order), "of value heads among key heads");
    }
    if delta.projections != Projections::Separate {
        out.field("projections", format!("{:?}", delta.projections), "");
    }
    out.close("),");
}

fn write_rope(out: &mut Lines, rope: &Rope) {
    let mut text = format!("theta: {:?}", rope.theta);
    if let Some(dims) = rope.dims {
        let _ = write!(text, ", dims: {dims}");
    }
    if rope.pairing != Pairs::Halves {
        let _ = write!(text, ", pairing: {:?}", rope.pairing);
    }
    let scaling = match &rope.scaling {
        Scaling::None => {
            return out.line(&format!("rope: ({text}),"));
        }
        Scaling::Linear { factor } => format!("Linear(factor: {factor:?})"),
        Scaling::Llama3 { factor, low, high, original_context } => format!(
            "Llama3(factor: {factor:?}, low: {low:?}, high: {high:?}, \
             original_context: {original_context})"
        ),
        Scaling::Divisors(divisors) => format!("Divisors({divisors:?})"),
    };
    out.open("rope: (");
    out.line(&format!("{text},"));
    out.field("scaling", scaling, "");
    out.close("),");
}

pub(super) fn write_ngram(out: &mut Lines, ngram: &Ngram) {
    out.open("ngram: (");
    out.field("layer", ngram.layer, "added before this layer, from 0");
    out.field("width", ngram.width, "of a table row");
    out.field("ngram_size", ngram.ngram_size, "tokens");
    out.field("heads_per_ngram", ngram.heads_per_ngram, "rows for each length from 2 on");
    out.field("taps", ngram.taps, "rows of the convolution, ngram_size apart");
    out.field("eos", ngram.eos, "n-grams do not reach across this token");
    match &ngram.hash {
        Hash::Derived { base, seed } => {
            out.field("hash", format!("Derived(base: {base}, seed: {seed})"), "");
        }
        Hash::Given(HashConstants { multipliers, sizes, offsets }) => {
            out.open("hash: Given(");
            out.field("multipliers", format!("{multipliers:?}"), "newest token first");
            out.field("sizes", format!("{sizes:?}"), "");
            out.field("offsets", format!("{offsets:?}"), "");
            out.close("),");
        }
    }
    out.field("table_rows", ngram.table_rows, "");
    if ngram.table_tensors != 1 {
        out.field("table_tensors", ngram.table_tensors, "");
    }
    out.close("),");
}

pub(super) fn write_draft(out: &mut Lines, draft: &Draft) {
    let Draft::Mtp(Mtp { hidden_norm, block }) = draft;
    out.open("draft: Mtp(");
    out.field("hidden_norm", format!("{hidden_norm:?}"), "over all streams, or each by itself");
    write_block(out, "block: (", block);
    out.close("),");
}
