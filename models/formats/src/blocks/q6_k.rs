//! Q6_K: 256 elements in 210 bytes, 16 groups of 16. `low: u4[256]` (128 bytes), `high: u2[256]`
//! (64 bytes), `scale: i8[16]`, `d: f16`; element = `(d * scale) * (q - 32)`.
//!
//! Each half of 128 elements is four runs of 32: run `r` takes its low bits from byte
//! `32 * (r % 2) + i`, low halves for runs 0 and 1, high halves for runs 2 and 3, and its high bits
//! from bits `2r` of byte `i`.

use super::{each_block, f16_at};

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 210], out: &mut [f32; 256]| {
        let (low, rest) = block.split_at(128);
        let (high, rest) = rest.split_at(64);
        let d = f16_at(rest, 16);
        for (element, x) in out.iter_mut().enumerate() {
            let (half, run, i) = (element / 128, element / 32 % 4, element % 32);
            let low = low[half * 64 + run % 2 * 32 + i] >> (run / 2 * 4) & 0x0f;
            let high = high[half * 32 + i] >> (run * 2) & 3;
            let q = i16::from(low | high << 4) - 32;
            let scale = d * f32::from(rest[element / 16].cast_signed());
            *x = scale * f32::from(q);
        }
    });
}
