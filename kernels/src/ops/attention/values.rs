//! Weighted sums of the values of a span.

use super::{Body, SPAN, Seen, Unit};
use crate::builder::{Elem, KernelBuilder, Val};
use crate::ops::dots::ACCUMULATORS;
use crate::ops::pages::load_stored;
use crate::ops::rows::{LANES, load_f32};

/// Selected values that are added up before the next dimensions are: as many as stay in the cache.
const AT_ONCE: i64 = 64;

impl<'c> Body<'c> {
    /// `sums[dim] = sum over keys in order of weight * value`.
    pub(super) fn weigh(
        &self,
        b: &KernelBuilder<'c>,
        unit: &Unit<'c>,
        (begin, end): (Val<'c>, Val<'c>),
    ) {
        self.clear(b, self.sums, unit.heads);
        let tables = match unit.seen {
            Seen::All => return self.weigh_pages(b, unit, (begin, end)),
            Seen::Selected(tables) => tables,
        };
        let layout = self.s.kv;
        let lanes = self.value_lanes(b, unit.heads);
        b.for_range((begin, end), AT_ONCE, &[], |from, _| {
            let to = b.imin(end, b.add(from, b.i64(AT_ONCE)));
            self.weigh_run(b, unit.heads, (from, to), |dim, number| {
                let line = tables.value(b, number);
                let column = b.element(line, dim, layout.kind.element_bytes() as i64);
                load_stored(b, layout.kind, column, lanes)
            });
            Vec::new()
        });
    }

    /// The values of neighbouring positions, page by page.
    fn weigh_pages(
        &self,
        b: &KernelBuilder<'c>,
        unit: &Unit<'c>,
        (begin, end): (Val<'c>, Val<'c>),
    ) {
        let layout = self.s.kv;
        let tokens = layout.page_tokens as i64;
        let line_bytes = (layout.head_dim * layout.kind.element_bytes()) as i64;
        let lanes = self.value_lanes(b, unit.heads);
        let aligned = b.and(begin, b.i64(-tokens));
        b.for_range((aligned, end), tokens, &[], |page_start, _| {
            let head = self.head_in_page(b, unit, page_start);
            let values = b.offset(head, layout.v_offset(0, 0, 0) as i64);
            let later = b.add(page_start, b.i64(i64::from(SPAN)));
            let later = b.imin(later, b.sub(unit.visible.1, b.i64(1)));
            let later_keys = self.head_in_page(b, unit, later);
            let from = b.imax(begin, page_start);
            let to = b.imin(end, b.add(page_start, b.i64(tokens)));
            self.weigh_run(b, unit.heads, (from, to), |dim, position| {
                let index = b.sub(position, page_start);
                self.fetch_keys(b, later_keys, (dim, index), lanes);
                let column = b.element(values, dim, layout.kind.element_bytes() as i64);
                load_stored(b, layout.kind, b.element(column, index, line_bytes), lanes)
            });
            Vec::new()
        });
    }

    /// Adds keys `from..to` to the sums; `value` gives a tile of dimensions of one key's value.
    fn weigh_run(
        &self,
        b: &KernelBuilder<'c>,
        heads: u32,
        range: (Val<'c>, Val<'c>),
        value: impl Fn(Val<'c>, Val<'c>) -> Val<'c>,
    ) {
        let lanes = self.value_lanes(b, heads);
        let dims = (b.i64(0), b.i64(self.dims().into()));
        b.for_range(dims, lanes.into(), &[], |dim, _| {
            let sums = |head| b.element(self.head_of(b, self.sums, head), dim, 4);
            let load = |head| b.load(Elem::F32.x(lanes), sums(head));
            let init: Vec<Val<'c>> = (0..heads).map(load).collect();
            let out = b.for_range(range, 1, &init, |number, acc| {
                let value = value(dim, number);
                let inside = b.and(number, b.i64(i64::from(SPAN) - 1));
                let one = |(head, &acc): (u32, &Val<'c>)| {
                    let weight = load_f32(b, self.scores(b, head), inside, 1);
                    b.fma(value, weight, acc)
                };
                (0..).zip(acc).map(one).collect()
            });
            for (head, &sum) in (0..).zip(&out) {
                b.store(sums(head), sum);
            }
            Vec::new()
        });
    }

    /// Asks for a share of the keys of a page of the next span, so that memory is busy here too.
    fn fetch_keys(
        &self,
        b: &KernelBuilder<'c>,
        keys: Val<'c>,
        (dim, index): (Val<'c>, Val<'c>),
        lanes: u32,
    ) {
        // As many bytes as the values that this step reads.
        let bytes = lanes as i64 * self.s.kv.kind.element_bytes() as i64;
        let tile =
            b.mul(dim, b.i64((self.s.kv.page_tokens * self.s.kv.kind.element_bytes()) as i64));
        let line = b.at(keys, b.add(tile, b.mul(index, b.i64(bytes))));
        for at in (0..bytes).step_by(64) {
            b.prefetch(b.offset(line, at));
        }
    }

    /// Dimensions of a tile in p.v: as many as fill the accumulators and divide the head.
    fn value_lanes(&self, b: &KernelBuilder<'c>, heads: u32) -> u32 {
        let lanes = ACCUMULATORS * b.facts().lanes / heads;
        let dividing = 1 << self.dims().trailing_zeros();
        (1 << lanes.ilog2()).min(dividing).max(LANES)
    }
}
