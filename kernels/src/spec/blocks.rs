//! Selection of blocks for sparse attention: pooled keys, their scores, and the best of them.
//!
//! A row at `position` is entry `e = position - first` of its sequence; rows before `first` are no
//! entries. A block is `block` consecutive entries from entry 0 on (4, 8 or 16); the row sees
//! `(e + 1) / block` complete blocks and, unless this divides, the beginning of one more.
//! Operands `slots`, `offsets` and `state` are those of [`super::states`].

use super::F32;
use crate::ops::kv::KvLayout;
use crate::ops::slots::SlotLayout;
use serde::{Deserialize, Serialize};

/// Stores the pooled key of each block that a row completes, and keeps the tail of raw keys.
///
/// The key of block b is the mean of its rows of `x` (summed in order of entries), RMS-normed with
/// a gain, its first `rope_dims` dimensions rotated in pairs (i, i + `rope_dims` / 2) for the
/// position of the block's first entry. It is stored as `keys` says at index b: pages hold
/// `keys.page_tokens` blocks, so the page table is that of pages of `keys.page_tokens * block`
/// entries.
///
/// | operand | |
/// |---|---|
/// | 1 | `x: f32[rows, dim]`: raw keys |
/// | 2 | `gain: f32[dim]` |
/// | 3 | `inv_freq: f32[rope_dims / 2]` |
/// | 4 | `positions: u32[rows]` |
/// | 5, 6 | `slots`, `offsets` |
/// | 7 | page table `u32[slots, pages_per_slot]` |
/// | 8 | pages of pooled keys |
/// | 9 | `state`: a tail of `block - 1` rows `f32[dim]` |
///
/// Unit: a row. `dim % 16 == 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockKeys {
    pub dim: u32,
    /// Leading dimensions that are rotated: even, 0 for none.
    pub rope_dims: u32,
    pub block: u32,
    pub eps: F32,
    pub first: u32,
    /// One head of `dim` elements.
    pub keys: KvLayout,
    pub pages_per_slot: u32,
    /// Of the tail.
    pub layout: SlotLayout,
    pub pending: bool,
}

/// `scores[row, b] = (sum over heads of max(q_head . key_b, 0)) / sqrt(dim)` for the complete
/// blocks that a row sees; other scores are left untouched. A NaN counts as 0, so scores order as
/// their bits.
///
/// Operands: 1 `queries: f32[rows, heads * dim]`, 2 `positions`, 3 `slots`, 4 page table, 5 pages
/// of pooled keys, 6 `scores: f32[rows, blocks]`. Unit: 64 blocks of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockScores {
    pub heads: u32,
    pub dim: u32,
    pub block: u32,
    /// Complete blocks that a row sees at most.
    pub blocks: u32,
    pub first: u32,
    /// As [`BlockKeys`] has it.
    pub keys: KvLayout,
    pub pages_per_slot: u32,
}

/// The `keep` complete blocks of the highest scores (all, if there are no more), lower ids first
/// among equals.
///
/// Operands: 1 `scores: f32[rows, blocks]`, none negative or NaN, 2 `positions`,
/// 3 `selection: u32[rows, keep + 2]`: word 0 is the count of entries that the row attends to, then
/// their block ids, ascending; the incomplete block, if there is one, is the last. What lies behind
/// is left undefined. Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockTop {
    pub block: u32,
    pub keep: u32,
    pub blocks: u32,
    pub first: u32,
}
