//! Matrix products and what loads their weights.

use super::{Act, WeightFormat};
use serde::{Deserialize, Serialize};

/// How many live rows a matrix kernel is laid out for. Both take any count and give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowClass {
    /// 1 to 8: bound by reading weights.
    Few,
    /// More: bound by arithmetic.
    Many,
}

/// What is added to a matrix product before it is stored, in this order.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epilogue {
    /// `f32[n]`
    pub bias: bool,
    /// `f32[rows, n]`
    pub residual: bool,
}

/// `y[rows, n] = x[rows, k] . w[n, k]` (+ bias, + residual), all f32 outside of `x` and `w`.
///
/// | operand | |
/// |---|---|
/// | 1 | `x`: q8 rows for block formats, `f32[rows, k]` for float formats |
/// | 2 | `w`: packed (see [`Repack`]) for block formats, native rows for float formats |
/// | next, if asked | bias, then residual |
/// | last | `y: f32[rows, n]`; may be the residual itself |
///
/// `rows` here is the live count times [`times`](Self::times).
///
/// Unit: 16 output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Matmul {
    pub format: WeightFormat,
    pub n: u32,
    pub k: u32,
    pub rows: RowClass,
    pub epilogue: Epilogue,
    /// Takes the live count from the step block's logit rows instead of its rows.
    pub logits: bool,
    /// Rows of `x` and `y` for each live row: 1, or the streams that share the weight.
    pub times: u32,
}

/// `y[rows, n] = act(x . w_gate) * (x . w_up)`.
///
/// Operands: 1 `x`, 2 `w_gate`, 3 `w_up`, 4 `y` (`f32[rows, n]`, or q8 rows of `n`).
/// Unit: 32 output rows with `quantize`, else 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatedMatmul {
    pub format: WeightFormat,
    pub n: u32,
    pub k: u32,
    pub rows: RowClass,
    pub act: Act,
    /// Store the result as q8 rows; needs `n % 32 == 0`.
    pub quantize: bool,
}

/// One of the weights of [`Projections`]: `[n, k]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Projection {
    pub format: WeightFormat,
    pub n: u32,
}

/// `y_i[rows, n_i] = x[rows, k] . w_i[n_i, k]` for each of several weights, each with the bits of a
/// [`Matmul`] without epilogue.
///
/// | operand | |
/// |---|---|
/// | 1, with a float format | `x: f32[rows, k]` |
/// | next, with a block format | `x`: q8 rows |
/// | next | the weights in order, as a [`Matmul`] reads them |
/// | next | `y_i: f32[rows, n_i]` in the same order, none of them an input |
///
/// Unit: a byte of weights, rounded up to 16 output rows, so that parts of one size read as much
/// whatever the formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Projections {
    pub k: u32,
    pub rows: RowClass,
    /// Two at least; places behind the last one are empty.
    pub weights: [Option<Projection>; Projections::MOST],
}

impl Projections {
    /// Weights of one launch at most.
    pub const MOST: usize = 8;

    /// The weights in order.
    pub fn all(&self) -> impl Iterator<Item = Projection> {
        self.weights.into_iter().flatten()
    }
}

/// Packs the native rows of a block format for matrix kernels. Operands: 1 native `[n, k]`,
/// 2 packed, of [`packed_bytes`](crate::formats::packed_bytes). Unit: 16 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Repack {
    pub format: WeightFormat,
    pub n: u32,
    pub k: u32,
}

/// `y[i] = f32(w[i])` (+ 1, or the negative exponential) for a vector of `n` elements.
/// Operands: 1 `w` (native), 2 `y: f32[n]`. Part 0 takes what is no whole group of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ToF32 {
    pub format: WeightFormat,
    pub n: u32,
    /// Adds 1: gains that are stored as the distance from one.
    pub add_one: bool,
    /// `-exp(w)`: rates that are stored as logarithms.
    pub neg_exp: bool,
}

/// `h[pair, n] = act(x[row] . w_gate[expert]) * (x[row] . w_up[expert])` for each routed pair
/// (`pair = row * top_k + slot`).
///
/// | operand | |
/// |---|---|
/// | 1 | dispatch list ([`DispatchLayout`](crate::ops::dispatch::DispatchLayout)) |
/// | 2 | `x`: q8 rows for block formats, `f32[rows, k]` for float formats |
/// | 3, 4 | `w_gate`, `w_up`: the experts' weights `[n, k]` one after another, `n % 16 == 0` |
/// | 5 | `h`: a row of `n` for each pair, q8 with `quantize`, else f32 |
///
/// Unit: an active expert and 32 output rows with `quantize`, else 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertGated {
    pub format: WeightFormat,
    pub experts: u32,
    pub top_k: u32,
    pub n: u32,
    pub k: u32,
    pub act: Act,
    /// Store the result as q8 rows; needs `n % 32 == 0`.
    pub quantize: bool,
}

/// `y[row] = sum over slots of weights[row, slot] * (h[pair] . w[expert])` (+ residual): an
/// [`ExpertDown`] and an [`ExpertCombine`](super::ExpertCombine) in one, with the same bits.
///
/// | operand | |
/// |---|---|
/// | 1 | `ids: u32[rows, top_k]` |
/// | 2 | `weights: f32[rows, top_k]` |
/// | 3 | `h`: a row of `k` for each pair, q8 for block formats, f32 for float formats |
/// | 4 | the experts' weights `[n, k]` one after another, `n % 16 == 0` |
/// | next, if asked | residual `f32[rows, n]` |
/// | last | `y: f32[rows, n]`, which may be the residual |
///
/// Unit: 16 output rows. Pairs are not sorted by expert: rows that share an expert read its
/// weights once each, so this is for windows whose pairs' units stay in a core's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertSum {
    pub format: WeightFormat,
    pub experts: u32,
    pub top_k: u32,
    pub n: u32,
    pub k: u32,
    pub residual: bool,
}

/// `d[pair, n] = h[pair] . w[expert]` for each routed pair, f32.
///
/// Operands: 1 dispatch list, 2 `h` (a row of `k` for each pair: q8 for block formats, f32 for
/// float formats), 3 the experts' weights `[n, k]` one after another (`n % 16 == 0`),
/// 4 `d: f32[rows * top_k, n]`. Unit: an active expert and 16 output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertDown {
    pub format: WeightFormat,
    pub experts: u32,
    pub top_k: u32,
    pub n: u32,
    pub k: u32,
}
