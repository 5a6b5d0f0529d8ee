//! RMS norms of slices of a row: groups with their own gains, heads with a shared one and a gate.

use super::elementwise::act;
use super::norm::{inverse_rms, sum_of_squares};
use super::require;
use super::results::{self, Results};
use super::rows::{LANES, f32_row, for_my_slices, load_f32};
use crate::builder::KernelBuilder;
use crate::error::KernelError;
use crate::spec::{GatedHeadNorm, GroupRmsNorm, KernelSpec};

pub(super) fn check(spec: &KernelSpec, s: &GroupRmsNorm) -> Result<(), KernelError> {
    require(spec, "groups", s.groups.into(), s.groups > 0, "at least 1")?;
    require(spec, "keep", s.keep.into(), s.quantize || !s.keep, "quantize with it")?;
    results::check(spec, "k", s.k, s.quantize)
}

pub(super) fn check_gated(spec: &KernelSpec, s: &GatedHeadNorm) -> Result<(), KernelError> {
    require(spec, "heads", s.heads.into(), s.heads > 0, "at least 1")?;
    results::check(spec, "head_dim", s.head_dim, s.quantize)
}

pub(super) fn build(b: &KernelBuilder<'_>, s: GroupRmsNorm) {
    let width = s.groups * s.k;
    let (x, gain) = (b.operand(1), b.operand(2));
    let results = Results::new(b, width, 3, (s.quantize, s.keep));
    for_my_slices(b, s.groups, s.k, |row, (begin, end)| {
        let x = f32_row(b, x, row, width);
        let r = inverse_rms(b, sum_of_squares(b, b.element(x, begin, 4), s.k), s.k, s.eps.get());
        results.store(b, row, (begin, end), |at| {
            let normed = b.fmul(load_f32(b, x, at, LANES), r);
            b.fmul(normed, load_f32(b, gain, at, LANES))
        });
    });
}

pub(super) fn build_gated(b: &KernelBuilder<'_>, s: GatedHeadNorm) {
    let width = s.heads * s.head_dim;
    let (x, gain, gate) = (b.operand(1), b.operand(2), b.operand(3));
    let results = Results::new(b, width, 4, (s.quantize, false));
    for_my_slices(b, s.heads, s.head_dim, |row, (begin, end)| {
        let [x, gate] = [x, gate].map(|base| f32_row(b, base, row, width));
        let squares = sum_of_squares(b, b.element(x, begin, 4), s.head_dim);
        let r = inverse_rms(b, squares, s.head_dim, s.eps.get());
        results.store(b, row, (begin, end), |at| {
            let normed = b.fmul(load_f32(b, x, at, LANES), r);
            let normed = b.fmul(normed, load_f32(b, gain, b.sub(at, begin), LANES));
            b.fmul(normed, act(b, s.act, load_f32(b, gate, at, LANES)))
        });
    });
}
