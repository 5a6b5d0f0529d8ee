//! Selection of blocks for sparse attention.

pub(super) mod keys;
pub(super) mod scores;
pub(super) mod top;

use super::require;
use super::rows::load_index;
use crate::builder::{KernelBuilder, Val};
use crate::error::KernelError;
use crate::ops::kv::KvLayout;
use crate::spec::KernelSpec;

/// Refuses blocks that cannot be pieces of a tile of keys.
pub(super) fn check_block(spec: &KernelSpec, block: u32) -> Result<(), KernelError> {
    require(spec, "block", block.into(), matches!(block, 4 | 8 | 16), "4, 8 or 16")
}

/// Refuses pages that do not hold one key of `dim` elements for each block.
fn check_keys(
    spec: &KernelSpec,
    keys: &KvLayout,
    (heads, dim): (u32, u32),
) -> Result<(), KernelError> {
    super::pages::check_layout(spec, keys, heads)?;
    let heads = keys.kv_heads as u64;
    require(spec, "kv_heads", heads, heads == 1, "1: pooled keys have one head")?;
    let fits = keys.head_dim as u64 == u64::from(dim);
    require(spec, "head_dim", keys.head_dim as u64, fits, "the dim of the keys")
}

/// Entries that the row at index `row` of `positions` sees, its own included; 0 before `first`.
fn entries<'c>(b: &KernelBuilder<'c>, positions: Val<'c>, row: Val<'c>, first: u32) -> Val<'c> {
    let end = b.add(load_index(b, positions, row), b.i64(1));
    b.imax(b.sub(end, b.i64(first.into())), b.i64(0))
}

/// `value / block`.
fn in_blocks<'c>(b: &KernelBuilder<'c>, value: Val<'c>, block: u32) -> Val<'c> {
    b.shr(value, b.i64(block.ilog2().into()))
}
