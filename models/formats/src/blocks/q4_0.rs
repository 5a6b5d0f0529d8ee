//! Q4_0: 32 elements in 18 bytes. `d: f16`, `q: u4[32]`; element = `d * (q - 8)`.

use super::{each_block, f16_at, nibble};

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 18], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for (i, x) in out.iter_mut().enumerate() {
            let q = i16::from(nibble(&block[2..], i)) - 8;
            *x = d * f32::from(q);
        }
    });
}
