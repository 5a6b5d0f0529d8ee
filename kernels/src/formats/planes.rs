//! Quants of a packed block, as planes of 64-byte lines: `[row][4]` bytes, 16 rows.
//!
//! A quad is four consecutive elements; a block has 8. Quants of 8 bits: line `q` is quad q.
//! Smaller ones have four lines of nibbles (line c: quad 2c low, quad 2c + 1 high), then the bits
//! above: 5 bits: one line, bit q belongs to quad q; 6 bits: two lines of 2-bit pieces, line h
//! from its low bits up quads 4h to 4h + 3.

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
            words = k.or(words, k.shl(piece, k.int(Elem::I32, (high_bits * i).into())));
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
    pub ty: Ty,
}

impl<'c> Planes<'c> {
    /// Quads `2 * pair` and `2 * pair + 1`: bytes of unsigned quants (signed ones for 8 bits).
    pub fn pair(&self, k: &KernelBuilder<'c>, pair: u32) -> [Val<'c>; 2] {
        if self.bits == 8 {
            return [self.line(k, 2 * pair), self.line(k, 2 * pair + 1)];
        }
        let byte = |v: i64| k.int(Elem::I8, v);
        let nibbles = self.line(k, pair);
        let low = k.and(nibbles, byte(15));
        let high = k.shr(nibbles, byte(4));
        [self.widen(k, low, 2 * pair), self.widen(k, high, 2 * pair + 1)]
    }

    fn widen(&self, k: &KernelBuilder<'c>, nibble: Val<'c>, quad: u32) -> Val<'c> {
        let high_bits = self.bits - 4;
        if high_bits == 0 {
            return nibble;
        }
        let quads_a_line = 8 / high_bits;
        let line = self.line(k, 4 + quad / quads_a_line);
        let position = high_bits * (quad % quads_a_line);
        let byte = |v: u32| k.int(Elem::I8, v.into());
        let moved = match position {
            0..=3 => k.shl(line, byte(4 - position)),
            4 => line,
            _ => k.shr(line, byte(position - 4)),
        };
        let mask = if high_bits == 1 { 0x10 } else { 0x30 };
        k.or(nibble, k.and(moved, byte(mask)))
    }

    fn line(&self, k: &KernelBuilder<'c>, index: u32) -> Val<'c> {
        k.load(self.ty, k.offset(self.at, (LINE * index).into()))
    }
}
