//! The dispatch list: which rows each expert of a window has.

use super::require;
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::spec::{Dispatch, KernelSpec};

/// Byte offsets of the list. All elements are u32:
///
/// | field | meaning |
/// |---|---|
/// | `active` | how many experts have a row |
/// | `offsets[experts + 1]` | where each expert's pairs begin; the last is their count |
/// | `active_ids[experts]` | the active experts, ascending; the rest is undefined |
/// | `pairs[rows * top_k]` | `row * top_k + slot`, by expert, then by row |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchLayout {
    pub experts: u32,
    pub top_k: u32,
}

impl DispatchLayout {
    pub const fn active(&self) -> u64 {
        0
    }

    pub const fn offsets(&self) -> u64 {
        4
    }

    pub const fn active_ids(&self) -> u64 {
        self.offsets() + 4 * (self.experts as u64 + 1)
    }

    pub const fn pairs(&self) -> u64 {
        self.active_ids() + 4 * self.experts as u64
    }

    /// Bytes of the list of a window of `rows` rows.
    pub const fn bytes(&self, rows: u32) -> u64 {
        self.pairs() + 4 * rows as u64 * self.top_k as u64
    }
}

pub(super) fn check(spec: &KernelSpec, s: &Dispatch) -> Result<(), KernelError> {
    let fits = (1..=4096).contains(&s.experts);
    require(spec, "experts", s.experts.into(), fits, "1 to 4096")
}

/// See [`Dispatch`].
pub(super) fn build(b: &KernelBuilder<'_>, s: Dispatch) {
    let layout = DispatchLayout { experts: s.experts, top_k: s.top_k };
    b.when(b.icmp(Compare::Eq, b.part(), b.i64(0)), || {
        sort_pairs(b, layout, b.operand(1), b.operand(2));
    });
}

/// A counting sort: counts, then offsets and the active list, then pairs in row order.
pub(super) fn sort_pairs<'c>(
    b: &KernelBuilder<'c>,
    layout: DispatchLayout,
    ids: Val<'c>,
    list: Val<'c>,
) {
    let word = Elem::I32.scalar();
    let experts = i64::from(layout.experts);
    let pairs = b.mul(b.step_word(StepWord::Rows), b.i64(layout.top_k.into()));
    let next = b.scratch(layout.experts * 4);
    let of = |pair: Val<'c>| b.zext(b.load(word, b.element(ids, pair, 4)), Elem::I64);
    b.for_each(b.i64(experts), |e| b.store(b.element(next, e, 4), b.i32(0)));
    b.for_each(pairs, |pair| {
        let count = b.element(next, of(pair), 4);
        b.store(count, b.add(b.load(word, count), b.i32(1)));
    });
    let offsets = b.offset(list, layout.offsets() as i64);
    let active_ids = b.offset(list, layout.active_ids() as i64);
    let init = [b.i32(0), b.i64(0)];
    let totals = b.for_range((b.i64(0), b.i64(experts)), 1, &init, |e, carried| {
        let slot = b.element(next, e, 4);
        let count = b.load(word, slot);
        b.store(slot, carried[0]);
        b.store(b.element(offsets, e, 4), carried[0]);
        // Written for every expert, kept only if the index moves on.
        b.store(b.element(active_ids, carried[1], 4), b.trunc(e, Elem::I32));
        let has_rows = b.icmp(Compare::Ne, count, b.i32(0));
        vec![b.add(carried[0], count), b.add(carried[1], b.zext(has_rows, Elem::I64))]
    });
    b.store(b.offset(offsets, 4 * experts), totals[0]);
    b.store(list, b.trunc(totals[1], Elem::I32));
    let sorted = b.offset(list, layout.pairs() as i64);
    b.for_each(pairs, |pair| {
        let slot = b.element(next, of(pair), 4);
        let at = b.load(word, slot);
        b.store(b.element(sorted, b.zext(at, Elem::I64), 4), b.trunc(pair, Elem::I32));
        b.store(slot, b.add(at, b.i32(1)));
    });
}
