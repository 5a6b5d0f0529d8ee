//! Attention and routing.

use super::F32;
use crate::ops::kv::KvLayout;
use serde::{Deserialize, Serialize};

/// From projections to a query and stored keys and values: head norms, rope, append.
///
/// | operand | |
/// |---|---|
/// | 1 | with `fused`: `qkv: f32[rows, (heads + 2 kv_heads) * head_dim]`; else `q`, then `k`, `v` as operands 1, 2, 3 |
/// | next | angles `f32[rows, rope_dims]` (see [`super::RopeAngles`]); absent if `rope_dims` is 0 |
/// | next | `positions: u32[rows]` |
/// | next | `slots: u32[rows]`: the row's sequence |
/// | next | page table `u32[slots, pages_per_slot]`: physical pages |
/// | next | pages of this layer, from physical page 0 on |
/// | next, with `norm_eps` | `q_gain: f32[head_dim]`, `k_gain: f32[head_dim]` |
/// | last | `q` out, `f32[rows, heads * head_dim]`; may be the unfused `q` |
///
/// Unit: one query head or one kv head of a row. `head_dim % 16 == 0`, `rope_dims` even and at
/// most `head_dim`.
///
/// The row at `position` is stored as entry `position - first`; rows before `first` are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttnPrologue {
    /// Query heads; with 0 the kernel only appends and leaves `q` out alone.
    pub heads: u32,
    pub kv: KvLayout,
    pub pages_per_slot: u32,
    pub fused: bool,
    /// RMS norm of each query and key head, with gains.
    pub norm_eps: Option<F32>,
    /// Leading dimensions that are rotated.
    pub rope_dims: u32,
    /// Rotate pairs (2i, 2i + 1) and not (i, i + rope_dims / 2).
    pub adjacent: bool,
    /// Position of the first stored entry.
    pub first: u32,
}

/// Head norms and rope alone: what [`AttnPrologue`] does to queries.
///
/// Operands: 1 `x: f32[rows, heads * head_dim]`, then angles unless `rope_dims` is 0, then the gain
/// `f32[head_dim]` with `norm_eps`, last `y`, as `x`, which it may be. Unit: a head of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HeadRotate {
    pub heads: u32,
    pub head_dim: u32,
    pub norm_eps: Option<F32>,
    /// Leading dimensions that are rotated.
    pub rope_dims: u32,
    pub adjacent: bool,
}

/// Causal attention of each row over its sequence's pages, its own position included.
///
/// | operand | |
/// |---|---|
/// | 1 | `q: f32[rows, heads * head_dim]` |
/// | 2 | `positions: u32[rows]` |
/// | 3 | `slots: u32[rows]` |
/// | 4 | page table `u32[slots, pages_per_slot]` |
/// | 5 | pages of this layer |
/// | 6, with `selection` | what [`super::BlockTop`] selected, `u32[rows, keep + 2]` |
/// | last | `y: f32[rows, heads * head_dim]`, or q8 rows of it with `quantize` (`head_dim % 32 == 0`) |
///
/// Unit: up to four query heads of one kv head of a row.
///
/// The row at `position` is entry `position - first`. A row before `first` sees nothing and gives
/// zeros. With `selection` a row sees the entries of its blocks only; if these are all entries, the
/// result is the same as without, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Attention {
    /// A multiple of the layout's kv heads.
    pub heads: u32,
    pub kv: KvLayout,
    pub pages_per_slot: u32,
    /// Factor of q.k.
    pub scale: F32,
    /// Positions that a row sees, its own included; 0 for all.
    pub window: u32,
    pub quantize: bool,
    /// Position of the first stored entry.
    pub first: u32,
    /// Read selected blocks only; not with a `window`.
    pub selection: Option<Selected>,
}

/// Blocks of entries that rows select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Selected {
    /// Entries of a block: 4, 8 or 16, and a part of the layout's `key_group`.
    pub block: u32,
    /// Whole blocks that a row selects at most.
    pub keep: u32,
}

/// Softmax over `logits: f32[rows, experts]` (operand 1) and the `top_k` largest, descending,
/// lower id first among equals. Operands: 2 `ids: u32[rows, top_k]`, 3 `weights: f32[rows, top_k]`.
///
/// With `dispatch` also what [`Dispatch`] makes of the ids, operand 4; then part 0 does it all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    pub experts: u32,
    pub top_k: u32,
    /// Divide the weights by their sum.
    pub renormalize: bool,
    pub dispatch: bool,
}

/// Sorts the window's (row, slot) pairs by expert. Operands: 1 `ids: u32[rows, top_k]`,
/// 2 the list (see [`crate::ops::dispatch::DispatchLayout`]). One unit: part 0 does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dispatch {
    pub experts: u32,
    pub top_k: u32,
}

/// `y[row] = sum over slots of weights[row, slot] * down[row * top_k + slot]` (+ residual).
/// Operands: 1 `weights: f32[rows, top_k]`, 2 `down: f32[rows * top_k, k]`, 3 residual
/// `f32[rows, k]` if asked, last `y: f32[rows, k]`, which may be the residual. Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExpertCombine {
    pub top_k: u32,
    pub k: u32,
    pub residual: bool,
}
