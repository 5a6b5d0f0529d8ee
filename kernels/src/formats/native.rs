//! Reading native blocks of 16 rows at once.

use crate::builder::{Elem, KernelBuilder, Val};

/// The same native block of 16 rows.
pub(crate) struct NativeRows<'c> {
    /// One address a row.
    rows: Vec<Val<'c>>,
    /// The words of the block, each of all rows (64 bytes), as far as they are gathered.
    words: Option<(Val<'c>, u32)>,
}

impl<'c> NativeRows<'c> {
    /// Blocks that are read word by word from their rows.
    pub fn direct(rows: Vec<Val<'c>>) -> Self {
        Self { rows, words: None }
    }

    /// Blocks of `bytes` bytes whose whole words are gathered at `words` first: 64 bytes for each
    /// word of 4.
    pub fn gathered(k: &KernelBuilder<'c>, rows: Vec<Val<'c>>, words: Val<'c>, bytes: u32) -> Self {
        let count = bytes / 4;
        let direct = Self::direct(rows);
        k.for_each(k.i64(count.into()), |word| {
            let offset = k.mul(word, k.i64(4));
            k.store(k.element(words, word, 64), direct.gather(k, Elem::I32, offset));
        });
        Self { words: Some((words, count)), ..direct }
    }

    /// The four bytes at `offset` of each row's block, as 16 x i32.
    pub fn word(&self, k: &KernelBuilder<'c>, offset: u32) -> Val<'c> {
        match self.words {
            Some((words, count)) if offset.is_multiple_of(4) && offset / 4 < count => {
                k.load(Elem::I32.x(16), k.offset(words, (offset * 16).into()))
            }
            _ => self.gather(k, Elem::I32, k.i64(offset.into())),
        }
    }

    /// The 16 bits at `offset` of each row's block, as 16 x i16.
    pub fn half(&self, k: &KernelBuilder<'c>, offset: u32) -> Val<'c> {
        match self.words {
            Some((_, count)) if offset / 4 < count => {
                let shift = k.int(Elem::I32, (8 * (offset % 4)).into());
                k.trunc(k.shr(self.word(k, offset / 4 * 4), shift), Elem::I16)
            }
            _ => self.gather(k, Elem::I16, k.i64(offset.into())),
        }
    }

    fn gather(&self, k: &KernelBuilder<'c>, elem: Elem, offset: Val<'c>) -> Val<'c> {
        let mut lanes = k.zero(elem.x(16));
        for (lane, &row) in (0..).zip(&self.rows) {
            // Native blocks are aligned to 2 bytes at most.
            let bytes = k.load(Elem::I8.x(elem.bytes()), k.at(row, offset));
            lanes = k.insert(lanes, k.bitcast(bytes, elem.scalar()), lane);
        }
        lanes
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
