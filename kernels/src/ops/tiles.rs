//! Rows of activations as matrix kernels walk over them: tiles of a few rows that share every
//! weight that is read.

use crate::builder::{Compare, Elem, KernelBuilder, Val};

/// Where rows lie.
#[derive(Clone, Copy)]
pub(super) enum RowSource<'c> {
    /// Row i at `base + i * stride_bytes`.
    Dense { base: Val<'c>, stride_bytes: i64 },
    /// Row i at `base + pairs[i] / divisor * stride_bytes` (pairs: u32).
    Listed { pairs: Val<'c>, divisor: u32, base: Val<'c>, stride_bytes: i64 },
}

impl<'c> RowSource<'c> {
    /// Address of row `index` (i64).
    pub fn row(&self, k: &KernelBuilder<'c>, index: Val<'c>) -> Val<'c> {
        match *self {
            Self::Dense { base, stride_bytes } => k.element(base, index, stride_bytes),
            Self::Listed { pairs, divisor, base, stride_bytes } => {
                let pair = k.load(Elem::I32.scalar(), k.element(pairs, index, 4));
                let row = k.udiv(pair, k.int(Elem::I32, divisor.into()));
                k.element(base, k.zext(row, Elem::I64), stride_bytes)
            }
        }
    }

    /// Addresses of rows `first .. first + count`.
    pub fn rows(&self, k: &KernelBuilder<'c>, first: Val<'c>, count: u32) -> Vec<Val<'c>> {
        match *self {
            Self::Dense { stride_bytes, .. } => {
                let row = self.row(k, first);
                (0..count).map(|i| k.offset(row, i64::from(i) * stride_bytes)).collect()
            }
            Self::Listed { .. } => {
                let index = |i: u32| k.add(first, k.i64(i.into()));
                (0..count).map(|i| self.row(k, index(i))).collect()
            }
        }
    }
}

/// Tile sizes, descending; each may occur once after the first, and 1 is the last.
pub(super) fn tile_sizes(k: &KernelBuilder<'_>) -> Vec<u32> {
    let most = k.facts().tile_tokens;
    [8, 6, 4, 3, 2, 1].into_iter().filter(|&size| size <= most).collect()
}

/// Covers rows `[begin, end)` (i64) with tiles: `body(first row, rows of the tile)`.
pub(super) fn for_tiles<'c>(
    k: &KernelBuilder<'c>,
    sizes: &[u32],
    (begin, end): (Val<'c>, Val<'c>),
    mut body: impl FnMut(Val<'c>, u32),
) {
    let most = k.i64(sizes[0].into());
    let whole = k.mul(k.udiv(k.sub(end, begin), most), most);
    let mut at = k.add(begin, whole);
    k.for_range((begin, at), sizes[0].into(), &[], |first, _| {
        body(first, sizes[0]);
        Vec::new()
    });
    for &size in &sizes[1..] {
        let next = k.add(at, k.i64(size.into()));
        let fits = k.icmp(Compare::Le, next, end);
        k.when(fits, || body(at, size));
        at = k.select(fits, next, at);
    }
}
