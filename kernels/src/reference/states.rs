//! What rows of one sequence see of the rows before them: a tail holds the sequence's last rows,
//! oldest first, zero where it begins.

use super::math::silu;

/// The tail behind `rows`: the last rows of `tail` and `rows`, as many as `tail` has.
pub fn tail_after<T: Copy>(tail: &[T], rows: &[T]) -> Vec<T> {
    let all = [tail, rows].concat();
    all[rows.len()..].to_vec()
}

/// The row before each row.
pub fn shift_rows(tail: &[f32], x: &[f32]) -> Vec<f32> {
    let all = [tail, x].concat();
    all[..x.len()].to_vec()
}

/// Depthwise causal convolution, then silu: `weight[channels][taps]`, the last tap for the row
/// itself, the others `dilation` rows apart. By fma from zero, the oldest row first.
pub fn conv1d(tail: &[f32], x: &[f32], weight: &[f32], taps: usize, dilation: usize) -> Vec<f32> {
    let channels = weight.len() / taps;
    let history = (taps - 1) * dilation;
    let all = [tail, x].concat();
    let element = |(row, channel): (usize, usize)| {
        let join = |sum: f32, j: usize| {
            let source = row + history - (taps - 1 - j) * dilation;
            weight[channel * taps + j].mul_add(all[source * channels + channel], sum)
        };
        silu((0..taps).fold(0.0f32, join))
    };
    (0..x.len()).map(|i| element((i / channels, i % channels))).collect()
}

/// The hash of n-grams: heads for n = 2 first, then for 3, as many each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramHash {
    /// One for each token of the longest n-gram, the newest token's first.
    pub multipliers: Vec<u64>,
    /// Table rows of each head.
    pub sizes: Vec<u64>,
    /// First table row of each head.
    pub offsets: Vec<u64>,
    /// The end-of-sequence token.
    pub eos: u32,
}

impl NgramHash {
    /// The table that kernels read.
    pub fn words(&self) -> Vec<u64> {
        let end = [u64::from(self.eos)];
        [&self.multipliers[..], &self.sizes, &self.offsets, &end].concat()
    }

    /// Table rows of each head for each of `tokens` behind `tail` (tokens plus 1, 0 for none).
    pub fn rows(&self, tail: &[u32], tokens: &[u32]) -> Vec<u32> {
        let words: Vec<u32> =
            tail.iter().copied().chain(tokens.iter().map(|token| token + 1)).collect();
        let ends = tail.len()..words.len();
        ends.flat_map(|end| self.row(&words[end - tail.len()..=end])).collect()
    }

    /// Table rows of the last of `words`, which are a token of each multiplier.
    fn row(&self, words: &[u32]) -> Vec<u32> {
        let mut newest_first = words.iter().rev();
        let own = newest_first.next().map_or(0, |word| u64::from(*word) - 1);
        let mut mix = own.wrapping_mul(self.multipliers[0]);
        let mut is_cut = false;
        let heads = self.sizes.len() / (self.multipliers.len() - 1);
        let mut rows = Vec::with_capacity(self.sizes.len());
        for (back, (word, multiplier)) in newest_first.zip(&self.multipliers[1..]).enumerate() {
            is_cut |= *word == 0 || *word == self.eos + 1;
            let token = if is_cut { self.eos } else { word - 1 };
            mix ^= u64::from(token).wrapping_mul(*multiplier);
            let group = back * heads..(back + 1) * heads;
            let row = |head: usize| (mix % self.sizes[head] + self.offsets[head]) as u32;
            rows.extend(group.map(row));
        }
        rows
    }
}
