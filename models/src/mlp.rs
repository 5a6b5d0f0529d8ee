//! Dense feed-forward blocks.

use strata_graph::{Op, ValueId};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::schema::{Act, Gated};
use crate::weights::Role;

/// The weights of a gated feed-forward block, and how its nodes are called.
#[derive(Debug)]
pub(crate) struct GatedRoles {
    gate: Role,
    up: Role,
    down: Role,
    /// Behind the names of the nodes between the products.
    suffix: &'static str,
}

impl GatedRoles {
    const DENSE: Self =
        Self { gate: Role::FfnGate, up: Role::FfnUp, down: Role::FfnDown, suffix: "" };
    pub const SHARED: Self = Self {
        gate: Role::SharedGate,
        up: Role::SharedUp,
        down: Role::SharedDown,
        suffix: "_shexp",
    };
}

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
    block: &Gated,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    gated(build, layer, (block, &GatedRoles::DENSE), x)
}

/// [`gated_mlp`] with the weights of `roles`.
pub(crate) fn gated(
    build: &mut Build<'_>,
    layer: u32,
    (block, roles): (&Gated, &GatedRoles),
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let gate = build.linear(layer, Linear::new(roles.gate, block.intermediate), x)?;
    let up = build.linear(layer, Linear::new(roles.up, block.intermediate), x)?;
    let act = match block.act {
        Act::Silu => Op::Silu {},
        Act::Gelu => Op::Gelu {},
    };
    let suffix = roles.suffix;
    let gate = build.push(act, &[gate], format!("blk.{layer}.ffn_act{suffix}"))?;
    let y = build.push(Op::Mul {}, &[gate, up], format!("blk.{layer}.ffn_gated{suffix}"))?;
    build.linear(layer, Linear::new(roles.down, build.def.hidden), y)
}
