//! Blocks by the 8-bit dot product that accumulates in i32.

use super::{WBlock, XBlock};
use crate::builder::{Elem, KernelBuilder, Val};
use crate::formats::Scales;

/// Rows of one register.
const LANES: u32 = 16;

/// The exact integers of a block for each row of activations.
pub(super) fn integer_sums<'c>(
    k: &KernelBuilder<'c>,
    w: &WBlock<'c>,
    x: &[XBlock<'c>],
) -> Vec<Val<'c>> {
    let by_half = w.facts.scales == Scales::SpanHalves;
    // Signed quants are made unsigned by adding 128; a codebook holds it already.
    let signed = w.facts.bits == 8;
    let offset = if w.facts.is_signed() { 128 } else { w.facts.offset };
    let planes = w.planes(k);
    let mut sums: Vec<[Val<'c>; 2]> = x.iter().map(|x| first_sums(k, x, offset, by_half)).collect();
    for half in 0..2 {
        let mut high = planes.high(k, half);
        for pair in [2 * half, 2 * half + 1].map(|p| k.i64(p.into())) {
            let (quads, next) = planes.pair(k, pair, high);
            high = next;
            for (i, quants) in quads.into_iter().enumerate() {
                let quants = if signed { k.xor(quants, k.int(Elem::I8, 0x80)) } else { quants };
                let half = if by_half { half as usize } else { 0 };
                for (x, sums) in x.iter().zip(&mut sums) {
                    sums[half] = k.dot_u8_i8(sums[half], quants, x.quad(k, (pair, i), LANES));
                }
            }
        }
    }
    let scaled = |sums: &[Val<'c>; 2]| match w.facts.scales {
        Scales::Block { .. } => sums[0],
        Scales::SpanMin => {
            let scale = k.zext(k.load(Elem::I8.x(LANES), w.at), Elem::I32);
            k.mul(sums[0], scale)
        }
        Scales::SpanHalves => {
            let both = k.load(Elem::I16.x(LANES), w.at);
            let both = k.sext(both, Elem::I32);
            let first = k.sar(k.shl(both, k.i32(24)), k.i32(24));
            k.add(k.mul(sums[0], first), k.mul(sums[1], k.sar(both, k.i32(8))))
        }
    };
    sums.iter().map(scaled).collect()
}

/// What the sums of both halves begin with, so that the offset is taken off.
fn first_sums<'c>(
    k: &KernelBuilder<'c>,
    x: &XBlock<'c>,
    offset: i32,
    by_half: bool,
) -> [Val<'c>; 2] {
    if offset == 0 {
        return [k.zero(Elem::I32.x(LANES)); 2];
    }
    let sums = x.sums(k);
    let first = k.sar(k.shl(sums, k.i32(16)), k.i32(16));
    let second = k.sar(sums, k.i32(16));
    let halves = if by_half { [first, second] } else { [k.add(first, second), k.i32(0)] };
    halves.map(|sum| k.splat(k.mul(sum, k.i32(-offset)), LANES))
}
