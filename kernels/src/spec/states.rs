//! Ops that read and change values that a sequence carries from window to window.
//!
//! Rows of one sequence are neighbours in a window: a segment. `slots: u32[rows]` is a row's
//! sequence, `offsets: u32[rows]` its index in its segment (0 starts one). The row j steps back is
//! row `r - j` of the window while `offsets[r] >= j`, before that a row of the sequence's tail:
//! its last rows, oldest first, zero where a sequence begins.
//!
//! The operand `state` is the address of slot 0's value; [`SlotLayout`] says where slots and their
//! pending rows lie. With `pending` the value stays as it is and the row with offset i is stored as
//! pending row i of its slot, for a commit to accept; without it the value is changed in place.

use super::WeightFormat;
use crate::ops::slots::SlotLayout;
use serde::{Deserialize, Serialize};

/// `y[row, ch] = silu(sum over taps j of weight[ch, j] * x_j[ch])`, where `x_j` is the row
/// `(taps - 1 - j) * dilation` steps back: the last tap is the row itself.
///
/// Operands: 1 `x: f32[rows, channels]`, 2 `weight: f32[channels, taps]`, 3 `slots`, 4 `offsets`,
/// 5 `state` (a tail of `(taps - 1) * dilation` rows `f32[channels]`),
/// 6 `y: f32[rows, channels]`, not `x`. `channels % 16 == 0`. Unit: 64 channels of all rows (16 if 64 does
/// not divide them), so that whoever reads a tail is the one who changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Conv1d {
    pub channels: u32,
    pub taps: u32,
    pub dilation: u32,
    pub layout: SlotLayout,
    pub pending: bool,
}

/// `y[row]` is the row before `x[row]`.
///
/// Operands: 1 `x: f32[rows, k]`, 2 `slots`, 3 `offsets`, 4 `state` (a tail of one row `f32[k]`),
/// 5 `y: f32[rows, k]`, not `x`. `k % 16 == 0`. Unit: as [`Conv1d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShiftRows {
    pub k: u32,
    pub layout: SlotLayout,
    pub pending: bool,
}

/// `y[row]` is the one row of the tail of the row's sequence.
///
/// Operands: 1 `slots: u32[rows]`, 2 `state` (a tail of one row `f32[k]`), 3 `y: f32[rows, k]`.
/// Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReadTail {
    pub k: u32,
    pub layout: SlotLayout,
}

/// Makes accepted rows part of a tail: its new rows are the last `rows` of the old ones and the
/// first `commit_rows[i]` pending ones of slot `commit_slots[i]`.
///
/// Operands: 1 `commit_slots: u32[commits]`, 2 `commit_rows: u32[commits]`, 3 `state`. The count of
/// commits is word 2 of the step block; a slot occurs once. `row_bytes % 4 == 0`. Unit: up to 256
/// bytes of the rows of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TailCommit {
    /// Rows of the tail.
    pub rows: u32,
    pub row_bytes: u32,
    pub layout: SlotLayout,
}

/// The table rows of the n-grams that end at each token, for n = 2 to `ngram`, `heads_per_ngram`
/// for each n, shorter n-grams first.
///
/// With `c_0` the token and `c_j` the token j steps back: `mix_n = xor over j < n of c_j * M_j`
/// (mod 2^64) and `y[head] = mix_n mod size[head] + offset[head]`. Going backwards from the token
/// before, the first end-of-sequence token or sequence start stands for itself and everything
/// older as the end-of-sequence token.
///
/// Operands: 1 `tokens: u32[rows]`, 2 `slots`, 3 `offsets`, 4 `hash: u64[ngram + 2 heads + 1]`
/// (multipliers, sizes, offsets, end-of-sequence token; `heads = (ngram - 1) * heads_per_ngram`),
/// 5 `state` (a tail of `ngram - 1` words: a token plus 1, 0 for none), 6 `y: u32[rows, heads]`.
/// Sizes are above 0. Unit: a row with `pending`; else part 0 does it, since the tail changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NgramRows {
    pub ngram: u32,
    pub heads_per_ngram: u32,
    pub layout: SlotLayout,
    pub pending: bool,
}

/// `y[row, head] = table[ids[row, head]]`, the table in native rows (never repacked).
///
/// Operands: 1 `ids: u32[rows, heads]`, in range, 2 table `[any, width]`,
/// 3 `y: f32[rows, heads * width]`. `width` is a multiple of the format's block. Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NgramEmbed {
    pub format: WeightFormat,
    pub heads: u32,
    /// Elements of a table row.
    pub width: u32,
}
