//! Dense feed-forward blocks.

use strata_graph::{Op, ValueId};

use crate::error::ModelError;
use crate::graph::{Build, Linear};
use crate::schema::{Act, Gated};
use crate::weights::Role;

/// `down(act(gate x) * up x)`.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]`, normed | f32 |
/// | gate, up weight | `[intermediate, hidden]` | as stored |
/// | down weight | `[hidden, intermediate]` | as stored |
/// | result | `[rows, hidden]` | f32 |
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn gated_mlp(
    build: &mut Build<'_>,
    layer: u32,
    gated: &Gated,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let wide = |role| Linear { role, out: gated.intermediate, bias: None };
    let gate = build.linear(layer, wide(Role::FfnGate), x)?;
    let up = build.linear(layer, wide(Role::FfnUp), x)?;
    let act = match gated.act {
        Act::Silu => Op::Silu {},
        Act::Gelu => Op::Gelu {},
    };
    let gate = build.push(act, &[gate], format!("blk.{layer}.ffn_act"))?;
    let y = build.push(Op::Mul {}, &[gate, up], format!("blk.{layer}.ffn_gated"))?;
    let down = Linear { role: Role::FfnDown, out: build.def.hidden, bias: None };
    build.linear(layer, down, y)
}
