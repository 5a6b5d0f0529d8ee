//! Q4_0: 32 elements in 18 bytes: f16 d, 16 bytes of nibbles (element i low, i + 16 high);
//! w = d (q - 8).

use super::native::{NativeRows, nibbles, split_nibble};
use super::{BlockFormat, Facts, ScalarBlock, Scales, f16_at};
use crate::builder::{KernelBuilder, Val};

pub(crate) struct Q4_0;

impl BlockFormat for Q4_0 {
    fn facts(&self) -> Facts {
        Facts { bits: 4, offset: 8, codebook: None, scales: Scales::Block { min: false } }
    }

    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        _block: u32,
        quad: u32,
    ) -> Val<'c> {
        nibbles(k, rows, 2 + 4 * (quad % 4), quad >= 4)
    }

    fn store_scales<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        _block: u32,
        at: Val<'c>,
    ) {
        k.store(at, rows.half(k, 0));
    }

    fn decode(&self, native: &[u8], _block: usize) -> ScalarBlock {
        ScalarBlock {
            quants: std::array::from_fn(|i| split_nibble(native, 2, i) - 8),
            scales: [1; 2],
            scale: f16_at(native, 0),
            min: None,
        }
    }
}
