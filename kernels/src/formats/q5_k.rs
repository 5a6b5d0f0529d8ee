//! Q5_K: 256 elements in 176 bytes: f16 d, f16 dmin, 12 bytes of scales, 32 bytes of fifth bits
//! (bit b: block b), 128 bytes of nibbles (each 32 bytes: one block low, the next high);
//! w = d sc q - dmin mn.

use super::native::{NativeRows, nibbles};
use super::{BlockFormat, Facts, ScalarBlock, Scales, k_scales};
use crate::builder::{Elem, KernelBuilder, Val};

pub(crate) struct Q5K;

impl BlockFormat for Q5K {
    fn facts(&self) -> Facts {
        Facts { bits: 5, offset: 0, codebook: None, scales: Scales::SpanMin }
    }

    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        block: u32,
        quad: u32,
    ) -> Val<'c> {
        let low = nibbles(k, rows, 48 + 32 * (block / 2) + 4 * quad, block % 2 == 1);
        let fifth = k.shr(rows.word(k, 16 + 4 * quad), k.int(Elem::I32, block.into()));
        k.or(low, k.shl(k.and(fifth, k.i32(0x0101_0101)), k.i32(4)))
    }

    fn store_scales<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        block: u32,
        at: Val<'c>,
    ) {
        k_scales::store(k, rows, block, at);
    }

    fn store_head<'c>(&self, k: &KernelBuilder<'c>, rows: &NativeRows<'c>, at: Val<'c>) {
        k_scales::store_head(k, rows, at);
    }

    fn decode(&self, native: &[u8], block: usize) -> ScalarBlock {
        let low = |i: usize| native[48 + 32 * (block / 2) + i] >> (4 * (block % 2)) & 15;
        let fifth = |i: usize| (native[16 + i] >> block & 1) << 4;
        k_scales::decode(native, block, std::array::from_fn(|i| i32::from(low(i) | fifth(i))))
    }
}
