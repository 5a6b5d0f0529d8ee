//! Matrix products.
//!
//! With a block format, for an output row and an activation row: `total = 0`; in each span
//! `acc = 0` and for each block of 32 in order, with I the exact integer sum of
//! `scale * quant * activation`: `acc = fma(D * d, I, acc)` and, if the format has a minimum,
//! `acc = fma(M, xs, acc)`; then `total = total + acc`. With f32, f16 or bf16 weights a span is 16
//! partials by index mod 16 (fma), then the tree. Bias and residual are added last, in this order.

use super::quantize::{Q8_BLOCKS, read_block};
use super::{SPAN, dot};
use crate::formats::{ScalarBlock, block_format};
use crate::spec::WeightFormat;

/// One block of 32 of a native row, which begins at element `32 * index`.
///
/// # Panics
/// For formats without blocks.
pub fn decode_block(format: WeightFormat, row: &[u8], index: usize) -> ScalarBlock {
    let (elements, bytes) = format.block();
    let a_native = elements as usize / 32;
    let native = &row[index / a_native * bytes as usize..][..bytes as usize];
    let block = block_format(format).expect("a block format");
    block.decode(native, index % a_native)
}

/// A native row of `k` elements as f32. For block formats: `D * f32(scale * quant)` and, with a
/// minimum, `fma` of that product onto M.
pub fn decode_row(format: WeightFormat, row: &[u8], k: usize) -> Vec<f32> {
    let half = |i: usize| [row[2 * i], row[2 * i + 1]];
    let at = |i: usize| match format {
        WeightFormat::F32 => f32::from_le_bytes([0, 1, 2, 3].map(|b| row[4 * i + b])),
        WeightFormat::F16 => half::f16::from_le_bytes(half(i)).to_f32(),
        WeightFormat::BF16 => half::bf16::from_le_bytes(half(i)).to_f32(),
        _ => {
            let block = decode_block(format, row, i / 32);
            let j = i % 32;
            let integer = (block.scales[j / 16] * block.quants[j]) as f32;
            match block.min {
                Some(min) => block.scale.mul_add(integer, min),
                None => block.scale * integer,
            }
        }
    };
    (0..k).map(at).collect()
}

/// Product of a native row of a block format with a q8 row, both of `k` elements.
pub fn block_product(format: WeightFormat, w: &[u8], x: &[u8], k: usize) -> f32 {
    let mut total = 0.0f32;
    for span in 0..k.div_ceil(SPAN) {
        let blocks = span * Q8_BLOCKS..(k / 32).min((span + 1) * Q8_BLOCKS);
        let mut acc = 0.0f32;
        for block in blocks {
            let w = decode_block(format, w, block);
            let x = read_block(x, block);
            let term = |i: usize| w.scales[i / 16] * w.quants[i] * i32::from(x.q[i]);
            let integer: i32 = (0..32).map(term).sum();
            acc = (w.scale * x.scale).mul_add(integer as f32, acc);
            if let Some(min) = w.min {
                acc = min.mul_add(x.scaled_sum, acc);
            }
        }
        total += acc;
    }
    total
}

/// Product of a native row of f32, f16 or bf16 with an f32 row.
pub fn float_product(format: WeightFormat, w: &[u8], x: &[f32]) -> f32 {
    dot(&decode_row(format, w, x.len()), x)
}

/// Total, then bias, then residual.
pub fn epilogue(total: f32, bias: Option<f32>, residual: Option<f32>) -> f32 {
    let value = bias.map_or(total, |bias| total + bias);
    residual.map_or(value, |residual| residual + value)
}
