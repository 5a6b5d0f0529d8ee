//! Quants of a packed block, as planes of 64-byte lines: `[row][4]` bytes, 16 rows.
//!
//! A quad is four consecutive elements; a block has 8, in pairs. Quants of 8 bits: line q is quad
//! q. Smaller ones have four lines of nibbles (line p: quad 2p low, quad 2p + 1 high), then the
//! bits above. These are placed so that quads of a half block come to bits 4 and up by shifts of
//! what is left of the line: 5 bits: one line, quad q at bit `(q + 4) % 8`; 6 bits: a line for
//! each half block, its quad j at bit `(2 j + 4) % 8`.

use crate::builder::{Elem, KernelBuilder, Ty, Val};

const LINE: u32 = 64;
const QUADS: u32 = 8;

/// Bytes of the planes of a block of 16 rows.
pub(crate) fn bytes(bits: u32) -> u32 {
    LINE * bits
}

/// Stores the planes of a block: `quad(q)` is 16 x i32 of four unsigned quants.
pub(crate) fn store<'c>(
    k: &KernelBuilder<'c>,
    at: Val<'c>,
    bits: u32,
    quad: impl Fn(u32) -> Val<'c>,
) {
    let quads: Vec<Val<'c>> = (0..QUADS).map(quad).collect();
    let line = |index: u32, words: Val<'c>| k.store(k.offset(at, (LINE * index).into()), words);
    if bits == 8 {
        (0..).zip(&quads).for_each(|(q, &words)| line(q, words));
        return;
    }
    let low = |q: usize| k.and(quads[q], k.i32(0x0f0f_0f0f));
    for c in 0..4 {
        line(c, k.or(low(2 * c as usize), k.shl(low(2 * c as usize + 1), k.i32(4))));
    }
    let high_bits = bits - 4;
    if high_bits == 0 {
        return;
    }
    let mask = if high_bits == 1 { 0x0101_0101 } else { 0x0303_0303 };
    let quads_a_line = 8 / high_bits;
    for h in 0..high_bits {
        let mut words = k.zero(Elem::I32.x(16));
        for i in 0..quads_a_line {
            let quad = quads[(h * quads_a_line + i) as usize];
            let piece = k.and(k.shr(quad, k.i32(4)), k.i32(mask));
            let bit = (high_bits * i + 4) % 8;
            words = k.or(words, k.shl(piece, k.int(Elem::I32, bit.into())));
        }
        line(4 + h, words);
    }
}

/// A window on the planes of a block: the bytes of 8 rows (32) or of 16 (64).
#[derive(Clone, Copy)]
pub(crate) struct Planes<'c> {
    /// Address of the first line, at the first row of the window.
    pub at: Val<'c>,
    pub bits: u32,
    /// What quants of 4 bits stand for, if it is not themselves.
    pub codebook: Option<[u8; 16]>,
    pub ty: Ty,
}

impl<'c> Planes<'c> {
    /// The high bits of half block `half`, for its first pair; none for 4 and 8 bits.
    pub fn high(&self, k: &KernelBuilder<'c>, half: u32) -> Option<Val<'c>> {
        match self.bits {
            5 => {
                let line = self.words(k, 4);
                Some(if half == 0 { line } else { k.shl(line, k.i32(4)) })
            }
            6 => Some(self.words(k, 4 + half)),
            _ => None,
        }
    }

    /// Quads `2 * pair` and `2 * pair + 1` (pair: i64), bytes of unsigned quants (signed ones for
    /// 8 bits, those of the codebook if there is one), and the high bits of the next pair.
    pub fn pair(
        &self,
        k: &KernelBuilder<'c>,
        pair: Val<'c>,
        high: Option<Val<'c>>,
    ) -> ([Val<'c>; 2], Option<Val<'c>>) {
        if self.bits == 8 {
            let first = k.element(self.at, pair, 2 * i64::from(LINE));
            let second = k.offset(first, LINE.into());
            return ([k.load(self.ty, first), k.load(self.ty, second)], None);
        }
        let nibbles = k.load(self.ty, k.element(self.at, pair, LINE.into()));
        let byte = |v: i64| k.int(Elem::I8, v);
        let low = [k.and(nibbles, byte(15)), k.shr(nibbles, byte(4))];
        if let Some(codebook) = &self.codebook {
            return (low.map(|quants| k.lookup(codebook, quants)), None);
        }
        let Some(high) = high else { return (low, None) };
        let (mask, step, next) = match self.bits {
            5 => (0x10, 1, k.shr(high, k.i32(2))),
            _ => (0x30, 2, k.shl(high, k.i32(4))),
        };
        let join = |low, high| k.or(low, k.and(k.bitcast(high, self.ty), byte(mask)));
        ([join(low[0], high), join(low[1], k.shr(high, k.i32(step)))], Some(next))
    }

    fn words(&self, k: &KernelBuilder<'c>, line: u32) -> Val<'c> {
        let at = k.offset(self.at, (LINE * line).into());
        k.load(Elem::I32.x(self.ty.lanes / 4), at)
    }
}
