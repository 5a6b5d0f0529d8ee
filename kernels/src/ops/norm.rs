//! RMS norms, with the residual add before or after, and quantisation of the result.

use super::quantize::{q8_row, quantize_row};
use super::require;
use super::rows::{LANES, f32_row, for_my_rows, load_f32, store_f32, sum_by_spans};
use crate::builder::{KernelBuilder, Val};
use crate::error::KernelError;
use crate::spec::{KernelSpec, NormFold, RmsNorm};

pub(super) fn check(spec: &KernelSpec, s: &RmsNorm) -> Result<(), KernelError> {
    require(spec, "keep", s.keep.into(), s.quantize || !s.keep, "quantize with it")?;
    let multiple = if s.quantize { 32 } else { 16 };
    let need = if s.quantize { "a multiple of 32" } else { "a multiple of 16" };
    require(spec, "k", s.k.into(), s.k > 0 && s.k.is_multiple_of(multiple), need)
}

pub(super) fn build<'c>(b: &KernelBuilder<'c>, s: RmsNorm) {
    let before = s.fold == NormFold::AddBefore;
    let after = s.fold == NormFold::AddAfter;
    let x = b.operand(1);
    let second = b.operand(2);
    let gain = if before { b.operand(3) } else { second };
    let extra = if before { b.operand(4) } else { b.operand(3) };
    let last = 3 + u32::from(after) + 2 * u32::from(before);
    let (kept, y) = (b.operand(last), b.operand(last + u32::from(s.keep)));
    for_my_rows(b, |row| {
        let at_row = |base| f32_row(b, base, row, s.k);
        let (x, extra_row) = (at_row(x), at_row(extra));
        let second = at_row(second);
        let (source, squares) = if before {
            let squares = sum_by_spans(b, s.k, |at, partial| {
                let h = b.fadd(load_f32(b, x, at, LANES), load_f32(b, second, at, LANES));
                store_f32(b, extra_row, at, h);
                b.fma(h, h, partial)
            });
            (extra_row, squares)
        } else {
            (x, sum_of_squares(b, x, s.k))
        };
        let r = inverse_rms(b, squares, s.k, s.eps.get());
        let element = |at: Val<'c>| {
            let normed = b.fmul(load_f32(b, source, at, LANES), r);
            let y = b.fmul(normed, load_f32(b, gain, at, LANES));
            if after { b.fadd(y, load_f32(b, extra_row, at, LANES)) } else { y }
        };
        if s.quantize {
            let kept = at_row(kept);
            quantize_row(b, s.k, q8_row(b, y, row, s.k), |at| {
                let value = element(at);
                if s.keep {
                    store_f32(b, kept, at, value);
                }
                value
            });
        } else {
            let y = at_row(y);
            let range = (b.i64(0), b.i64(s.k.into()));
            b.for_range(range, LANES.into(), &[], |at, _| {
                store_f32(b, y, at, element(at));
                Vec::new()
            });
        }
    });
}

/// The contract's sum of squares of `k` f32.
pub(super) fn sum_of_squares<'c>(b: &KernelBuilder<'c>, x: Val<'c>, k: u32) -> Val<'c> {
    sum_by_spans(b, k, |at, partial| {
        let x = load_f32(b, x, at, LANES);
        b.fma(x, x, partial)
    })
}

/// 1 / sqrt(squares / k + eps), IEEE division and root.
pub(super) fn inverse_rms<'c>(
    b: &KernelBuilder<'c>,
    squares: Val<'c>,
    k: u32,
    eps: f32,
) -> Val<'c> {
    let mean = b.fdiv(squares, b.f32(k as f32));
    b.fdiv(b.f32(1.0), b.sqrt(b.fadd(mean, b.f32(eps))))
}
