//! IQ4_NL: 32 elements in 18 bytes: f16 d, 16 bytes of nibbles (element i low, i + 16 high);
//! w = d [`CODEBOOK`]\[q\].

use super::native::{NativeRows, nibbles, split_nibble};
use super::{BlockFormat, Facts, ScalarBlock, Scales, f16_at};
use crate::builder::{KernelBuilder, Val};

/// What the 16 quants stand for: finer steps around zero.
const CODEBOOK: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(crate) struct Iq4Nl;

impl BlockFormat for Iq4Nl {
    fn facts(&self) -> Facts {
        let scales = Scales::Block { min: false };
        Facts { bits: 4, offset: 0, codebook: Some(&CODEBOOK), scales }
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
        let quant = |i| i32::from(CODEBOOK[split_nibble(native, 2, i) as usize]);
        ScalarBlock {
            quants: std::array::from_fn(quant),
            scales: [1; 2],
            scale: f16_at(native, 0),
            min: None,
        }
    }
}
