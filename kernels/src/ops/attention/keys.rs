//! Scores: the dot products of a unit's queries with the keys of a span.

use super::{ACCUMULATORS, Body, SPAN, Unit};
use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::ops::kv::KvKind;
use crate::ops::pages::load_stored;
use crate::ops::rows::{LANES, load_f32, store_f32};

/// The dot products of one tile of positions.
struct Leaves<'c> {
    tile: u32,
    /// Queries of the unit's first head.
    q: Val<'c>,
    /// Dimension 0 of the tile's keys.
    keys: Val<'c>,
    ahead: Ahead<'c>,
}

/// Memory that is asked for while a tile is computed: strides over K are too long for what
/// processors fetch ahead by themselves. Each of `leaves` leaves asks `lines` lines a step.
struct Ahead<'c> {
    values: Val<'c>,
    keys: Val<'c>,
    leaves: u32,
    lines: u32,
}

impl<'c> Body<'c> {
    /// q.k of all positions of `range` into `scores`, -infinity where not visible.
    pub(super) fn score(&self, b: &KernelBuilder<'c>, unit: &Unit<'c>, range: (Val<'c>, Val<'c>)) {
        let tile = self.tile(b, unit.heads);
        let aligned = b.and(range.0, b.i64(-i64::from(tile)));
        b.for_range((aligned, range.1), tile.into(), &[], |at, _| {
            let dots = self.dots(b, unit, at, tile);
            let number = b.add(b.lane_numbers(tile), b.trunc(at, Elem::I32));
            let (first, end) = unit.visible;
            let seen = b.and(
                b.icmp(Compare::Ge, number, b.trunc(first, Elem::I32)),
                b.icmp(Compare::Lt, number, b.trunc(end, Elem::I32)),
            );
            let inside = b.and(at, b.i64(i64::from(SPAN) - 1));
            for (head, dot) in (0..).zip(dots) {
                let score = b.fmul(dot, b.f32(self.s.scale.get()));
                let score = b.select(seen, score, b.f32(f32::NEG_INFINITY));
                store_f32(b, self.scores(b, head), inside, score);
            }
            Vec::new()
        });
    }

    /// Positions of a tile: as many as fill the accumulators, inside a page.
    fn tile(&self, b: &KernelBuilder<'c>, heads: u32) -> u32 {
        let lanes = ACCUMULATORS * b.facts().lanes / heads;
        let whole = 1 << lanes.ilog2();
        whole.clamp(LANES, self.s.kv.page_tokens as u32)
    }

    /// Dot products of `tile` positions from `at` on, for each head, by the contract's tree.
    fn dots(&self, b: &KernelBuilder<'c>, unit: &Unit<'c>, at: Val<'c>, tile: u32) -> Vec<Val<'c>> {
        let layout = self.s.kv;
        let bytes = layout.kind.element_bytes() as i64;
        let head = self.head_in_page(b, unit, at);
        let index = self.pages.index(b, at);
        let ahead = self.ahead(b, unit, (at, head, index), tile);
        let leaves = Leaves { tile, q: unit.q, keys: b.element(head, index, bytes), ahead };
        let stored = |part: u32, head: u32| i64::from((part * unit.heads + head) * tile) * 4;
        // Four of the sixteen partials at a time: i, i + 8, i + 4, i + 12.
        b.for_each(b.i64(4), |i| {
            let leaf = |number| self.leaf(b, unit.heads, &leaves, (i, number));
            let sums = add_all(b, add_all(b, leaf(0), leaf(2)), add_all(b, leaf(1), leaf(3)));
            let part = b.element(self.partials, i, stored(1, 0));
            for (head, sum) in (0..).zip(sums) {
                b.store(b.offset(part, stored(0, head)), sum);
            }
        });
        let part =
            |i: u32, head: u32| b.load(Elem::F32.x(tile), b.offset(self.partials, stored(i, head)));
        let scales = (layout.kind == KvKind::Int8).then(|| {
            let scales = b.offset(head, layout.k_scale_offset(0, 0) as i64);
            load_f32(b, scales, index, tile)
        });
        let dot = |head: u32| {
            let even = b.fadd(part(0, head), part(2, head));
            let dot = b.fadd(even, b.fadd(part(1, head), part(3, head)));
            scales.map_or(dot, |scales| b.fmul(dot, scales))
        };
        (0..unit.heads).map(dot).collect()
    }

    /// What a tile fetches ahead of its use: its own values, and its share of the next page's keys.
    fn ahead(
        &self,
        b: &KernelBuilder<'c>,
        unit: &Unit<'c>,
        (at, head, index): (Val<'c>, Val<'c>, Val<'c>),
        tile: u32,
    ) -> Ahead<'c> {
        let layout = self.s.kv;
        let line_bytes = (layout.head_dim * layout.kind.element_bytes()) as i64;
        let next = b.add(at, b.i64(layout.page_tokens as i64));
        let next = b.imin(next, b.sub(unit.visible.1, b.i64(1)));
        let share = b.mul(index, b.i64(line_bytes));
        let values = b.at(b.offset(head, layout.v_offset(0, 0, 0) as i64), share);
        let keys = b.at(self.head_in_page(b, unit, next), share);
        // A tile has head_dim * tile elements of either; a leaf takes head_dim / 16 steps.
        let lines = tile * layout.kind.element_bytes() as u32 / 16;
        let leaves = lines.clamp(1, 2);
        Ahead { values, keys, leaves, lines: lines.div_ceil(leaves) }
    }

    /// One partial of each head: dimensions d, d + 16, ... from d = i + (0, 4, 8, 12)\[number\] on.
    fn leaf(
        &self,
        b: &KernelBuilder<'c>,
        heads: u32,
        leaves: &Leaves<'c>,
        (i, number): (Val<'c>, u32),
    ) -> Vec<Val<'c>> {
        let layout = self.s.kv;
        let zeros = vec![b.zero(Elem::F32.x(leaves.tile)); heads as usize];
        let stride = (layout.page_tokens * layout.kind.element_bytes()) as i64;
        let first = b.add(i, b.i64((4 * number).into()));
        // A loop, for in straight code the scheduler would run all leaves at once and spill.
        b.for_range((first, b.i64(self.dims().into())), LANES.into(), &zeros, |dim, sums| {
            self.fetch(b, &leaves.ahead, (i, number), dim);
            let key = load_stored(b, layout.kind, b.element(leaves.keys, dim, stride), leaves.tile);
            let q = b.element(leaves.q, dim, 4);
            let one = |(head, &sum): (u32, &Val<'c>)| {
                let q = b.offset(q, i64::from(head * self.dims()) * 4);
                b.fma(key, b.load(Elem::F32.scalar(), q), sum)
            };
            (0..).zip(sums).map(one).collect()
        })
    }

    /// The lines that one step of a leaf asks for.
    fn fetch(
        &self,
        b: &KernelBuilder<'c>,
        ahead: &Ahead<'c>,
        (i, number): (Val<'c>, u32),
        dim: Val<'c>,
    ) {
        let from = if number < 2 { ahead.keys } else { ahead.values };
        if number % 2 >= ahead.leaves {
            return;
        }
        let steps = i64::from(self.dims() / LANES);
        let leaf = b.add(b.mul(i, b.i64(ahead.leaves.into())), b.i64((number % 2).into()));
        let step = b.add(b.mul(leaf, b.i64(steps)), b.shr(dim, b.i64(4)));
        let line = b.element(from, step, 64 * i64::from(ahead.lines));
        for i in 0..ahead.lines {
            b.prefetch(b.offset(line, 64 * i64::from(i)));
        }
    }
}

fn add_all<'c>(b: &KernelBuilder<'c>, x: Vec<Val<'c>>, y: Vec<Val<'c>>) -> Vec<Val<'c>> {
    x.into_iter().zip(y).map(|(x, y)| b.fadd(x, y)).collect()
}
