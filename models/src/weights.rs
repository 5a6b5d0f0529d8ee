//! Names of weights: one column of patterns for each checkpoint layout.

use std::collections::BTreeSet;

use strata_formats::Checkpoint;
use strata_graph::{Graph, TensorSlice, WeightSource};

use crate::schema::{Layout, ModelDef};

/// What a weight is to its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    TokenEmbd,
    OutputNorm,
    Output,
    AttnNorm,
    AttnQ,
    AttnK,
    AttnV,
    AttnOutput,
    AttnQBias,
    AttnKBias,
    AttnVBias,
    AttnOutputBias,
    AttnQNorm,
    AttnKNorm,
    PostAttnNorm,
    /// Norm before the MLP of a block without post norms.
    FfnNorm,
    /// Norm before the MLP of a block with post norms: published names differ.
    FfnNormBetween,
    PostFfnNorm,
    FfnGate,
    FfnUp,
    FfnDown,
    Router,
    ExpertGate,
    ExpertUp,
    ExpertDown,
    SharedGate,
    SharedUp,
    SharedDown,
    /// The product that scales the result of the shared expert.
    SharedScale,
    /// The gate rows of the query matrix.
    AttnQGate,
    IndexerQ,
    IndexerK,
    IndexerQNorm,
    IndexerKNorm,
    DeltaQkv,
    DeltaGate,
    DeltaBeta,
    DeltaAlpha,
    /// Queries, keys and values of a matrix by key head.
    DeltaQkvOfFused,
    DeltaGateOfFused,
    DeltaBetaAlpha,
    DeltaConv,
    DeltaA,
    DeltaDt,
    DeltaNorm,
    DeltaOut,
    HcAttn(HcPart),
    HcFfn(HcPart),
    HcOutput(HcPart),
    HcDraft(HcPart),
    NgramTable,
    NgramKey,
    NgramValue,
    NgramNormKey,
    NgramNormQuery,
    NgramNormConv,
    NgramConv,
    DraftNormEmbedding,
    DraftNormHidden,
    /// The token's half and the residual's half side by side.
    DraftJoin,
}

/// A weight of a hyper-connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HcPart {
    Norm,
    Down,
    Up,
    Inject,
}

/// Patterns of one role. `{layer}`, `{expert}` and `{part}` are numbers from 0; the Hf column stands
/// after the prefix of the definition, but for the output head, which has none, and for the draft
/// head's layer, which has its own.
struct Names {
    role: Role,
    /// The weight's name in the graph, whatever the layout.
    graph: &'static str,
    gguf: &'static str,
    hf: &'static str,
}

const fn names(role: Role, gguf: &'static str, hf: &'static str) -> Names {
    Names { role, graph: gguf, gguf, hf }
}

#[rustfmt::skip]
const NAMES: &[Names] = &[
    names(Role::TokenEmbd, "token_embd.weight", "embed_tokens.weight"),
    names(Role::OutputNorm, "output_norm.weight", "norm.weight"),
    names(Role::Output, "output.weight", "lm_head.weight"),
    names(Role::AttnNorm, "blk.{layer}.attn_norm.weight", "layers.{layer}.input_layernorm.weight"),
    names(Role::AttnQ, "blk.{layer}.attn_q.weight", "layers.{layer}.self_attn.q_proj.weight"),
    names(Role::AttnK, "blk.{layer}.attn_k.weight", "layers.{layer}.self_attn.k_proj.weight"),
    names(Role::AttnV, "blk.{layer}.attn_v.weight", "layers.{layer}.self_attn.v_proj.weight"),
    names(Role::AttnOutput, "blk.{layer}.attn_output.weight", "layers.{layer}.self_attn.o_proj.weight"),
    names(Role::AttnQBias, "blk.{layer}.attn_q.bias", "layers.{layer}.self_attn.q_proj.bias"),
    names(Role::AttnKBias, "blk.{layer}.attn_k.bias", "layers.{layer}.self_attn.k_proj.bias"),
    names(Role::AttnVBias, "blk.{layer}.attn_v.bias", "layers.{layer}.self_attn.v_proj.bias"),
    names(Role::AttnOutputBias, "blk.{layer}.attn_output.bias", "layers.{layer}.self_attn.o_proj.bias"),
    names(Role::AttnQNorm, "blk.{layer}.attn_q_norm.weight", "layers.{layer}.self_attn.q_norm.weight"),
    names(Role::AttnKNorm, "blk.{layer}.attn_k_norm.weight", "layers.{layer}.self_attn.k_norm.weight"),
    names(Role::PostAttnNorm, "blk.{layer}.post_attention_norm.weight", "layers.{layer}.post_attention_layernorm.weight"),
    names(Role::FfnNorm, "blk.{layer}.ffn_norm.weight", "layers.{layer}.post_attention_layernorm.weight"),
    names(Role::FfnNormBetween, "blk.{layer}.ffn_norm.weight", "layers.{layer}.pre_feedforward_layernorm.weight"),
    names(Role::PostFfnNorm, "blk.{layer}.post_ffw_norm.weight", "layers.{layer}.post_feedforward_layernorm.weight"),
    names(Role::FfnGate, "blk.{layer}.ffn_gate.weight", "layers.{layer}.mlp.gate_proj.weight"),
    names(Role::FfnUp, "blk.{layer}.ffn_up.weight", "layers.{layer}.mlp.up_proj.weight"),
    names(Role::FfnDown, "blk.{layer}.ffn_down.weight", "layers.{layer}.mlp.down_proj.weight"),
    names(Role::Router, "blk.{layer}.ffn_gate_inp.weight", "layers.{layer}.mlp.gate.weight"),
    names(Role::ExpertGate, "blk.{layer}.ffn_gate_exps.weight", "layers.{layer}.mlp.experts.{expert}.gate_proj.weight"),
    names(Role::ExpertUp, "blk.{layer}.ffn_up_exps.weight", "layers.{layer}.mlp.experts.{expert}.up_proj.weight"),
    names(Role::ExpertDown, "blk.{layer}.ffn_down_exps.weight", "layers.{layer}.mlp.experts.{expert}.down_proj.weight"),
    names(Role::SharedGate, "blk.{layer}.ffn_gate_shexp.weight", "layers.{layer}.mlp.shared_expert.gate_proj.weight"),
    names(Role::SharedUp, "blk.{layer}.ffn_up_shexp.weight", "layers.{layer}.mlp.shared_expert.up_proj.weight"),
    names(Role::SharedDown, "blk.{layer}.ffn_down_shexp.weight", "layers.{layer}.mlp.shared_expert.down_proj.weight"),
    names(Role::SharedScale, "blk.{layer}.ffn_gate_inp_shexp.weight", "layers.{layer}.mlp.shared_expert_gate.weight"),
    Names {
        role: Role::AttnQGate,
        graph: "blk.{layer}.attn_q_gate.weight",
        gguf: "blk.{layer}.attn_q.weight",
        hf: "layers.{layer}.self_attn.q_proj.weight",
    },
    names(Role::IndexerQ, "blk.{layer}.indexer.q_proj.weight", "layers.{layer}.self_attn.indexer.index_qk_proj.weight"),
    names(Role::IndexerK, "blk.{layer}.indexer.k_proj.weight", "layers.{layer}.self_attn.indexer.index_qk_proj.weight"),
    names(Role::IndexerQNorm, "blk.{layer}.indexer.q_norm.weight", "layers.{layer}.self_attn.indexer.q_layernorm.weight"),
    names(Role::IndexerKNorm, "blk.{layer}.indexer.k_norm.weight", "layers.{layer}.self_attn.indexer.k_layernorm.weight"),
    names(Role::DeltaQkv, "blk.{layer}.attn_qkv.weight", "layers.{layer}.linear_attn.in_proj_qkv.weight"),
    names(Role::DeltaGate, "blk.{layer}.attn_gate.weight", "layers.{layer}.linear_attn.in_proj_z.weight"),
    names(Role::DeltaBeta, "blk.{layer}.ssm_beta.weight", "layers.{layer}.linear_attn.in_proj_b.weight"),
    names(Role::DeltaAlpha, "blk.{layer}.ssm_alpha.weight", "layers.{layer}.linear_attn.in_proj_a.weight"),
    names(Role::DeltaQkvOfFused, "blk.{layer}.attn_qkv.weight", "layers.{layer}.linear_attn.in_proj_qkvz.weight"),
    names(Role::DeltaGateOfFused, "blk.{layer}.attn_gate.weight", "layers.{layer}.linear_attn.in_proj_qkvz.weight"),
    names(Role::DeltaBetaAlpha, "blk.{layer}.ssm_ba.weight", "layers.{layer}.linear_attn.in_proj_ba.weight"),
    names(Role::DeltaConv, "blk.{layer}.ssm_conv1d.weight", "layers.{layer}.linear_attn.conv1d.weight"),
    names(Role::DeltaA, "blk.{layer}.ssm_a", "layers.{layer}.linear_attn.A_log"),
    names(Role::DeltaDt, "blk.{layer}.ssm_dt.bias", "layers.{layer}.linear_attn.dt_bias"),
    names(Role::DeltaNorm, "blk.{layer}.ssm_norm.weight", "layers.{layer}.linear_attn.norm.weight"),
    names(Role::DeltaOut, "blk.{layer}.ssm_out.weight", "layers.{layer}.linear_attn.out_proj.weight"),
    names(Role::HcAttn(HcPart::Norm), "blk.{layer}.hc_attn_norm.weight", "layers.{layer}.attn_hyper_connection.hc_norm.weight"),
    names(Role::HcAttn(HcPart::Down), "blk.{layer}.hc_attn_down.weight", "layers.{layer}.attn_hyper_connection.input_mix_weight_down.weight"),
    names(Role::HcAttn(HcPart::Up), "blk.{layer}.hc_attn_up.weight", "layers.{layer}.attn_hyper_connection.input_mix_weight_up.weight"),
    names(Role::HcAttn(HcPart::Inject), "blk.{layer}.hc_attn_inject.weight", "layers.{layer}.attn_hyper_connection.block_inject_weight.weight"),
    names(Role::HcFfn(HcPart::Norm), "blk.{layer}.hc_ffn_norm.weight", "layers.{layer}.mlp_hyper_connection.hc_norm.weight"),
    names(Role::HcFfn(HcPart::Down), "blk.{layer}.hc_ffn_down.weight", "layers.{layer}.mlp_hyper_connection.input_mix_weight_down.weight"),
    names(Role::HcFfn(HcPart::Up), "blk.{layer}.hc_ffn_up.weight", "layers.{layer}.mlp_hyper_connection.input_mix_weight_up.weight"),
    names(Role::HcFfn(HcPart::Inject), "blk.{layer}.hc_ffn_inject.weight", "layers.{layer}.mlp_hyper_connection.block_inject_weight.weight"),
    names(Role::HcOutput(HcPart::Norm), "output_hc_norm.weight", "hyper_connection_mixer.hc_norm.weight"),
    names(Role::HcOutput(HcPart::Down), "output_hc_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight"),
    names(Role::HcOutput(HcPart::Up), "output_hc_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight"),
    names(Role::HcDraft(HcPart::Norm), "blk.{layer}.nextn.hc_head_norm.weight", "hyper_connection_mixer.hc_norm.weight"),
    names(Role::HcDraft(HcPart::Down), "blk.{layer}.nextn.hc_head_down.weight", "hyper_connection_mixer.input_mix_weight_down.weight"),
    names(Role::HcDraft(HcPart::Up), "blk.{layer}.nextn.hc_head_up.weight", "hyper_connection_mixer.input_mix_weight_up.weight"),
    names(Role::NgramTable, "per_layer_token_embd.weight", "layers.{layer}.ple.ple_embedding.ngram_embedding.shard_{part}.weight"),
    names(Role::NgramKey, "blk.{layer}.ple_key.weight", "layers.{layer}.ple.key_proj.weight"),
    names(Role::NgramValue, "blk.{layer}.ple_value.weight", "layers.{layer}.ple.value_proj.weight"),
    names(Role::NgramNormKey, "blk.{layer}.ple_norm_key.weight", "layers.{layer}.ple.norm_key.weight"),
    names(Role::NgramNormQuery, "blk.{layer}.ple_norm_query.weight", "layers.{layer}.ple.norm_query.weight"),
    names(Role::NgramNormConv, "blk.{layer}.ple_norm_conv.weight", "layers.{layer}.ple.norm_conv.weight"),
    names(Role::NgramConv, "blk.{layer}.ple_conv1d.weight", "layers.{layer}.ple.conv1d.weight"),
    names(Role::DraftNormEmbedding, "blk.{layer}.nextn.enorm.weight", "pre_fc_norm_embedding.weight"),
    names(Role::DraftNormHidden, "blk.{layer}.nextn.hnorm.weight", "pre_fc_norm_hidden.weight"),
    names(Role::DraftJoin, "blk.{layer}.nextn.eh_proj.weight", "fc_embedding.weight"),
];

/// Tensors that hold the experts of a layer together: gate rows, then up rows; and down.
struct FusedExperts {
    gate_up: &'static str,
    down: &'static str,
}

const HF_FUSED: FusedExperts = FusedExperts {
    gate_up: "layers.{layer}.mlp.experts.gate_up_proj",
    down: "layers.{layer}.mlp.experts.down_proj",
};
const GGUF_FUSED: FusedExperts = FusedExperts {
    gate_up: "blk.{layer}.ffn_gate_up_exps.weight",
    down: "blk.{layer}.ffn_down_exps.weight",
};

/// What stands before the names of the draft head and its layer in the Hf layouts.
const DRAFT_PREFIX: &str = "mtp.";
/// The residual's half of what joins it with the token, in the Hf layouts.
const JOIN_HIDDEN: &str = "fc_hidden.weight";

/// Which rows of its tensor a matrix is, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Rows {
    #[default]
    All,
    /// In every layout.
    Cut(Vec<(u32, u32)>),
    /// In the Hf layouts; a GGUF has a tensor for the matrix.
    HfCut(Vec<(u32, u32)>),
}

/// One weight of a definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WeightKey<'d> {
    pub role: Role,
    pub layer: u32,
    /// Outermost first.
    pub dims: &'d [u32],
    pub rows: &'d Rows,
}

/// The weight's name in the graph.
pub(crate) fn graph_name(role: Role, layer: u32) -> String {
    at_layer(row(role).graph, layer)
}

/// The node name that goes with a weight: its name without `.weight`.
pub(crate) fn node_name(role: Role, layer: u32) -> String {
    let name = graph_name(role, layer);
    name.strip_suffix(".weight").unwrap_or(&name).to_owned()
}

/// Tensors of the checkpoint that make up the weight, in order.
pub(crate) fn source(def: &ModelDef, key: WeightKey<'_>) -> WeightSource {
    let mut slices = match def.weights.layout {
        Layout::Gguf => gguf(key),
        Layout::GgufFusedExperts => fused(&GGUF_FUSED, key, |pattern| at_layer(pattern, key.layer))
            .map_or_else(|| gguf(key), |slice| vec![slice]),
        Layout::HfFusedExperts => fused(&HF_FUSED, key, |pattern| hf_name(def, key, pattern))
            .map_or_else(|| hf(def, key), |slice| vec![slice]),
        Layout::Hf => hf(def, key),
    };
    for (ours, theirs) in &def.weights.renamed {
        for slice in &mut slices {
            slice.tensor = slice.tensor.replace(ours, theirs);
        }
    }
    WeightSource::Named(slices)
}

fn gguf(key: WeightKey<'_>) -> Vec<TensorSlice> {
    let tensor = at_layer(row(key.role).gguf, key.layer);
    match key.rows {
        Rows::Cut(rows) => cut(&tensor, rows),
        Rows::All | Rows::HfCut(_) => vec![TensorSlice::whole(tensor)],
    }
}

fn cut(tensor: &str, rows: &[(u32, u32)]) -> Vec<TensorSlice> {
    let slice = |&rows| TensorSlice { tensor: tensor.to_owned(), rows: Some(rows) };
    rows.iter().map(slice).collect()
}

fn hf(def: &ModelDef, key: WeightKey<'_>) -> Vec<TensorSlice> {
    let tensor = hf_name(def, key, row(key.role).hf);
    if let Rows::Cut(rows) | Rows::HfCut(rows) = key.rows {
        return cut(&tensor, rows);
    }
    if key.role == Role::DraftJoin {
        return joined(&tensor, &hf_name(def, key, JOIN_HIDDEN), key.dims[0]);
    }
    let numbered = |placeholder: &str, count: u32| {
        let name = |number: u32| tensor.replace(placeholder, &number.to_string());
        (0..count).map(|number| TensorSlice::whole(name(number))).collect()
    };
    if tensor.contains("{expert}") {
        return numbered("{expert}", key.dims[0]);
    }
    if tensor.contains("{part}") {
        return numbered("{part}", def.ngram.as_ref().map_or(1, |ngram| ngram.table_tensors));
    }
    vec![TensorSlice::whole(tensor)]
}

/// Two matrices side by side: a row of the one, the same row of the other, and so on. Right for
/// element types without blocks, and for blocks that divide a row.
fn joined(left: &str, right: &str, rows: u32) -> Vec<TensorSlice> {
    let one = |tensor: &str, row| TensorSlice { tensor: tensor.into(), rows: Some((row, row + 1)) };
    (0..rows).flat_map(|row| [one(left, row), one(right, row)]).collect()
}

/// A pattern of the Hf layouts at the weight's layer. The draft head's layer follows the last one
/// and is number 0 of its own.
fn hf_name(def: &ModelDef, key: WeightKey<'_>, pattern: &str) -> String {
    match key.layer.checked_sub(def.layers) {
        Some(layer) => format!("{DRAFT_PREFIX}{}", at_layer(pattern, layer)),
        None if key.role == Role::Output => pattern.to_owned(),
        None => format!("{}{}", def.weights.prefix, at_layer(pattern, key.layer)),
    }
}

/// The part of a fused tensor that holds one bank: gate rows come first, then up rows.
fn fused(
    names: &FusedExperts,
    key: WeightKey<'_>,
    name: impl Fn(&str) -> String,
) -> Option<TensorSlice> {
    let width = key.dims.get(1).copied().unwrap_or(0);
    let (pattern, rows) = match key.role {
        Role::ExpertGate => (names.gate_up, Some((0, width))),
        Role::ExpertUp => (names.gate_up, Some((width, 2 * width))),
        Role::ExpertDown => (names.down, None),
        _ => return None,
    };
    Some(TensorSlice { tensor: name(pattern), rows })
}

fn row(role: Role) -> &'static Names {
    NAMES.iter().find(|names| names.role == role).expect("every role has a row")
}

fn at_layer(pattern: &str, layer: u32) -> String {
    pattern.replace("{layer}", &layer.to_string())
}

/// Names of the checkpoint's tensors that no weight of `graph` reads, in the checkpoint's order.
///
/// A tensor that is left over means that the definition does not describe all of the model, or
/// that the checkpoint holds more than the text model.
pub fn unused_tensors(graph: &Graph, checkpoint: &Checkpoint) -> Vec<String> {
    let used: BTreeSet<&str> = graph
        .weights()
        .values()
        .filter_map(|def| match &def.source {
            WeightSource::Named(slices) => Some(slices),
            WeightSource::Parts(_) | WeightSource::Constant(_) | WeightSource::Integers(_) => None,
        })
        .flatten()
        .map(|slice| slice.tensor.as_str())
        .collect();
    checkpoint
        .tensors()
        .filter(|tensor| !used.contains(tensor.name.as_str()))
        .map(|tensor| tensor.name.to_string())
        .collect()
}
