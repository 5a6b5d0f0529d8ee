use super::math;
use super::quantize::{Q8_BLOCK, q8_row_bytes, quantize_row, read_block};
use super::{rope, route};

/// Distance in units of the last place of `want` as an f32.
fn ulps(got: f32, want: f64) -> f64 {
    let exponent = (want.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32) - 23;
    (f64::from(got) - want).abs() / 2f64.powi(exponent)
}

fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, range: (f32, f32)) -> f64 {
    let steps = 200_000;
    (0..=steps)
        .map(|i| range.0 + (range.1 - range.0) * (i as f32 / steps as f32))
        .map(|x| ulps(f(x), exact(f64::from(x))))
        .fold(0.0, f64::max)
}

fn sigmoid64(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn elementary_functions_keep_their_stated_errors() {
    let found = [
        worst(math::exp, f64::exp, (-87.3, 88.7)),
        worst(math::exp, f64::exp, (-1.0, 1.0)),
        worst(math::sigmoid, sigmoid64, (-87.0, 88.0)),
        worst(math::silu, |x| x * sigmoid64(x), (-87.0, 88.0)),
        worst(math::log1p, f64::ln_1p, (0.0, 4.0)),
        worst(math::log1p, f64::ln_1p, (0.0, 1e-3)),
        worst(math::log1p, f64::ln_1p, (0.0, 5e8)),
        worst(math::softplus, |x| x.exp().ln_1p(), (-80.0, 88.0)),
    ];
    let stated = [1.0, 1.0, 2.5, 3.0, 2.0, 2.0, 2.0, 4.0];
    for (i, (found, stated)) in found.iter().zip(stated).enumerate() {
        assert!(*found <= stated, "row {i}: {found} ulp, stated {stated}");
    }
}

#[test]
fn gelu_sin_and_cos_keep_their_absolute_errors() {
    for i in 0..200_000 {
        let x = (i - 100_000) as f32 * 1e-4 * if i % 2 == 0 { 1.0 } else { 5.0 };
        let x64 = f64::from(x);
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x64 + 0.044715 * x64.powi(3));
        let want = 0.5 * x64 * (1.0 + inner.tanh());
        assert!((f64::from(math::gelu_tanh(x)) - want).abs() <= 2e-6 * x64.abs().max(1.0), "{x}");
        let angle = (i - 100_000) as f32 * 2.621_437_3;
        let (sin, cos) = f64::from(angle).sin_cos();
        assert!((f64::from(math::sin(angle)) - sin).abs() <= 1.3e-7, "sin {angle}");
        assert!((f64::from(math::cos(angle)) - cos).abs() <= 1.3e-7, "cos {angle}");
    }
}

#[test]
fn special_values_are_defined() {
    let inf = f32::INFINITY;
    assert_eq!([math::exp(-inf), math::exp(inf), math::exp(0.0)], [0.0, inf, 1.0]);
    assert_eq!([math::exp(-88.0), math::exp(89.0)], [0.0, inf]);
    assert_eq!([math::sigmoid(-inf), math::sigmoid(inf), math::sigmoid(0.0)], [0.0, 1.0, 0.5]);
    assert_eq!([math::softplus(inf), math::softplus(-inf), math::log1p(inf)], [inf, 0.0, inf]);
    for f in [math::exp, math::sigmoid, math::silu, math::gelu_tanh, math::log1p, math::softplus] {
        assert!(f(f32::NAN).is_nan());
        assert!(f(f32::from_bits(0xffff_ffff)).is_nan());
    }
}

#[test]
fn quantised_blocks_saturate_round_to_even_and_zero_what_is_absent() {
    let mut x = vec![0.0f32; 288];
    x[..4].copy_from_slice(&[127.0, 2.5, 3.5, -0.5]);
    x[32] = f32::INFINITY;
    x[33] = f32::NAN;
    x[64] = 1e-31;
    x[256] = -4.0;
    let mut row = vec![0xee; q8_row_bytes(x.len())];
    quantize_row(&x, &mut row);
    let first = read_block(&row, 0);
    assert_eq!(first.q[..4], [127, 2, 4, 0]);
    assert_eq!(first.sums, [133, 0]);
    assert_eq!(first.scaled_sum, first.scale * 133.0);
    let huge = read_block(&row, 1);
    assert_eq!((huge.q[0], huge.q[1]), (127, 0));
    assert!(huge.scale.is_finite());
    assert_eq!(read_block(&row, 2), read_block(&row, 3), "tiny blocks are zero blocks");
    assert_eq!(read_block(&row, 8).q[0], -127);
    assert_eq!(read_block(&row, 9), read_block(&row, 3), "blocks beyond k are zero");
    assert_eq!(Q8_BLOCK, 32);
}

#[test]
fn rotation_keeps_lengths_and_position_zero_is_identity() {
    let inv_freq: Vec<f32> = (0..16).map(|i| 10_000f32.powf(-(i as f32) / 16.0)).collect();
    let head: Vec<f32> = (0..48).map(|i| (i as f32 * 0.37).sin()).collect();
    let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    for adjacent in [false, true] {
        for position in [0, 1, 77, 262_143] {
            let mut angles = vec![0.0; 32];
            rope::rope_angles(position, &inv_freq, &mut angles);
            let mut turned = head.clone();
            rope::rotate(&mut turned, &angles, adjacent);
            assert!((norm(&turned) - norm(&head)).abs() < 1e-5);
            assert_eq!(turned[32..], head[32..], "dimensions beyond the table stay");
            assert_eq!(turned == head, position == 0);
        }
    }
}

#[test]
fn routing_prefers_lower_ids_among_equals_and_survives_nan() {
    let mut logits = vec![0.0f32; 40];
    logits[7] = 1.0;
    let (mut ids, mut weights) = ([0u32; 3], [0.0f32; 3]);
    route::route(&logits, true, &mut ids, &mut weights);
    assert_eq!(ids, [7, 0, 1]);
    assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    route::route(&[f32::NAN; 40], false, &mut ids, &mut weights);
    assert_eq!(ids, [0, 1, 2]);
    let d = route::dispatch(&[2, 0, 0, 3], 5);
    assert_eq!((d.active, d.offsets), (vec![0, 2, 3], vec![0, 2, 2, 3, 4, 4]));
    assert_eq!(d.pairs, [1, 2, 0, 3]);
}
