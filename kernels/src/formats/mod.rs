//! Weight formats of quantised matrix products: how native files store them and how kernels read
//! them.
//!
//! **Packed layout.** Rows go in groups of 16 (n padded up; a pad row repeats the last row). A
//! group holds its spans of 256 elements in order (the last may be short), a span a head and its
//! blocks of 32, so that a thread reads one sequential stream. In a block, 16 rows lie side by
//! side: `scales`, then planes of [`planes`].
//!
//! | scales | span head | block scales |
//! |---|---|---|
//! | [`Scales::Block`] | none | f16 D\[16\] (, f16 M\[16\]) |
//! | [`Scales::SpanMin`] | f16 d\[16\], f16 dmin\[16\] | u8 sc\[16\], u8 mn\[16\] |
//! | [`Scales::SpanHalves`] | f16 d\[16\] | i8 sc\[16\]\[2\] |
//!
//! Adding a format: one file that implements [`BlockFormat`] and one row in [`block_format`].

mod iq4_nl;
mod k_scales;
pub(crate) mod native;
pub(crate) mod planes;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use crate::builder::{KernelBuilder, Val};
use crate::spec::WeightFormat;
use native::NativeRows;

/// Output rows of a group.
pub const GROUP_ROWS: u32 = 16;
/// Elements of a span.
pub const SPAN: u32 = 256;
/// Elements of a block.
pub const BLOCK: u32 = 32;

/// What multiplies and shifts a block's quants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// An f16 scale, and an f16 minimum if `min`, of each block.
    Block { min: bool },
    /// D is one f16 a span, each block has a 6-bit integer scale; M = -(dmin * mn).
    SpanMin,
    /// D is one f16 a span, each half block has an i8 scale.
    SpanHalves,
}

/// The shape of a block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Bits of a quant: 4, 5, 6 or 8. Quants of 8 bits are signed, all others unsigned.
    pub bits: u32,
    /// Subtracted from each quant.
    pub offset: i32,
    /// What quants of 4 bits stand for, if it is not themselves. None is -128.
    pub codebook: Option<&'static [i8; 16]>,
    pub scales: Scales,
}

impl Facts {
    /// Whether the numbers that are multiplied are signed bytes, not unsigned ones and an offset.
    pub fn is_signed(self) -> bool {
        self.bits == 8 || self.codebook.is_some()
    }

    pub fn has_min(self) -> bool {
        matches!(self.scales, Scales::Block { min: true } | Scales::SpanMin)
    }

    /// Bytes of a span's head, for a group.
    pub fn head_bytes(self) -> u32 {
        match self.scales {
            Scales::Block { .. } => 0,
            Scales::SpanMin => 64,
            Scales::SpanHalves => 32,
        }
    }

    /// Bytes of a block's scales, for a group: where its planes begin.
    pub fn scale_bytes(self) -> u32 {
        match self.scales {
            Scales::Block { min: true } => 64,
            Scales::Block { min: false } | Scales::SpanMin | Scales::SpanHalves => 32,
        }
    }

    /// Bytes of a block, for a group.
    pub fn block_bytes(self) -> u32 {
        self.scale_bytes() + planes::bytes(self.bits)
    }

    /// Bytes of a whole span, for a group.
    pub fn span_bytes(self) -> u32 {
        self.head_bytes() + SPAN / BLOCK * self.block_bytes()
    }

    /// Bytes of a group of rows of `k` elements (a multiple of 32).
    pub fn group_bytes(self, k: u32) -> u64 {
        let heads = u64::from(k.div_ceil(SPAN)) * u64::from(self.head_bytes());
        heads + u64::from(k / BLOCK) * u64::from(self.block_bytes())
    }
}

/// One block of one row, in plain numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalarBlock {
    /// Quants with the offset taken off.
    pub quants: [i32; 32],
    /// Integer scales of the first and the second 16 quants.
    pub scales: [i32; 2],
    /// The outer scale D.
    pub scale: f32,
    /// M, for formats with a minimum.
    pub min: Option<f32>,
}

/// A block-quantised weight format.
pub(crate) trait BlockFormat: Sync {
    fn facts(&self) -> Facts;

    /// The quants of elements `4 * quad ..` of block `block` of the native block, without the
    /// offset taken off: 16 x i32 of four bytes.
    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        block: u32,
        quad: u32,
    ) -> Val<'c>;

    /// Stores the packed scales of a block.
    fn store_scales<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        block: u32,
        at: Val<'c>,
    );

    /// Stores the packed head of a span.
    fn store_head<'c>(&self, _k: &KernelBuilder<'c>, _rows: &NativeRows<'c>, _at: Val<'c>) {}

    /// Block `block` of a native block.
    fn decode(&self, native: &[u8], block: usize) -> ScalarBlock;
}

/// The block format of a weight format; none for F32, F16 and BF16.
pub(crate) fn block_format(format: WeightFormat) -> Option<&'static dyn BlockFormat> {
    match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => None,
        WeightFormat::Q8_0 => Some(&q8_0::Q8_0),
        WeightFormat::Q4_0 => Some(&q4_0::Q4_0),
        WeightFormat::Q4_1 => Some(&q4_1::Q4_1),
        WeightFormat::Q5_0 => Some(&q5_0::Q5_0),
        WeightFormat::Q5_1 => Some(&q5_1::Q5_1),
        WeightFormat::Q4_K => Some(&q4_k::Q4K),
        WeightFormat::Q5_K => Some(&q5_k::Q5K),
        WeightFormat::Q6_K => Some(&q6_k::Q6K),
        WeightFormat::IQ4_NL => Some(&iq4_nl::Iq4Nl),
    }
}

/// Bytes of a weight `[n, k]` as matrix kernels read it: packed for block formats (`k` a multiple
/// of the native block), native for float formats.
pub fn packed_bytes(format: WeightFormat, n: u32, k: u32) -> u64 {
    match block_format(format) {
        Some(block) => u64::from(n.div_ceil(GROUP_ROWS)) * block.facts().group_bytes(k),
        None => u64::from(n) * format.row_bytes(k),
    }
}

/// f16 bits at `bytes[at..]`.
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
