//! Recurrent layers with the gated delta rule.

use strata_graph::{DType, Op, StateDef, StateKind, TensorType, Transform, ValueId};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::schema::{GatedDelta, Layout, Projections, ValueHeads};
use crate::weights::{Role, Rows, WeightKey, node_name};

/// A causal convolution over queries, keys and values, the gated delta rule on one matrix a value
/// head, and a gated norm (Yang, Kautz and Hatamizadeh, Gated delta networks, 2024).
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]`, normed | f32 |
/// | input weight | `[(2 key_heads + value_heads) * head_dim, hidden]` | as stored |
/// | gate weight | `[value_heads * head_dim, hidden]` | as stored |
/// | write strength, decay weight | `[value_heads, hidden]` each, or both in one | as stored |
/// | filter | `[(2 key_heads + value_heads) * head_dim, conv_taps]` | as stored |
/// | rates, their bias | `[value_heads]` | as stored |
/// | output weight | `[hidden, value_heads * head_dim]` | as stored |
/// | state `conv.N` | the last `conv_taps - 1` inputs of the convolution | f32 |
/// | state `delta.N` | `[value_heads, head_dim, head_dim]` | f32 |
/// | result | `[rows, hidden]` | f32 |
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn gated_delta(
    build: &mut Build<'_>,
    layer: u32,
    delta: &GatedDelta,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let qkv = build.linear(layer, inputs(delta), x)?;
    let z = build.linear(layer, gates(delta), x)?;
    let [beta, alpha] = strengths(build, layer, delta, x)?;
    let qkv = convolve(build, layer, delta, qkv)?;
    let y = rule(build, layer, delta, [qkv, beta, alpha])?;
    let gain = build.weight(Role::DeltaNorm, layer, &[delta.head_dim.into()]);
    let op = Op::GatedHeadNorm {
        eps: build.def.norm.eps(),
        heads: delta.value_heads,
        act: delta.gate.into(),
    };
    let y = build.push(op, &[y, gain, z], node_name(Role::DeltaNorm, layer))?;
    build.linear(layer, Linear::new(Role::DeltaOut, build.def.hidden), y)
}

/// Rows of a matrix by key head: for each key head its query, its key, its values, its gates. The
/// rows of part `part` of all key heads.
fn part_rows(delta: &GatedDelta, part: usize) -> Vec<(u32, u32)> {
    let (heads, dim) = (u32::from(delta.key_heads), u32::from(delta.head_dim));
    let values = delta.value_width() / heads;
    let starts = [0, dim, 2 * dim, 2 * dim + values, 2 * dim + 2 * values];
    let of_head = |head: u32| {
        let first = head * starts[4];
        (first + starts[part], first + starts[part + 1])
    };
    (0..heads).map(of_head).collect()
}

fn inputs(delta: &GatedDelta) -> Linear {
    match delta.projections {
        Projections::Separate => Linear::new(Role::DeltaQkv, delta.channels()),
        Projections::FusedByKeyHead => {
            let rows = (0..3).flat_map(|part| part_rows(delta, part)).collect();
            let linear = Linear::new(Role::DeltaQkvOfFused, delta.channels());
            Linear { rows: Rows::HfCut(rows), ..linear }
        }
    }
}

fn gates(delta: &GatedDelta) -> Linear {
    match delta.projections {
        Projections::Separate => Linear::new(Role::DeltaGate, delta.value_width()),
        Projections::FusedByKeyHead => {
            let linear = Linear::new(Role::DeltaGateOfFused, delta.value_width());
            Linear { rows: Rows::HfCut(part_rows(delta, 3)), ..linear }
        }
    }
}

/// Write strengths and decays before their activations: two values, or one that holds both.
fn strengths(
    build: &mut Build<'_>,
    layer: u32,
    delta: &GatedDelta,
    x: ValueId,
) -> Result<[ValueId; 2], ModelError> {
    let heads = u32::from(delta.value_heads);
    match delta.projections {
        Projections::Separate => Ok([
            build.linear(layer, Linear::new(Role::DeltaBeta, heads), x)?,
            build.linear(layer, Linear::new(Role::DeltaAlpha, heads), x)?,
        ]),
        Projections::FusedByKeyHead => {
            let both = build.linear(layer, Linear::new(Role::DeltaBetaAlpha, 2 * heads), x)?;
            Ok([both, both])
        }
    }
}

fn convolve(
    build: &mut Build<'_>,
    layer: u32,
    delta: &GatedDelta,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let (channels, taps) = (delta.channels(), delta.conv_taps);
    let filter = build.weight(Role::DeltaConv, layer, &[channels, taps.into()]);
    let name = format!("conv.{layer}");
    let row = TensorType::new(DType::F32, &[channels]);
    let kind = StateKind::Tail(u32::from(taps) - 1);
    let state = build.state(StateDef::new(name.clone(), kind, row));
    let op = Op::Conv1d { taps, dilation: 1 };
    let made = build.push_all(op, &[state, x, filter], node_name(Role::DeltaConv, layer))?;
    build.update(&name, made[1]);
    Ok(made[0])
}

fn rule(
    build: &mut Build<'_>,
    layer: u32,
    delta: &GatedDelta,
    [qkv, beta, alpha]: [ValueId; 3],
) -> Result<ValueId, ModelError> {
    let GatedDelta { key_heads, value_heads, head_dim, .. } = *delta;
    let heads = [u32::from(value_heads)];
    let transform = match build.def.weights.layout {
        Layout::Gguf | Layout::GgufFusedExperts => Transform::None,
        Layout::Hf | Layout::HfFusedExperts => Transform::NegExp,
    };
    let key = WeightKey { role: Role::DeltaA, layer, dims: &heads, rows: &Rows::All };
    let rates = build.weight_of(key, transform);
    let bias = build.weight(Role::DeltaDt, layer, &heads);
    let name = format!("delta.{layer}");
    let (wide, dim) = (u32::from(value_heads), u32::from(head_dim));
    let row = TensorType::new(DType::F32, &[wide, dim, dim]);
    let state = build.state(StateDef::new(name.clone(), StateKind::Recurrent, row));
    let op = Op::GatedDelta {
        key_heads,
        value_heads,
        head_dim,
        tiled: delta.order == ValueHeads::Tiled,
        interleaved: delta.projections == Projections::FusedByKeyHead,
    };
    let operands = [state, qkv, beta, alpha, rates, bias];
    let made = build.push_all(op, &operands, format!("blk.{layer}.delta"))?;
    build.update(&name, made[1]);
    Ok(made[0])
}
