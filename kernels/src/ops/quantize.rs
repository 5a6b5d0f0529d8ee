//! Rows of f32 to the one quantised activation format.

use super::require;
use super::rows::{f32_row, for_my_rows, load_f32};
use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::reference::SPAN;
use crate::reference::quantize::{
    Q8_BLOCK, Q8_BLOCKS, Q8_CLAMP, Q8_INV_MAX, Q8_SCALES, Q8_SPAN_BYTES, Q8_SUMS_F32, Q8_SUMS_I16,
    Q8_TINY, q8_row_bytes,
};
use crate::spec::{KernelSpec, Quantize};

pub(super) fn check(spec: &KernelSpec, s: &Quantize) -> Result<(), KernelError> {
    require(spec, "k", s.k.into(), s.k > 0 && s.k.is_multiple_of(32), "a multiple of 32")
}

pub(super) fn build(b: &KernelBuilder<'_>, s: Quantize) {
    let (x, y) = (b.operand(1), b.operand(2));
    for_my_rows(b, |row| {
        let (x, y) = (f32_row(b, x, row, s.k), q8_row(b, y, row, s.k));
        quantize_row(b, s.k, y, |at| load_f32(b, x, at, 16));
    });
}

/// Address of row `row` of q8 rows of `k` elements.
pub(super) fn q8_row<'c>(b: &KernelBuilder<'c>, base: Val<'c>, row: Val<'c>, k: u32) -> Val<'c> {
    b.element(base, row, q8_row_bytes(k as usize) as i64)
}

/// Quantises `k` elements, which `element` gives 16 at a time from an index on, into a q8 row.
pub(super) fn quantize_row<'c>(
    b: &KernelBuilder<'c>,
    k: u32,
    row: Val<'c>,
    element: impl Fn(Val<'c>) -> Val<'c>,
) {
    b.for_each(b.i64(i64::from(k) / 32), |block| {
        let at = b.mul(block, b.i64(32));
        store_q8_block(b, [element(at), element(b.add(at, b.i64(16)))], row, block);
    });
    zero_q8_tail(b, k, row);
}

/// NaN to 0, magnitudes to at most [`Q8_CLAMP`].
pub(super) fn sanitize<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    let x = b.select(b.fcmp(Compare::Ne, x, x), b.f32(0.0), x);
    b.fmin(b.fmax(x, b.f32(-Q8_CLAMP)), b.f32(Q8_CLAMP))
}

/// Scale and its inverse for a largest magnitude.
pub(super) fn q8_scale<'c>(b: &KernelBuilder<'c>, amax: Val<'c>) -> (Val<'c>, Val<'c>) {
    let tiny = b.fcmp(Compare::Lt, amax, b.f32(Q8_TINY));
    let zero = b.f32(0.0);
    let scale = b.select(tiny, zero, b.fmul(amax, b.f32(Q8_INV_MAX)));
    (scale, b.select(tiny, zero, b.fdiv(b.f32(127.0), amax)))
}

/// Sanitised values times the inverse scale, rounded and saturated, as i32.
pub(super) fn q8_round<'c>(b: &KernelBuilder<'c>, x: Val<'c>, inverse: Val<'c>) -> Val<'c> {
    let rounded = b.round_even(b.fmul(x, inverse));
    let clamped = b.fmin(b.fmax(rounded, b.f32(-127.0)), b.f32(127.0));
    b.float_to_int(clamped, Elem::I32)
}

/// Quantises 32 values (two vectors of 16) into block `block` of a q8 row.
pub(super) fn store_q8_block<'c>(
    b: &KernelBuilder<'c>,
    x: [Val<'c>; 2],
    row: Val<'c>,
    block: Val<'c>,
) {
    let x = x.map(|x| sanitize(b, x));
    let amax = b.tree_max(b.fmax(b.fabs(x[0]), b.fabs(x[1])));
    let (scale, inverse) = q8_scale(b, amax);
    let q = x.map(|x| q8_round(b, x, inverse));
    let sums = q.map(|q| b.tree_add(q));
    let total = b.int_to_float(b.add(sums[0], sums[1]), Elem::F32);
    let span = b.element(row, b.shr(block, b.i64(3)), Q8_SPAN_BYTES as i64);
    let inside = b.and(block, b.i64(Q8_BLOCKS as i64 - 1));
    let bytes = b.element(span, inside, Q8_BLOCK as i64);
    for (half, &q) in q.iter().enumerate() {
        b.store(b.offset(bytes, 16 * half as i64), b.trunc(q, Elem::I8));
    }
    let field = |at: usize| b.element(b.offset(span, at as i64), inside, 4);
    b.store(field(Q8_SCALES), scale);
    b.store(field(Q8_SUMS_F32), b.fmul(scale, total));
    let low = b.and(sums[0], b.i32(0xffff));
    b.store(field(Q8_SUMS_I16), b.or(low, b.shl(sums[1], b.i32(16))));
}

/// Zeroes the blocks of the last span that lie beyond `k`.
pub(super) fn zero_q8_tail<'c>(b: &KernelBuilder<'c>, k: u32, row: Val<'c>) {
    let used = k as usize % SPAN / Q8_BLOCK;
    if used == 0 {
        return;
    }
    let span = b.offset(row, (k as usize / SPAN * Q8_SPAN_BYTES) as i64);
    for block in used..Q8_BLOCKS {
        let bytes = b.zero(Elem::I8.x(Q8_BLOCK as u32));
        b.store(b.offset(span, (block * Q8_BLOCK) as i64), bytes);
        for field in [Q8_SCALES, Q8_SUMS_F32, Q8_SUMS_I16] {
            b.store(b.offset(span, (field + 4 * block) as i64), b.i32(0));
        }
    }
}
