//! Q8_0: 32 elements in 34 bytes: f16 d, `i8 q[32]`; w = d q.

use super::native::NativeRows;
use super::{BlockFormat, Facts, ScalarBlock, Scales, f16_at};
use crate::builder::{KernelBuilder, Val};

pub(crate) struct Q8_0;

impl BlockFormat for Q8_0 {
    fn facts(&self) -> Facts {
        Facts { bits: 8, offset: 0, codebook: None, scales: Scales::Block { min: false } }
    }

    fn native_quad<'c>(
        &self,
        k: &KernelBuilder<'c>,
        rows: &NativeRows<'c>,
        _block: u32,
        quad: u32,
    ) -> Val<'c> {
        rows.word(k, 2 + 4 * quad)
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
            quants: std::array::from_fn(|i| i32::from(native[2 + i] as i8)),
            scales: [1; 2],
            scale: f16_at(native, 0),
            min: None,
        }
    }
}
