//! N-grams: the table rows of a token, and the gate on what was read there.

use super::require;
use super::results;
use super::rows::{LANES, f32_row, for_my_slices, load_f32, load_index, store_f32, sum_by_spans};
use super::slot_values::{self, SlotNeed, SlotValues};
use super::streams::check_streams;
use super::tails::is_last_of_segment;
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::math::sigmoid;
use crate::reference::streams::NGRAM_LEAST;
use crate::spec::{KernelSpec, NgramGate, NgramRows};

pub(super) fn check_rows(spec: &KernelSpec, s: &NgramRows) -> Result<(), KernelError> {
    require(spec, "ngram", s.ngram.into(), (2..=8).contains(&s.ngram), "2 to 8")?;
    let heads = s.heads_per_ngram;
    require(spec, "heads_per_ngram", heads.into(), heads > 0, "at least 1")?;
    let value_bytes = u64::from(s.ngram - 1) * 4;
    let need = SlotNeed { value_bytes, pending_row_bytes: 4, pending: s.pending };
    slot_values::check(spec, &s.layout, need)
}

pub(super) fn check_gate(spec: &KernelSpec, s: &NgramGate) -> Result<(), KernelError> {
    check_streams(spec, s.streams)?;
    results::check(spec, "k", s.k, false)
}

/// Operands of [`NgramRows`].
struct Rows<'c> {
    s: NgramRows,
    tokens: Val<'c>,
    slots: Val<'c>,
    offsets: Val<'c>,
    hash: Val<'c>,
    state: SlotValues<'c>,
    y: Val<'c>,
}

/// A row of the window.
#[derive(Clone, Copy)]
struct Place<'c> {
    row: Val<'c>,
    offset: Val<'c>,
    /// Address of the tail of its sequence.
    value: Val<'c>,
}

pub(super) fn rows(b: &KernelBuilder<'_>, s: NgramRows) {
    let op = Rows {
        s,
        tokens: b.operand(1),
        slots: b.operand(2),
        offsets: b.operand(3),
        hash: b.operand(4),
        state: SlotValues { layout: s.layout, base: b.operand(5) },
        y: b.operand(6),
    };
    let live = b.step_word(StepWord::Rows);
    let (begin, end) = if s.pending {
        b.share(live)
    } else {
        let is_first = b.icmp(Compare::Eq, b.part(), b.i64(0));
        (b.i64(0), b.select(is_first, live, b.i64(0)))
    };
    b.for_between(begin, end, |row| {
        let value = op.state.value(b, load_index(b, op.slots, row));
        let place = Place { row, offset: load_index(b, op.offsets, row), value };
        op.hash_row(b, place);
        if s.pending {
            let own = op.word(b, place, place.offset);
            b.store(op.state.pending(b, value, place.offset), b.trunc(own, Elem::I32));
        } else {
            b.when(is_last_of_segment(b, op.offsets, row, live), || op.advance(b, place));
        }
    });
}

impl<'c> Rows<'c> {
    /// Words of a tail.
    fn history(&self) -> u32 {
        self.s.ngram - 1
    }

    /// The token with index `index` in the place's segment plus 1, 0 for none; a negative index
    /// is of the tail.
    fn word(&self, b: &KernelBuilder<'c>, place: Place<'c>, index: Val<'c>) -> Val<'c> {
        let in_window = b.icmp(Compare::Ge, index, b.i64(0));
        let row = b.add(b.sub(place.row, place.offset), index);
        let new = b.element(self.tokens, row, 4);
        let old = b.element(place.value, b.add(index, b.i64(self.history().into())), 4);
        let word = load_index(b, b.select(in_window, new, old), b.i64(0));
        b.select(in_window, b.add(word, b.i64(1)), word)
    }

    /// Number `index` of the hash table.
    fn number(&self, b: &KernelBuilder<'c>, index: Val<'c>) -> Val<'c> {
        b.load(Elem::I64.scalar(), b.element(self.hash, index, 8))
    }

    fn hash_row(&self, b: &KernelBuilder<'c>, place: Place<'c>) {
        let (ngram, a_ngram) = (self.s.ngram, self.s.heads_per_ngram);
        let heads = self.history() * a_ngram;
        let constant = |i: u32| self.number(b, b.i64(i.into()));
        let end = constant(ngram + 2 * heads);
        let y = b.element(self.y, place.row, i64::from(heads) * 4);
        let own = b.sub(self.word(b, place, place.offset), b.i64(1));
        let mut mix = b.mul(own, constant(0));
        let mut is_cut = b.int(Elem::I1, 0);
        for back in 1..ngram {
            let word = self.word(b, place, b.sub(place.offset, b.i64(back.into())));
            let token = b.sub(word, b.i64(1));
            let stops = b.or(b.icmp(Compare::Eq, word, b.i64(0)), b.icmp(Compare::Eq, token, end));
            is_cut = b.or(is_cut, stops);
            mix = b.xor(mix, b.mul(b.select(is_cut, end, token), constant(back)));
            b.for_each(b.i64(a_ngram.into()), |i| {
                let head = b.add(i, b.i64(((back - 1) * a_ngram).into()));
                let at = b.add(head, b.i64(ngram.into()));
                let size = self.number(b, at);
                let first = self.number(b, b.add(at, b.i64(heads.into())));
                let id = b.add(b.urem(mix, size), first);
                b.store(b.element(y, head, 4), b.trunc(id, Elem::I32));
            });
        }
    }

    /// The tokens up to `place` become the tail. Ascending: one moves to where an older one was.
    fn advance(&self, b: &KernelBuilder<'c>, place: Place<'c>) {
        for row in 0..self.history() {
            let back = b.i64(i64::from(self.history() - 1 - row));
            let word = self.word(b, place, b.sub(place.offset, back));
            b.store(b.offset(place.value, i64::from(row) * 4), b.trunc(word, Elem::I32));
        }
    }
}

pub(super) fn gate(b: &KernelBuilder<'_>, s: NgramGate) {
    let (key, query, value, y) = (b.operand(1), b.operand(2), b.operand(3), b.operand(4));
    for_my_slices(b, s.streams, s.k, |row, (begin, _)| {
        let stream = |base| b.element(f32_row(b, base, row, s.streams * s.k), begin, 4);
        let [key, query, y] = [key, query, y].map(stream);
        let value = f32_row(b, value, row, s.k);
        let dot = sum_by_spans(b, s.k, |at, partial| {
            b.fma(load_f32(b, key, at, LANES), load_f32(b, query, at, LANES), partial)
        });
        let score = b.fdiv(dot, b.f32((s.k as f32).sqrt()));
        let root = b.sqrt(b.fmax(b.fabs(score), b.f32(NGRAM_LEAST)));
        // A zero keeps itself and so does a NaN, which shall be seen.
        let below = b.select(b.fcmp(Compare::Lt, score, b.f32(0.0)), b.fneg(root), score);
        let signed = b.select(b.fcmp(Compare::Gt, score, b.f32(0.0)), root, below);
        let open = b.splat(sigmoid(b, signed), LANES);
        b.for_range((b.i64(0), b.i64(s.k.into())), LANES.into(), &[], |at, _| {
            store_f32(b, y, at, b.fmul(open, load_f32(b, value, at, LANES)));
            Vec::new()
        });
    });
}
