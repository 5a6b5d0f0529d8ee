//! How ops walk a row: chunks of any width where order is free, spans where it is not.

use crate::builder::{Elem, KernelBuilder, StepWord, Val};

/// The contract's partial sums are the lanes of one vector.
pub(super) const LANES: u32 = 16;
/// Elements of a span.
const SPAN: u32 = 256;
/// Spans that are summed side by side, so that additions need not wait for each other.
const SPANS_AT_ONCE: u32 = 4;

/// Runs `body` for this part's share of the live rows.
pub(super) fn for_my_rows<'c>(b: &KernelBuilder<'c>, body: impl FnOnce(Val<'c>)) {
    let (begin, end) = b.share(b.step_word(StepWord::Rows));
    b.for_between(begin, end, body);
}

/// Runs `body(row, elements begin .. end)` for this part's share of the pieces of 256 elements
/// (the last may be shorter) of the live rows of `k`.
pub(super) fn for_my_pieces<'c>(
    b: &KernelBuilder<'c>,
    k: u32,
    body: impl FnOnce(Val<'c>, (Val<'c>, Val<'c>)),
) {
    for_my_parts_of_rows(b, k.div_ceil(SPAN), |row, piece| {
        let begin = b.mul(piece, b.i64(SPAN.into()));
        let end = b.add(begin, b.i64(SPAN.into()));
        body(row, (begin, b.imin(end, b.i64(k.into()))));
    });
}

/// Runs `body(row, elements begin .. end)` for this part's share of the `count` slices of `k`
/// elements of the live rows.
pub(super) fn for_my_slices<'c>(
    b: &KernelBuilder<'c>,
    count: u32,
    k: u32,
    body: impl FnOnce(Val<'c>, (Val<'c>, Val<'c>)),
) {
    for_my_parts_of_rows(b, count, |row, slice| {
        let begin = b.mul(slice, b.i64(k.into()));
        body(row, (begin, b.add(begin, b.i64(k.into()))));
    });
}

fn for_my_parts_of_rows<'c>(
    b: &KernelBuilder<'c>,
    count: u32,
    body: impl FnOnce(Val<'c>, Val<'c>),
) {
    let count = b.i64(count.into());
    let (begin, end) = b.share(b.mul(b.step_word(StepWord::Rows), count));
    b.for_between(begin, end, |unit| body(b.udiv(unit, count), b.urem(unit, count)));
}

/// Address of row `row` of `f32[rows, k]`.
pub(super) fn f32_row<'c>(b: &KernelBuilder<'c>, base: Val<'c>, row: Val<'c>, k: u32) -> Val<'c> {
    b.element(base, row, i64::from(k) * 4)
}

/// `lanes` f32 from element `at` on.
pub(super) fn load_f32<'c>(
    b: &KernelBuilder<'c>,
    row: Val<'c>,
    at: Val<'c>,
    lanes: u32,
) -> Val<'c> {
    b.load(Elem::F32.x(lanes), b.element(row, at, 4))
}

pub(super) fn store_f32<'c>(b: &KernelBuilder<'c>, row: Val<'c>, at: Val<'c>, value: Val<'c>) {
    b.store(b.element(row, at, 4), value);
}

/// A `u32` of a list, as i64.
pub(super) fn load_index<'c>(b: &KernelBuilder<'c>, list: Val<'c>, at: Val<'c>) -> Val<'c> {
    b.zext(b.load(Elem::I32.scalar(), b.element(list, at, 4)), Elem::I64)
}

/// Covers elements `0..n` with chunks: `body` gets the first element and the lanes, 16 as long as
/// they fit, then 8, 4, 2, 1.
pub(super) fn for_chunks<'c>(b: &KernelBuilder<'c>, n: u32, body: impl Fn(Val<'c>, u32)) {
    let whole = n / LANES * LANES;
    if whole > 0 {
        let range = (b.i64(0), b.i64(whole.into()));
        b.for_range(range, LANES.into(), &[], |at, _| {
            body(at, LANES);
            Vec::new()
        });
    }
    let mut at = whole;
    for lanes in [8, 4, 2, 1] {
        if n - at >= lanes {
            body(b.i64(at.into()), lanes);
            at += lanes;
        }
    }
}

/// The contract's sum over `0..k` (`k % 16 == 0`): `join` adds 16 terms, from an element on, to 16
/// partials. It is called once for each element, so it may also store what it computes.
pub(super) fn sum_by_spans<'c>(
    b: &KernelBuilder<'c>,
    k: u32,
    join: impl Fn(Val<'c>, Val<'c>) -> Val<'c>,
) -> Val<'c> {
    let spans = k / SPAN;
    let grouped = spans / SPANS_AT_ONCE * SPANS_AT_ONCE;
    let step = SPAN * SPANS_AT_ONCE;
    let mut total = b.f32(0.0);
    if grouped > 0 {
        let range = (b.i64(0), b.i64((grouped * SPAN).into()));
        total = b.for_range(range, step.into(), &[total], |at, carried| {
            vec![add_spans(b, (at, SPANS_AT_ONCE, SPAN), carried[0], &join)]
        })[0];
    }
    let rest = (b.i64((grouped * SPAN).into()), spans - grouped, SPAN);
    if rest.1 > 0 {
        total = add_spans(b, rest, total, &join);
    }
    if !k.is_multiple_of(SPAN) {
        let tail = (b.i64((spans * SPAN).into()), 1, k % SPAN);
        total = add_spans(b, tail, total, &join);
    }
    total
}

/// Adds `count` neighbouring spans of `len` elements to `total`, in order.
fn add_spans<'c>(
    b: &KernelBuilder<'c>,
    (first, count, len): (Val<'c>, u32, u32),
    total: Val<'c>,
    join: &impl Fn(Val<'c>, Val<'c>) -> Val<'c>,
) -> Val<'c> {
    let zeros = vec![b.zero(Elem::F32.x(LANES)); count as usize];
    let range = (b.i64(0), b.i64(len.into()));
    let partials = b.for_range(range, LANES.into(), &zeros, |at, partials| {
        let at = b.add(first, at);
        let one = |(span, &partial): (i64, &Val<'c>)| {
            join(b.add(at, b.i64(span * i64::from(SPAN))), partial)
        };
        (0..).zip(partials).map(one).collect()
    });
    partials.iter().fold(total, |total, &partial| b.fadd(total, b.tree_sum(partial)))
}
