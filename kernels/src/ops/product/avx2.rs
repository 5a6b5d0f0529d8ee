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
    let largest = if facts.is_signed() { 128 } else { (1 << facts.bits) - 1 };
    (i16::MAX as u32 / (2 * 127 * largest)).min(8)
}

/// Integer scales of one register of rows, each twice, as 16 x i16.
struct IntegerScales<'c> {
    /// Of the first and the second 16 elements.
    halves: [Val<'c>; 2],
    /// What the pair of sums of an activation block is multiplied by to take the offset off.
    offset: Option<Val<'c>>,
}

/// Pairs of quads in a block.
const PAIRS: u32 = 4;

/// The exact integers of a block, 8 x i32 for each register of rows `w` and, in it, for each row
/// of activations.
///
/// Pairs of quads are a loop, although a short one: written out, LLVM gathers the activations of
/// all pairs first and spills them.
pub(super) fn integer_sums<'c>(
    k: &KernelBuilder<'c>,
    w: &[WBlock<'c>],
    x: &[XBlock<'c>],
) -> Vec<Val<'c>> {
    let facts = w[0].facts;
    let scales: Vec<_> = w.iter().map(|w| integer_scales(k, w)).collect();
    let parts = if facts.scales == Scales::SpanHalves || exact_quads(facts) == 4 { 2 } else { 1 };
    // Registers that share each spread activation. More than 4 bits leave room for one only.
    let together = if facts.bits == 4 && !facts.is_signed() { w.len() } else { 1 };
    let sums = (0..parts).map(|part| {
        let turns = w.chunks(together).zip(scales.chunks(together));
        turns.flat_map(|turn| part_sums(k, turn, x, (part, parts))).collect()
    });
    let add = |a: Vec<_>, b: Vec<_>| a.iter().zip(&b).map(|(&a, &b)| k.add(a, b)).collect();
    let mut sums = sums.reduce(add).expect("at least one part");
    for (sum, (scales, x)) in sums.iter_mut().zip(each(&scales, x)) {
        if let Some(offset) = scales.offset {
            // What the quants' offset has added.
            let pairs = k.bitcast(k.splat(x.sums(k), LANES), Elem::I16.x(2 * LANES));
            *sum = k.sub(*sum, k.madd_i16(pairs, offset));
        }
    }
    sums
}

/// Every register of rows with every row of activations.
fn each<'a, A, B>(a: &'a [A], b: &'a [B]) -> impl Iterator<Item = (&'a A, &'a B)> {
    a.iter().flat_map(move |a| b.iter().map(move |b| (a, b)))
}

/// Integers of one of `parts` equal parts of a block: a half that has its own scale or fills
/// i16, or the whole block.
fn part_sums<'c>(
    k: &KernelBuilder<'c>,
    (w, scales): (&[WBlock<'c>], &[IntegerScales<'c>]),
    x: &[XBlock<'c>],
    (part, parts): (u32, u32),
) -> Vec<Val<'c>> {
    let facts = w[0].facts;
    let planes: Vec<_> = w.iter().map(|w| w.planes(k)).collect();
    let range = (part * PAIRS / parts, (part + 1) * PAIRS / parts);
    let narrow = exact_quads(facts) >= 2 * (range.1 - range.0);
    let ty = if narrow { Elem::I16.x(2 * LANES) } else { Elem::I32.x(LANES) };
    let count = w.len() * x.len();
    let mut carried = vec![k.zero(ty); count];
    carried.extend(planes.iter().filter_map(|p| p.high(k, part)));
    let range = (k.i64(range.0.into()), k.i64(range.1.into()));
    let sums = k.for_range(range, 1, &carried, |pair, carried| {
        let (sums, high) = carried.split_at(count);
        let (quads, next): (Vec<_>, Vec<_>) = (0..)
            .zip(&planes)
            .map(|(p, planes): (usize, _)| planes.pair(k, pair, high.get(p).copied()))
            .unzip();
        let mut sums = sums.to_vec();
        for (t, x_block) in x.iter().enumerate() {
            let x_quads = [0, 1].map(|i| x_block.quad(k, (pair, i), LANES));
            for (p, quads) in quads.iter().enumerate() {
                let products = [0, 1].map(|i| products(k, facts, quads[i], x_quads[i]));
                let scale = scales[p].halves[part as usize];
                let sum = &mut sums[p * x.len() + t];
                *sum = add_products(k, *sum, products, (scale, exact_quads(facts)));
            }
        }
        sums.extend(next.into_iter().flatten());
        sums
    });
    let widened = |(sum, (scales, _)): (&Val<'c>, (&IntegerScales<'c>, &XBlock<'c>))| match narrow {
        true => k.madd_i16(*sum, scales.halves[part as usize]),
        false => *sum,
    };
    sums[..count].iter().zip(each(scales, x)).map(widened).collect()
}

/// Adds the products of a pair of quads to a sum of 16 x i16, or scaled to one of 8 x i32.
fn add_products<'c>(
    k: &KernelBuilder<'c>,
    sum: Val<'c>,
    products: [Val<'c>; 2],
    (scale, exact_quads): (Val<'c>, u32),
) -> Val<'c> {
    let [first, second] = products;
    if sum.ty().elem == Elem::I16 {
        k.add(k.add(sum, first), second)
    } else if exact_quads >= 2 {
        k.add(sum, k.madd_i16(k.add(first, second), scale))
    } else {
        k.add(k.add(sum, k.madd_i16(first, scale)), k.madd_i16(second, scale))
    }
}

/// Products of four quants with four activations, neighbours added: 16 x i16.
fn products<'c>(k: &KernelBuilder<'c>, facts: Facts, w: Val<'c>, x: Val<'c>) -> Val<'c> {
    if facts.is_signed() {
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
