//! Q5_0: 32 elements in 22 bytes: f16 d, 32 fifth bits, 16 bytes of nibbles (element i low,
//! i + 16 high); w = d (q - 16).

use super::native::{NativeRows, fifth_bit, fifth_bits, nibbles, split_nibble};
use super::{BlockFormat, Facts, ScalarBlock, Scales, f16_at};
use crate::builder::{KernelBuilder, Val};

pub(crate) struct Q5_0;

impl BlockFormat for Q5_0 {
    fn facts(&self) -> Facts {
        Facts { bits: 5, offset: 16, codebook: None, scales: Scales::Block { min: false } }
    }

    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        _block: u32,
        quad: u32,
    ) -> Val<'c> {
        let low = nibbles(k, rows, 6 + 4 * (quad % 4), quad >= 4);
        k.or(low, fifth_bits(k, rows, 2, quad))
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
            quants: std::array::from_fn(|i| {
                split_nibble(native, 6, i) + fifth_bit(native, 2, i) - 16
            }),
            scales: [1; 2],
            scale: f16_at(native, 0),
            min: None,
        }
    }
}
