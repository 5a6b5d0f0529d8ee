//! What a block writes to a residual of several streams, and the norm of what comes out.

use super::norm::inverse_rms;
use super::results::{self, Results};
use super::rows::{LANES, f32_row, for_my_slices, load_f32, store_f32, sum_by_spans};
use super::streams::{check_streams, stream_weight};
use crate::builder::{Elem, KernelBuilder};
use crate::error::KernelError;
use crate::math::sigmoid;
use crate::spec::{HcWriteNorm, KernelSpec};

pub(super) fn check(spec: &KernelSpec, s: &HcWriteNorm) -> Result<(), KernelError> {
    check_streams(spec, s.streams)?;
    results::check(spec, "k", s.k, s.quantize)
}

/// See [`HcWriteNorm`].
pub(super) fn build(b: &KernelBuilder<'_>, s: HcWriteNorm) {
    let width = s.streams * s.k;
    let [residual, y, inject, gain] = [1, 2, 3, 4].map(|i| b.operand(i));
    let shared = s.shared.then(|| (b.operand(5), b.operand(6)));
    let first = if s.shared { 7 } else { 5 };
    let out = b.operand(first);
    // The f32 rows are always there.
    let normed = Results::new(b, width, first + 1, (s.quantize, s.quantize));
    for_my_slices(b, s.streams, s.k, |row, (begin, end)| {
        let [residual, out] = [residual, out].map(|base| f32_row(b, base, row, width));
        let y = f32_row(b, y, row, s.k);
        let stream = b.udiv(begin, b.i64(s.k.into()));
        let logit = b.element(f32_row(b, inject, row, s.streams), stream, 4);
        let weight = stream_weight(b, s.streams, logit);
        let shared = shared.map(|(shared, logits)| {
            let logit = b.load(Elem::F32.scalar(), b.element(logits, row, 4));
            (f32_row(b, shared, row, s.k), b.splat(sigmoid(b, logit), LANES))
        });
        let squares = sum_by_spans(b, s.k, |at, partial| {
            let y = load_f32(b, y, at, LANES);
            let y =
                shared.map_or(y, |(shared, open)| b.fma(open, load_f32(b, shared, at, LANES), y));
            let at = b.add(begin, at);
            let written = b.fma(weight, y, load_f32(b, residual, at, LANES));
            store_f32(b, out, at, written);
            b.fma(written, written, partial)
        });
        let r = inverse_rms(b, squares, s.k, s.eps.get());
        normed.store(b, row, (begin, end), |at| {
            let value = b.fmul(load_f32(b, out, at, LANES), r);
            b.fmul(value, load_f32(b, gain, at, LANES))
        });
    });
}
