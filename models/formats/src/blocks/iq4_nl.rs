//! IQ4_NL: 32 elements in 18 bytes. `d: f16`, `q: u4[32]`; element = `d * CODEBOOK[q]`.

use super::{each_block, f16_at, nibble};

const CODEBOOK: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 18], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for (i, x) in out.iter_mut().enumerate() {
            *x = d * f32::from(CODEBOOK[usize::from(nibble(&block[2..], i))]);
        }
    });
}
