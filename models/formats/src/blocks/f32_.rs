//! F32: plain little-endian numbers.

use super::each_block;

pub fn decode(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |bits: &[u8; 4], out: &mut [f32; 1]| out[0] = f32::from_le_bytes(*bits));
}
