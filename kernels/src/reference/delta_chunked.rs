//! The gated delta rule by chunks of rows: the form that turns most of the work into matrix
//! products (Yang et al. 2024, section 3.3). It equals [`super::delta`] up to rounding, not bit
//! for bit.
//!
//! With G_i the sum of the logarithms of decay of a chunk's rows up to i, and
//! `A_ij = beta_i (k_i.k_j) exp(G_i - G_j)` for j < i: `(I + A) U = beta V` and
//! `(I + A) W = beta exp(G) K` give the values `V' = U - W S` that the chunk adds; then
//! `O = exp(G) Q S + M V'` with `M_ij = (q_i.k_j) exp(G_i - G_j)` for j <= i, and
//! `S = exp(G_last) S + (exp(G_last - G) K)^T V'`.

use super::delta::{Heads, Row};
use super::dot_unspanned;
use super::math::exp;

/// Rows of a chunk.
pub const CHUNK: usize = 64;

/// Rows of one sequence: changes the state of all heads and gives `out`, the results of
/// [`super::delta::step`] row after row.
pub fn rows(heads: &Heads, state: &mut [f32], rows: &[Row<'_>], out: &mut [f32]) {
    let (d, width) = (heads.head_dim, heads.value_heads * heads.head_dim);
    for head in 0..heads.value_heads {
        let state = &mut state[head * d * d..][..d * d];
        for (rows, out) in rows.chunks(CHUNK).zip(out.chunks_mut(CHUNK * width)) {
            let chunk = Chunk::new(heads, rows, head);
            let added = chunk.added_values(state);
            for (i, out) in out.chunks_mut(width).enumerate() {
                chunk.result(state, &added, i, &mut out[head * d..][..d]);
            }
            chunk.advance(state, &added);
        }
    }
}

/// One value head's rows of a chunk.
struct Chunk {
    d: usize,
    q: Vec<Vec<f32>>,
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    strength: Vec<f32>,
    /// G.
    log_decay: Vec<f32>,
}

impl Chunk {
    fn new(heads: &Heads, rows: &[Row<'_>], head: usize) -> Self {
        let key_head = heads.key_head(head);
        let mut sum = 0.0f32;
        let log_decay = rows.iter().map(|row| {
            sum += row.log_decay(head);
            sum
        });
        Self {
            d: heads.head_dim,
            log_decay: log_decay.collect(),
            q: rows.iter().map(|row| row.query(heads, key_head)).collect(),
            k: rows.iter().map(|row| row.key(heads, key_head)).collect(),
            v: rows.iter().map(|row| row.value(heads, head).to_vec()).collect(),
            strength: rows.iter().map(|row| row.strength(head)).collect(),
        }
    }

    /// exp(G_i - G_j), for j <= i.
    fn decay_between(&self, i: usize, j: usize) -> f32 {
        exp(self.log_decay[i] - self.log_decay[j])
    }

    /// V': the values that the chunk's rows add, `[rows][d]`.
    ///
    /// U and W differ only in their right-hand sides, so V' solves
    /// `(I + A) V' = beta (V - exp(G) K S)`, by forward substitution.
    fn added_values(&self, state: &[f32]) -> Vec<Vec<f32>> {
        let mut added: Vec<Vec<f32>> = Vec::with_capacity(self.k.len());
        for i in 0..self.k.len() {
            let predicted = through(state, &self.k[i]);
            let decay = exp(self.log_decay[i]);
            let mut value: Vec<f32> =
                self.v[i].iter().zip(predicted).map(|(v, p)| v - decay * p).collect();
            for (j, earlier) in added.iter().enumerate() {
                let a = dot_unspanned(&self.k[i], &self.k[j]) * self.decay_between(i, j);
                for (value, earlier) in value.iter_mut().zip(earlier) {
                    *value = (-a).mul_add(*earlier, *value);
                }
            }
            value.iter_mut().for_each(|v| *v *= self.strength[i]);
            added.push(value);
        }
        added
    }

    /// O of row `i`.
    fn result(&self, state: &[f32], added: &[Vec<f32>], i: usize, out: &mut [f32]) {
        let decay = exp(self.log_decay[i]);
        let before = through(state, &self.q[i]);
        out.iter_mut().zip(before).for_each(|(o, b)| *o = decay * b);
        for (j, added) in added.iter().enumerate().take(i + 1) {
            let m = dot_unspanned(&self.q[i], &self.k[j]) * self.decay_between(i, j);
            for (o, added) in out.iter_mut().zip(added) {
                *o = m.mul_add(*added, *o);
            }
        }
    }

    /// S behind the chunk.
    fn advance(&self, state: &mut [f32], added: &[Vec<f32>]) {
        let last = self.k.len() - 1;
        let decay = exp(self.log_decay[last]);
        state.iter_mut().for_each(|s| *s *= decay);
        for (j, added) in added.iter().enumerate() {
            let decay = self.decay_between(last, j);
            for (k, state) in self.k[j].iter().zip(state.chunks_mut(self.d)) {
                for (s, added) in state.iter_mut().zip(added) {
                    *s = (k * decay).mul_add(*added, *s);
                }
            }
        }
    }
}

/// `x^T S`: one row of a product with a state `[d][d]`.
fn through(state: &[f32], x: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0f32; x.len()];
    for (x, row) in x.iter().zip(state.chunks(x.len())) {
        sums.iter_mut().zip(row).for_each(|(sum, s)| *sum = x.mul_add(*s, *sum));
    }
    sums
}
