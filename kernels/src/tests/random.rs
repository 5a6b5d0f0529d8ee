//! Weights and activations for tests: a small generator with a fixed seed.

use crate::reference::quantize::{q8_row_bytes, quantize_row};
use crate::spec::WeightFormat;

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Evenly in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    fn f16(&mut self) -> [u8; 2] {
        half::f16::from_f32(self.unit() * 0.02).to_le_bytes()
    }

    /// Native rows `[n, k]`: all quants of all values, small scales of both signs.
    pub fn weights(&mut self, format: WeightFormat, n: usize, k: usize) -> Vec<u8> {
        let row_bytes = format.row_bytes(k as u32) as usize;
        let mut bytes: Vec<u8> = (0..n * row_bytes).map(|_| self.word() as u8).collect();
        let block_bytes = format.block().1 as usize;
        let scales: &[usize] = match format {
            WeightFormat::Q8_0 | WeightFormat::Q4_0 | WeightFormat::Q5_0 | WeightFormat::IQ4_NL => {
                &[0]
            }
            WeightFormat::Q6_K => &[208],
            _ => &[0, 2],
        };
        for block in bytes.chunks_mut(block_bytes) {
            match format {
                WeightFormat::F32 => block.copy_from_slice(&self.unit().to_le_bytes()),
                WeightFormat::F16 => block.copy_from_slice(&self.f16()),
                WeightFormat::BF16 => {
                    block.copy_from_slice(&half::bf16::from_f32(self.unit()).to_le_bytes());
                }
                _ => scales.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&self.f16())),
            }
        }
        bytes
    }
}

/// Rows of `k` elements as q8 rows.
pub fn quantize_rows(x: &[f32], k: usize) -> Vec<u8> {
    let mut rows = vec![0; x.len() / k * q8_row_bytes(k)];
    for (x, row) in x.chunks(k).zip(rows.chunks_mut(q8_row_bytes(k))) {
        quantize_row(x, row);
    }
    rows
}
