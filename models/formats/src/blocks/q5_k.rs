//! Q5_K: 256 elements in 176 bytes, 8 groups of 32. `d: f16`, `dmin: f16`, scales and minimums
//! (12 bytes), `high: u8[32]`: bit `g` of byte `i` is bit 4 of element `i` of group `g`,
//! `low: u4[256]`: 32 bytes hold two groups, the even one in the low halves.
//! Element = `(d * scale) * q - (dmin * min)`.

use super::k_scales::scale_and_min;
use super::{each_block, f16_at};

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |block: &[u8; 176], out: &mut [f32; 256]| {
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        let (high, low) = block[16..].split_at(32);
        for (group, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = scale_and_min(&block[4..16], group);
            let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
            let pair = &low[group / 2 * 32..][..32];
            for ((x, &both), &high) in out.iter_mut().zip(pair).zip(high) {
                let q = both >> (group % 2 * 4) & 0x0f | (high >> group & 1) << 4;
                *x = scale * f32::from(q) - min;
            }
        }
    });
}
