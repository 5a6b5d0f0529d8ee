//! Causal attention over KV pages, softmax rescaled by spans of 256 positions.
//!
//! A unit of work is one row and up to four query heads of one kv head, so that keys and values are
//! loaded and widened once for all of them. In q.k the lanes are positions (K is stored transposed)
//! and in p.v they are dimensions: nothing is reduced across lanes but one sum a span.
//!
//! With a selection, a row that selected every block is computed as if there were none.

mod keys;
mod selected;
mod values;

use super::blocks::check_block;
use super::dots::{ACCUMULATORS, Dots};
use super::kv::KvKind;
use super::pages::{Pages, check_layout};
use super::quantize::{q8_row, store_q8_block, zero_q8_tail};
use super::require;
use super::rows::{LANES, f32_row, load_f32, load_index, store_f32};
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::math;
use crate::spec::{Attention, KernelSpec};
use selected::{Selection, Tables};

const SPAN: u32 = 256;
/// Query heads that share the loads of a unit.
const HEADS_AT_ONCE: u32 = 4;

pub(super) fn check(spec: &KernelSpec, s: &Attention) -> Result<(), KernelError> {
    check_layout(spec, &s.kv, s.heads)?;
    let fits = !s.quantize || s.kv.head_dim.is_multiple_of(32);
    require(spec, "head_dim", s.kv.head_dim as u64, fits, "a multiple of 32 to quantise")?;
    require(spec, "values", s.kv.values.into(), s.kv.values, "stored values")?;
    let Some(selected) = s.selection else {
        return Ok(());
    };
    let group = s.kv.key_group as u64;
    check_block(spec, selected.block)?;
    let fits = group.is_multiple_of(selected.block.into());
    require(spec, "key_group", group, fits, "a multiple of the selected blocks")?;
    require(spec, "window", s.window.into(), s.window == 0, "none beside a selection")
}

/// How the query heads of a kv head are cut: `large` chunks of `size` heads, the others one less.
struct Chunks {
    count: u32,
    size: u32,
    large: u32,
}

impl Chunks {
    fn of(group: u32) -> Self {
        let count = group.div_ceil(HEADS_AT_ONCE);
        let size = group.div_ceil(count);
        Self { count, size, large: count - (count * size - group) }
    }
}

pub(super) fn build(b: &KernelBuilder<'_>, s: Attention) {
    let kv_heads = s.kv.kv_heads as u32;
    let group = s.heads / kv_heads;
    let chunks = Chunks::of(group);
    let body = Body::new(b, s, chunks.size);
    let rows = b.step_word(StepWord::Rows);
    let (begin, end) = b.share(b.mul(rows, b.i64((kv_heads * chunks.count).into())));
    // Rows vary fastest: a part meets the same pages again, and rows of all lengths.
    b.for_between(begin, end, |unit| {
        let (chunk, row) = (b.udiv(unit, rows), b.urem(unit, rows));
        let count = b.i64(chunks.count.into());
        let (kv_head, chunk) = (b.udiv(chunk, count), b.urem(chunk, count));
        let first = b.mul(kv_head, b.i64(group.into()));
        let large = b.i64(chunks.large.into());
        let before = b.mul(chunk, b.i64(chunks.size.into()));
        if chunks.large == chunks.count {
            body.unit(b, chunks.size, row, (kv_head, b.add(first, before)));
            return;
        }
        b.if_else(
            b.icmp(Compare::Lt, chunk, large),
            || {
                body.unit(b, chunks.size, row, (kv_head, b.add(first, before)));
                Vec::new()
            },
            || {
                // One head less for each small chunk before this one.
                let head = b.sub(b.add(first, before), b.sub(chunk, large));
                body.unit(b, chunks.size - 1, row, (kv_head, head));
                Vec::new()
            },
        );
    });
}

/// Operands and scratch, shared by all units of a part.
struct Body<'c> {
    s: Attention,
    q: Val<'c>,
    positions: Val<'c>,
    slots: Val<'c>,
    pages: Pages<'c>,
    out: Val<'c>,
    /// `f32[heads][256]`: scores, then weights.
    scores: Val<'c>,
    /// `f32[4][heads][tile]`: parts of the dot products' trees.
    partials: Val<'c>,
    /// `f32[heads][head_dim]`: the span's weighted values, and the result so far.
    sums: Val<'c>,
    result: Val<'c>,
    /// The rows' selections, and scratch to look them up.
    selections: Option<(Val<'c>, Tables<'c>)>,
}

/// Which keys a unit reads.
#[derive(Clone, Copy)]
enum Seen<'c> {
    /// Those of the visible positions.
    All,
    /// Those that the tables show; what is visible are numbers of selected keys.
    Selected(Tables<'c>),
}

/// What a unit looks at.
#[derive(Clone, Copy)]
struct Unit<'c> {
    heads: u32,
    kv_head: Val<'c>,
    /// Queries of the first head.
    q: Val<'c>,
    table_row: Val<'c>,
    /// Visible positions: first, and one past the last.
    visible: (Val<'c>, Val<'c>),
    seen: Seen<'c>,
}

impl<'c> Body<'c> {
    fn new(b: &KernelBuilder<'c>, s: Attention, heads: u32) -> Self {
        let (table, base) = (b.operand(4), b.operand(5));
        let head_bytes = s.kv.head_dim as u32 * 4;
        // A tile of `heads - 1` heads may be twice as long.
        let lanes = ACCUMULATORS * b.facts().lanes * 2;
        let selections = s.selection.map(|x| (b.operand(6), Tables::new(b, &s, x.block)));
        Self {
            s,
            q: b.operand(1),
            positions: b.operand(2),
            slots: b.operand(3),
            pages: Pages { layout: s.kv, pages_per_slot: s.pages_per_slot, table, base },
            out: b.operand(6 + u32::from(selections.is_some())),
            scores: b.scratch(heads * SPAN * 4),
            partials: b.scratch(Dots::partial_bytes(1, lanes)),
            sums: b.scratch(heads * head_bytes),
            result: b.scratch(heads * head_bytes),
            selections,
        }
    }

    fn dims(&self) -> u32 {
        self.s.kv.head_dim as u32
    }

    /// Scores of head `head` of the unit.
    fn scores(&self, b: &KernelBuilder<'c>, head: u32) -> Val<'c> {
        b.offset(self.scores, i64::from(head * SPAN) * 4)
    }

    fn head_of(&self, b: &KernelBuilder<'c>, scratch: Val<'c>, head: u32) -> Val<'c> {
        b.offset(scratch, i64::from(head * self.dims()) * 4)
    }

    fn unit(
        &self,
        b: &KernelBuilder<'c>,
        heads: u32,
        row: Val<'c>,
        (kv_head, head): (Val<'c>, Val<'c>),
    ) {
        let position = load_index(b, self.positions, row);
        let end = b.sub(b.add(position, b.i64(1)), b.i64(self.s.first.into()));
        let first = match self.s.window {
            0 => b.i64(0),
            window => b.imax(b.sub(end, b.i64(window.into())), b.i64(0)),
        };
        let table_row = self.pages.table_row(b, load_index(b, self.slots, row));
        let query = b.add(b.mul(row, b.i64(self.s.heads.into())), head);
        let q = b.element(self.q, query, i64::from(self.dims()) * 4);
        let all = Unit { heads, kv_head, q, table_row, visible: (first, end), seen: Seen::All };
        let (Some((lists, tables)), Some(s)) = (self.selections, self.s.selection) else {
            let totals = self.attend(b, &all, None);
            return self.finish(b, (row, head), &totals);
        };
        let list = f32_row(b, lists, row, s.keep + 2);
        let attended = load_index(b, list, b.i64(0));
        let totals = b.if_else(
            b.icmp(Compare::Ge, attended, end),
            || self.attend(b, &all, None),
            || {
                let visible = (b.i64(0), attended);
                let unit = Unit { visible, seen: Seen::Selected(tables), ..all };
                self.attend(b, &unit, Some(Selection::new(b, s, list, attended)))
            },
        );
        self.finish(b, (row, head), &totals);
    }

    /// Leaves weighted sums of values in `result` and gives the sums of the weights.
    fn attend(
        &self,
        b: &KernelBuilder<'c>,
        unit: &Unit<'c>,
        selection: Option<Selection<'c>>,
    ) -> Vec<Val<'c>> {
        let heads = unit.heads as usize;
        let (first, end) = unit.visible;
        self.clear(b, self.result, unit.heads);
        let mut init = vec![b.f32(f32::NEG_INFINITY); heads];
        init.extend(vec![b.f32(0.0); heads]);
        let last = b.add(b.imax(end, b.i64(0)), b.i64(i64::from(SPAN) - 1));
        let spans = (b.shr(first, b.i64(8)), b.shr(last, b.i64(8)));
        let state = b.for_range(spans, 1, &init, |span, state| {
            let at = b.shl(span, b.i64(8));
            let begin = b.imax(first, at);
            let end = b.imin(end, b.add(at, b.i64(SPAN.into())));
            if let (Seen::Selected(tables), Some(selection)) = (&unit.seen, selection) {
                self.look_up(b, unit, (tables, selection), (begin, end));
            }
            self.score(b, unit, (begin, end));
            let (state, corrections) = self.soften(b, unit, (begin, end), state);
            self.weigh(b, unit, (begin, end));
            self.join(b, &corrections);
            state
        });
        state[heads..].to_vec()
    }

    fn head_in_page(&self, b: &KernelBuilder<'c>, unit: &Unit<'c>, position: Val<'c>) -> Val<'c> {
        let page = self.pages.page(b, unit.table_row, position);
        b.element(page, unit.kv_head, self.s.kv.head_bytes() as i64)
    }

    /// Scores to weights. Gives the next maxima and sums, and what earlier results are scaled by.
    fn soften(
        &self,
        b: &KernelBuilder<'c>,
        unit: &Unit<'c>,
        range: (Val<'c>, Val<'c>),
        state: &[Val<'c>],
    ) -> (Vec<Val<'c>>, Vec<Val<'c>>) {
        let aligned = b.and(range.0, b.i64(-i64::from(LANES)));
        let tiles = (aligned, range.1);
        let inside = |at| b.and(at, b.i64(i64::from(SPAN) - 1));
        let (maxima, totals) = state.split_at(unit.heads as usize);
        let lowest = vec![b.splat(b.f32(f32::NEG_INFINITY), LANES); maxima.len()];
        let found = b.for_range(tiles, LANES.into(), &lowest, |at, found| {
            let larger = |(head, &max): (u32, &Val<'c>)| {
                b.fmax(load_f32(b, self.scores(b, head), inside(at), LANES), max)
            };
            (0..).zip(found).map(larger).collect()
        });
        let new_maxima: Vec<Val<'c>> =
            found.iter().zip(maxima).map(|(&f, &m)| b.fmax(b.tree_max(f), m)).collect();
        let corrections: Vec<Val<'c>> = maxima
            .iter()
            .zip(&new_maxima)
            .map(|(&old, &new)| math::exp_of_ordered(b, b.fsub(old, new)))
            .collect();
        let zeros = vec![b.zero(Elem::F32.x(LANES)); maxima.len()];
        let partials = b.for_range(tiles, LANES.into(), &zeros, |at, partials| {
            let scales = self.value_scales(b, unit, at);
            let one = |(head, (&partial, &max)): (u32, (&Val<'c>, &Val<'c>))| {
                let scores = self.scores(b, head);
                let score = load_f32(b, scores, inside(at), LANES);
                let p = math::exp_of_ordered(b, b.fsub(score, max));
                let weight = scales.map_or(p, |scales| b.fmul(p, scales));
                store_f32(b, scores, inside(at), weight);
                b.fadd(partial, p)
            };
            (0..).zip(partials.iter().zip(&new_maxima)).map(one).collect()
        });
        let mut next = new_maxima;
        for ((&total, &partial), &correction) in totals.iter().zip(&partials).zip(&corrections) {
            next.push(b.fma(total, correction, b.tree_sum(partial)));
        }
        (next, corrections)
    }

    /// Scales of the 16 values from `at` on, where the kind has them.
    fn value_scales(&self, b: &KernelBuilder<'c>, unit: &Unit<'c>, at: Val<'c>) -> Option<Val<'c>> {
        let layout = self.s.kv;
        if let Seen::Selected(tables) = unit.seen {
            let values = layout.v_scale_offset(0, 0) - layout.k_scale_offset(0, 0);
            return tables.scales(b, at, LANES, values as i64);
        }
        (layout.kind == KvKind::Int8).then(|| {
            let head = self.head_in_page(b, unit, at);
            let scales = b.offset(head, layout.v_scale_offset(0, 0) as i64);
            load_f32(b, scales, self.pages.index(b, at), LANES)
        })
    }

    /// `result = fma(result, correction, sums)`.
    fn join(&self, b: &KernelBuilder<'c>, corrections: &[Val<'c>]) {
        for (head, &correction) in (0..).zip(corrections) {
            let (result, sums) =
                (self.head_of(b, self.result, head), self.head_of(b, self.sums, head));
            self.for_dims(b, |dim| {
                let old = load_f32(b, result, dim, LANES);
                let new = b.fma(old, correction, load_f32(b, sums, dim, LANES));
                store_f32(b, result, dim, new);
            });
        }
    }

    fn finish(&self, b: &KernelBuilder<'c>, (row, first): (Val<'c>, Val<'c>), totals: &[Val<'c>]) {
        let k = self.s.heads * self.dims();
        for (head, &total) in (0..).zip(totals) {
            let inverse = b.fdiv(b.f32(1.0), total);
            let nothing = b.fcmp(Compare::Eq, total, b.f32(0.0));
            let inverse = match self.s.first {
                0 => inverse,
                _ => b.select(nothing, b.f32(0.0), inverse),
            };
            let result = self.head_of(b, self.result, head);
            let number = b.add(first, b.i64(head.into()));
            let start = b.mul(number, b.i64(self.dims().into()));
            let scaled = |dim| b.fmul(load_f32(b, result, dim, LANES), inverse);
            if !self.s.quantize {
                let out = b.element(self.out, row, i64::from(k) * 4);
                self.for_dims(b, |dim| store_f32(b, out, b.add(start, dim), scaled(dim)));
                continue;
            }
            let out = q8_row(b, self.out, row, k);
            let first_block = b.shr(start, b.i64(5));
            b.for_each(b.i64(i64::from(self.dims()) / 32), |block| {
                let dim = b.shl(block, b.i64(5));
                let halves = [scaled(dim), scaled(b.add(dim, b.i64(16)))];
                store_q8_block(b, halves, out, b.add(first_block, block));
            });
            let is_last = b.icmp(Compare::Eq, number, b.i64(i64::from(self.s.heads) - 1));
            b.when(is_last, || zero_q8_tail(b, k, out));
        }
    }

    fn clear(&self, b: &KernelBuilder<'c>, scratch: Val<'c>, heads: u32) {
        for head in 0..heads {
            let at = self.head_of(b, scratch, head);
            self.for_dims(b, |dim| store_f32(b, at, dim, b.zero(Elem::F32.x(LANES))));
        }
    }

    fn for_dims(&self, b: &KernelBuilder<'c>, body: impl Fn(Val<'c>)) {
        let range = (b.i64(0), b.i64(self.dims().into()));
        b.for_range(range, LANES.into(), &[], |dim, _| {
            body(dim);
            Vec::new()
        });
    }
}
