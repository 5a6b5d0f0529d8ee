//! Q6_K: 256 elements in 210 bytes: 128 bytes of nibbles, 64 bytes of upper bit pairs, 16 i8
//! scales of 16 elements each, f16 d; w = d sc (q - 32).
//!
//! Each half of 128 elements (4 blocks) has 64 bytes of nibbles and 32 of pairs: block j of it has
//! its nibbles in bytes `32 * (j % 2) ..`, low for j < 2, and its pairs at bits 2j.

use super::native::{NativeRows, nibbles};
use super::{BlockFormat, Facts, ScalarBlock, Scales, f16_at};
use crate::builder::{Elem, KernelBuilder, Val};

pub(crate) struct Q6K;

impl BlockFormat for Q6K {
    fn facts(&self) -> Facts {
        Facts { bits: 6, offset: 32, codebook: None, scales: Scales::SpanHalves }
    }

    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        block: u32,
        quad: u32,
    ) -> Val<'c> {
        let (half, j) = (block / 4, block % 4);
        let low = nibbles(k, rows, 64 * half + 32 * (j % 2) + 4 * quad, j >= 2);
        let pairs = rows.word(k, 128 + 32 * half + 4 * quad);
        let pairs = k.and(k.shr(pairs, k.int(Elem::I32, (2 * j).into())), k.i32(0x0303_0303));
        k.or(low, k.shl(pairs, k.i32(4)))
    }

    fn store_scales<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        block: u32,
        at: Val<'c>,
    ) {
        k.store(at, rows.half(k, 192 + 2 * block));
    }

    fn store_head<'c>(&self, k: &KernelBuilder<'c>, rows: &NativeRows<'c>, at: Val<'c>) {
        k.store(at, rows.half(k, 208));
    }

    fn decode(&self, native: &[u8], block: usize) -> ScalarBlock {
        let (half, j) = (block / 4, block % 4);
        let quant = |i: usize| {
            let low = native[64 * half + 32 * (j % 2) + i] >> (4 * (j / 2)) & 15;
            let pair = native[128 + 32 * half + i] >> (2 * j) & 3;
            i32::from(low | pair << 4) - 32
        };
        let scale = |i: usize| i32::from(native[192 + 2 * block + i] as i8);
        ScalarBlock {
            quants: std::array::from_fn(quant),
            scales: std::array::from_fn(scale),
            scale: f16_at(native, 208),
            min: None,
        }
    }
}
