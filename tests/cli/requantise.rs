//! Writes the weights of a checkpoint anew in other stored types. Rounding is the plainest there is:
//! tests compare a model with itself, however good it is.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part; tests may panic")]

use std::path::Path;

use half::f16;
use strata_formats::{Checkpoint, GgufWriter, TensorType, WriteValue, decode};

const CODEBOOK: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Q8_0 wherever rows are whole blocks.
pub fn q8_0(row: u64) -> Option<TensorType> {
    row.is_multiple_of(32).then_some(TensorType::Q8_0)
}

/// Q4_K where rows are whole blocks, IQ4_NL in shorter rows.
pub fn q4_mix(row: u64) -> Option<TensorType> {
    if row.is_multiple_of(256) {
        Some(TensorType::Q4_K)
    } else {
        row.is_multiple_of(32).then_some(TensorType::IQ4_NL)
    }
}

/// Writes the tensors of `from` to the GGUF file `to`: matrices in the type that `choose` gives for
/// the elements of a row, what is small and sharp as it is.
pub fn requantise(from: &Path, to: &Path, choose: fn(u64) -> Option<TensorType>) {
    let source = Checkpoint::open(from).unwrap();
    let mut gguf = GgufWriter::new();
    gguf.set("general.architecture", WriteValue::Str("qwen4exp".into())).unwrap();
    let kept = ["norm", "ffn_gate_inp", "conv1d", "ssm_a", "ssm_dt"];
    let plan: Vec<_> = source
        .tensors()
        .map(|tensor| {
            let row = tensor.dims[0];
            let matrix = tensor.dims.len() > 1 && !kept.iter().any(|w| tensor.name.contains(w));
            // Several streams go through it as one row each, whose spans must be whole.
            let streams = tensor.name.contains("eh_proj") && !row.is_multiple_of(256);
            let chosen = if matrix && !streams { choose(row) } else { None };
            (tensor, chosen.unwrap_or(tensor.ty))
        })
        .collect();
    for (tensor, ty) in &plan {
        gguf.declare(&tensor.name, *ty, &tensor.dims).unwrap();
    }
    gguf.write_file(to, |index, out| {
        let (tensor, ty) = plan[index];
        let bytes = source.bytes_of(tensor);
        if tensor.ty == ty {
            return out.write_all(bytes);
        }
        let elements = tensor.dims.iter().product::<u64>();
        let mut values = vec![0.0; usize::try_from(elements).unwrap()];
        decode(tensor.ty, bytes, &mut values).unwrap();
        out.write_all(&encode(ty, &values))
    })
    .unwrap();
}

fn encode(ty: TensorType, values: &[f32]) -> Vec<u8> {
    let blocks = values.chunks_exact(usize::try_from(ty.block_elements()).unwrap());
    match ty {
        TensorType::Q8_0 => blocks.flat_map(q8_0_block).collect(),
        TensorType::IQ4_NL => blocks.flat_map(iq4_nl_block).collect(),
        TensorType::Q4_K => blocks.flat_map(q4_k_block).collect(),
        other => panic!("nothing writes {other}"),
    }
}

/// The nearest half to a scale, and what it divides by; 0 for 0.
fn scale(value: f32) -> (f16, f32) {
    let half = f16::from_f32(value);
    (half, if half.to_f32() == 0.0 { 0.0 } else { half.to_f32().recip() })
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, value| value.abs().max(most))
}

fn q8_0_block(values: &[f32]) -> Vec<u8> {
    let (d, inverse) = scale(largest(values) / 127.0);
    let quant = |value: &f32| ((value * inverse).round().clamp(-127.0, 127.0) as i8) as u8;
    d.to_le_bytes().into_iter().chain(values.iter().map(quant)).collect()
}

fn iq4_nl_block(values: &[f32]) -> Vec<u8> {
    let (d, inverse) = scale(largest(values) / 120.0);
    let quant = |value: &f32| {
        let far = |i: &u8| (f32::from(CODEBOOK[usize::from(*i)]) - value * inverse).abs();
        (0..16u8).min_by(|a, b| far(a).total_cmp(&far(b))).unwrap()
    };
    let quants: Vec<u8> = values.iter().map(quant).collect();
    let pairs = (0..16).map(|i| quants[i] | quants[i + 16] << 4);
    d.to_le_bytes().into_iter().chain(pairs).collect()
}

fn q4_k_block(values: &[f32]) -> Vec<u8> {
    let groups: Vec<&[f32]> = values.chunks_exact(32).collect();
    let lows: Vec<f32> = groups.iter().map(|g| g.iter().copied().fold(0.0, f32::min)).collect();
    let spans: Vec<f32> = (groups.iter().zip(&lows))
        .map(|(group, low)| group.iter().copied().fold(0.0, f32::max) - low)
        .collect();
    let (d, inverse) = scale(largest(&spans) / 15.0 / 63.0);
    let (dmin, inverse_min) = scale(largest(&lows) / 63.0);
    let six_bits = |value: f32| value.round().clamp(0.0, 63.0) as u8;
    let scales: Vec<u8> = spans.iter().map(|span| six_bits(span / 15.0 * inverse)).collect();
    let mins: Vec<u8> = lows.iter().map(|low| six_bits(-low * inverse_min)).collect();

    let mut block: Vec<u8> = d.to_le_bytes().into_iter().chain(dmin.to_le_bytes()).collect();
    block.extend((0..4).map(|i| scales[i] | scales[i + 4] >> 4 << 6));
    block.extend((0..4).map(|i| mins[i] | mins[i + 4] >> 4 << 6));
    block.extend((4..8).map(|i| scales[i] & 15 | mins[i] << 4));
    let quant = |group: usize, i: usize| {
        let step = d.to_f32() * f32::from(scales[group]);
        let above = groups[group][i] + dmin.to_f32() * f32::from(mins[group]);
        if step == 0.0 { 0 } else { (above / step).round().clamp(0.0, 15.0) as u8 }
    };
    for pair in 0..4 {
        block.extend((0..32).map(|i| quant(2 * pair, i) | quant(2 * pair + 1, i) << 4));
    }
    block
}

/// What is read back must be near what was written.
#[test]
fn written_blocks_decode_to_what_they_hold() {
    let wave = |i: usize| (i as f32 * 0.37).sin() * (1.0 + i as f32 / 64.0);
    let values: Vec<f32> = (0..512).map(wave).collect();
    for (ty, bound) in
        [(TensorType::Q8_0, 0.005), (TensorType::IQ4_NL, 0.1), (TensorType::Q4_K, 0.08)]
    {
        let mut read = vec![0.0; values.len()];
        decode(ty, &encode(ty, &values), &mut read).unwrap();
        let errors: Vec<f32> = values.iter().zip(&read).map(|(a, b)| a - b).collect();
        let error = largest(&errors) / largest(&values);
        assert!(error < bound, "{ty}: error {error} of the largest value");
    }
}
