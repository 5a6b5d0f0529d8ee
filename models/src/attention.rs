//! Softmax attention, dense or over a sliding window; its gate. Sparse attention is in [`crate::qsa`].

use strata_graph::{Activation, Op, ValueId};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::qsa;
use crate::schema::{Bias, Gqa};
use crate::weights::{Role, Rows, node_name};

/// Grouped-query attention over all earlier positions, a sliding window of them, or the blocks that
/// an indexer chooses.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]`, normed | f32 |
/// | query weight | `[heads * head_dim, hidden]` | as stored |
/// | gate weight, with `gate` | `[heads * head_dim, hidden]` | as stored |
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
    let queries = build.linear(layer, query_rows(gqa), x)?;
    let gate = match gqa.gate {
        true => Some(build.linear(layer, gate_rows(gqa), x)?),
        false => None,
    };
    let [keys, values] = project(build, layer, gqa, x)?;
    let queries = norm(build, layer, gqa, (Side::Queries, queries))?;
    let keys = norm(build, layer, gqa, (Side::Keys, keys))?;
    let queries = turn(build, layer, gqa, (Side::Queries, queries))?;
    let keys = turn(build, layer, gqa, (Side::Keys, keys))?;
    let state = store(build, layer, gqa, [keys, values])?;
    let y = match &gqa.indexer {
        None => dense(build, layer, gqa, [queries, state])?,
        Some(indexer) => {
            let selection = qsa::select(build, layer, (gqa, indexer), x)?;
            qsa::attend(build, layer, (gqa, indexer), [queries, state, selection])?
        }
    };
    let y = match gate {
        None => y,
        Some(gate) => {
            let op = Op::ActMul { act: Activation::Sigmoid, quantize: false };
            build.push(op, &[gate, y], format!("blk.{layer}.attn_gated"))?
        }
    };
    let bias = (gqa.bias == Bias::All).then_some(Role::AttnOutputBias);
    let out = Linear { bias, ..Linear::new(Role::AttnOutput, build.def.hidden) };
    build.linear(layer, out, y)
}

fn dense(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    operands: [ValueId; 2],
) -> Result<ValueId, ModelError> {
    let op = Op::Attention {
        heads: gqa.heads,
        kv_heads: gqa.kv_heads,
        head_dim: gqa.head_dim,
        window: gqa.window.unwrap_or(0),
        scale: gqa.score_scale(),
        quantize: false,
    };
    build.push(op, &operands, format!("blk.{layer}.attention"))
}

/// Appends the keys and values of the window's rows; gives the state with them.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn append(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let [keys, values] = project(build, layer, gqa, x)?;
    let keys = norm(build, layer, gqa, (Side::Keys, keys))?;
    let keys = turn(build, layer, gqa, (Side::Keys, keys))?;
    store(build, layer, gqa, [keys, values])
}

/// Keys and values of the window's rows.
fn project(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    x: ValueId,
) -> Result<[ValueId; 2], ModelError> {
    let out = u32::from(gqa.kv_heads) * u32::from(gqa.head_dim);
    let mut project = |role, bias| {
        let bias = (gqa.bias != Bias::None).then_some(bias);
        build.linear(layer, Linear { bias, ..Linear::new(role, out) }, x)
    };
    Ok([project(Role::AttnK, Role::AttnKBias)?, project(Role::AttnV, Role::AttnVBias)?])
}

fn store(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    [keys, values]: [ValueId; 2],
) -> Result<ValueId, ModelError> {
    let (name, state) = build.kv(layer, gqa);
    let node = format!("blk.{layer}.kv_append");
    let state = build.push(Op::StateAppend {}, &[state, keys, values], node)?;
    build.update(&name, state);
    Ok(state)
}

fn query_rows(gqa: &Gqa) -> Linear {
    let rows = if gqa.gate { Rows::Cut(halves(gqa, 0)) } else { Rows::All };
    let bias = (gqa.bias != Bias::None).then_some(Role::AttnQBias);
    Linear { bias, rows, ..Linear::new(Role::AttnQ, width(gqa)) }
}

fn width(gqa: &Gqa) -> u32 {
    u32::from(gqa.heads) * u32::from(gqa.head_dim)
}

fn gate_rows(gqa: &Gqa) -> Linear {
    Linear { rows: Rows::Cut(halves(gqa, 1)), ..Linear::new(Role::AttnQGate, width(gqa)) }
}

/// For each head the first or the second `head_dim` of its `2 head_dim` rows.
fn halves(gqa: &Gqa, half: u32) -> Vec<(u32, u32)> {
    let dim = u32::from(gqa.head_dim);
    let first = |head| (2 * u32::from(head) + half) * dim;
    (0..gqa.heads).map(|head| (first(head), first(head) + dim)).collect()
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Queries,
    Keys,
}

/// Norms each head, if the block says so.
fn norm(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    (side, x): (Side, ValueId),
) -> Result<ValueId, ModelError> {
    match side {
        _ if !gqa.qk_norm => Ok(x),
        Side::Queries => build.head_norm(Role::AttnQNorm, layer, (gqa.heads, x)),
        Side::Keys => build.head_norm(Role::AttnKNorm, layer, (gqa.kv_heads, x)),
    }
}

/// Turns each head to its position.
fn turn(
    build: &mut Build<'_>,
    layer: u32,
    gqa: &Gqa,
    (side, x): (Side, ValueId),
) -> Result<ValueId, ModelError> {
    let (role, heads) = match side {
        Side::Queries => (Role::AttnQ, gqa.heads),
        Side::Keys => (Role::AttnK, gqa.kv_heads),
    };
    let angles = build.angles(gqa)?;
    let (dims, pairing) = (gqa.rope.dims.unwrap_or(gqa.head_dim), gqa.rope.pairing.into());
    let node = format!("{}_rope", node_name(role, layer));
    build.push(Op::Rope { heads, dims, pairing }, &[x, angles], node)
}
