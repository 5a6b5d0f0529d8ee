//! Mixture-of-experts blocks.

use strata_graph::{Op, ValueId};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::mlp::{self, GatedRoles};
use crate::schema::{Gated, Moe, Shared};
use crate::weights::Role;

/// Routed gated experts: softmax over all experts, the best `top_k`, their weighted sum; then the
/// shared expert, if there is one.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]`, normed | f32 |
/// | router weight | `[experts, hidden]` | as stored |
/// | gate, up bank | `[experts, intermediate, hidden]` | as stored |
/// | down bank | `[experts, hidden, intermediate]` | as stored |
/// | shared gate, up, down | `[shared, hidden]`, the same, `[hidden, shared]` | as stored |
/// | shared scale weight | `[1, hidden]` | as stored |
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
    let logits = build.linear(layer, Linear::new(Role::Router, experts), x)?;
    let route = Op::Route { top_k: moe.top_k, norm: moe.norm_top_k };
    let chosen = build.push_all(route, &[logits], format!("blk.{layer}.route"))?;
    build.route(chosen[0]);
    let gate = build.weight(Role::ExpertGate, layer, &[experts, width, hidden]);
    let up = build.weight(Role::ExpertUp, layer, &[experts, width, hidden]);
    let down = build.weight(Role::ExpertDown, layer, &[experts, hidden, width]);
    let operands = [x, chosen[0], chosen[1], gate, up, down];
    let op = Op::ExpertMlp { act: moe.act.into() };
    let routed = build.push(op, &operands, format!("blk.{layer}.experts"))?;
    match moe.shared {
        None => Ok(routed),
        Some(Shared { intermediate, gate }) => {
            let gated = Gated { intermediate, act: moe.act };
            shared(build, layer, (&gated, gate), [x, routed])
        }
    }
}

/// `routed + sigmoid(scale x) * expert(x)`, without the scale if it has none.
fn shared(
    build: &mut Build<'_>,
    layer: u32,
    (gated, scaled): (&Gated, bool),
    [x, routed]: [ValueId; 2],
) -> Result<ValueId, ModelError> {
    let y = mlp::gated(build, layer, (gated, &GatedRoles::SHARED), x)?;
    let name = format!("blk.{layer}.ffn_shared");
    if !scaled {
        return build.push(Op::Add {}, &[routed, y], name);
    }
    let scale = build.linear(layer, Linear::new(Role::SharedScale, 1), x)?;
    build.push(Op::GatedAdd {}, &[routed, y, scale], name)
}
