//! Expert routing: softmax, top-k, the dispatch list, and the sum of a token's experts.

use super::math::exp;
use super::sum;

/// Softmax: p = exp(x - max) / sum. NaN results are 0, so that selection always ends.
pub fn softmax(logits: &[f32], p: &mut [f32]) {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    for (p, &x) in p.iter_mut().zip(logits) {
        *p = exp(x - max);
    }
    let total = sum(p);
    for p in p.iter_mut() {
        let q = *p / total;
        *p = if q.is_nan() { 0.0 } else { q };
    }
}

/// The `ids.len()` largest probabilities, descending, lower id first among equals.
///
/// `renormalize`: each weight is divided by the sum of the chosen ones, added in that order.
pub fn route(logits: &[f32], renormalize: bool, ids: &mut [u32], weights: &mut [f32]) {
    let mut p = vec![0.0; logits.len()];
    softmax(logits, &mut p);
    for (id, weight) in ids.iter_mut().zip(weights.iter_mut()) {
        let (mut best, mut best_p) = (0, -2.0);
        for (i, &p) in p.iter().enumerate() {
            if p > best_p {
                (best, best_p) = (i, p);
            }
        }
        p[best] = -1.0;
        *id = best as u32;
        *weight = best_p;
    }
    if renormalize {
        let total = weights.iter().fold(0.0f32, |total, &w| total + w);
        for w in weights.iter_mut() {
            *w /= total;
        }
    }
}

/// The rows of each expert: a counting sort of `ids` (`u32[rows][top_k]`, flat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// Experts with at least one row, ascending.
    pub active: Vec<u32>,
    /// `experts + 1` offsets into `pairs`.
    pub offsets: Vec<u32>,
    /// `row * top_k + slot`, by expert, then by row.
    pub pairs: Vec<u32>,
}

pub fn dispatch(ids: &[u32], experts: usize) -> Dispatched {
    let of = |e: usize| ids.iter().zip(0u32..).filter(move |(id, _)| **id as usize == e);
    let mut offsets = vec![0];
    let mut pairs = Vec::new();
    for e in 0..experts {
        pairs.extend(of(e).map(|(_, pair)| pair));
        offsets.push(pairs.len() as u32);
    }
    let active =
        (0..experts as u32).filter(|&e| offsets[e as usize] < offsets[e as usize + 1]).collect();
    Dispatched { active, offsets, pairs }
}

/// y = sum over slots in order of weight * down, then the residual. `down: f32[top_k][k]`.
pub fn expert_combine(weights: &[f32], down: &[f32], residual: Option<&[f32]>, y: &mut [f32]) {
    let k = y.len();
    for (i, y) in y.iter_mut().enumerate() {
        let mut total = 0.0f32;
        for (s, &w) in weights.iter().enumerate() {
            total = w.mul_add(down[s * k + i], total);
        }
        *y = residual.map_or(total, |r| total + r[i]);
    }
}
