//! Router softmax and top-k, and the weighted sum of a token's experts.

use super::dispatch::{DispatchLayout, sort_pairs};
use super::require;
use super::rows::{LANES, f32_row, for_chunks, for_my_rows, load_f32, store_f32, sum_by_spans};
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::math;
use crate::spec::{ExpertCombine, KernelSpec, Route};

/// Below every probability, and below the mark of one that is already chosen.
const BELOW_ALL: f32 = -2.0;
const CHOSEN: f32 = -1.0;

pub(super) fn check(spec: &KernelSpec, s: &Route) -> Result<(), KernelError> {
    let fits = (1..=4096).contains(&s.experts);
    require(spec, "experts", s.experts.into(), fits, "1 to 4096")?;
    let fits = (1..=s.experts).contains(&s.top_k);
    require(spec, "top_k", s.top_k.into(), fits, "1 to the number of experts")
}

pub(super) fn build<'c>(b: &KernelBuilder<'c>, s: Route) {
    let (logits, ids, weights) = (b.operand(1), b.operand(2), b.operand(3));
    let padded = s.experts.next_multiple_of(LANES);
    let p = b.scratch(padded * 4);
    let route_row = |row: Val<'c>| {
        softmax(b, f32_row(b, logits, row, s.experts), p, s.experts);
        let out = b.mul(row, b.i64(s.top_k.into()));
        let (ids, weights) = (b.element(ids, out, 4), b.element(weights, out, 4));
        let total = b.for_range((b.i64(0), b.i64(s.top_k.into())), 1, &[b.f32(0.0)], |i, total| {
            let (id, best) = best_of(b, p, padded);
            b.store(b.element(ids, i, 4), id);
            store_f32(b, weights, i, best);
            store_f32(b, p, b.zext(id, Elem::I64), b.f32(CHOSEN));
            vec![b.fadd(total[0], best)]
        });
        if s.renormalize {
            for_chunks(b, s.top_k, |at, lanes| {
                store_f32(b, weights, at, b.fdiv(load_f32(b, weights, at, lanes), total[0]));
            });
        }
    };
    if !s.dispatch {
        return for_my_rows(b, route_row);
    }
    let layout = DispatchLayout { experts: s.experts, top_k: s.top_k };
    b.when(b.icmp(Compare::Eq, b.part(), b.i64(0)), || {
        b.for_each(b.step_word(StepWord::Rows), route_row);
        sort_pairs(b, layout, ids, b.operand(4));
    });
}

/// Probabilities of `n` logits into `p`, padded to 16 with values that are never chosen.
fn softmax<'c>(b: &KernelBuilder<'c>, logits: Val<'c>, p: Val<'c>, n: u32) {
    let padded = n.next_multiple_of(LANES);
    for_chunks(b, n, |at, lanes| store_f32(b, p, at, load_f32(b, logits, at, lanes)));
    for at in n..padded {
        store_f32(b, p, b.i64(at.into()), b.f32(f32::NEG_INFINITY));
    }
    let all = (b.i64(0), b.i64(padded.into()));
    let lowest = b.splat(b.f32(f32::NEG_INFINITY), LANES);
    let max = b.for_range(all, LANES.into(), &[lowest], |at, max| {
        vec![b.fmax(load_f32(b, p, at, LANES), max[0])]
    });
    let max = b.tree_max(max[0]);
    // Padding is -infinity, so that it adds exactly nothing.
    let total = sum_by_spans(b, padded, |at, partial| {
        let e = math::exp(b, b.fsub(load_f32(b, p, at, LANES), max));
        let e = beyond(b, (at, n), b.f32(0.0), e);
        store_f32(b, p, at, e);
        b.fadd(partial, e)
    });
    b.for_range(all, LANES.into(), &[], |at, _| {
        let q = b.fdiv(load_f32(b, p, at, LANES), total);
        let q = b.select(b.fcmp(Compare::Ne, q, q), b.f32(0.0), q);
        store_f32(b, p, at, beyond(b, (at, n), b.f32(BELOW_ALL), q));
        Vec::new()
    });
}

/// `other` in the lanes whose element lies beyond `n`.
fn beyond<'c>(
    b: &KernelBuilder<'c>,
    (at, n): (Val<'c>, u32),
    other: Val<'c>,
    value: Val<'c>,
) -> Val<'c> {
    if n.is_multiple_of(LANES) {
        return value;
    }
    let element = b.add(b.lane_numbers(LANES), b.trunc(at, Elem::I32));
    b.select(b.icmp(Compare::Lt, element, b.i32(n as i32)), value, other)
}

/// Index (i32) and value of the largest of `n` values (`n % 16 == 0`), the first among equals.
fn best_of<'c>(b: &KernelBuilder<'c>, p: Val<'c>, n: u32) -> (Val<'c>, Val<'c>) {
    let lanes = b.lane_numbers(LANES);
    let init = [b.splat(b.f32(BELOW_ALL), LANES), lanes];
    let range = (b.i64(0), b.i64(n.into()));
    let best = b.for_range(range, LANES.into(), &init, |at, best| {
        let value = load_f32(b, p, at, LANES);
        let better = b.fcmp(Compare::Gt, value, best[0]);
        let index = b.add(lanes, b.trunc(at, Elem::I32));
        vec![b.select(better, value, best[0]), b.select(better, index, best[1])]
    });
    let value = b.tree_max(best[0]);
    let ties = b.fcmp(Compare::Eq, best[0], value);
    let mut index = b.select(ties, best[1], b.i32(i32::MAX));
    while index.lanes() > 1 {
        let half = index.lanes() / 2;
        index = b.imin(b.slice(index, 0, half), b.slice(index, half, half));
    }
    (index, value)
}

pub(super) fn check_combine(spec: &KernelSpec, s: &ExpertCombine) -> Result<(), KernelError> {
    require(spec, "top_k", s.top_k.into(), (1..=64).contains(&s.top_k), "1 to 64")
}

pub(super) fn combine(b: &KernelBuilder<'_>, s: ExpertCombine) {
    let (weights, down) = (b.operand(1), b.operand(2));
    let (residual, y) = (b.operand(3), b.operand(3 + u32::from(s.residual)));
    for_my_rows(b, |row| {
        let pair = b.mul(row, b.i64(s.top_k.into()));
        let weights = b.element(weights, pair, 4);
        let down = f32_row(b, down, pair, s.k);
        let (residual, y) = (f32_row(b, residual, row, s.k), f32_row(b, y, row, s.k));
        for_chunks(b, s.k, |at, lanes| {
            let mut total = b.zero(Elem::F32.x(lanes));
            for slot in 0..i64::from(s.top_k) {
                let weight = b.load(Elem::F32.scalar(), b.offset(weights, 4 * slot));
                let down = b.offset(down, slot * i64::from(s.k) * 4);
                total = b.fma(load_f32(b, down, at, lanes), weight, total);
            }
            if s.residual {
                total = b.fadd(total, load_f32(b, residual, at, lanes));
            }
            store_f32(b, y, at, total);
        });
    });
}
