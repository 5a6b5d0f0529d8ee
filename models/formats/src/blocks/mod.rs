//! Scalar reference decode of stored blocks to f32.
//!
//! One format a file, written after the block layouts of ggml (`ggml-common.h`), little-endian.
//! Every product and sum is rounded to f32 once, in the order that the formula in the file shows,
//! so that the result is the same, bit for bit, as that of the Python package `gguf`.
//!
//! To add a format: one file with its `decode`, one row in `decoder`.

mod f32_;
mod floats16;
mod iq4_nl;
mod k_scales;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

use std::fmt;

use crate::numbers::f16_to_f32;
use crate::tensor_type::TensorType;

/// Decodes whole blocks: `bytes` and `out` hold the same number of them.
type Decode = fn(bytes: &[u8], out: &mut [f32]);

fn decoder(ty: TensorType) -> Option<Decode> {
    Some(match ty {
        TensorType::F32 => f32_::decode,
        TensorType::F16 => floats16::decode_f16,
        TensorType::BF16 => floats16::decode_bf16,
        TensorType::Q4_0 => q4_0::decode,
        TensorType::Q4_1 => q4_1::decode,
        TensorType::Q5_0 => q5_0::decode,
        TensorType::Q5_1 => q5_1::decode,
        TensorType::Q8_0 => q8_0::decode,
        TensorType::Q4_K => q4_k::decode,
        TensorType::Q5_K => q5_k::decode,
        TensorType::Q6_K => q6_k::decode,
        TensorType::IQ4_NL => iq4_nl::decode,
        _ => return None,
    })
}

/// Why a slice cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// There is no decoder for this type.
    Type { ty: TensorType },
    /// Not a whole number of blocks.
    Bytes { ty: TensorType, found: usize },
    /// `out` does not have as many elements as the blocks hold.
    Elements { ty: TensorType, found: usize, needed: u64 },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Type { ty } => {
                write!(f, "blocks of type {ty} cannot be decoded; use a file of another type")
            }
            DecodeError::Bytes { ty, found } => write!(
                f,
                "{found} bytes of {ty} are not a whole number of blocks of {} bytes",
                ty.block_bytes()
            ),
            DecodeError::Elements { ty, found, needed } => {
                write!(f, "the blocks of {ty} hold {needed} elements, the output has {found}")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

/// Whether [`decode`] knows this type.
pub fn decodes(ty: TensorType) -> bool {
    decoder(ty).is_some()
}

/// Decodes `bytes`, a whole number of blocks of `ty`, into `out`, one f32 an element.
///
/// # Errors
/// No decoder for the type, or the sizes do not fit each other.
pub fn decode(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
    let decode = decoder(ty).ok_or(DecodeError::Type { ty })?;
    let found = bytes.len();
    if !(found as u64).is_multiple_of(ty.block_bytes()) {
        return Err(DecodeError::Bytes { ty, found });
    }
    let needed = found as u64 / ty.block_bytes() * ty.block_elements();
    if out.len() as u64 != needed {
        return Err(DecodeError::Elements { ty, found: out.len(), needed });
    }
    decode(bytes, out);
    Ok(())
}

/// Calls `block` with each block of `BYTES` bytes and its `ELEMENTS` outputs.
fn each_block<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<ELEMENTS>();
    for (bytes, out) in blocks.iter().zip(outs) {
        block(bytes, out);
    }
}

/// The binary16 number at byte `at`, widened.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// The four bytes at byte `at`.
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The 4-bit number of element `i` of 32: low halves first, then high halves.
fn nibble(quants: &[u8], i: usize) -> u8 {
    quants[i % 16] >> (4 * (i / 16)) & 0x0f
}

#[cfg(test)]
mod tests;
