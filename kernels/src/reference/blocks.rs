//! Selection of blocks for sparse attention.

use super::attention::Pages;
use super::dot_unspanned;
use super::norm::rms_norm;
use super::rope::{rope_angles, rotate};
use crate::ops::kv::KvKind;

/// What makes a pooled key of raw ones.
pub struct Pooling<'a> {
    pub gain: &'a [f32],
    pub eps: f32,
    pub inv_freq: &'a [f32],
}

/// The key of a block: the mean of its `rows` (added in order), normed, rotated in halves for
/// `position`, which is that of its first row.
pub fn pooled_key(rows: &[Vec<f32>], pooling: &Pooling<'_>, position: u32) -> Vec<f32> {
    let mut mean = rows[0].clone();
    for row in &rows[1..] {
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    let factor = 1.0 / rows.len() as f32;
    mean.iter_mut().for_each(|x| *x *= factor);
    let mut key = vec![0.0; mean.len()];
    rms_norm(&mean, pooling.gain, pooling.eps, &mut key);
    let mut angles = vec![0.0; 2 * pooling.inv_freq.len()];
    rope_angles(position, pooling.inv_freq, &mut angles);
    rotate(&mut key, &angles, false);
    key
}

/// Scores of blocks `0..blocks` for the queries of one row, `f32[heads * dim]`.
///
/// A head's dot product counts if it is above 0; heads are added in order, from the first on.
pub fn scores(queries: &[f32], keys: &Pages<'_>, blocks: usize) -> Vec<f32> {
    let dim = keys.layout.head_dim;
    let factor = (dim as f32).sqrt().recip();
    let score = |block: usize| {
        let (key, scale) = keys.key(0, block);
        let term = |q: &[f32]| {
            let dot = dot_unspanned(q, &key);
            let dot = if keys.layout.kind == KvKind::Int8 { dot * scale } else { dot };
            if dot > 0.0 { dot } else { 0.0 }
        };
        let sum = queries.chunks(dim).map(term).reduce(|sum, term| sum + term);
        sum.unwrap_or(0.0) * factor
    };
    (0..blocks).map(score).collect()
}

/// The selection of a row that sees `entries` entries, given the scores of its complete blocks:
/// the count of attended entries, then block ids.
///
/// The `keep` best blocks are taken, the lower id first among equals.
pub fn top(scores: &[f32], entries: u32, (block, keep): (u32, usize)) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order.truncate(keep);
    order.sort_unstable();
    let rest = entries % block;
    let mut selection = vec![order.len() as u32 * block + rest];
    selection.extend(order.iter().map(|&id| id as u32));
    selection.extend((rest > 0).then_some(entries / block));
    selection
}
