//! The blocks of the highest scores.
//!
//! Scores are not negative, so they order as their bits do. The lowest selected score is found by
//! bisection over the bits, which takes whole vectors; the selection is then one ascending pass.

use super::{check_block, entries, in_blocks};
use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::ops::require;
use crate::ops::rows::{LANES, f32_row, for_my_rows};
use crate::spec::{BlockTop, KernelSpec};

/// Scores that one step of a count takes.
const COUNTED_AT_ONCE: u32 = 64;
/// Bits of infinity, which no score exceeds.
const INFINITY_BITS: i32 = 0x7f80_0000;
/// Halvings that leave one of all thresholds up to infinity.
const HALVINGS: i64 = 31;

pub fn check(spec: &KernelSpec, s: &BlockTop) -> Result<(), KernelError> {
    check_block(spec, s.block)?;
    require(spec, "blocks", s.blocks.into(), s.blocks > 0, "one or more")?;
    require(spec, "keep", s.keep.into(), s.keep > 0, "one or more")
}

/// The scores of a row.
#[derive(Clone, Copy)]
struct Scores<'c> {
    bits: Val<'c>,
    /// How many there are in whole tiles of 16.
    whole: Val<'c>,
    /// The rest, as a tile that is filled up with what is below every score.
    rest: Val<'c>,
}

pub fn build(b: &KernelBuilder<'_>, s: BlockTop) {
    let (scores, positions, selection) = (b.operand(1), b.operand(2), b.operand(3));
    let rest = b.scratch(LANES * 4);
    for_my_rows(b, |row| {
        let entries = entries(b, positions, row, s.first);
        let blocks = in_blocks(b, entries, s.block);
        let scores = Scores::new(b, f32_row(b, scores, row, s.blocks), blocks, rest);
        let list = f32_row(b, selection, row, s.keep + 2);
        let keep = b.i64(s.keep.into());
        let limit = b.if_else(
            b.icmp(Compare::Gt, blocks, keep),
            || {
                let lowest = scores.lowest(b, keep);
                let above = scores.count(b, b.add(lowest, b.i32(1)));
                vec![lowest, b.sub(keep, above)]
            },
            // Every score is above this.
            || vec![b.i32(-1), b.i64(0)],
        );
        let ids = b.offset(list, 4);
        let whole = scores.select(b, (limit[0], limit[1]), ids);
        let rest = b.and(entries, b.i64(i64::from(s.block) - 1));
        let attended = b.add(b.mul(whole, b.i64(s.block.into())), rest);
        b.store(list, b.trunc(attended, Elem::I32));
        b.when(b.icmp(Compare::Gt, rest, b.i64(0)), || {
            b.store(b.element(ids, whole, 4), b.trunc(blocks, Elem::I32));
        });
    });
}

impl<'c> Scores<'c> {
    fn new(b: &KernelBuilder<'c>, bits: Val<'c>, count: Val<'c>, rest: Val<'c>) -> Self {
        let whole = b.and(count, b.i64(-i64::from(LANES)));
        b.store(rest, b.splat(b.i32(i32::MIN), LANES));
        b.for_between(whole, count, |at| {
            let score = b.load(Elem::I32.scalar(), b.element(bits, at, 4));
            b.store(b.element(rest, b.sub(at, whole), 4), score);
        });
        Self { bits, whole, rest }
    }

    /// How many scores have bits of `least` (i32) or more.
    fn count(&self, b: &KernelBuilder<'c>, least: Val<'c>) -> Val<'c> {
        let counted = |at: Val<'c>, lanes: u32, sum: Val<'c>| {
            let found = b.icmp(Compare::Ge, b.load(Elem::I32.x(lanes), at), least);
            b.sub(sum, b.sext(found, Elem::I32))
        };
        let many = b.and(self.whole, b.i64(-i64::from(COUNTED_AT_ONCE)));
        let loops = [(b.i64(0), many, COUNTED_AT_ONCE), (many, self.whole, LANES)];
        let sums = loops.map(|(begin, end, lanes)| {
            let zeros = [b.zero(Elem::I32.x(lanes))];
            let sum = b.for_range((begin, end), lanes.into(), &zeros, |at, sum| {
                vec![counted(b.element(self.bits, at, 4), lanes, sum[0])]
            });
            sum[0]
        });
        let few = counted(self.rest, LANES, sums[1]);
        b.zext(b.add(b.tree_add(sums[0]), b.tree_add(few)), Elem::I64)
    }

    /// The highest bits that `keep` or more scores have, or any below with `keep` scores above it.
    /// There are more than `keep` scores.
    fn lowest(&self, b: &KernelBuilder<'c>, keep: Val<'c>) -> Val<'c> {
        let one = b.i32(1);
        let init = [b.i32(0), b.i32(INFINITY_BITS + 1)];
        let range = (b.i64(0), b.i64(HALVINGS));
        b.for_range(range, 1, &init, |_, bounds| {
            let (low, high) = (bounds[0], bounds[1]);
            let distance = b.sub(high, low);
            b.if_else(
                b.icmp(Compare::Gt, distance, one),
                || {
                    let middle = b.add(low, b.shr(distance, one));
                    let count = self.count(b, middle);
                    let enough = b.icmp(Compare::Ge, count, keep);
                    let exact = b.icmp(Compare::Eq, count, keep);
                    let next = b.select(enough, high, middle);
                    let next = b.select(exact, b.add(middle, one), next);
                    vec![b.select(enough, middle, low), next]
                },
                || vec![low, high],
            )
        })[0]
    }

    /// Stores the ids of scores above `limit`, and of so many equal to it, in order. Gives their
    /// count.
    fn select(
        &self,
        b: &KernelBuilder<'c>,
        (limit, equals): (Val<'c>, Val<'c>),
        ids: Val<'c>,
    ) -> Val<'c> {
        let tile = |tile: Val<'c>, first: Val<'c>, carried: Vec<Val<'c>>| {
            let near = b.icmp(Compare::Ge, b.load(Elem::I32.x(LANES), tile), limit);
            let some =
                b.icmp(Compare::Ne, b.bitcast(near, Elem::I16.scalar()), b.int(Elem::I16, 0));
            let pick = || {
                b.for_range((b.i64(0), b.i64(LANES.into())), 1, &carried, |lane, carried| {
                    let score = b.load(Elem::I32.scalar(), b.element(tile, lane, 4));
                    let equal = b.and(
                        b.icmp(Compare::Eq, score, limit),
                        b.icmp(Compare::Gt, carried[1], b.i64(0)),
                    );
                    let taken = b.or(b.icmp(Compare::Gt, score, limit), equal);
                    // Stored in any case: what is not taken is overwritten by the next.
                    let id = b.trunc(b.add(first, lane), Elem::I32);
                    b.store(b.element(ids, carried[0], 4), id);
                    vec![
                        b.add(carried[0], b.zext(taken, Elem::I64)),
                        b.sub(carried[1], b.zext(equal, Elem::I64)),
                    ]
                })
            };
            b.if_else(some, pick, || carried.clone())
        };
        let init = [b.i64(0), equals];
        let found = b.for_range((b.i64(0), self.whole), LANES.into(), &init, |at, carried| {
            tile(b.element(self.bits, at, 4), at, carried.to_vec())
        });
        tile(self.rest, self.whole, found)[0]
    }
}
