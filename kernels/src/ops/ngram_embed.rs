//! Table rows of the n-grams of a token, as f32.

use super::embed::{Decoder, float_row};
use super::require;
use super::rows::{f32_row, for_my_rows, load_index};
use crate::builder::{KernelBuilder, Val};
use crate::error::KernelError;
use crate::formats::block_format;
use crate::spec::{KernelSpec, NgramEmbed};

const LINE_BYTES: i64 = 64;

pub(super) fn check(spec: &KernelSpec, s: &NgramEmbed) -> Result<(), KernelError> {
    require(spec, "heads", s.heads.into(), s.heads > 0, "at least 1")?;
    let fits = s.width > 0 && s.width.is_multiple_of(s.format.block().0);
    require(spec, "width", s.width.into(), fits, "a multiple of the format's block above 0")
}

pub(super) fn build<'c>(b: &KernelBuilder<'c>, s: NgramEmbed) {
    let (ids, table, y) = (b.operand(1), b.operand(2), b.operand(3));
    let decoder = block_format(s.format).map(|format| Decoder::new(b, (s.format, 1.0), format));
    let (elements, bytes) = s.format.block();
    let row_bytes = s.format.row_bytes(s.width) as i64;
    let (heads, blocks) = (b.i64(s.heads.into()), b.i64((s.width / elements).into()));
    for_my_rows(b, |row| {
        let ids = b.element(ids, row, i64::from(s.heads) * 4);
        let table_row = |head: Val<'c>| b.element(table, load_index(b, ids, head), row_bytes);
        // Rows lie anywhere in the table: all are asked for before the first is used.
        b.for_each(heads, |head| prefetch_row(b, table_row(head), row_bytes));
        let y = f32_row(b, y, row, s.heads * s.width);
        match &decoder {
            // The native blocks of all heads are one list, so that short rows fill the decoder.
            Some(decoder) => decoder.blocks(b, b.mul(heads, blocks), y, |block| {
                let first = table_row(b.udiv(block, blocks));
                b.element(first, b.urem(block, blocks), bytes.into())
            }),
            None => b.for_each(heads, |head| {
                let y = b.element(y, head, i64::from(s.width) * 4);
                float_row(b, (s.format, s.width, 1.0), table_row(head), y);
            }),
        }
    });
}

/// Asks for each line of a row that begins anywhere.
fn prefetch_row<'c>(b: &KernelBuilder<'c>, row: Val<'c>, bytes: i64) {
    for at in (0..bytes).step_by(LINE_BYTES as usize).chain([bytes - 1]) {
        b.prefetch(b.offset(row, at));
    }
}
