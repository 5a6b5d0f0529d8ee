//! Depthwise causal convolution over the rows of each sequence.

use super::require;
use super::rows::{LANES, load_f32, store_f32};
use super::slot_values::{self, SlotNeed, SlotValues};
use super::tails::{Place, Tail, unit_columns};
use crate::builder::{Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::math::silu;
use crate::spec::{Conv1d, KernelSpec};

/// Keeps the taps of a unit in scratch, and taps written out, small.
const MOST_TAPS: u32 = 16;

pub(super) fn check(spec: &KernelSpec, s: &Conv1d) -> Result<(), KernelError> {
    let fits = s.channels > 0 && s.channels.is_multiple_of(LANES);
    require(spec, "channels", s.channels.into(), fits, "a multiple of 16 above 0")?;
    require(spec, "taps", s.taps.into(), (2..=MOST_TAPS).contains(&s.taps), "2 to 16")?;
    require(spec, "dilation", s.dilation.into(), s.dilation > 0, "at least 1")?;
    let row = u64::from(s.channels) * 4;
    let value_bytes = u64::from(s.taps - 1) * u64::from(s.dilation) * row;
    let need = SlotNeed { value_bytes, pending_row_bytes: row, pending: s.pending };
    slot_values::check(spec, &s.layout, need)
}

pub(super) fn build<'c>(b: &KernelBuilder<'c>, s: Conv1d) {
    let (weight, y) = (b.operand(2), b.operand(6));
    let tail = Tail {
        rows: (s.taps - 1) * s.dilation,
        width: s.channels,
        x: b.operand(1),
        slots: b.operand(3),
        offsets: b.operand(4),
        state: SlotValues { layout: s.layout, base: b.operand(5) },
        pending: s.pending,
    };
    let columns = unit_columns(s.channels);
    // f32[taps][columns]
    let taps = b.scratch(s.taps * columns * 4);
    let tap = |j: u32, first: u32| b.offset(taps, i64::from(j * columns + first) * 4);
    let load_taps = |column: Val<'c>| {
        let weight = b.element(weight, column, i64::from(s.taps) * 4);
        transpose(b, weight, taps, (columns, s.taps));
    };
    let row = |place: Place<'c>| {
        let source = |j: u32| {
            let back = i64::from((s.taps - 1 - j) * s.dilation);
            tail.element(b, place, b.sub(place.offset, b.i64(back)))
        };
        let sources: Vec<Val<'c>> = (0..s.taps).map(source).collect();
        let y = b.element(y, place.row, i64::from(s.channels) * 4);
        for first in (0..columns).step_by(LANES as usize) {
            let mut sum = b.zero(Elem::F32.x(LANES));
            for (j, &source) in (0..).zip(&sources) {
                let x = load_f32(b, source, b.i64(first.into()), LANES);
                sum = b.fma(b.load(Elem::F32.x(LANES), tap(j, first)), x, sum);
            }
            store_f32(b, y, b.add(place.column, b.i64(first.into())), silu(b, sum));
        }
    };
    tail.for_my_columns(b, load_taps, row);
}

/// `to[j][i] = from[i][j]` for f32 `from[rows][columns]`.
fn transpose<'c>(b: &KernelBuilder<'c>, from: Val<'c>, to: Val<'c>, (rows, columns): (u32, u32)) {
    b.for_each(b.i64(rows.into()), |i| {
        let row = b.element(from, i, i64::from(columns) * 4);
        for j in 0..columns {
            let value = b.load(Elem::F32.scalar(), b.offset(row, i64::from(j) * 4));
            b.store(b.element(b.offset(to, i64::from(j * rows) * 4), i, 4), value);
        }
    });
}
