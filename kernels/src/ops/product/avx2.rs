//! Blocks by 16-bit dot products: `u8 x i8` pairs are summed in i16 as long as that is exact, then
//! widened by a multiplication with the block's integer scale, which is thereby free.

use super::{WBlock, XBlock};
use crate::builder::{Elem, KernelBuilder, Val};
use crate::formats::{Facts, Scales};

/// Rows of one register.
const LANES: u32 = 8;

/// Quads whose products may be summed in i16: a quad adds two products of at most
/// `largest quant * 127` to a lane.
fn exact_quads(facts: Facts) -> u32 {
    let largest = if facts.bits == 8 { 128 } else { (1 << facts.bits) - 1 };
    (i16::MAX as u32 / (2 * 127 * largest)).min(8)
}

/// Sums of one register of rows and one row of activations.
#[derive(Clone, Copy, Default)]
struct Sums<'c> {
    /// 16 x i16, not yet scaled.
    narrow: Option<Val<'c>>,
    /// 8 x i32.
    wide: Option<Val<'c>>,
}

/// Integer scales of one register of rows, each twice, as 16 x i16.
struct IntegerScales<'c> {
    /// Of the first and the second 16 elements.
    halves: [Val<'c>; 2],
    /// What the pair of sums of an activation block is multiplied by to take the offset off.
    offset: Option<Val<'c>>,
}

/// The exact integers of a block for each row of activations.
pub(super) fn integer_sums<'c>(
    k: &KernelBuilder<'c>,
    w: &WBlock<'c>,
    x: &[XBlock<'c>],
) -> Vec<Val<'c>> {
    let scales = integer_scales(k, w);
    let planes = w.planes(k);
    let mut sums = vec![Sums::default(); x.len()];
    for pair in 0..4 {
        for (quad, quants) in (2 * pair..).zip(planes.pair(k, pair)) {
            let widen = (quad + 1) % exact_quads(w.facts) == 0;
            for (x, sum) in x.iter().zip(&mut sums) {
                sum.add(k, products(k, w.facts, quants, x.quad(k, quad, LANES)));
                if widen {
                    sum.widen(k, scales.halves[quad as usize / 4]);
                }
            }
        }
    }
    if let Some(offset) = scales.offset {
        for (x, sum) in x.iter().zip(&mut sums) {
            sum.subtract(k, x, offset);
        }
    }
    sums.iter().map(|s| s.wide.expect("a block ends with a widening")).collect()
}

impl<'c> Sums<'c> {
    fn add(&mut self, k: &KernelBuilder<'c>, products: Val<'c>) {
        self.narrow = Some(match self.narrow {
            Some(narrow) => k.add(narrow, products),
            None => products,
        });
    }

    fn widen(&mut self, k: &KernelBuilder<'c>, scale: Val<'c>) {
        let Some(narrow) = self.narrow.take() else { return };
        let scaled = k.madd_i16(narrow, scale);
        self.wide = Some(match self.wide {
            Some(wide) => k.add(wide, scaled),
            None => scaled,
        });
    }

    /// Takes off what the quants' offset adds.
    fn subtract(&mut self, k: &KernelBuilder<'c>, x: &XBlock<'c>, offset: Val<'c>) {
        let pairs = k.bitcast(k.splat(x.sums(k), LANES), Elem::I16.x(2 * LANES));
        let excess = k.madd_i16(pairs, offset);
        self.wide = self.wide.map(|wide| k.sub(wide, excess));
    }
}

/// Products of four quants with four activations, neighbours added: 16 x i16.
fn products<'c>(k: &KernelBuilder<'c>, facts: Facts, w: Val<'c>, x: Val<'c>) -> Val<'c> {
    if facts.bits == 8 {
        // The sign moves to the activations, which are never -128.
        k.madd_u8_i8(k.abs_i8(w), k.sign_i8(x, w))
    } else {
        k.madd_u8_i8(w, x)
    }
}

fn integer_scales<'c>(k: &KernelBuilder<'c>, w: &WBlock<'c>) -> IntegerScales<'c> {
    let constant = |v: i64| k.splat(k.int(Elem::I16, v), 2 * LANES);
    let offset = (w.facts.offset != 0).then(|| constant(w.facts.offset.into()));
    match w.facts.scales {
        Scales::Block { .. } => IntegerScales { halves: [constant(1); 2], offset },
        Scales::SpanMin => {
            let scale = k.zext(w.lanes.load(k, Elem::I8, w.at), Elem::I32);
            let twice = k.or(scale, k.shl(scale, k.i32(16)));
            IntegerScales { halves: [k.bitcast(twice, Elem::I16.x(2 * LANES)); 2], offset }
        }
        Scales::SpanHalves => {
            let at = w.lanes.at(k, w.at, 2);
            let both = k.sext(k.load(Elem::I8.x(2 * LANES), at), Elem::I16);
            let twice = |half: u32| {
                let lanes: Vec<u32> = (0..2 * LANES).map(|i| i / 2 * 2 + half).collect();
                k.shuffle(both, both, &lanes)
            };
            let offset = offset.map(|o| k.mul(both, o));
            IntegerScales { halves: [twice(0), twice(1)], offset }
        }
    }
}
