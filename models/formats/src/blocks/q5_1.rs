//! Q5_1: 32 elements in 24 bytes. `d: f16`, `m: f16`, `high: u32`, `low: u4[32]`; bit `i` of `high`
//! is bit 4 of `q[i]`; element = `d * q + m`.

use super::{each_block, f16_at, nibble, u32_at};

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 24], out: &mut [f32; 32]| {
        let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
        for (i, x) in out.iter_mut().enumerate() {
            let bit = (high >> i & 1) as u8;
            *x = d * f32::from(nibble(&block[8..], i) | bit << 4) + m;
        }
    });
}
