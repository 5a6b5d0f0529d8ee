//! Blocks of random finite values, in every type that a kernel reads.

use std::collections::BTreeMap;

use strata_formats::TensorType;

/// Bytes of a pool, about: more than the caches hold.
const POOL_BYTES: u64 = 8 << 20;

/// 16-bit floats, and where they stand in a block, which make random quants values about 0 with a
/// standard deviation of about 0.02. Powers of two: `0x3c00` is 1, a step of `0x0400` doubles.
const SCALES: &[(TensorType, &[(usize, u16)])] = &[
    (TensorType::Q8_0, &[(0, 0x0c00)]),
    (TensorType::Q4_0, &[(0, 0x1c00)]),
    (TensorType::Q4_1, &[(0, 0x1c00), (2, 0xa800)]),
    (TensorType::Q5_0, &[(0, 0x1800)]),
    (TensorType::Q5_1, &[(0, 0x1800), (2, 0xa800)]),
    (TensorType::IQ4_NL, &[(0, 0x0c00)]),
    (TensorType::Q4_K, &[(0, 0x0800), (2, 0x1400)]),
    (TensorType::Q5_K, &[(0, 0x0400), (2, 0x1400)]),
    (TensorType::Q6_K, &[(208, 0x0100)]),
];

/// Types that can be filled.
pub(super) fn is_known(ty: TensorType) -> bool {
    matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
        || SCALES.iter().any(|(known, _)| *known == ty)
}

/// Whole blocks to take data from, made when first asked for.
pub(super) struct Pools {
    random: BTreeMap<TensorType, Vec<u8>>,
    constant: Vec<u8>,
}

impl Pools {
    pub fn new() -> Self {
        Self { random: BTreeMap::new(), constant: Vec::new() }
    }

    /// Random values of a known type.
    pub fn of(&mut self, ty: TensorType) -> &[u8] {
        self.random.entry(ty).or_insert_with(|| random(ty))
    }

    /// One value over and over, as f32; other types hold zeros.
    pub fn constant(&mut self, ty: TensorType, value: f32) -> &[u8] {
        let value = if ty == TensorType::F32 { value } else { 0.0 };
        self.constant = value.to_le_bytes().repeat(1 << 16);
        &self.constant
    }
}

/// SplitMix64 as a sequence.
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        let value = crate::ngram::splitmix64(self.0);
        self.0 = self.0.wrapping_add(crate::ngram::GAMMA);
        value
    }

    /// Evenly from -0.035 to 0.035.
    fn value(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.07
    }
}

fn random(ty: TensorType) -> Vec<u8> {
    let mut numbers = Sequence(1 + ty as u64);
    let block = ty.block_bytes() as usize;
    let blocks = POOL_BYTES as usize / block;
    match ty {
        TensorType::F32 => (0..blocks).flat_map(|_| numbers.value().to_le_bytes()).collect(),
        TensorType::BF16 => (0..blocks)
            .flat_map(|_| ((numbers.value().to_bits() >> 16) as u16).to_le_bytes())
            .collect(),
        // Either sign, exponents of 2^-7 and 2^-6.
        TensorType::F16 => (0..blocks)
            .flat_map(|_| {
                let bits = numbers.next() as u16;
                (bits & 0x8000 | (0x2000 + (bits & 0x07ff))).to_le_bytes()
            })
            .collect(),
        _ => {
            let mut bytes: Vec<u8> = (0..(blocks * block).div_ceil(8))
                .flat_map(|_| numbers.next().to_le_bytes())
                .collect();
            bytes.truncate(blocks * block);
            let scales = SCALES.iter().find(|(known, _)| *known == ty).map_or(&[][..], |row| row.1);
            for block in bytes.chunks_exact_mut(block) {
                for &(at, scale) in scales {
                    block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use strata_formats::{decode, decodes};

    use super::*;

    #[test]
    fn values_are_finite_about_zero_and_of_the_stated_size() {
        for ty in TensorType::all().filter(|&ty| is_known(ty) && decodes(ty)) {
            let bytes = random(ty);
            let blocks = 512.min(bytes.len() / ty.block_bytes() as usize);
            let mut values = vec![0.0f32; blocks * ty.block_elements() as usize];
            decode(ty, &bytes[..blocks * ty.block_bytes() as usize], &mut values).unwrap();
            assert!(values.iter().all(|value| value.is_finite()), "{ty}");
            let count = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / count;
            assert!(mean.abs() < 0.01, "{ty}: mean {mean}");
            assert!((0.005..0.06).contains(&square.sqrt()), "{ty}: {}", square.sqrt());
        }
    }

    #[test]
    fn the_same_type_gives_the_same_bytes() {
        assert_eq!(random(TensorType::Q4_K), random(TensorType::Q4_K));
        assert_ne!(random(TensorType::Q4_0)[2..64], random(TensorType::Q5_0)[2..64]);
    }
}
