//! Q5_0: 32 elements in 22 bytes. `d: f16`, `high: u32`, `low: u4[32]`; bit `i` of `high` is bit 4
//! of `q[i]`; element = `d * (q - 16)`.

use super::{each_block, f16_at, nibble, u32_at};

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 22], out: &mut [f32; 32]| {
        let (d, high) = (f16_at(block, 0), u32_at(block, 2));
        for (i, x) in out.iter_mut().enumerate() {
            let bit = (high >> i & 1) as u8;
            let q = i16::from(nibble(&block[6..], i) | bit << 4) - 16;
            *x = d * f32::from(q);
        }
    });
}
