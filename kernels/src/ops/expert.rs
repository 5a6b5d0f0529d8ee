//! Products of routed rows with the experts that they chose.

use super::dispatch::DispatchLayout;
use super::gated::{Gated, GatedUnit};
use super::product::{self, Product};
use super::require;
use super::rows::load_index;
use super::tiles::{RowSource, for_tiles, tile_sizes};
use crate::builder::{Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::formats::GROUP_ROWS;
use crate::spec::{ExpertDown, ExpertGated, ExpertSum, KernelSpec};

fn gated_of(s: ExpertGated) -> Gated {
    let product = Product { format: s.format, n: s.n, k: s.k };
    Gated { product, act: s.act, quantize: s.quantize }
}

pub(super) fn check_gated(spec: &KernelSpec, s: &ExpertGated) -> Result<(), KernelError> {
    check_routing(spec, (s.experts, s.top_k))?;
    gated_of(*s).check(spec)
}

pub(super) fn check_down(spec: &KernelSpec, s: &ExpertDown) -> Result<(), KernelError> {
    check_routing(spec, (s.experts, s.top_k))?;
    require(spec, "n", s.n.into(), s.n.is_multiple_of(GROUP_ROWS), "a multiple of 16")?;
    product::check(spec, Product { format: s.format, n: s.n, k: s.k })
}

pub(super) fn check_sum(spec: &KernelSpec, s: &ExpertSum) -> Result<(), KernelError> {
    let ExpertSum { format, experts, top_k, n, k, .. } = *s;
    check_down(spec, &ExpertDown { format, experts, top_k, n, k })
}

fn check_routing(spec: &KernelSpec, (experts, top_k): (u32, u32)) -> Result<(), KernelError> {
    let fits = (1..=experts).contains(&top_k);
    require(spec, "top_k", top_k.into(), fits, "1 to the count of experts")
}

/// The dispatch list of the window.
struct Dispatched<'c> {
    layout: DispatchLayout,
    list: Val<'c>,
}

/// One unit of work: an expert, a unit of its rows, and its range of the pair list.
struct Work<'c> {
    expert: Val<'c>,
    unit: Val<'c>,
    pairs: (Val<'c>, Val<'c>),
}

impl<'c> Dispatched<'c> {
    fn word(&self, k: &KernelBuilder<'c>, at: u64, index: Val<'c>) -> Val<'c> {
        let field = k.offset(self.list, at as i64);
        k.zext(k.load(Elem::I32.scalar(), k.element(field, index, 4)), Elem::I64)
    }

    fn pairs(&self, k: &KernelBuilder<'c>) -> Val<'c> {
        k.offset(self.list, self.layout.pairs() as i64)
    }

    /// This part's share of the units of all active experts, `units` for each.
    fn for_my_units(&self, k: &KernelBuilder<'c>, units: u32, body: impl FnOnce(Work<'c>)) {
        let units = k.i64(units.into());
        let active = self.word(k, self.layout.active(), k.i64(0));
        let (begin, end) = k.share(k.mul(active, units));
        k.for_between(begin, end, |index| {
            let slot = k.udiv(index, units);
            let expert = self.word(k, self.layout.active_ids(), slot);
            let next = k.add(expert, k.i64(1));
            let offset = |index| self.word(k, self.layout.offsets(), index);
            body(Work {
                expert,
                unit: k.urem(index, units),
                pairs: (offset(expert), offset(next)),
            });
        });
    }
}

/// See [`ExpertGated`].
pub(super) fn build_gated(k: &KernelBuilder<'_>, s: ExpertGated) {
    let shape = gated_of(s);
    let sizes = tile_sizes(k);
    let layout = DispatchLayout { experts: s.experts, top_k: s.top_k };
    let dispatched = Dispatched { layout, list: k.operand(1) };
    let pairs = dispatched.pairs(k);
    let (x, gate, up, h) = (k.operand(2), k.operand(3), k.operand(4), k.operand(5));
    let scratch = k.scratch(shape.scratch_bytes(sizes[0]));
    let listed =
        |base, divisor, stride_bytes| RowSource::Listed { pairs, divisor, base, stride_bytes };
    dispatched.for_my_units(k, shape.units(), |work| {
        let weight = |base| k.element(base, work.expert, shape.product.weight_bytes());
        let unit = GatedUnit {
            shape,
            gate: weight(gate),
            up: weight(up),
            x: listed(x, s.top_k, shape.product.input_row_bytes()),
            y: listed(h, 1, shape.output_row_bytes()),
            scratch,
        };
        for_tiles(k, &sizes, work.pairs, |first, count| {
            unit.tile(k, work.unit, (first, count));
        });
    });
}

/// See [`ExpertDown`].
pub(super) fn build_down(k: &KernelBuilder<'_>, s: ExpertDown) {
    let p = Product { format: s.format, n: s.n, k: s.k };
    let layout = DispatchLayout { experts: s.experts, top_k: s.top_k };
    let dispatched = Dispatched { layout, list: k.operand(1) };
    let pairs = dispatched.pairs(k);
    let (h, w, d) = (k.operand(2), k.operand(3), k.operand(4));
    let listed = |base, stride_bytes| RowSource::Listed { pairs, divisor: 1, base, stride_bytes };
    let h = listed(h, p.input_row_bytes());
    let d = listed(d, i64::from(s.n) * 4);
    dispatched.for_my_units(k, p.groups(), |work| {
        let weight = k.element(w, work.expert, p.weight_bytes());
        for_tiles(k, &tile_sizes(k), work.pairs, |first, count| {
            let totals = p.totals(k, weight, work.unit, &h.rows(k, first, count));
            for (row, total) in d.rows(k, first, count).into_iter().zip(totals) {
                k.store(k.element(row, work.unit, 4 * i64::from(GROUP_ROWS)), total);
            }
        });
    });
}

/// See [`ExpertSum`].
pub(super) fn build_sum(k: &KernelBuilder<'_>, s: ExpertSum) {
    let p = Product { format: s.format, n: s.n, k: s.k };
    let [ids, weights, h, w] = [1, 2, 3, 4].map(|operand| k.operand(operand));
    let (residual, y) = (k.operand(5), k.operand(5 + u32::from(s.residual)));
    let lines = Elem::F32.x(GROUP_ROWS);
    let top_k = k.i64(s.top_k.into());
    let (begin, end) = k.share(k.i64(p.groups().into()));
    k.for_between(begin, end, |group| {
        // Slots inside rows, so that an expert of two rows is still in cache for the second.
        k.for_each(k.step_word(StepWord::Rows), |row| {
            let first = k.mul(row, top_k);
            let sum = k.for_range((k.i64(0), top_k), 1, &[k.zero(lines)], |slot, sum| {
                let pair = k.add(first, slot);
                let expert = load_index(k, ids, pair);
                let bank = k.element(w, expert, p.weight_bytes());
                let input = k.element(h, pair, p.input_row_bytes());
                let product = p.totals(k, bank, group, &[input])[0];
                let weight = k.load(Elem::F32.scalar(), k.element(weights, pair, 4));
                vec![k.fma(product, weight, sum[0])]
            });
            let line_bytes = k.mul(group, k.i64(4 * i64::from(GROUP_ROWS)));
            let line = |base| k.at(k.element(base, row, 4 * i64::from(s.n)), line_bytes);
            let total = match s.residual {
                true => k.fadd(sum[0], k.load(lines, line(residual))),
                false => sum[0],
            };
            k.store(line(y), total);
        });
    });
}
