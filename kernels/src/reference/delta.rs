//! The gated delta rule, in its recurrent form: Yang, Kautz and Hatamizadeh, "Gated Delta
//! Networks: Improving Mamba2 with Delta Rule" (2024), equation 10.
//!
//! State of a value head: `S[i][j]`, i over keys, j over values. A row does
//! `S = S * decay`, `p_j = sum_i k_i S_ij`, `delta_j = beta (v_j - p_j)`, `S_ij += k_i delta_j`,
//! `o_j = sum_i q_i S_ij`. Both sums run over i in order, by fma from 0. `S * decay` is rounded
//! before it is used, so that a state that was stored and one that was not go on alike.

use super::math::{exp, sigmoid, softplus};
use super::sum_of_squares;

/// Added to the sum of squares of a key or query under the root.
pub const L2_EPS: f32 = 1e-6;

/// Shapes of a layer; see [`crate::spec::GatedDelta`].
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub key_heads: usize,
    pub value_heads: usize,
    pub head_dim: usize,
    pub tiled: bool,
}

impl Heads {
    /// The key head that a value head reads.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.tiled {
            true => value_head % self.key_heads,
            false => value_head / (self.value_heads / self.key_heads),
        }
    }

    /// f32 in a state.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.head_dim * self.head_dim
    }
}

/// One row of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Queries, keys, values: `(2 key_heads + value_heads) * head_dim`.
    pub qkv: &'a [f32],
    /// One a value head, before the sigmoid.
    pub beta: &'a [f32],
    /// One a value head, before softplus.
    pub alpha: &'a [f32],
    /// -exp(A_log), one a value head.
    pub a: &'a [f32],
    pub dt_bias: &'a [f32],
}

/// What a row does to a state.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// Normalised keys, `key_heads * head_dim`.
    pub keys: Vec<f32>,
    /// `value_heads * head_dim`.
    pub deltas: Vec<f32>,
    /// One a value head.
    pub decays: Vec<f32>,
}

impl Row<'_> {
    /// The normalised query of a key head, times `1 / sqrt(head_dim)`.
    pub fn query(&self, heads: &Heads, key_head: usize) -> Vec<f32> {
        let q = &self.qkv[key_head * heads.head_dim..][..heads.head_dim];
        let factor = inverse_length(q) * inverse_root(heads.head_dim);
        q.iter().map(|q| q * factor).collect()
    }

    /// The normalised key of a key head.
    pub fn key(&self, heads: &Heads, key_head: usize) -> Vec<f32> {
        let k = &self.qkv[(heads.key_heads + key_head) * heads.head_dim..][..heads.head_dim];
        let factor = inverse_length(k);
        k.iter().map(|k| k * factor).collect()
    }

    pub fn value(&self, heads: &Heads, head: usize) -> &[f32] {
        &self.qkv[(2 * heads.key_heads + head) * heads.head_dim..][..heads.head_dim]
    }

    /// The strength of a head's update, in 0..1.
    pub fn strength(&self, head: usize) -> f32 {
        sigmoid(self.beta[head])
    }

    /// The logarithm of a head's decay, at most 0.
    pub fn log_decay(&self, head: usize) -> f32 {
        self.a[head] * softplus(self.alpha[head] + self.dt_bias[head])
    }
}

/// 1 / sqrt(x.x + eps).
fn inverse_length(x: &[f32]) -> f32 {
    1.0 / (sum_of_squares(x) + L2_EPS).sqrt()
}

/// 1 / sqrt(n), the factor of queries.
pub fn inverse_root(n: usize) -> f32 {
    1.0 / (n as f32).sqrt()
}

/// One row: changes the state of all heads and gives `out: f32[value_heads * head_dim]`.
pub fn step(heads: &Heads, state: &mut [f32], row: &Row<'_>, out: &mut [f32]) -> Factors {
    let d = heads.head_dim;
    let mut deltas = vec![0.0f32; heads.value_heads * d];
    let mut decays = vec![0.0f32; heads.value_heads];
    for head in 0..heads.value_heads {
        let key_head = heads.key_head(head);
        let (q, k) = (row.query(heads, key_head), row.key(heads, key_head));
        let (v, strength) = (row.value(heads, head), row.strength(head));
        let decay = exp(row.log_decay(head));
        let state = &mut state[head * d * d..][..d * d];
        state.iter_mut().for_each(|s| *s *= decay);
        for j in 0..d {
            let prediction = (0..d).fold(0.0f32, |p, i| k[i].mul_add(state[i * d + j], p));
            let delta = strength * (v[j] - prediction);
            let mut o = 0.0f32;
            for i in 0..d {
                let s = &mut state[i * d + j];
                *s = k[i].mul_add(delta, *s);
                o = q[i].mul_add(*s, o);
            }
            deltas[head * d + j] = delta;
            out[head * d + j] = o;
        }
        decays[head] = decay;
    }
    let keys = (0..heads.key_heads).flat_map(|h| row.key(heads, h)).collect();
    Factors { keys, deltas, decays }
}

/// Repeats what [`step`] did to a state.
pub fn apply(heads: &Heads, state: &mut [f32], factors: &Factors) {
    let d = heads.head_dim;
    for (index, s) in state.iter_mut().enumerate() {
        let (head, i, j) = (index / (d * d), index / d % d, index % d);
        let k = factors.keys[heads.key_head(head) * d + i];
        *s = k.mul_add(factors.deltas[head * d + j], *s * factors.decays[head]);
    }
}
