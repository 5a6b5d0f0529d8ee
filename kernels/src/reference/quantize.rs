//! The one activation format of quantised matrix products: 8-bit, blocks of 32, in spans of 256.
//!
//! A row of k elements (k a multiple of 32) is ceil(k / 256) spans of [`Q8_SPAN_BYTES`] bytes:
//!
//! | bytes | field |
//! |---|---|
//! | 0..256 | `i8 q[256]` |
//! | 256..288 | `f32 d[8]`: scale of each block |
//! | 288..320 | `f32 xs[8]`: d * (sum of the block's q), for formats with a minimum |
//! | 320..352 | `[i16; 2] s[8]`: sums of the first and the second 16 q of each block |
//!
//! Blocks of a short last span that lie beyond k are zero.

use super::SPAN;

pub const Q8_BLOCK: usize = 32;
pub const Q8_BLOCKS: usize = SPAN / Q8_BLOCK;
pub const Q8_SCALES: usize = SPAN;
pub const Q8_SUMS_F32: usize = Q8_SCALES + 4 * Q8_BLOCKS;
pub const Q8_SUMS_I16: usize = Q8_SUMS_F32 + 4 * Q8_BLOCKS;
pub const Q8_SPAN_BYTES: usize = Q8_SUMS_I16 + 4 * Q8_BLOCKS;

/// Magnitudes are clamped here first, so that infinities quantise to a finite scale.
pub const Q8_CLAMP: f32 = 3.0e38;
/// A block whose largest magnitude is below this is all zero.
pub const Q8_TINY: f32 = 1.0e-30;
pub const Q8_INV_MAX: f32 = 1.0 / 127.0;

/// Bytes of one quantised row of `k` elements.
pub const fn q8_row_bytes(k: usize) -> usize {
    k.div_ceil(SPAN) * Q8_SPAN_BYTES
}

/// One block as matrix products read it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Q8Block {
    pub q: [i8; Q8_BLOCK],
    pub scale: f32,
    /// `scale * (sums[0] + sums[1])`, rounded once.
    pub scaled_sum: f32,
    pub sums: [i16; 2],
}

/// NaN to 0, magnitudes to at most [`Q8_CLAMP`].
pub fn sanitize(x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-Q8_CLAMP, Q8_CLAMP) }
}

/// Scale and its inverse for a largest magnitude; both 0 below [`Q8_TINY`].
pub fn q8_scale(amax: f32) -> (f32, f32) {
    if amax < Q8_TINY { (0.0, 0.0) } else { (amax * Q8_INV_MAX, 127.0 / amax) }
}

/// Rounds half to even and saturates to -127..=127.
pub fn q8_round(x: f32, inverse: f32) -> i8 {
    (sanitize(x) * inverse).round_ties_even().clamp(-127.0, 127.0) as i8
}

/// Quantises 32 elements.
pub fn quantize_block(x: &[f32]) -> Q8Block {
    let amax = x.iter().fold(0.0f32, |m, &v| m.max(sanitize(v).abs()));
    let (scale, inverse) = q8_scale(amax);
    let mut q = [0i8; Q8_BLOCK];
    for (q, &x) in q.iter_mut().zip(x) {
        *q = q8_round(x, inverse);
    }
    let half = |i: usize| q[16 * i..16 * i + 16].iter().map(|&q| i16::from(q)).sum::<i16>();
    let sums = [half(0), half(1)];
    let scaled_sum = scale * f32::from(sums[0] + sums[1]);
    Q8Block { q, scale, scaled_sum, sums }
}

/// Quantises `x` (a multiple of 32 elements) into `row` ([`q8_row_bytes`] bytes).
pub fn quantize_row(x: &[f32], row: &mut [u8]) {
    row.fill(0);
    for (b, block) in x.chunks(Q8_BLOCK).enumerate() {
        let span = &mut row[b / Q8_BLOCKS * Q8_SPAN_BYTES..][..Q8_SPAN_BYTES];
        write_block(span, b % Q8_BLOCKS, &quantize_block(block));
    }
}

/// Stores block `b` (0..8) of a span.
pub fn write_block(span: &mut [u8], b: usize, block: &Q8Block) {
    let q = block.q.map(|q| q.cast_unsigned());
    span[Q8_BLOCK * b..][..Q8_BLOCK].copy_from_slice(&q);
    span[Q8_SCALES + 4 * b..][..4].copy_from_slice(&block.scale.to_le_bytes());
    span[Q8_SUMS_F32 + 4 * b..][..4].copy_from_slice(&block.scaled_sum.to_le_bytes());
    for (i, sum) in block.sums.iter().enumerate() {
        span[Q8_SUMS_I16 + 4 * b + 2 * i..][..2].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Reads block `b` of a quantised row, counted over all spans.
pub fn read_block(row: &[u8], b: usize) -> Q8Block {
    let span = &row[b / Q8_BLOCKS * Q8_SPAN_BYTES..][..Q8_SPAN_BYTES];
    let b = b % Q8_BLOCKS;
    let word = |at: usize| [span[at], span[at + 1], span[at + 2], span[at + 3]];
    let [l0, l1, h0, h1] = word(Q8_SUMS_I16 + 4 * b);
    Q8Block {
        q: std::array::from_fn(|i| span[Q8_BLOCK * b + i].cast_signed()),
        scale: f32::from_le_bytes(word(Q8_SCALES + 4 * b)),
        scaled_sum: f32::from_le_bytes(word(Q8_SUMS_F32 + 4 * b)),
        sums: [i16::from_le_bytes([l0, l1]), i16::from_le_bytes([h0, h1])],
    }
}
