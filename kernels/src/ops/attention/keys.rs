//! Scores: the dot products of a unit's queries with the keys of a span.

use super::{Body, SPAN, Seen, Unit};
use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::ops::dots::{ACCUMULATORS, Dots, Leaf};
use crate::ops::kv::KvKind;
use crate::ops::rows::{LANES, load_f32, store_f32};

/// Memory that is asked for while a tile is computed: strides over K are too long for what
/// processors fetch ahead by themselves. Each of `leaves` leaves asks `lines` lines a step.
struct Ahead<'c> {
    values: Val<'c>,
    keys: Val<'c>,
    leaves: u32,
    lines: u32,
}

impl<'c> Body<'c> {
    /// q.k of all keys of `range` into `scores`, -infinity where not visible.
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

    /// Keys of a tile: as many as fill the accumulators, inside a page.
    pub(super) fn tile(&self, b: &KernelBuilder<'c>, heads: u32) -> u32 {
        let lanes = ACCUMULATORS * b.facts().lanes / heads;
        let whole = 1 << lanes.ilog2();
        whole.clamp(LANES, self.s.kv.page_tokens as u32)
    }

    /// Dot products of `tile` keys from `at` on, for each head, by the contract's tree.
    fn dots(&self, b: &KernelBuilder<'c>, unit: &Unit<'c>, at: Val<'c>, tile: u32) -> Vec<Val<'c>> {
        let layout = self.s.kv;
        let dots = Dots {
            heads: unit.heads,
            dims: self.dims(),
            tile,
            queries: unit.q,
            partials: self.partials,
        };
        let (dots, scales) = match unit.seen {
            Seen::All => {
                let head = self.head_in_page(b, unit, at);
                let index = self.pages.index(b, at);
                let ahead = self.ahead(b, unit, (at, head, index), tile);
                let key = self.pages.key(b, head, index);
                let dots = dots.compute(b, |leaf, dim| {
                    self.fetch(b, &ahead, leaf, dim);
                    self.pages.load_keys(b, key, dim, tile)
                });
                let scales = b.offset(head, layout.k_scale_offset(0, 0) as i64);
                (dots, (layout.kind == KvKind::Int8).then(|| load_f32(b, scales, index, tile)))
            }
            Seen::Selected(found) => {
                let keys = found.keys_of(b, at, tile);
                let dots = dots.compute(b, |leaf, dim| {
                    found.fetch(b, at, tile, (leaf, dim));
                    keys.load(b, dim)
                });
                (dots, found.scales(b, at, tile, 0))
            }
        };
        dots.into_iter().map(|dot| scales.map_or(dot, |scales| b.fmul(dot, scales))).collect()
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

    /// The lines that one step of a leaf asks for.
    fn fetch(&self, b: &KernelBuilder<'c>, ahead: &Ahead<'c>, leaf: Leaf<'c>, dim: Val<'c>) {
        let Leaf { i, number } = leaf;
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
