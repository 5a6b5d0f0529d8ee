//! The 6-bit scales and minimums that Q4_K and Q5_K share: 8 of each in 12 bytes.
//!
//! With bytes s: for b < 4 the scale is `s[b] & 63` and the minimum `s[b + 4] & 63`; for b >= 4
//! the scale is `s[b + 4] & 15 | s[b - 4] >> 6 << 4`, the minimum `s[b + 4] >> 4 | s[b] >> 6 << 4`.

use super::{ScalarBlock, f16_at, native::NativeRows};
use crate::builder::{Elem, KernelBuilder, Val};

/// Offset of the 12 bytes in the native block.
const AT: u32 = 4;

fn byte<'c>(k: &KernelBuilder<'c>, rows: &NativeRows<'c>, index: u32) -> Val<'c> {
    let word = rows.word(k, AT + index / 4 * 4);
    k.and(k.shr(word, k.int(Elem::I32, (8 * (index % 4)).into())), k.i32(255))
}

/// Stores `u8 sc[16], u8 mn[16]` of a block.
pub(super) fn store<'c>(k: &KernelBuilder<'c>, rows: &NativeRows<'c>, block: u32, at: Val<'c>) {
    let (scale, min) = if block < 4 {
        let six = |index| k.and(byte(k, rows, index), k.i32(63));
        (six(block), six(block + 4))
    } else {
        let low = byte(k, rows, block + 4);
        let top = |index| k.shl(k.shr(byte(k, rows, index), k.i32(6)), k.i32(4));
        let scale = k.or(k.and(low, k.i32(15)), top(block - 4));
        let min = k.or(k.shr(low, k.i32(4)), top(block));
        (scale, min)
    };
    k.store(at, k.trunc(scale, Elem::I8));
    k.store(k.offset(at, 16), k.trunc(min, Elem::I8));
}

/// Stores `f16 d[16], f16 dmin[16]` of a span.
pub(super) fn store_head<'c>(k: &KernelBuilder<'c>, rows: &NativeRows<'c>, at: Val<'c>) {
    let both = rows.word(k, 0);
    k.store(at, k.trunc(both, Elem::I16));
    k.store(k.offset(at, 32), k.trunc(k.shr(both, k.i32(16)), Elem::I16));
}

/// A scalar block with these scales and the given quants.
pub(super) fn decode(native: &[u8], block: usize, quants: [i32; 32]) -> ScalarBlock {
    let s = &native[AT as usize..];
    let (scale, min) = if block < 4 {
        (s[block] & 63, s[block + 4] & 63)
    } else {
        let low = s[block + 4];
        (low & 15 | s[block - 4] >> 6 << 4, low >> 4 | s[block] >> 6 << 4)
    };
    ScalarBlock {
        quants,
        scales: [i32::from(scale); 2],
        scale: f16_at(native, 0),
        min: Some(-(f16_at(native, 2) * f32::from(min))),
    }
}
