//! Q8_0: 32 elements in 34 bytes. `d: f16`, `q: i8[32]`; element = `d * q`.

use super::{each_block, f16_at};

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 34], out: &mut [f32; 32]| {
        let d = f16_at(block, 0);
        for (x, &q) in out.iter_mut().zip(&block[2..]) {
            *x = d * f32::from(q.cast_signed());
        }
    });
}
