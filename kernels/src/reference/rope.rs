//! Rotary position embedding.

use super::math::{cos, sin};

/// One row of the table: cos of `position * inv_freq[i]` for all i, then sin. `row: f32[2 n]`.
pub fn rope_angles(position: u32, inv_freq: &[f32], row: &mut [f32]) {
    let (cosines, sines) = row.split_at_mut(inv_freq.len());
    for (i, &f) in inv_freq.iter().enumerate() {
        let angle = position as f32 * f;
        cosines[i] = cos(angle);
        sines[i] = sin(angle);
    }
}

/// Rotates the first `angles.len()` dimensions of `head` in place.
///
/// Pair i is (i, i + dims / 2), or (2 i, 2 i + 1) where `adjacent`:
/// `a' = fma(a, cos, -(b * sin))`, `b' = fma(b, cos, a * sin)`.
pub fn rotate(head: &mut [f32], angles: &[f32], adjacent: bool) {
    let half = angles.len() / 2;
    for i in 0..half {
        let (ia, ib) = if adjacent { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (c, s) = (angles[i], angles[half + i]);
        let (a, b) = (head[ia], head[ib]);
        head[ia] = a.mul_add(c, -(b * s));
        head[ib] = b.mul_add(c, a * s);
    }
}
