//! Elementwise ops on rows.

use super::math::{gelu_tanh, sigmoid, silu};
use crate::spec::Act;

/// y = act(x).
pub fn act(kind: Act, x: f32) -> f32 {
    match kind {
        Act::Silu => silu(x),
        Act::GeluTanh => gelu_tanh(x),
        Act::Sigmoid => sigmoid(x),
    }
}

/// y = act(a) * b, elementwise.
pub fn act_mul(kind: Act, a: &[f32], b: &[f32], y: &mut [f32]) {
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = act(kind, a) * b;
    }
}
