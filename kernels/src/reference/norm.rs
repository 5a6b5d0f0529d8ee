//! Root-mean-square norms.

use super::sum_of_squares;

/// y = (x * r) * gain with r = 1 / sqrt(mean(x^2) + eps). `x`, `gain`, `y`: `f32[k]`.
pub fn rms_norm(x: &[f32], gain: &[f32], eps: f32, y: &mut [f32]) {
    let mean = sum_of_squares(x) / x.len() as f32;
    let r = 1.0 / (mean + eps).sqrt();
    for ((y, &x), &g) in y.iter_mut().zip(x).zip(gain) {
        *y = (x * r) * g;
    }
}

/// h = a + b, then y = norm(h): a residual add joined to the norm that follows it.
pub fn add_rms_norm(a: &[f32], b: &[f32], gain: &[f32], eps: f32, out: (&mut [f32], &mut [f32])) {
    let (h, y) = out;
    for ((h, &a), &b) in h.iter_mut().zip(a).zip(b) {
        *h = a + b;
    }
    rms_norm(h, gain, eps, y);
}

/// y = residual + norm(x): a norm of a block's result, then the residual add.
pub fn rms_norm_add(x: &[f32], gain: &[f32], residual: &[f32], eps: f32, y: &mut [f32]) {
    rms_norm(x, gain, eps, y);
    for (y, &residual) in y.iter_mut().zip(residual) {
        *y += residual;
    }
}
