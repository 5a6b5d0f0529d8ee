//! Rows of several streams: copies into them, gated reads and writes.

use super::quantize::{q8_row, quantize_row};
use super::require;
use super::results::{self, Results};
use super::rows::{LANES, f32_row, for_my_pieces, for_my_slices, load_f32, store_f32};
use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::math::sigmoid;
use crate::spec::{HcRead, HcWrite, KernelSpec, StreamConcat, StreamRepeat};

/// Streams are written out in a kernel.
const MOST_STREAMS: u32 = 16;

pub(super) fn check_streams(spec: &KernelSpec, streams: u32) -> Result<(), KernelError> {
    let fits = (1..=MOST_STREAMS).contains(&streams);
    require(spec, "streams", streams.into(), fits, "1 to 16")
}

pub(super) fn check_repeat(spec: &KernelSpec, s: &StreamRepeat) -> Result<(), KernelError> {
    check_streams(spec, s.streams)?;
    results::check(spec, "k", s.k, false)
}

pub(super) fn check_read(spec: &KernelSpec, s: &HcRead) -> Result<(), KernelError> {
    check_streams(spec, s.streams)?;
    require(spec, "keep", s.keep.into(), s.quantize || !s.keep, "quantize with it")?;
    results::check(spec, "k", s.k, s.quantize)
}

pub(super) fn check_write(spec: &KernelSpec, s: &HcWrite) -> Result<(), KernelError> {
    check_streams(spec, s.streams)?;
    results::check(spec, "k", s.k, false)
}

pub(super) fn check_concat(spec: &KernelSpec, s: &StreamConcat) -> Result<(), KernelError> {
    check_streams(spec, s.streams)?;
    results::check(spec, "k", s.k, false)
}

/// Runs `body` with the index in a row of each stream's 16 elements from `at` on.
fn for_streams<'c>(
    b: &KernelBuilder<'c>,
    (streams, k): (u32, u32),
    at: Val<'c>,
    body: impl Fn(u32, Val<'c>),
) {
    (0..streams).for_each(|c| body(c, b.add(at, b.i64((c * k).into()))));
}

/// Runs `body` for each 16 elements of `begin .. end`.
fn for_lanes<'c>(b: &KernelBuilder<'c>, range: (Val<'c>, Val<'c>), body: impl FnOnce(Val<'c>)) {
    b.for_range(range, LANES.into(), &[], |at, _| {
        body(at);
        Vec::new()
    });
}

pub(super) fn repeat(b: &KernelBuilder<'_>, s: StreamRepeat) {
    let (x, y) = (b.operand(1), b.operand(2));
    for_my_pieces(b, s.k, |row, range| {
        let (x, y) = (f32_row(b, x, row, s.k), f32_row(b, y, row, s.streams * s.k));
        for_lanes(b, range, |at| {
            let value = load_f32(b, x, at, LANES);
            for_streams(b, (s.streams, s.k), at, |_, at| store_f32(b, y, at, value));
        });
    });
}

pub(super) fn read(b: &KernelBuilder<'_>, s: HcRead) {
    let (normed, gate) = (b.operand(1), b.operand(2));
    let results = Results::new(b, s.k, 3, (s.quantize, s.keep));
    for_my_pieces(b, s.k, |row, range| {
        let [normed, gate] = [normed, gate].map(|base| f32_row(b, base, row, s.streams * s.k));
        results.store(b, row, range, |at| {
            let zero = b.zero(Elem::F32.x(LANES));
            let sum = (0..s.streams).fold(zero, |sum, c| {
                let at = b.add(at, b.i64((c * s.k).into()));
                let open = sigmoid(b, load_f32(b, gate, at, LANES));
                b.fma(open, load_f32(b, normed, at, LANES), sum)
            });
            b.fdiv(sum, b.f32(s.streams as f32))
        });
    });
}

pub(super) fn write(b: &KernelBuilder<'_>, s: HcWrite) {
    let (residual, y, inject, out) = (b.operand(1), b.operand(2), b.operand(3), b.operand(4));
    for_my_pieces(b, s.k, |row, range| {
        let y = f32_row(b, y, row, s.k);
        let [residual, out] = [residual, out].map(|base| f32_row(b, base, row, s.streams * s.k));
        let inject = f32_row(b, inject, row, s.streams);
        let weight = |c: u32| stream_weight(b, s.streams, b.offset(inject, i64::from(c) * 4));
        let weights: Vec<Val<'_>> = (0..s.streams).map(weight).collect();
        for_lanes(b, range, |at| {
            let y = load_f32(b, y, at, LANES);
            for_streams(b, (s.streams, s.k), at, |c, at| {
                let old = load_f32(b, residual, at, LANES);
                store_f32(b, out, at, b.fma(weights[c as usize], y, old));
            });
        });
    });
}

/// What is written to a stream is multiplied by this, from the logit at `logit`.
pub(super) fn stream_weight<'c>(b: &KernelBuilder<'c>, streams: u32, logit: Val<'c>) -> Val<'c> {
    let logit = b.load(Elem::F32.scalar(), logit);
    let open = sigmoid(b, b.fdiv(logit, b.f32(streams as f32)));
    b.splat(b.fmul(open, b.f32(2.0)), LANES)
}

pub(super) fn concat<'c>(b: &KernelBuilder<'c>, s: StreamConcat) {
    let (e, h, y) = (b.operand(1), b.operand(2), b.operand(3));
    let (k, width) = (b.i64(s.k.into()), 2 * s.k);
    let streams = b.i64(s.streams.into());
    for_my_slices(b, s.streams, s.k, |row, (begin, _)| {
        let e = f32_row(b, e, row, s.k);
        let h = b.element(f32_row(b, h, row, s.streams * s.k), begin, 4);
        let element = |at: Val<'c>| {
            let is_first = b.icmp(Compare::Lt, at, k);
            let first = b.element(e, at, 4);
            let second = b.element(h, b.sub(at, k), 4);
            b.load(Elem::F32.x(LANES), b.select(is_first, first, second))
        };
        let stream_row = b.add(b.mul(row, streams), b.udiv(begin, k));
        if s.quantize {
            quantize_row(b, width, q8_row(b, y, stream_row, width), element);
        } else {
            let y = f32_row(b, y, stream_row, width);
            for_lanes(b, (b.i64(0), b.i64(width.into())), |at| store_f32(b, y, at, element(at)));
        }
    });
}
