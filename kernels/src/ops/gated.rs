//! Two products joined by an activation.

use super::elementwise::act;
use super::matmul::for_row_blocks;
use super::product::{self, Product};
use super::quantize::{store_q8_block, zero_q8_tail};
use super::require;
use super::tiles::{RowSource, for_tiles, tile_sizes};
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::formats::GROUP_ROWS;
use crate::reference::quantize::q8_row_bytes;
use crate::spec::{Act, GatedMatmul, KernelSpec};

const LINE_BYTES: i64 = 4 * GROUP_ROWS as i64;

/// `act(x . gate) * (x . up)` in a format, stored as f32 or q8.
#[derive(Clone, Copy)]
pub(super) struct Gated {
    pub product: Product,
    pub act: Act,
    pub quantize: bool,
}

impl Gated {
    /// Refuses shapes that no gated product can take.
    pub fn check(&self, spec: &KernelSpec) -> Result<(), KernelError> {
        product::check(spec, self.product)?;
        let n = self.product.n;
        let (step, need) = match self.quantize {
            true => (32, "a multiple of 32 when the result is quantised"),
            false => (16, "a multiple of 16"),
        };
        require(spec, "n", n.into(), n.is_multiple_of(step), need)
    }

    /// Groups of 16 rows that are made together: a block of 32 when it is quantised.
    fn unit_groups(&self) -> u32 {
        if self.quantize { 2 } else { 1 }
    }

    pub fn units(&self) -> u32 {
        self.product.groups() / self.unit_groups()
    }

    pub fn output_row_bytes(&self) -> i64 {
        let n = self.product.n;
        if self.quantize { q8_row_bytes(n as usize) as i64 } else { i64::from(n) * 4 }
    }

    /// Bytes of scratch for tiles of up to `rows` rows.
    pub fn scratch_bytes(&self, rows: u32) -> u32 {
        2 * self.unit_groups() * rows * LINE_BYTES as u32
    }
}

/// A gated product at work.
pub(super) struct GatedUnit<'c> {
    pub shape: Gated,
    pub gate: Val<'c>,
    pub up: Val<'c>,
    pub x: RowSource<'c>,
    pub y: RowSource<'c>,
    /// Of [`Gated::scratch_bytes`].
    pub scratch: Val<'c>,
}

impl<'c> GatedUnit<'c> {
    /// Computes and stores unit `unit` for rows `first .. first + count`.
    pub fn tile(&self, k: &KernelBuilder<'c>, unit: Val<'c>, (first, count): (Val<'c>, u32)) {
        let s = self.shape;
        let x = self.x.rows(k, first, count);
        let lines_bytes = LINE_BYTES * i64::from(count);
        let first_group = k.mul(unit, k.i64(s.unit_groups().into()));
        // One copy of the product serves gate and up of each group: they take turns.
        k.for_each(k.i64((2 * s.unit_groups()).into()), |turn| {
            let is_up = k.icmp(Compare::Ne, k.and(turn, k.i64(1)), k.i64(0));
            let weight = k.select(is_up, self.up, self.gate);
            let group = k.add(first_group, k.shr(turn, k.i64(1)));
            let lines = k.element(self.scratch, turn, lines_bytes);
            for (i, total) in (0..).zip(s.product.totals(k, weight, group, &x)) {
                k.store(k.offset(lines, i * LINE_BYTES), total);
            }
        });
        k.for_each(k.i64(count.into()), |i| {
            let row = self.y.row(k, k.add(first, i));
            let values: Vec<_> = (0..s.unit_groups())
                .map(|group| {
                    let line = |turn: u32| {
                        let lines = k.offset(self.scratch, i64::from(turn) * lines_bytes);
                        k.load(Elem::F32.x(GROUP_ROWS), k.element(lines, i, LINE_BYTES))
                    };
                    k.fmul(act(k, s.act, line(2 * group)), line(2 * group + 1))
                })
                .collect();
            self.store(k, row, unit, &values);
        });
    }

    fn store(&self, k: &KernelBuilder<'c>, row: Val<'c>, unit: Val<'c>, values: &[Val<'c>]) {
        let &[first, second] = values else {
            return k.store(k.element(row, unit, LINE_BYTES), values[0]);
        };
        store_q8_block(k, [first, second], row, unit);
        let n = self.shape.product.n;
        let last = k.i64(i64::from(self.shape.units()) - 1);
        k.when(k.icmp(Compare::Eq, unit, last), || zero_q8_tail(k, n, row));
    }
}

fn gated_of(s: GatedMatmul) -> Gated {
    let product = Product { format: s.format, n: s.n, k: s.k };
    Gated { product, act: s.act, quantize: s.quantize }
}

pub(super) fn check(spec: &KernelSpec, s: &GatedMatmul) -> Result<(), KernelError> {
    gated_of(*s).check(spec)
}

/// See [`GatedMatmul`].
pub(super) fn build(k: &KernelBuilder<'_>, s: GatedMatmul) {
    let shape = gated_of(s);
    let sizes = tile_sizes(k);
    let stride_bytes = shape.product.input_row_bytes();
    let unit = GatedUnit {
        shape,
        gate: k.operand(2),
        up: k.operand(3),
        x: RowSource::Dense { base: k.operand(1), stride_bytes },
        y: RowSource::Dense { base: k.operand(4), stride_bytes: shape.output_row_bytes() },
        scratch: k.scratch(shape.scratch_bytes(sizes[0])),
    };
    let (begin, end) = k.share(k.i64(shape.units().into()));
    for_row_blocks(k, s.rows, stride_bytes, k.step_word(StepWord::Rows), |rows| {
        k.for_between(begin, end, |index| {
            for_tiles(k, &sizes, rows, |first, count| unit.tile(k, index, (first, count)));
        });
    });
}
