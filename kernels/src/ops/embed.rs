//! Rows of an embedding table in its native format, as f32.

use super::rows::{f32_row, for_chunks, for_my_rows, load_index, store_f32};
use super::{product, require};
use crate::builder::{Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::formats::native::NativeRows;
use crate::formats::{BLOCK, BlockFormat, GROUP_ROWS, Scales, block_format};
use crate::spec::{Embed, KernelSpec, WeightFormat};

/// Words of four quants in a block of 32.
const QUADS: u32 = 8;

pub(super) fn check(spec: &KernelSpec, s: &Embed) -> Result<(), KernelError> {
    let elements = s.format.block().0;
    let fits = s.k > 0 && s.k.is_multiple_of(elements.max(16));
    require(spec, "k", s.k.into(), fits, "a multiple of the format's block and of 16")
}

pub(super) fn build(b: &KernelBuilder<'_>, s: Embed) {
    let (tokens, table, y) = (b.operand(1), b.operand(2), b.operand(3));
    let scale = s.scale.get();
    let decoder = block_format(s.format).map(|format| Decoder::new(b, (s.format, scale), format));
    let (elements, bytes) = s.format.block();
    let blocks = b.i64((s.k / elements).into());
    for_my_rows(b, |row| {
        let token = load_index(b, tokens, row);
        let native = b.element(table, token, s.format.row_bytes(s.k) as i64);
        let y = f32_row(b, y, row, s.k);
        match &decoder {
            Some(decoder) => {
                decoder.blocks(b, blocks, y, |block| b.element(native, block, bytes.into()));
            }
            None => float_row(b, (s.format, s.k, scale), native, y),
        }
    });
}

/// A native row of `k` floats times a factor.
pub(super) fn float_row<'c>(
    b: &KernelBuilder<'c>,
    (format, k, scale): (WeightFormat, u32, f32),
    native: Val<'c>,
    y: Val<'c>,
) {
    let bytes = i64::from(format.block().1);
    for_chunks(b, k, |at, lanes| {
        let x = product::load_floats(b, format, b.element(native, at, bytes), lanes);
        store_f32(b, y, at, b.fmul(x, b.f32(scale)));
    });
}

/// Decodes 16 native blocks at a time: the reader of 16 rows that repacking uses, given blocks that
/// follow each other as its rows.
pub(super) struct Decoder<'c> {
    /// Elements of a native block.
    elements: u32,
    /// Factor of every element.
    factor: f32,
    format: &'static dyn BlockFormat,
    /// Blocks of 32 in a native block.
    blocks: u32,
    /// `u32[blocks][8 quads][16 native blocks]`
    quads: Val<'c>,
    /// One packed span head, then packed scales of each block.
    scales: Val<'c>,
}

impl<'c> Decoder<'c> {
    pub fn new(
        b: &KernelBuilder<'c>,
        (kind, factor): (WeightFormat, f32),
        format: &'static dyn BlockFormat,
    ) -> Self {
        let elements = kind.block().0;
        let blocks = elements / BLOCK;
        let facts = format.facts();
        let quads = b.scratch(blocks * QUADS * GROUP_ROWS * 4);
        let scales = b.scratch(facts.head_bytes() + blocks * facts.scale_bytes());
        Self { elements, factor, format, blocks, quads, scales }
    }

    /// Decodes `count` native blocks, which lie where `address` says, one after another into `y`.
    pub fn blocks(
        &self,
        b: &KernelBuilder<'c>,
        count: Val<'c>,
        y: Val<'c>,
        address: impl Fn(Val<'c>) -> Val<'c>,
    ) {
        b.for_range((b.i64(0), count), GROUP_ROWS.into(), &[], |first, _| {
            let last = b.sub(count, b.i64(1));
            let lane = |lane: u32| address(b.imin(b.add(first, b.i64(lane.into())), last));
            self.unpack(b, NativeRows::direct((0..GROUP_ROWS).map(lane).collect()));
            let end = b.imin(count, b.add(first, b.i64(GROUP_ROWS.into())));
            b.for_between(first, end, |native_block| {
                let lane = b.sub(native_block, first);
                let y = b.element(y, native_block, i64::from(self.elements) * 4);
                for block in 0..self.blocks {
                    let y = b.offset(y, i64::from(block * BLOCK) * 4);
                    self.block(b, (block, lane), y);
                }
            });
            Vec::new()
        });
    }

    /// Quants and scales of 16 native blocks into scratch.
    fn unpack(&self, b: &KernelBuilder<'c>, rows: NativeRows<'c>) {
        self.format.store_head(b, &rows, self.scales);
        for block in 0..self.blocks {
            self.format.store_scales(b, &rows, block, self.scales_of(b, block));
            for quad in 0..QUADS {
                let at = self.quad_bytes(block, quad);
                b.store(b.offset(self.quads, at), self.format.native_quad(b, &rows, block, quad));
            }
        }
    }

    fn quad_bytes(&self, block: u32, quad: u32) -> i64 {
        i64::from((block * QUADS + quad) * GROUP_ROWS) * 4
    }

    fn scales_of(&self, b: &KernelBuilder<'c>, block: u32) -> Val<'c> {
        let facts = self.format.facts();
        b.offset(self.scales, (facts.head_bytes() + block * facts.scale_bytes()).into())
    }

    /// 32 elements: `D * f32(scale * quant)`, onto M where the format has one, times the factor.
    fn block(&self, b: &KernelBuilder<'c>, (block, lane): (u32, Val<'c>), y: Val<'c>) {
        let facts = self.format.facts();
        let lane_word = b.element(self.quads, lane, 4);
        let mut words = b.zero(Elem::I32.x(QUADS));
        for quad in 0..QUADS {
            let at = b.offset(lane_word, self.quad_bytes(block, quad));
            words = b.insert(words, b.load(Elem::I32.scalar(), at), quad);
        }
        let quants = b.bitcast(words, Elem::I8.x(BLOCK));
        let codebook = facts.codebook.map(|c| c.map(i8::cast_unsigned));
        let quants = codebook.map_or(quants, |codebook| b.lookup(&codebook, quants));
        let (outer, min, integer_scales) = self.lane_scales(b, block, lane);
        for (half, &integer_scale) in (0..).zip(&integer_scales) {
            let q = b.slice(quants, 16 * half, 16);
            let q = if facts.is_signed() { b.sext(q, Elem::I32) } else { b.zext(q, Elem::I32) };
            let q = b.sub(q, b.i32(facts.offset));
            let q = b.int_to_float(b.mul(q, integer_scale), Elem::F32);
            let x = match min {
                Some(min) => b.fma(q, outer, min),
                None => b.fmul(q, outer),
            };
            let x = b.fmul(x, b.f32(self.factor));
            store_f32(b, y, b.i64((16 * half).into()), x);
        }
    }

    /// D, M and the integer scales of the two halves of a block, for one lane.
    fn lane_scales(
        &self,
        b: &KernelBuilder<'c>,
        block: u32,
        lane: Val<'c>,
    ) -> (Val<'c>, Option<Val<'c>>, [Val<'c>; 2]) {
        let (head, at) = (self.scales, self.scales_of(b, block));
        let half = |base: Val<'c>, offset: i64| {
            let value = b.load(Elem::F16.scalar(), b.element(b.offset(base, offset), lane, 2));
            b.fext(value, Elem::F32)
        };
        let byte = |index: Val<'c>| b.load(Elem::I8.scalar(), b.at(at, index));
        let one = b.i32(1);
        match self.format.facts().scales {
            Scales::Block { min } => (half(at, 0), min.then(|| half(at, 32)), [one; 2]),
            Scales::SpanMin => {
                let scale = b.zext(byte(lane), Elem::I32);
                let mn = b.zext(byte(b.add(lane, b.i64(16))), Elem::I32);
                let min = b.fmul(half(head, 32), b.int_to_float(mn, Elem::F32));
                (half(head, 0), Some(b.fneg(min)), [scale; 2])
            }
            Scales::SpanHalves => {
                let pair = b.add(lane, lane);
                let scale = |i| b.sext(byte(b.add(pair, b.i64(i))), Elem::I32);
                (half(head, 0), None, [scale(0), scale(1)])
            }
        }
    }
}
