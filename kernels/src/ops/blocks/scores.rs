//! Scores of pooled keys.

use super::{check_block, check_keys, entries, in_blocks};
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::ops::dots::{ACCUMULATORS, Dots, Leaf};
use crate::ops::kv::KvKind;
use crate::ops::pages::Pages;
use crate::ops::require;
use crate::ops::rows::{LANES, f32_row, load_f32, load_index};
use crate::spec::{BlockScores, KernelSpec};

/// Blocks of a unit: a few pages, so that one row keeps many threads busy.
const UNIT_BLOCKS: i64 = 64;
/// Keys of a tile: the contract's lanes, which no page is shorter than.
const TILE: u32 = LANES;

pub fn check(spec: &KernelSpec, s: &BlockScores) -> Result<(), KernelError> {
    check_block(spec, s.block)?;
    check_keys(spec, &s.keys, (s.heads, s.dim))?;
    require(spec, "blocks", s.blocks.into(), s.blocks > 0, "one or more")
}

struct Body<'c> {
    s: BlockScores,
    queries: Val<'c>,
    positions: Val<'c>,
    slots: Val<'c>,
    pages: Pages<'c>,
    scores: Val<'c>,
    partials: Val<'c>,
    /// Query heads that share the loads of a key.
    heads_at_once: u32,
}

pub fn build(b: &KernelBuilder<'_>, s: BlockScores) {
    let (table, base) = (b.operand(4), b.operand(5));
    let heads_at_once = (ACCUMULATORS * b.facts().lanes / TILE).min(s.heads);
    let body = Body {
        s,
        queries: b.operand(1),
        positions: b.operand(2),
        slots: b.operand(3),
        pages: Pages { layout: s.keys, pages_per_slot: s.pages_per_slot, table, base },
        scores: b.operand(6),
        partials: b.scratch(Dots::partial_bytes(heads_at_once, TILE)),
        heads_at_once,
    };
    let rows = b.step_word(StepWord::Rows);
    let most = b.for_range((b.i64(0), rows), 1, &[b.i64(0)], |row, most| {
        vec![b.imax(most[0], body.blocks_of(b, row))]
    })[0];
    let groups = b.udiv(b.add(most, b.i64(UNIT_BLOCKS - 1)), b.i64(UNIT_BLOCKS));
    let units = b.mul(rows, groups);
    // Rows see more and more blocks, so parts take turns; rows vary fastest, so that a part meets
    // the same keys again.
    let (part, parts) = (b.part(), b.parts());
    let left = b.sub(b.add(units, parts), b.add(part, b.i64(1)));
    b.for_each(b.udiv(left, parts), |turn| {
        let unit = b.add(b.mul(turn, parts), part);
        body.unit(b, b.urem(unit, rows), b.udiv(unit, rows));
    });
}

impl<'c> Body<'c> {
    /// Complete blocks that a row sees.
    fn blocks_of(&self, b: &KernelBuilder<'c>, row: Val<'c>) -> Val<'c> {
        in_blocks(b, entries(b, self.positions, row, self.s.first), self.s.block)
    }

    fn unit(&self, b: &KernelBuilder<'c>, row: Val<'c>, group: Val<'c>) {
        let s = &self.s;
        let begin = b.mul(group, b.i64(UNIT_BLOCKS));
        let end = b.imin(self.blocks_of(b, row), b.add(begin, b.i64(UNIT_BLOCKS)));
        let table_row = self.pages.table_row(b, load_index(b, self.slots, row));
        let queries = f32_row(b, self.queries, row, s.heads * s.dim);
        let scores = f32_row(b, self.scores, row, s.blocks);
        b.for_range((begin, end), TILE.into(), &[], |at, _| {
            let score = self.tile(b, (queries, table_row), at, end);
            let (count, to) = (b.sub(end, at), b.element(scores, at, 4));
            b.if_else(
                b.icmp(Compare::Ge, count, b.i64(TILE.into())),
                || {
                    b.store(to, score);
                    Vec::new()
                },
                || {
                    b.store_first(to, score, b.trunc(count, Elem::I32));
                    Vec::new()
                },
            );
            Vec::new()
        });
    }

    /// Scores of the blocks from `at` on; those from `end` on are garbage.
    fn tile(
        &self,
        b: &KernelBuilder<'c>,
        (queries, table_row): (Val<'c>, Val<'c>),
        at: Val<'c>,
        end: Val<'c>,
    ) -> Val<'c> {
        let s = &self.s;
        let (page, index) = (self.pages.page(b, table_row, at), self.pages.index(b, at));
        let key = self.pages.key(b, page, index);
        let next = b.imin(b.add(at, b.i64(TILE.into())), b.sub(end, b.i64(1)));
        let next_tile = b.mul(self.pages.index(b, next), b.i64(self.key_bytes()));
        let next = b.at(self.pages.page(b, table_row, next), next_tile);
        let scales = (s.keys.kind == KvKind::Int8).then(|| {
            let scales = b.offset(page, s.keys.k_scale_offset(0, 0) as i64);
            load_f32(b, scales, index, TILE)
        });
        let mut total = None;
        for first in (0..s.heads).step_by(self.heads_at_once as usize) {
            let dots = Dots {
                heads: self.heads_at_once.min(s.heads - first),
                dims: s.dim,
                tile: TILE,
                queries: b.offset(queries, i64::from(first * s.dim) * 4),
                partials: self.partials,
            };
            let dots = dots.compute(b, |leaf, dim| {
                if first == 0 {
                    self.fetch(b, next, leaf, dim);
                }
                self.pages.load_keys(b, key, dim, TILE)
            });
            for dot in dots {
                let dot = scales.map_or(dot, |scales| b.fmul(dot, scales));
                let term = b.fmax(dot, b.f32(0.0));
                total = Some(total.map_or(term, |total| b.fadd(total, term)));
            }
        }
        b.fmul(total.expect("checked: some heads"), b.f32((s.dim as f32).sqrt().recip()))
    }

    fn key_bytes(&self) -> i64 {
        i64::from(self.s.dim) * self.s.keys.kind.element_bytes() as i64
    }

    /// Asks for a share of the next tile of keys: a line in each step of some of the leaves.
    fn fetch(&self, b: &KernelBuilder<'c>, next: Val<'c>, leaf: Leaf<'c>, dim: Val<'c>) {
        let leaves = self.s.keys.kind.element_bytes() as i64;
        let number = i64::from(leaf.number);
        if number >= leaves {
            return;
        }
        let turn = b.add(b.mul(leaf.i, b.i64(leaves)), b.i64(number));
        let step = b.mul(turn, b.i64((self.s.dim / LANES).into()));
        b.prefetch(b.element(next, b.add(step, b.shr(dim, b.i64(4))), 64));
    }
}
