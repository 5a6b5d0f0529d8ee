//! The slots of a state in a kernel.

use super::require;
use super::slots::{SLOT_ALIGN_BYTES, SlotLayout};
use crate::builder::{KernelBuilder, Val};
use crate::error::KernelError;
use crate::spec::KernelSpec;

/// What a row of a window leaves in its slot.
#[derive(Clone, Copy)]
pub(super) struct SlotNeed {
    pub value_bytes: u64,
    pub pending_row_bytes: u64,
    /// Whether pending rows are touched at all.
    pub pending: bool,
}

/// Refuses layouts whose slots cannot hold what the op puts there.
pub(super) fn check(
    spec: &KernelSpec,
    layout: &SlotLayout,
    need: SlotNeed,
) -> Result<(), KernelError> {
    let aligned = |bytes: u64| bytes.is_multiple_of(SLOT_ALIGN_BYTES);
    let (stride, value) = (layout.stride_bytes, layout.pending_bytes);
    let holds = aligned(value) && value >= need.value_bytes;
    require(spec, "pending_bytes", value, holds, "a multiple of 64 that holds the value")?;
    let holds = aligned(stride) && stride >= value;
    require(spec, "stride_bytes", stride, holds, "a multiple of 64 that holds the value")?;
    let row = layout.pending_stride_bytes;
    let holds = !need.pending || (aligned(row) && row >= need.pending_row_bytes);
    require(spec, "pending_stride_bytes", row, holds, "a multiple of 64 that holds a row")
}

/// A state's slots.
#[derive(Clone, Copy)]
pub(super) struct SlotValues<'c> {
    pub layout: SlotLayout,
    /// Address of slot 0.
    pub base: Val<'c>,
}

impl<'c> SlotValues<'c> {
    /// Address of the value of `slot` (i64).
    pub fn value(&self, b: &KernelBuilder<'c>, slot: Val<'c>) -> Val<'c> {
        b.element(self.base, slot, self.layout.stride_bytes as i64)
    }

    /// Address of pending row `row` (i64) of the slot whose value is at `value`.
    pub fn pending(&self, b: &KernelBuilder<'c>, value: Val<'c>, row: Val<'c>) -> Val<'c> {
        let first = b.offset(value, self.layout.pending_bytes as i64);
        b.element(first, row, self.layout.pending_stride_bytes as i64)
    }
}
