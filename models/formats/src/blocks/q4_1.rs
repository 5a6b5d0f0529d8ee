//! Q4_1: 32 elements in 20 bytes. `d: f16`, `m: f16`, `q: u4[32]`; element = `d * q + m`.

use super::{each_block, f16_at, nibble};

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 20], out: &mut [f32; 32]| {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for (i, x) in out.iter_mut().enumerate() {
            *x = d * f32::from(nibble(&block[4..], i)) + m;
        }
    });
}
