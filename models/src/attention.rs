//! Attention blocks.

use strata_graph::{Op, ValueId};

use crate::error::ModelError;
use crate::graph::{Build, Linear};
use crate::schema::{Bias, Gqa};
use crate::weights::Role;

/// Grouped-query attention over all earlier positions, or over a sliding window of them.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]`, normed | f32 |
/// | query weight | `[heads * head_dim, hidden]` | as stored |
/// | key, value weight | `[kv_heads * head_dim, hidden]` | as stored |
/// | output weight | `[hidden, heads * head_dim]` | as stored |
/// | state `kv.N` | `[kv_heads, head_dim]` a position | f32 |
/// | result | `[rows, hidden]` | f32 |
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn gqa(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let projected = project(build, layer, gqa, x)?;
    let [queries, keys] = position(build, layer, gqa, [projected[0], projected[1]])?;
    let state = build.kv(layer, gqa.kv_heads, gqa.head_dim);
    let append = [state, keys, projected[2]];
    let state = build.push(Op::StateAppend {}, &append, format!("blk.{layer}.kv_append"))?;
    let op = Op::Attention {
        heads: gqa.heads,
        kv_heads: gqa.kv_heads,
        head_dim: gqa.head_dim,
        window: gqa.window.unwrap_or(0),
        scale: gqa.score_scale(),
        quantize: false,
    };
    let y = build.push(op, &[queries, state], format!("blk.{layer}.attention"))?;
    let bias = (gqa.bias == Bias::All).then_some(Role::AttnOutputBias);
    build.linear(layer, Linear { role: Role::AttnOutput, out: build.def.hidden, bias }, y)
}

/// Queries, keys and values of the window's rows.
fn project(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    x: ValueId,
) -> Result<[ValueId; 3], ModelError> {
    let mut project = |role, heads: u16, bias| {
        let out = u32::from(heads) * u32::from(gqa.head_dim);
        let bias = (gqa.bias != Bias::None).then_some(bias);
        build.linear(layer, Linear { role, out, bias }, x)
    };
    Ok([
        project(Role::AttnQ, gqa.heads, Role::AttnQBias)?,
        project(Role::AttnK, gqa.kv_heads, Role::AttnKBias)?,
        project(Role::AttnV, gqa.kv_heads, Role::AttnVBias)?,
    ])
}

/// Norms each head of queries and keys if the block says so, then turns them to their positions.
fn position(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    [mut queries, mut keys]: [ValueId; 2],
) -> Result<[ValueId; 2], ModelError> {
    if gqa.qk_norm {
        queries = head_norm(build, layer, (Role::AttnQNorm, gqa.heads, gqa.head_dim), queries)?;
        keys = head_norm(build, layer, (Role::AttnKNorm, gqa.kv_heads, gqa.head_dim), keys)?;
    }
    let angles = build.angles(layer);
    let (dims, pairing) = (gqa.rope.dims.unwrap_or(gqa.head_dim), gqa.rope.pairing.into());
    let mut turn = |heads, x, side| {
        let name = format!("blk.{layer}.attn_{side}_rope");
        build.push(Op::Rope { heads, dims, pairing }, &[x, angles], name)
    };
    Ok([turn(gqa.heads, queries, "q")?, turn(gqa.kv_heads, keys, "k")?])
}

fn head_norm(
    build: &mut Build<'_>,
    layer: u32,
    (role, heads, head_dim): (Role, u16, u16),
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let gain = build.gain(role, layer, head_dim.into());
    let op = Op::HeadNorm { eps: build.def.norm.eps(), heads };
    build.push(op, &[x, gain], crate::weights::node_name(role, layer))
}
