//! Mixture-of-experts blocks.

use strata_graph::{Op, ValueId};

use crate::error::ModelError;
use crate::graph::{Build, Linear};
use crate::schema::Moe;
use crate::weights::Role;

/// Routed gated experts: softmax over all experts, the best `top_k`, their weighted sum.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]`, normed | f32 |
/// | router weight | `[experts, hidden]` | as stored |
/// | gate, up bank | `[experts, intermediate, hidden]` | as stored |
/// | down bank | `[experts, hidden, intermediate]` | as stored |
/// | result | `[rows, hidden]` | f32 |
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn moe(
    build: &mut Build<'_>,
    layer: u32,
    moe: &Moe,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let experts = u32::from(moe.experts);
    let (hidden, width) = (build.def.hidden, moe.intermediate);
    let router = Linear { role: Role::Router, out: experts, bias: None };
    let logits = build.linear(layer, router, x)?;
    let route = Op::Route { top_k: moe.top_k, norm: moe.norm_top_k };
    let chosen = build.push_all(route, &[logits], format!("blk.{layer}.route"))?;
    let gate = build.weight(Role::ExpertGate, layer, &[experts, width, hidden]);
    let up = build.weight(Role::ExpertUp, layer, &[experts, width, hidden]);
    let down = build.weight(Role::ExpertDown, layer, &[experts, hidden, width]);
    let operands = [x, chosen[0], chosen[1], gate, up, down];
    let op = Op::ExpertMlp { act: moe.act.into() };
    build.push(op, &operands, format!("blk.{layer}.experts"))
}
