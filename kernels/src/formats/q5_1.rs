//! Q5_1: 32 elements in 24 bytes: f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles (element i low,
//! i + 16 high); w = d q + m.

use super::native::{NativeRows, fifth_bit, fifth_bits, nibbles, split_nibble};
use super::{BlockFormat, Facts, ScalarBlock, Scales, f16_at};
use crate::builder::{Elem, KernelBuilder, Val};

pub(crate) struct Q5_1;

impl BlockFormat for Q5_1 {
    fn facts(&self) -> Facts {
        Facts { bits: 5, offset: 0, codebook: None, scales: Scales::Block { min: true } }
    }

    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        _block: u32,
        quad: u32,
    ) -> Val<'c> {
        let low = nibbles(k, rows, 8 + 4 * (quad % 4), quad >= 4);
        k.or(low, fifth_bits(k, rows, 4, quad))
    }

    fn store_scales<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        _block: u32,
        at: Val<'c>,
    ) {
        let both = rows.word(k, 0);
        k.store(at, k.trunc(both, Elem::I16));
        k.store(k.offset(at, 32), k.trunc(k.shr(both, k.i32(16)), Elem::I16));
    }

    fn decode(&self, native: &[u8], _block: usize) -> ScalarBlock {
        ScalarBlock {
            quants: std::array::from_fn(|i| split_nibble(native, 8, i) + fifth_bit(native, 4, i)),
            scales: [1; 2],
            scale: f16_at(native, 0),
            min: Some(f16_at(native, 2)),
        }
    }
}
