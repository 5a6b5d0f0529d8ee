//! The row that a tail of one row holds, for each row of the window.

use super::require;
use super::rows::{f32_row, for_chunks, for_my_rows, load_f32, load_index, store_f32};
use crate::builder::KernelBuilder;
use crate::error::KernelError;
use crate::spec::{KernelSpec, ReadTail};

pub(super) fn check(spec: &KernelSpec, s: &ReadTail) -> Result<(), KernelError> {
    require(spec, "k", s.k.into(), s.k > 0, "at least 1")?;
    let (found, need) = (s.layout.pending_bytes, 4 * u64::from(s.k));
    require(spec, "pending_bytes", found, found >= need, "at least the bytes of a value")
}

/// See [`ReadTail`].
pub(super) fn build(b: &KernelBuilder<'_>, s: ReadTail) {
    let (slots, state, y) = (b.operand(1), b.operand(2), b.operand(3));
    let stride_bytes = i64::try_from(s.layout.stride_bytes).expect("states fit memory");
    for_my_rows(b, |row| {
        let value = b.element(state, load_index(b, slots, row), stride_bytes);
        let y = f32_row(b, y, row, s.k);
        for_chunks(b, s.k, |at, lanes| store_f32(b, y, at, load_f32(b, value, at, lanes)));
    });
}
