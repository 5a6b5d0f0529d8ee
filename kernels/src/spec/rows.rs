//! Ops on whole rows. Unless it says otherwise, a unit of work is a row.

use super::{Act, F32, WeightFormat};
use serde::{Deserialize, Serialize};

/// Quantises rows for matrix products (see [`crate::reference::quantize`]).
/// Operands: 1 `x: f32[rows, k]`, 2 `y`: q8 rows. `k % 32 == 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Quantize {
    pub k: u32,
}

/// The residual add that a norm is joined with.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum NormFold {
    /// `y = norm(x)`. Operands: 1 `x`, 2 `gain`, 3 `y`.
    #[default]
    None,
    /// `h = a + b; y = norm(h)`. Operands: 1 `a`, 2 `b`, 3 `gain`, 4 `h`, 5 `y`; `h` may be `a`
    /// or `b`.
    AddBefore,
    /// `y = norm(x) + residual`. Operands: 1 `x`, 2 `gain`, 3 `residual`, 4 `y`; `y` may be
    /// `residual` unless it is quantised.
    AddAfter,
}

/// `norm(x) = x / sqrt(mean(x^2) + eps) * gain`; all `f32[rows, k]`, `gain: f32[k]`, `y` f32 or,
/// with `quantize`, q8 rows. `k % 16 == 0`, with `quantize` `k % 32 == 0`.
///
/// With `keep` too, the f32 rows that were quantised are one more operand, in front of `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RmsNorm {
    pub k: u32,
    pub eps: F32,
    pub fold: NormFold,
    pub quantize: bool,
    /// Stores the f32 rows beside the q8 rows; needs `quantize`.
    pub keep: bool,
}

/// Rows of the rope table: `y: f32[rows, dims]`, `dims / 2` cosines of `position * inv_freq`, then
/// the sines. Operands: 1 `positions: u32[rows]`, 2 `inv_freq: f32[dims / 2]`, 3 `y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RopeAngles {
    pub dims: u32,
}

/// `y[row] = table[tokens[row]] * scale`, the table in native rows (never repacked).
/// Operands: 1 `tokens: u32[rows]`, 2 table, 3 `y: f32[rows, k]`. Tokens are in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Embed {
    pub format: WeightFormat,
    pub k: u32,
    pub scale: F32,
}

/// `y[i] = x[indices[i]]` for the live logit rows.
/// Operands: 1 `x: f32[rows, k]`, 2 `indices: u32[logit_rows]`, 3 `y: f32[logit_rows, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatherRows {
    pub k: u32,
}

/// `y = a * b`. Operands: 1 `a`, 2 `b`, 3 `y`, all `f32[rows, k]`; `y` may be an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Mul {
    pub k: u32,
}

/// `y = x * factor`. Operands: 1 `x`, 2 `y`, both `f32[rows, k]`; `y` may be `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scale {
    pub k: u32,
    pub factor: F32,
}

/// `y = act(a) * b`. Operands: 1 `a`, 2 `b`, both `f32[rows, k]`, 3 `y`: f32, or q8 rows with
/// `quantize` (then `k % 32 == 0`). An f32 `y` may be an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ActMul {
    pub act: Act,
    pub k: u32,
    pub quantize: bool,
}
