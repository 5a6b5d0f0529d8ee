//! Matrix product with bias and residual.

use super::product::{self, Product};
use super::require;
use super::tiles::{RowSource, for_tiles, tile_sizes};
use crate::builder::{Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::formats::GROUP_ROWS;
use crate::spec::{KernelSpec, Matmul, RowClass};

/// Activations that are kept near while all weights pass by: within a core's second cache.
const BLOCK_BYTES: i64 = 256 << 10;

fn product_of(s: Matmul) -> Product {
    Product { format: s.format, n: s.n, k: s.k }
}

pub(super) fn check(spec: &KernelSpec, s: &Matmul) -> Result<(), KernelError> {
    require(spec, "times", s.times.into(), s.times > 0, "at least 1")?;
    product::check(spec, product_of(*s))
}

/// See [`Matmul`].
pub(super) fn build(k: &KernelBuilder<'_>, s: Matmul) {
    let p = product_of(s);
    let word = if s.logits { StepWord::LogitRows } else { StepWord::Rows };
    let (x, w) = (k.operand(1), k.operand(2));
    let bias = s.epilogue.bias.then(|| k.operand(3));
    let residual = s.epilogue.residual.then(|| k.operand(3 + u32::from(s.epilogue.bias)));
    let y = k.operand(3 + u32::from(s.epilogue.bias) + u32::from(s.epilogue.residual));
    let (n, whole) = (k.i64(s.n.into()), s.n.is_multiple_of(GROUP_ROWS));
    let store = Store { n, whole, bias, residual, y };
    let groups = k.share(k.i64(p.groups().into()));
    let live = k.mul(k.step_word(word), k.i64(s.times.into()));
    Groups { product: p, rows: s.rows, x, w, store }.run(k, live, groups);
}

/// A product at work on some of its groups of 16 output rows.
pub(super) struct Groups<'c> {
    pub product: Product,
    pub rows: RowClass,
    pub x: Val<'c>,
    pub w: Val<'c>,
    pub store: Store<'c>,
}

impl<'c> Groups<'c> {
    /// Computes and stores groups `begin .. end` of rows `0 .. live`.
    pub fn run(&self, k: &KernelBuilder<'c>, live: Val<'c>, (begin, end): (Val<'c>, Val<'c>)) {
        let p = self.product;
        let x = RowSource::Dense { base: self.x, stride_bytes: p.input_row_bytes() };
        for_row_blocks(k, self.rows, p.input_row_bytes(), live, |rows| {
            k.for_between(begin, end, |group| {
                for_tiles(k, &tile_sizes(k), rows, |first, count| {
                    let totals = p.totals(k, self.w, group, &x.rows(k, first, count));
                    for (i, total) in (0..).zip(totals) {
                        self.store.store(k, k.add(first, k.i64(i)), group, total);
                    }
                });
            });
        });
    }
}

/// Covers `rows` with blocks of rows: one block for few rows, as many as stay near for many.
pub(super) fn for_row_blocks<'c>(
    k: &KernelBuilder<'c>,
    class: RowClass,
    row_bytes: i64,
    rows: Val<'c>,
    body: impl FnOnce((Val<'c>, Val<'c>)),
) {
    if class == RowClass::Few {
        return body((k.i64(0), rows));
    }
    let tile = i64::from(k.facts().tile_tokens);
    let block = (BLOCK_BYTES / row_bytes / tile * tile).max(tile);
    k.for_range((k.i64(0), rows), block, &[], |first, _| {
        body((first, k.imin(k.add(first, k.i64(block)), rows)));
        Vec::new()
    });
}

/// Where 16 results of a row go.
pub(super) struct Store<'c> {
    /// Results of a row.
    pub n: Val<'c>,
    /// Whether `n` is a multiple of 16.
    pub whole: bool,
    pub bias: Option<Val<'c>>,
    pub residual: Option<Val<'c>>,
    pub y: Val<'c>,
}

impl<'c> Store<'c> {
    /// Stores `total` (+ bias, + residual) as the results of `group` of `row`.
    fn store(&self, k: &KernelBuilder<'c>, row: Val<'c>, group: Val<'c>, total: Val<'c>) {
        let lane_bytes = k.mul(group, k.i64(i64::from(GROUP_ROWS) * 4));
        let of_row = |base| k.at(k.element(base, k.mul(row, self.n), 4), lane_bytes);
        let left = k.sub(self.n, k.mul(group, k.i64(GROUP_ROWS.into())));
        let left = k.trunc(left, Elem::I32);
        let load = |at| match self.whole {
            true => k.load(Elem::F32.x(GROUP_ROWS), at),
            false => k.load_first(at, left),
        };
        let mut value = total;
        if let Some(bias) = self.bias {
            value = k.fadd(value, load(k.at(bias, lane_bytes)));
        }
        if let Some(residual) = self.residual {
            value = k.fadd(load(of_row(residual)), value);
        }
        match self.whole {
            true => k.store(of_row(self.y), value),
            false => k.store_first(of_row(self.y), value, left),
        }
    }
}
