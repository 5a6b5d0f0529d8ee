//! Rows of f32, f16 or bf16 in native order: 16 partials by index mod 16.

use super::Product;
use crate::builder::{Elem, KernelBuilder, Val};
use crate::formats::{GROUP_ROWS, SPAN};
use crate::spec::WeightFormat;

/// Elements of a step: the partials.
const STEP: u32 = 16;
/// Steps of a whole span that are written out.
const UNROLL: u32 = 4;

/// `lanes` consecutive weights as f32.
pub(in crate::ops) fn load<'c>(
    k: &KernelBuilder<'c>,
    format: WeightFormat,
    at: Val<'c>,
    lanes: u32,
) -> Val<'c> {
    match format {
        WeightFormat::F16 => k.fext(k.load(Elem::F16.x(lanes), at), Elem::F32),
        WeightFormat::BF16 => {
            let bits = k.zext(k.load(Elem::I16.x(lanes), at), Elem::I32);
            k.bitcast(k.shl(bits, k.i32(16)), Elem::F32.x(lanes))
        }
        _ => k.load(Elem::F32.x(lanes), at),
    }
}

/// Products of a group's rows, one row after another; rows beyond n repeat the last.
pub(super) fn totals<'c>(
    k: &KernelBuilder<'c>,
    p: Product,
    (weight, group): (Val<'c>, Val<'c>),
    x: &[Val<'c>],
) -> Vec<Val<'c>> {
    let row_bytes = i64::from(p.k / p.format.block().0 * p.format.block().1);
    let results = k.scratch(GROUP_ROWS * 4 * x.len() as u32);
    let place = |t: usize| k.offset(results, 4 * i64::from(GROUP_ROWS) * t as i64);
    let first = k.mul(group, k.i64(GROUP_ROWS.into()));
    k.for_each(k.i64(GROUP_ROWS.into()), |lane| {
        let row = k.imin(k.add(first, lane), k.i64(i64::from(p.n) - 1));
        let dots = row_totals(k, p, k.element(weight, row, row_bytes), x);
        for (t, dot) in dots.into_iter().enumerate() {
            k.store(k.element(place(t), lane, 4), dot);
        }
    });
    (0..x.len()).map(|t| k.load(Elem::F32.x(GROUP_ROWS), place(t))).collect()
}

/// Products of one row, each in one lane.
fn row_totals<'c>(k: &KernelBuilder<'c>, p: Product, w: Val<'c>, x: &[Val<'c>]) -> Vec<Val<'c>> {
    let spans = k.i64((p.k / SPAN).into());
    let zeros = vec![k.f32(0.0); x.len()];
    let whole = k.for_range((k.i64(0), spans), 1, &zeros, |span, totals| {
        let first = k.mul(span, k.i64(SPAN.into()));
        add_span(k, p.format, (w, x), (first, SPAN), totals)
    });
    match p.k % SPAN {
        0 => whole,
        rest => add_span(k, p.format, (w, x), (k.i64((p.k - rest).into()), rest), &whole),
    }
}

/// Adds the sums of a span of `count` elements from `first` on.
fn add_span<'c>(
    k: &KernelBuilder<'c>,
    format: WeightFormat,
    (w, x): (Val<'c>, &[Val<'c>]),
    (first, count): (Val<'c>, u32),
    totals: &[Val<'c>],
) -> Vec<Val<'c>> {
    let unroll = if count.is_multiple_of(STEP * UNROLL) { UNROLL } else { 1 };
    let weight_bytes = i64::from(format.block().1);
    let w = k.element(w, first, weight_bytes);
    let x: Vec<_> = x.iter().map(|&x| k.element(x, first, 4)).collect();
    let zeros = vec![k.zero(Elem::F32.x(STEP)); x.len()];
    let range = (k.i64(0), k.i64(count.into()));
    let partials = k.for_range(range, (STEP * unroll).into(), &zeros, |at, partials| {
        let mut partials = partials.to_vec();
        for step in 0..unroll {
            let at = k.add(at, k.i64((STEP * step).into()));
            let weights = load(k, format, k.element(w, at, weight_bytes), STEP);
            for (partial, &x) in partials.iter_mut().zip(&x) {
                let x = k.load(Elem::F32.x(STEP), k.element(x, at, 4));
                *partial = k.fma(weights, x, *partial);
            }
        }
        partials
    });
    totals.iter().zip(partials).map(|(&total, p)| k.fadd(total, k.tree_sum(p))).collect()
}
