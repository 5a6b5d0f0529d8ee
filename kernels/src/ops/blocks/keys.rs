//! Pooled keys of completed blocks.

use super::{check_block, check_keys, entries, in_blocks};
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::math;
use crate::ops::norm::{inverse_rms, sum_of_squares};
use crate::ops::pages::Pages;
use crate::ops::prologue::{store_key, turn};
use crate::ops::require;
use crate::ops::rows::{LANES, f32_row, for_chunks, for_my_rows, load_f32, load_index, store_f32};
use crate::spec::{BlockKeys, KernelSpec};

pub fn check(spec: &KernelSpec, s: &BlockKeys) -> Result<(), KernelError> {
    check_block(spec, s.block)?;
    check_keys(spec, &s.keys, (1, s.dim))?;
    let fits = s.rope_dims <= s.dim && s.rope_dims.is_multiple_of(2);
    require(spec, "rope_dims", s.rope_dims.into(), fits, "an even number up to dim")?;
    let tail = u64::from(s.block - 1) * u64::from(s.dim) * 4;
    let found = s.layout.pending_bytes;
    require(spec, "pending_bytes", found, found >= tail, "room for block - 1 rows of dim")
}

/// Operands, and scratch for one key.
struct Body<'c> {
    s: BlockKeys,
    x: Val<'c>,
    gain: Val<'c>,
    inv_freq: Val<'c>,
    positions: Val<'c>,
    slots: Val<'c>,
    offsets: Val<'c>,
    pages: Pages<'c>,
    state: Val<'c>,
    key: Val<'c>,
}

pub fn build(b: &KernelBuilder<'_>, s: BlockKeys) {
    let (table, base) = (b.operand(7), b.operand(8));
    let body = Body {
        s,
        x: b.operand(1),
        gain: b.operand(2),
        inv_freq: b.operand(3),
        positions: b.operand(4),
        slots: b.operand(5),
        offsets: b.operand(6),
        pages: Pages { layout: s.keys, pages_per_slot: s.pages_per_slot, table, base },
        state: b.operand(9),
        key: b.scratch(s.dim * 4),
    };
    let stride = s.layout.stride_bytes as i64;
    for_my_rows(b, |row| {
        let offset = load_index(b, body.offsets, row);
        let slot = load_index(b, body.slots, row);
        let tail = b.element(body.state, slot, stride);
        if s.pending {
            body.pool(b, (row, offset), (slot, tail));
            let pending = b.offset(tail, s.layout.pending_bytes as i64);
            let pending = b.element(pending, offset, s.layout.pending_stride_bytes as i64);
            body.copy(b, f32_row(b, body.x, row, s.dim), pending);
            return;
        }
        // Who reads the tail is who changes it: the first row of a segment, for the others too.
        let old = b.i64(i64::from(s.block) - 1);
        b.when(b.icmp(Compare::Ge, offset, old), || body.pool(b, (row, offset), (slot, tail)));
        b.when(b.icmp(Compare::Eq, offset, b.i64(0)), || {
            let len = body.segment_len(b, row);
            b.for_each(b.imin(len, old), |offset| {
                body.pool(b, (b.add(row, offset), offset), (slot, tail));
            });
            body.shift(b, tail, (row, len));
        });
    });
}

impl<'c> Body<'c> {
    fn copy(&self, b: &KernelBuilder<'c>, from: Val<'c>, to: Val<'c>) {
        for_chunks(b, self.s.dim, |at, lanes| store_f32(b, to, at, load_f32(b, from, at, lanes)));
    }

    /// The row that lies `steps` before the row with this offset, which may be negative: then it is
    /// in the tail.
    fn row_at(
        &self,
        b: &KernelBuilder<'c>,
        row: Val<'c>,
        offset: Val<'c>,
        tail: Val<'c>,
    ) -> Val<'c> {
        let inside = f32_row(b, self.x, row, self.s.dim);
        let rows = b.add(offset, b.i64(i64::from(self.s.block) - 1));
        let before = f32_row(b, tail, rows, self.s.dim);
        b.select(b.icmp(Compare::Ge, offset, b.i64(0)), inside, before)
    }

    /// Rows of the segment that begins at `first`.
    fn segment_len(&self, b: &KernelBuilder<'c>, first: Val<'c>) -> Val<'c> {
        let rows = b.step_word(StepWord::Rows);
        let next = b.add(first, b.i64(1));
        let init = [b.i64(1), b.int(Elem::I1, 1)];
        b.for_range((next, rows), 1, &init, |row, carried| {
            let offset = load_index(b, self.offsets, row);
            let goes_on = b.and(carried[1], b.icmp(Compare::Ne, offset, b.i64(0)));
            vec![b.add(carried[0], b.zext(goes_on, Elem::I64)), goes_on]
        })[0]
    }

    /// The tail after the segment of `len` rows from `first` on. Rows move towards the front, so
    /// none is overwritten before it has moved.
    fn shift(&self, b: &KernelBuilder<'c>, tail: Val<'c>, (first, len): (Val<'c>, Val<'c>)) {
        let rows = i64::from(self.s.block) - 1;
        for i in 0..rows {
            let offset = b.sub(b.add(len, b.i64(i)), b.i64(rows));
            let from = self.row_at(b, b.add(first, offset), offset, tail);
            self.copy(b, from, b.offset(tail, i * i64::from(self.s.dim) * 4));
        }
    }

    /// Stores the key of the block that this row completes, if it completes one.
    fn pool(
        &self,
        b: &KernelBuilder<'c>,
        (row, offset): (Val<'c>, Val<'c>),
        (slot, tail): (Val<'c>, Val<'c>),
    ) {
        let s = &self.s;
        let entries = entries(b, self.positions, row, s.first);
        let inside = b.and(entries, b.i64(i64::from(s.block) - 1));
        let some = b.icmp(Compare::Gt, entries, b.i64(0));
        b.when(b.and(some, b.icmp(Compare::Eq, inside, b.i64(0))), || {
            let back = |steps: i64| {
                let steps = b.i64(steps);
                self.row_at(b, b.sub(row, steps), b.sub(offset, steps), tail)
            };
            let rows: Vec<Val<'c>> = (0..i64::from(s.block)).rev().map(back).collect();
            for_chunks(b, s.dim, |at, lanes| {
                let load = |&row: &Val<'c>| load_f32(b, row, at, lanes);
                let sum = rows.iter().map(load).reduce(|sum, x| b.fadd(sum, x));
                let sum = sum.expect("a block has rows");
                store_f32(b, self.key, at, b.fmul(sum, b.f32(1.0 / s.block as f32)));
            });
            self.norm(b);
            let start = b.sub(entries, b.i64(i64::from(s.block) - i64::from(s.first)));
            self.rotate(b, start);
            let block = b.sub(in_blocks(b, entries, s.block), b.i64(1));
            let page = self.pages.page(b, self.pages.table_row(b, slot), block);
            store_key(b, &self.pages, (page, self.pages.index(b, block)), self.key);
        });
    }

    fn norm(&self, b: &KernelBuilder<'c>) {
        let (key, dim) = (self.key, self.s.dim);
        let r = inverse_rms(b, sum_of_squares(b, key, dim), dim, self.s.eps.get());
        b.for_range((b.i64(0), b.i64(dim.into())), LANES.into(), &[], |at, _| {
            let x = b.fmul(load_f32(b, key, at, LANES), r);
            store_f32(b, key, at, b.fmul(x, load_f32(b, self.gain, at, LANES)));
            Vec::new()
        });
    }

    fn rotate(&self, b: &KernelBuilder<'c>, position: Val<'c>) {
        let half = self.s.rope_dims / 2;
        // Positions are below 2^31, so the signed conversion is exact in meaning.
        let position = b.int_to_float(b.trunc(position, Elem::I32), Elem::F32);
        for_chunks(b, half, |at, lanes| {
            let angle = b.fmul(load_f32(b, self.inv_freq, at, lanes), position);
            let (sin, cos) = math::sin_cos(b, angle);
            let second = b.add(at, b.i64(half.into()));
            let pair = [at, second].map(|at| load_f32(b, self.key, at, lanes));
            let (x, y) = turn(b, pair[0], pair[1], (cos, sin));
            store_f32(b, self.key, at, x);
            store_f32(b, self.key, second, y);
        });
    }
}
