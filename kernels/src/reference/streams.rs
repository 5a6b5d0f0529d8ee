//! Rows of several streams (stream c of a row of `streams * k` elements begins at `c * k`), and
//! gates on rows. Every function takes one row.

use super::activations::act;
use super::dot;
use super::math::{sigmoid, silu};
use super::norm::rms_norm;
use crate::spec::Act;

/// The least magnitude of an n-gram's score.
pub const NGRAM_LEAST: f32 = 1e-6;

/// The norm of each slice of `k` elements, with gains for the whole row.
pub fn group_rms_norm(x: &[f32], gain: &[f32], k: usize, eps: f32) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    for ((x, gain), y) in x.chunks(k).zip(gain.chunks(k)).zip(y.chunks_mut(k)) {
        rms_norm(x, gain, eps, y);
    }
    y
}

/// `silu(x * scale)`.
pub fn scaled_silu(x: &[f32], scale: f32) -> Vec<f32> {
    x.iter().map(|x| silu(x * scale)).collect()
}

/// The mean over streams of `sigmoid(gate) * normed`: fma by stream from zero, then a division.
pub fn hc_read(normed: &[f32], gate: &[f32], streams: usize) -> Vec<f32> {
    let k = normed.len() / streams;
    let element = |i: usize| {
        let join = |sum, c| sigmoid(gate[c * k + i]).mul_add(normed[c * k + i], sum);
        (0..streams).fold(0.0f32, join) / streams as f32
    };
    (0..k).map(element).collect()
}

/// `fma(2 * sigmoid(inject_c / streams), y, residual_c)` for each stream c.
pub fn hc_write(residual: &[f32], y: &[f32], inject: &[f32]) -> Vec<f32> {
    let streams = inject.len() as f32;
    let weights = inject.iter().map(|logit| sigmoid(logit / streams) * 2.0);
    let joined = weights.zip(residual.chunks(y.len())).flat_map(|(weight, residual)| {
        residual.iter().zip(y).map(move |(r, y)| weight.mul_add(*y, *r))
    });
    joined.collect()
}

/// The norm of each head (gain: `f32[head_dim]`), times `act(gate)`.
pub fn gated_head_norm(x: &[f32], gain: &[f32], gate: &[f32], eps: f32, kind: Act) -> Vec<f32> {
    let gains = gain.repeat(x.len() / gain.len());
    let normed = group_rms_norm(x, &gains, gain.len(), eps);
    normed.iter().zip(gate).map(|(x, gate)| x * act(kind, *gate)).collect()
}

/// `fma(sigmoid(gate), b, a)`.
pub fn gated_add(a: &[f32], b: &[f32], gate: f32) -> Vec<f32> {
    let open = sigmoid(gate);
    a.iter().zip(b).map(|(a, b)| open.mul_add(*b, *a)).collect()
}

/// `[e | h_c]` for each stream c.
pub fn stream_concat(e: &[f32], h: &[f32]) -> Vec<f32> {
    h.chunks(e.len()).flat_map(|h| [e, h].concat()).collect()
}

/// `sigmoid(sign(s) * sqrt(max(abs(s), 1e-6))) * value` for each stream, with s the dot product by
/// spans of key and query, divided by `sqrt(k)`.
pub fn ngram_gate(key: &[f32], query: &[f32], value: &[f32]) -> Vec<f32> {
    let k = value.len();
    let gates = key.chunks(k).zip(query.chunks(k)).map(|(key, query)| {
        let score = dot(key, query) / (k as f32).sqrt();
        let magnitude = if score.abs() > NGRAM_LEAST { score.abs() } else { NGRAM_LEAST };
        let signed = match score {
            _ if score > 0.0 => magnitude.sqrt(),
            _ if score < 0.0 => -magnitude.sqrt(),
            _ => score,
        };
        sigmoid(signed)
    });
    gates.flat_map(|gate| value.iter().map(move |value| gate * value)).collect()
}
