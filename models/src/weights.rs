//! Names of weights: one column of patterns for each checkpoint layout.

use std::collections::BTreeSet;

use strata_formats::Checkpoint;
use strata_graph::{Graph, TensorSlice, WeightSource};

use crate::schema::{Layout, Weights};

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
}

/// Patterns of one role. `{layer}` and `{expert}` are numbers from 0; the Hf column stands after
/// the prefix of the definition, but for the output head, which has none.
struct Names {
    role: Role,
    /// Also the weight's name in the graph, whatever the layout.
    gguf: &'static str,
    hf: &'static str,
}

const fn names(role: Role, gguf: &'static str, hf: &'static str) -> Names {
    Names { role, gguf, hf }
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
];

const FUSED_GATE_UP: &str = "layers.{layer}.mlp.experts.gate_up_proj";
const FUSED_DOWN: &str = "layers.{layer}.mlp.experts.down_proj";

/// One weight of a definition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WeightKey<'d> {
    pub role: Role,
    pub layer: u32,
    /// Outermost first.
    pub dims: &'d [u32],
}

/// The weight's name in the graph.
pub(crate) fn graph_name(role: Role, layer: u32) -> String {
    at_layer(row(role).gguf, layer)
}

/// The node name that goes with a weight: its name without `.weight`.
pub(crate) fn node_name(role: Role, layer: u32) -> String {
    let name = graph_name(role, layer);
    name.strip_suffix(".weight").unwrap_or(&name).to_owned()
}

/// Tensors of the checkpoint that make up the weight, in order.
pub(crate) fn source(weights: &Weights, key: WeightKey<'_>) -> WeightSource {
    let slices = match weights.layout {
        Layout::Gguf => vec![TensorSlice::whole(graph_name(key.role, key.layer))],
        Layout::HfFusedExperts => {
            fused_experts(weights, key).map_or_else(|| hf(weights, key), |slice| vec![slice])
        }
        Layout::Hf => hf(weights, key),
    };
    WeightSource::Named(slices)
}

fn hf(weights: &Weights, key: WeightKey<'_>) -> Vec<TensorSlice> {
    let pattern = at_layer(row(key.role).hf, key.layer);
    if key.role == Role::Output {
        return vec![TensorSlice::whole(pattern)];
    }
    let pattern = format!("{}{pattern}", weights.prefix);
    if !pattern.contains("{expert}") {
        return vec![TensorSlice::whole(pattern)];
    }
    let experts = key.dims[0];
    (0..experts)
        .map(|expert| TensorSlice::whole(pattern.replace("{expert}", &expert.to_string())))
        .collect()
}

/// The part of a fused tensor that holds one bank: gate rows come first, then up rows.
fn fused_experts(weights: &Weights, key: WeightKey<'_>) -> Option<TensorSlice> {
    let width = key.dims.get(1).copied().unwrap_or(0);
    let (pattern, rows) = match key.role {
        Role::ExpertGate => (FUSED_GATE_UP, Some((0, width))),
        Role::ExpertUp => (FUSED_GATE_UP, Some((width, 2 * width))),
        Role::ExpertDown => (FUSED_DOWN, None),
        _ => return None,
    };
    let tensor = format!("{}{}", weights.prefix, at_layer(pattern, key.layer));
    Some(TensorSlice { tensor, rows })
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
            WeightSource::Parts(_) | WeightSource::Constant(_) => None,
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
