//! Q4_K: 256 elements in 144 bytes: f16 d, f16 dmin, 12 bytes of scales, 128 bytes of nibbles
//! (each 32 bytes: one block low, the next high); w = d sc q - dmin mn.

use super::native::{NativeRows, nibbles};
use super::{BlockFormat, Facts, ScalarBlock, Scales, k_scales};
use crate::builder::{KernelBuilder, Val};

pub(crate) struct Q4K;

impl BlockFormat for Q4K {
    fn facts(&self) -> Facts {
        Facts { bits: 4, offset: 0, codebook: None, scales: Scales::SpanMin }
    }

    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        block: u32,
        quad: u32,
    ) -> Val<'c> {
        nibbles(k, rows, 16 + 32 * (block / 2) + 4 * quad, block % 2 == 1)
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
        let quant = |i: usize| native[16 + 32 * (block / 2) + i] >> (4 * (block % 2)) & 15;
        k_scales::decode(native, block, std::array::from_fn(|i| i32::from(quant(i))))
    }
}
