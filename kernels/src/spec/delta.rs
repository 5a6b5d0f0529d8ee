//! The gated delta rule.

use crate::ops::slots::SlotLayout;
use serde::{Deserialize, Serialize};

/// The gated delta rule over the rows of each sequence, in order.
///
/// | operand | |
/// |---|---|
/// | 1 | `qkv: f32[rows, (2 key_heads + value_heads) * head_dim]`: queries, keys, values, after convolution and activation |
/// | 2 | `beta: f32[rows, value_heads]`, before the sigmoid |
/// | 3 | `alpha: f32[rows, value_heads]`, before softplus |
/// | 4 | `a: f32[value_heads]`: -exp(A_log) |
/// | 5 | `dt_bias: f32[value_heads]` |
/// | 6 | `slots: u32[rows]` |
/// | 7 | `offsets: u32[rows]`: the row's index among its sequence's rows, 0 at the first |
/// | 8 | state: the value of slot 0, `f32[value_heads][key dimension][value dimension]` |
/// | 9 | `y: f32[rows, value_heads * head_dim]` |
///
/// Rows of a sequence stand together. With `pending` the value stays, and row `offset` of the
/// slot's pending rows gets the factors of the change ([`DeltaFactors`]); else the value behind the
/// sequence's last row is stored.
///
/// Unit: some columns of one value head, for all rows. `head_dim` is a multiple of 16, at most 256;
/// `value_heads` a multiple of `key_heads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GatedDelta {
    pub key_heads: u32,
    pub value_heads: u32,
    /// Of keys and of values.
    pub head_dim: u32,
    /// Value head h reads key head `h % key_heads`, not `h / (value_heads / key_heads)`.
    pub tiled: bool,
    /// `beta` and `alpha` are one operand, `f32[rows, 2 value_heads]`: for each key head the betas
    /// of its value heads, then their alphas. Not with `tiled`.
    pub interleaved: bool,
    pub layout: SlotLayout,
    pub pending: bool,
}

/// Applies the first accepted pending rows of [`GatedDelta`] to the values.
///
/// Operands: 1 `commit_slots: u32[commits]`, 2 `commit_rows: u32[commits]` (accepted rows, 0 leaves
/// the value), 3 state, as above. Unit: some columns of one value head of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeltaCommit {
    pub key_heads: u32,
    pub value_heads: u32,
    pub head_dim: u32,
    pub tiled: bool,
    pub layout: SlotLayout,
}

/// One pending row: the keys (normalised), the deltas and the decays of a row, f32 each. The change
/// that it stands for is `S = fma(k_i, delta_j, S_ij * decay)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaFactors {
    /// Key heads times `head_dim`.
    pub keys: u32,
    /// Value heads times `head_dim`.
    pub deltas: u32,
    /// Value heads.
    pub decays: u32,
}

impl DeltaFactors {
    pub fn new(key_heads: u32, value_heads: u32, head_dim: u32) -> Self {
        Self { keys: key_heads * head_dim, deltas: value_heads * head_dim, decays: value_heads }
    }

    /// Offset of the deltas in the row.
    pub fn deltas_at_bytes(self) -> u64 {
        4 * u64::from(self.keys)
    }

    /// Offset of the decays in the row.
    pub fn decays_at_bytes(self) -> u64 {
        self.deltas_at_bytes() + 4 * u64::from(self.deltas)
    }

    /// Bytes of the row, without padding.
    pub fn bytes(self) -> u64 {
        self.decays_at_bytes() + 4 * u64::from(self.decays)
    }
}
