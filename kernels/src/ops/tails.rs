//! The last rows of each sequence: shifts by one row, and commits.

use super::require;
use super::rows::{LANES, load_index};
use super::slot_values::{self, SlotNeed, SlotValues};
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::spec::{KernelSpec, ShiftRows, TailCommit};

/// Elements of a row that are one unit of work, if they divide it; else [`LANES`].
const COLUMNS: u32 = 64;

/// Rows of `f32[width]` behind a tail of `rows` such rows.
pub(super) struct Tail<'c> {
    pub rows: u32,
    pub width: u32,
    pub x: Val<'c>,
    pub slots: Val<'c>,
    pub offsets: Val<'c>,
    pub state: SlotValues<'c>,
    pub pending: bool,
}

/// A row of the window, and the columns of the unit at work.
#[derive(Clone, Copy)]
pub(super) struct Place<'c> {
    pub row: Val<'c>,
    /// Index of the row in its segment.
    pub offset: Val<'c>,
    /// Address of the tail of its sequence.
    value: Val<'c>,
    /// First column of the unit.
    pub column: Val<'c>,
}

/// Columns of a unit of rows of `width` elements.
pub(super) fn unit_columns(width: u32) -> u32 {
    if width.is_multiple_of(COLUMNS) { COLUMNS } else { LANES }
}

/// Whether `row` is the last live one of its segment.
pub(super) fn is_last_of_segment<'c>(
    b: &KernelBuilder<'c>,
    offsets: Val<'c>,
    row: Val<'c>,
    rows: Val<'c>,
) -> Val<'c> {
    let next = b.add(row, b.i64(1));
    let is_last = b.icmp(Compare::Eq, next, rows);
    // The last row reads its own offset, so that nothing behind the live rows is read.
    let following = load_index(b, offsets, b.select(is_last, row, next));
    b.or(is_last, b.icmp(Compare::Eq, following, b.i64(0)))
}

impl<'c> Tail<'c> {
    fn row_bytes(&self) -> i64 {
        i64::from(self.width) * 4
    }

    /// Runs `unit`, with the first column, for each of this part's units of columns, and `body` for
    /// every live row in it; then the row is stored for a commit, or its segment's last rows
    /// become the tail.
    pub fn for_my_columns(
        &self,
        b: &KernelBuilder<'c>,
        unit: impl FnOnce(Val<'c>),
        body: impl FnOnce(Place<'c>),
    ) {
        let columns = unit_columns(self.width);
        let rows = b.step_word(StepWord::Rows);
        let (begin, end) = b.share(b.i64((self.width / columns).into()));
        b.for_between(begin, end, |index| {
            let column = b.mul(index, b.i64(columns.into()));
            unit(column);
            b.for_each(rows, |row| {
                let offset = load_index(b, self.offsets, row);
                let value = self.state.value(b, load_index(b, self.slots, row));
                let place = Place { row, offset, value, column };
                body(place);
                if self.pending {
                    let x = self.element(b, place, offset);
                    let to = b.element(self.state.pending(b, value, offset), column, 4);
                    copy_words(b, x, to, columns);
                } else {
                    let is_last = is_last_of_segment(b, self.offsets, row, rows);
                    b.when(is_last, || self.advance(b, place));
                }
            });
        });
    }

    /// Address of the unit's columns of the row with index `index` in the place's segment; a
    /// negative one is a row of the tail.
    pub fn element(&self, b: &KernelBuilder<'c>, place: Place<'c>, index: Val<'c>) -> Val<'c> {
        let in_window = b.icmp(Compare::Ge, index, b.i64(0));
        let row = b.add(b.sub(place.row, place.offset), index);
        let new = b.element(self.x, row, self.row_bytes());
        let old = b.element(place.value, b.add(index, b.i64(self.rows.into())), self.row_bytes());
        b.element(b.select(in_window, new, old), place.column, 4)
    }

    /// The rows up to `place` become the tail. Ascending: a row moves to where an older one was.
    fn advance(&self, b: &KernelBuilder<'c>, place: Place<'c>) {
        let rows = b.i64(self.rows.into());
        let first = b.sub(b.add(place.offset, b.i64(1)), rows);
        b.for_each(rows, |row| {
            let from = self.element(b, place, b.add(first, row));
            let to = b.element(place.value, row, self.row_bytes());
            copy_words(b, from, b.element(to, place.column, 4), unit_columns(self.width));
        });
    }
}

/// Copies `count` words: 1, or a multiple of 16.
fn copy_words<'c>(b: &KernelBuilder<'c>, from: Val<'c>, to: Val<'c>, count: u32) {
    let lanes = count.min(LANES);
    for first in (0..count).step_by(lanes as usize) {
        let bytes = i64::from(first) * 4;
        b.store(b.offset(to, bytes), b.load(Elem::I32.x(lanes), b.offset(from, bytes)));
    }
}

pub(super) fn check_shift(spec: &KernelSpec, s: &ShiftRows) -> Result<(), KernelError> {
    let fits = s.k > 0 && s.k.is_multiple_of(LANES);
    require(spec, "k", s.k.into(), fits, "a multiple of 16 above 0")?;
    let bytes = u64::from(s.k) * 4;
    let need = SlotNeed { value_bytes: bytes, pending_row_bytes: bytes, pending: s.pending };
    slot_values::check(spec, &s.layout, need)
}

pub(super) fn shift<'c>(b: &KernelBuilder<'c>, s: ShiftRows) {
    let tail = Tail {
        rows: 1,
        width: s.k,
        x: b.operand(1),
        slots: b.operand(2),
        offsets: b.operand(3),
        state: SlotValues { layout: s.layout, base: b.operand(4) },
        pending: s.pending,
    };
    let y = b.operand(5);
    let copy = |place: Place<'c>| {
        let from = tail.element(b, place, b.sub(place.offset, b.i64(1)));
        let to = b.element(b.element(y, place.row, tail.row_bytes()), place.column, 4);
        copy_words(b, from, to, unit_columns(s.k));
    };
    tail.for_my_columns(b, |_| (), copy);
}

pub(super) fn check_commit(spec: &KernelSpec, s: &TailCommit) -> Result<(), KernelError> {
    require(spec, "rows", s.rows.into(), s.rows > 0, "at least 1")?;
    let fits = s.row_bytes > 0 && s.row_bytes.is_multiple_of(4);
    require(spec, "row_bytes", s.row_bytes.into(), fits, "a multiple of 4 above 0")?;
    let row = u64::from(s.row_bytes);
    let value_bytes = u64::from(s.rows) * row;
    slot_values::check(
        spec,
        &s.layout,
        SlotNeed { value_bytes, pending_row_bytes: row, pending: true },
    )
}

pub(super) fn commit(b: &KernelBuilder<'_>, s: TailCommit) {
    let (slots, accepted) = (b.operand(1), b.operand(2));
    let state = SlotValues { layout: s.layout, base: b.operand(3) };
    let words = s.row_bytes / 4;
    let width = match words {
        _ if words.is_multiple_of(COLUMNS) => COLUMNS,
        _ if words.is_multiple_of(LANES) => LANES,
        _ => 1,
    };
    let pieces = b.i64((words / width).into());
    let (rows, row_bytes) = (b.i64(s.rows.into()), i64::from(s.row_bytes));
    let (begin, end) = b.share(b.mul(b.step_word(StepWord::Commits), pieces));
    b.for_between(begin, end, |unit| {
        let (index, piece) = (b.udiv(unit, pieces), b.urem(unit, pieces));
        let value = state.value(b, load_index(b, slots, index));
        let accepted = load_index(b, accepted, index);
        let column = |address| b.element(address, piece, i64::from(width) * 4);
        b.when(b.icmp(Compare::Gt, accepted, b.i64(0)), || {
            b.for_each(rows, |row| {
                let from = b.add(row, accepted);
                let old = b.element(value, from, row_bytes);
                let new = state.pending(b, value, b.sub(from, rows));
                let from = b.select(b.icmp(Compare::Lt, from, rows), old, new);
                copy_words(b, column(from), column(b.element(value, row, row_bytes)), width);
            });
        });
    });
}
