//! Ops of a residual stream that is several rows wide, and of gates on rows.
//!
//! A row of `streams * k` elements holds stream c at elements `c * k ..`. Unless it says
//! otherwise, values are f32, `k % 16 == 0` (`k % 32 == 0` where the result is quantised), and a
//! unit of work is 256 elements of a row, so that a window of one row is shared by all parts.

use super::{Act, F32};
use serde::{Deserialize, Serialize};

/// `y[row, c] = x[row]` for each stream c. Operands: 1 `x: f32[rows, k]`,
/// 2 `y: f32[rows, streams * k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamRepeat {
    pub streams: u32,
    pub k: u32,
}

/// The RMS norm of each of `groups` slices of `k` elements, with gains for the whole row.
///
/// | operand | |
/// |---|---|
/// | 1 | `x: f32[rows, groups * k]` |
/// | 2 | `gain: f32[groups * k]` |
/// | next, without `quantize` or with `keep` | `y: f32[rows, groups * k]` |
/// | next, with `quantize` | `y`: q8 rows of `groups * k` |
///
/// Unit: a group of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupRmsNorm {
    pub groups: u32,
    /// Elements of one group.
    pub k: u32,
    pub eps: F32,
    pub quantize: bool,
    /// Stores the f32 rows beside the q8 rows; needs `quantize`.
    pub keep: bool,
}

/// `y = silu(x * scale)`. Operands: 1 `x: f32[rows, k]`, 2 `y`: f32, which may be `x`, or q8 rows
/// with `quantize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ScaledSilu {
    pub k: u32,
    pub scale: F32,
    pub quantize: bool,
}

/// `y[row] = (sum over streams c of sigmoid(gate[row, c]) * normed[row, c]) / streams`: what a
/// block reads of a hyper-connected residual.
///
/// | operand | |
/// |---|---|
/// | 1 | `normed: f32[rows, streams * k]` |
/// | 2 | `gate: f32[rows, streams * k]`: logits |
/// | next, without `quantize` or with `keep` | `y: f32[rows, k]` |
/// | next, with `quantize` | `y`: q8 rows of `k` |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HcRead {
    pub streams: u32,
    pub k: u32,
    pub quantize: bool,
    /// Stores the f32 rows beside the q8 rows; needs `quantize`.
    pub keep: bool,
}

/// `out[row, c] = residual[row, c] + 2 * sigmoid(inject[row, c] / streams) * y[row]`: what a block
/// writes to a hyper-connected residual.
///
/// Operands: 1 `residual: f32[rows, streams * k]`, 2 `y: f32[rows, k]`,
/// 3 `inject: f32[rows, streams]` (logits), 4 `out: f32[rows, streams * k]`, which may be
/// `residual`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HcWrite {
    pub streams: u32,
    pub k: u32,
}

/// [`HcWrite`], then the [`GroupRmsNorm`] of each stream that it gives, with the bits of both.
///
/// | operand | |
/// |---|---|
/// | 1 | `residual: f32[rows, streams * k]` |
/// | 2 | `y: f32[rows, k]` |
/// | 3 | `inject: f32[rows, streams]`: logits |
/// | 4 | `gain: f32[streams * k]` |
/// | 5, 6 with `shared` | `shared: f32[rows, k]` and its logits `f32[rows]`: `y + sigmoid(logit) * shared` is written, as [`GatedAdd`] makes it |
/// | next | the new residual, which may be `residual` |
/// | next | its normed streams `f32[rows, streams * k]` |
/// | next, with `quantize` | q8 rows of them |
///
/// Unit: a stream of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HcWriteNorm {
    pub streams: u32,
    pub k: u32,
    pub eps: F32,
    pub shared: bool,
    pub quantize: bool,
}

/// The RMS norm of each head, times `gain`, times `act(gate)`.
///
/// Operands: 1 `x: f32[rows, heads * head_dim]`, 2 `gain: f32[head_dim]`, shared by the heads,
/// 3 `gate: f32[rows, heads * head_dim]`, 4 `y`: as `x`, or q8 rows with `quantize` (then
/// `head_dim % 32 == 0`). An f32 `y` may be `x` or `gate`. Unit: a head of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatedHeadNorm {
    pub heads: u32,
    pub head_dim: u32,
    pub eps: F32,
    pub act: Act,
    pub quantize: bool,
}

/// `y[row] = a[row] + sigmoid(gate[row]) * b[row]`. Operands: 1 `a: f32[rows, k]`,
/// 2 `b: f32[rows, k]`, 3 `gate: f32[rows]` (logits), 4 `y: f32[rows, k]`, which may be `a` or `b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatedAdd {
    pub k: u32,
}

/// Stream c of `y[row]` is `[e[row] | h[row, c]]`.
///
/// Operands: 1 `e: f32[rows, k]`, 2 `h: f32[rows, streams * k]`, 3 `y`:
/// `f32[rows, streams * 2 k]` or, with `quantize`, `streams` q8 rows of `2 k` for each row, which
/// a [`Matmul`](super::Matmul) with `times = streams` reads. Unit: a stream of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StreamConcat {
    pub streams: u32,
    pub k: u32,
    pub quantize: bool,
}

/// `y[row, c] = gate_c * value[row]` with `s = key[row, c] . query[row, c] / sqrt(k)` and
/// `gate_c = sigmoid(sign(s) * sqrt(max(abs(s), 1e-6)))`; `sign(0) = 0`.
///
/// Operands: 1 `key: f32[rows, streams * k]`, 2 `query`: as `key`, 3 `value: f32[rows, k]`,
/// 4 `y: f32[rows, streams * k]`, which may be `key` or `query`. Unit: a stream of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NgramGate {
    pub streams: u32,
    pub k: u32,
}
