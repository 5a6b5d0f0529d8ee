//! Reading native blocks of 16 rows at once.

use crate::builder::{Elem, KernelBuilder, Val};

/// The same native block of 16 rows: one address a row.
pub(crate) struct NativeRows<'c> {
    pub rows: Vec<Val<'c>>,
}

impl<'c> NativeRows<'c> {
    /// The four bytes at `offset` of each row's block, as 16 x i32.
    pub fn word(&self, k: &KernelBuilder<'c>, offset: u32) -> Val<'c> {
        let mut words = k.zero(Elem::I32.x(16));
        for (lane, &row) in (0..).zip(&self.rows) {
            // Native blocks are aligned to 2 bytes at most.
            let bytes = k.load(Elem::I8.x(4), k.offset(row, offset.into()));
            let word = k.bitcast(bytes, Elem::I32.scalar());
            words = k.insert(words, word, lane);
        }
        words
    }

    /// The 16 bits at `offset` of each row's block, as 16 x i16.
    pub fn half(&self, k: &KernelBuilder<'c>, offset: u32) -> Val<'c> {
        let mut halves = k.zero(Elem::I16.x(16));
        for (lane, &row) in (0..).zip(&self.rows) {
            let bytes = k.load(Elem::I8.x(2), k.offset(row, offset.into()));
            let half = k.bitcast(bytes, Elem::I16.scalar());
            halves = k.insert(halves, half, lane);
        }
        halves
    }
}

/// Four quants of 4 bits, from the low or the high nibbles of the word at `offset`.
pub(crate) fn nibbles<'c>(
    k: &KernelBuilder<'c>,
    rows: &NativeRows<'c>,
    offset: u32,
    high: bool,
) -> Val<'c> {
    let word = rows.word(k, offset);
    let word = if high { k.shr(word, k.i32(4)) } else { word };
    k.and(word, k.i32(0x0f0f_0f0f))
}

/// Bits `4 * quad ..` of the word at `offset`, each as the 0x10 of its byte.
pub(crate) fn fifth_bits<'c>(
    k: &KernelBuilder<'c>,
    rows: &NativeRows<'c>,
    offset: u32,
    quad: u32,
) -> Val<'c> {
    let word = k.shr(rows.word(k, offset), k.int(Elem::I32, i64::from(4 * quad)));
    let four = k.and(word, k.i32(0xf));
    // Bit i times 2^(7 i) lands on bit 8 i; no two of the products meet.
    let spread = k.and(k.mul(four, k.i32(0x0020_4081)), k.i32(0x0101_0101));
    k.shl(spread, k.i32(4))
}

/// The fifth bits in scalar form: bit `index` of the u32 at `offset`, as 16 or 0.
pub(crate) fn fifth_bit(native: &[u8], offset: usize, index: usize) -> i32 {
    let byte = native[offset + index / 8];
    i32::from(byte >> (index % 8) & 1) * 16
}

/// The quant of 4 bits of element `index` where the 16 bytes at `offset` hold the first 16 in
/// their low nibbles and the last 16 in their high ones.
pub(crate) fn split_nibble(native: &[u8], offset: usize, index: usize) -> i32 {
    let byte = native[offset + index % 16];
    i32::from(if index < 16 { byte & 15 } else { byte >> 4 })
}
