//! Where the value of a sequence lies in a state that has one value a slot. Plain numbers: whoever
//! sizes or copies states needs only this file.
//!
//! | part of a slot | bytes |
//! |---|---|
//! | the value | `pending_bytes`, a multiple of 64, its end unused |
//! | pending rows 0, 1, .. | `pending_stride_bytes` each, a multiple of 64 |
//!
//! A window whose rows may be rejected leaves the value alone and writes pending rows; a commit
//! applies the accepted ones. Of a tail a pending row is the row itself.

use serde::{Deserialize, Serialize};

/// Slots, values and pending rows begin at multiples of this.
pub const SLOT_ALIGN_BYTES: u64 = 64;

/// Layout of the slots of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotLayout {
    /// From one slot to the next.
    pub stride_bytes: u64,
    /// Offset of pending row 0 in a slot.
    pub pending_bytes: u64,
    /// From one pending row to the next; 0 if there are none.
    pub pending_stride_bytes: u64,
}

impl SlotLayout {
    /// Slots of a value of `value_bytes` and `pending_rows` pending rows of `pending_row_bytes`.
    pub const fn new(value_bytes: u64, pending_row_bytes: u64, pending_rows: u64) -> Self {
        let pending_bytes = value_bytes.next_multiple_of(SLOT_ALIGN_BYTES);
        let pending_stride_bytes = match pending_rows {
            0 => 0,
            _ => pending_row_bytes.next_multiple_of(SLOT_ALIGN_BYTES),
        };
        Self {
            stride_bytes: pending_bytes + pending_rows * pending_stride_bytes,
            pending_bytes,
            pending_stride_bytes,
        }
    }

    /// Slots of a tail of `rows` rows of `row_bytes`.
    pub const fn tail(rows: u64, row_bytes: u64, pending_rows: u64) -> Self {
        Self::new(rows * row_bytes, row_bytes, pending_rows)
    }

    /// Byte offset of the value of `slot`.
    pub const fn value_offset(&self, slot: u64) -> u64 {
        slot * self.stride_bytes
    }

    /// Byte offset of pending row `row` of `slot`.
    pub const fn pending_offset(&self, slot: u64, row: u64) -> u64 {
        self.value_offset(slot) + self.pending_bytes + row * self.pending_stride_bytes
    }
}
