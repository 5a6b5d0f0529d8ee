//! Ops that need no sum over a row: products, scales, gates, row copies, rope angles.

use super::quantize::{q8_row, quantize_row};
use super::require;
use super::results::{self, Results};
use super::rows::{
    LANES, f32_row, for_chunks, for_my_pieces, for_my_rows, load_f32, load_index, store_f32,
};
use crate::builder::{Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::math;
use crate::spec::{
    Act, ActMul, GatedAdd, GatherRows, KernelSpec, Mul, RopeAngles, Scale, ScaledSilu,
};

pub(super) fn check_act_mul(spec: &KernelSpec, s: &ActMul) -> Result<(), KernelError> {
    let fits = s.k > 0 && (!s.quantize || s.k.is_multiple_of(32));
    require(spec, "k", s.k.into(), fits, "a multiple of 32 to quantise")
}

pub(super) fn check_rope_angles(spec: &KernelSpec, s: &RopeAngles) -> Result<(), KernelError> {
    let even = s.dims > 0 && s.dims.is_multiple_of(2);
    require(spec, "dims", s.dims.into(), even, "a positive even number")
}

pub(super) fn check_scaled_silu(spec: &KernelSpec, s: &ScaledSilu) -> Result<(), KernelError> {
    results::check(spec, "k", s.k, s.quantize)
}

pub(super) fn check_gated_add(spec: &KernelSpec, s: &GatedAdd) -> Result<(), KernelError> {
    results::check(spec, "k", s.k, false)
}

/// `act(x)` for any number of lanes.
pub(super) fn act<'c>(b: &KernelBuilder<'c>, kind: Act, x: Val<'c>) -> Val<'c> {
    match kind {
        Act::Silu => math::silu(b, x),
        Act::GeluTanh => math::gelu_tanh(b, x),
        Act::Sigmoid => math::sigmoid(b, x),
    }
}

pub(super) fn mul(b: &KernelBuilder<'_>, s: Mul) {
    let (x, z, y) = (b.operand(1), b.operand(2), b.operand(3));
    for_my_rows(b, |row| {
        let [x, z, y] = [x, z, y].map(|base| f32_row(b, base, row, s.k));
        for_chunks(b, s.k, |at, lanes| {
            let product = b.fmul(load_f32(b, x, at, lanes), load_f32(b, z, at, lanes));
            store_f32(b, y, at, product);
        });
    });
}

pub(super) fn scale(b: &KernelBuilder<'_>, s: Scale) {
    let (x, y) = (b.operand(1), b.operand(2));
    for_my_rows(b, |row| {
        let [x, y] = [x, y].map(|base| f32_row(b, base, row, s.k));
        for_chunks(b, s.k, |at, lanes| {
            store_f32(b, y, at, b.fmul(load_f32(b, x, at, lanes), b.f32(s.factor.get())));
        });
    });
}

pub(super) fn act_mul(b: &KernelBuilder<'_>, s: ActMul) {
    let (x, z, y) = (b.operand(1), b.operand(2), b.operand(3));
    for_my_rows(b, |row| {
        let [x, z] = [x, z].map(|base| f32_row(b, base, row, s.k));
        let gated =
            |at, lanes| b.fmul(act(b, s.act, load_f32(b, x, at, lanes)), load_f32(b, z, at, lanes));
        if s.quantize {
            quantize_row(b, s.k, q8_row(b, y, row, s.k), |at| gated(at, LANES));
        } else {
            let y = f32_row(b, y, row, s.k);
            for_chunks(b, s.k, |at, lanes| store_f32(b, y, at, gated(at, lanes)));
        }
    });
}

pub(super) fn scaled_silu(b: &KernelBuilder<'_>, s: ScaledSilu) {
    let x = b.operand(1);
    let results = Results::new(b, s.k, 2, (s.quantize, false));
    for_my_pieces(b, s.k, |row, range| {
        let x = f32_row(b, x, row, s.k);
        results.store(b, row, range, |at| {
            math::silu(b, b.fmul(load_f32(b, x, at, LANES), b.f32(s.scale.get())))
        });
    });
}

pub(super) fn gated_add(b: &KernelBuilder<'_>, s: GatedAdd) {
    let (x, z, gate) = (b.operand(1), b.operand(2), b.operand(3));
    let results = Results::new(b, s.k, 4, (false, false));
    for_my_pieces(b, s.k, |row, range| {
        let [x, z] = [x, z].map(|base| f32_row(b, base, row, s.k));
        let open = math::sigmoid(b, b.load(Elem::F32.scalar(), b.element(gate, row, 4)));
        let open = b.splat(open, LANES);
        results.store(b, row, range, |at| {
            b.fma(open, load_f32(b, z, at, LANES), load_f32(b, x, at, LANES))
        });
    });
}

pub(super) fn gather_rows(b: &KernelBuilder<'_>, s: GatherRows) {
    let (x, indices, y) = (b.operand(1), b.operand(2), b.operand(3));
    let (begin, end) = b.share(b.step_word(StepWord::LogitRows));
    b.for_between(begin, end, |row| {
        let x = f32_row(b, x, load_index(b, indices, row), s.k);
        let y = f32_row(b, y, row, s.k);
        for_chunks(b, s.k, |at, lanes| store_f32(b, y, at, load_f32(b, x, at, lanes)));
    });
}

pub(super) fn rope_angles(b: &KernelBuilder<'_>, s: RopeAngles) {
    let (positions, inv_freq, y) = (b.operand(1), b.operand(2), b.operand(3));
    let half = s.dims / 2;
    for_my_rows(b, |row| {
        // Positions are below 2^31, so the signed conversion is exact in meaning.
        let position = b.load(Elem::I32.scalar(), b.element(positions, row, 4));
        let position = b.int_to_float(position, Elem::F32);
        let y = f32_row(b, y, row, s.dims);
        for_chunks(b, half, |at, lanes| {
            let angle = b.fmul(load_f32(b, inv_freq, at, lanes), position);
            let (sin, cos) = math::sin_cos(b, angle);
            store_f32(b, y, at, cos);
            store_f32(b, y, b.add(at, b.i64(half.into())), sin);
        });
    });
}
