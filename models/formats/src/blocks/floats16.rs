//! F16 and BF16: plain little-endian numbers of 16 bits.

use super::each_block;
use crate::numbers::{bf16_to_f32, f16_to_f32};

pub fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |bits: &[u8; 2], out: &mut [f32; 1]| {
        out[0] = f16_to_f32(u16::from_le_bytes(*bits));
    });
}

pub fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    each_block(bytes, out, |bits: &[u8; 2], out: &mut [f32; 1]| {
        out[0] = bf16_to_f32(u16::from_le_bytes(*bits));
    });
}
