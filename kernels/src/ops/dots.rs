//! Dot products of queries with a tile of transposed keys, in the contract's tree.

use super::rows::LANES;
use crate::builder::{Elem, KernelBuilder, Val};

/// f32 accumulator registers that keep both multipliers busy.
pub(super) const ACCUMULATORS: u32 = 8;

/// `heads` queries of `dims` elements, one behind the other, against `tile` keys in lanes.
pub(super) struct Dots<'c> {
    pub heads: u32,
    pub dims: u32,
    pub tile: u32,
    /// Queries of the first head.
    pub queries: Val<'c>,
    /// Scratch `f32[4][heads][tile]`: parts of the trees.
    pub partials: Val<'c>,
}

/// One of the sixteen partials: dimensions d, d + 16, ... from `i + (0, 4, 8, 12)[number]` on.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'c> {
    pub i: Val<'c>,
    pub number: u32,
}

impl<'c> Dots<'c> {
    /// Bytes of [`Dots::partials`].
    pub fn partial_bytes(heads: u32, tile: u32) -> u32 {
        4 * heads * tile * 4
    }

    /// The dot products of each head. `key` gives a dimension of the tile's keys; it is called in
    /// each step of each leaf.
    pub fn compute(
        &self,
        b: &KernelBuilder<'c>,
        key: impl Fn(Leaf<'c>, Val<'c>) -> Val<'c>,
    ) -> Vec<Val<'c>> {
        let stored = |part: u32, head: u32| i64::from((part * self.heads + head) * self.tile) * 4;
        // Four of the sixteen partials at a time: i, i + 8, i + 4, i + 12.
        b.for_each(b.i64(4), |i| {
            let leaf = |number| self.leaf(b, Leaf { i, number }, &key);
            let sums = add_all(b, add_all(b, leaf(0), leaf(2)), add_all(b, leaf(1), leaf(3)));
            let part = b.element(self.partials, i, stored(1, 0));
            for (head, sum) in (0..).zip(sums) {
                b.store(b.offset(part, stored(0, head)), sum);
            }
        });
        let part = |i: u32, head: u32| {
            b.load(Elem::F32.x(self.tile), b.offset(self.partials, stored(i, head)))
        };
        let dot = |head: u32| {
            let even = b.fadd(part(0, head), part(2, head));
            b.fadd(even, b.fadd(part(1, head), part(3, head)))
        };
        (0..self.heads).map(dot).collect()
    }

    fn leaf(
        &self,
        b: &KernelBuilder<'c>,
        leaf: Leaf<'c>,
        key: &impl Fn(Leaf<'c>, Val<'c>) -> Val<'c>,
    ) -> Vec<Val<'c>> {
        let zeros = vec![b.zero(Elem::F32.x(self.tile)); self.heads as usize];
        let first = b.add(leaf.i, b.i64((4 * leaf.number).into()));
        // A loop, for in straight code the scheduler would run all leaves at once and spill.
        b.for_range((first, b.i64(self.dims.into())), LANES.into(), &zeros, |dim, sums| {
            let key = key(leaf, dim);
            let q = b.element(self.queries, dim, 4);
            let one = |(head, &sum): (u32, &Val<'c>)| {
                let q = b.offset(q, i64::from(head * self.dims) * 4);
                b.fma(key, b.load(Elem::F32.scalar(), q), sum)
            };
            (0..).zip(sums).map(one).collect()
        })
    }
}

fn add_all<'c>(b: &KernelBuilder<'c>, x: Vec<Val<'c>>, y: Vec<Val<'c>>) -> Vec<Val<'c>> {
    x.into_iter().zip(y).map(|(x, y)| b.fadd(x, y)).collect()
}
