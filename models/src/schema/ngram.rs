//! Embeddings of n-grams.

use serde::Deserialize;

/// A table whose rows are found by hashing the last tokens, for each length of n-gram from 2 on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ngram {
    /// The layer before which the embedding is added, from 0.
    pub layer: u32,
    /// Elements of a table row.
    pub width: u32,
    /// Tokens of the longest n-gram.
    pub ngram_size: u16,
    /// Rows that are looked up for each length of n-gram.
    pub heads_per_ngram: u16,
    /// Rows that the convolution over the embedding sees, the newest included, `ngram_size` rows
    /// apart.
    pub taps: u16,
    /// The token that n-grams do not reach across.
    pub eos: u32,
    pub hash: Hash,
    /// Rows of the table, those that no hash gives included.
    pub table_rows: u32,
    /// Tensors that hold the table in the Hf layouts.
    #[serde(default = "one_tensor")]
    pub table_tensors: u32,
}

fn one_tensor() -> u32 {
    1
}

impl Ngram {
    /// Rows that are looked up for a token.
    pub fn heads(&self) -> u32 {
        (u32::from(self.ngram_size) - 1) * u32::from(self.heads_per_ngram)
    }

    /// Width of a token's embedding.
    pub fn embedding(&self) -> u32 {
        self.heads() * self.width
    }
}

/// The numbers of the hash.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Hash {
    /// Random multipliers from `seed`, and as sizes the primes from `base` on.
    Derived { base: u64, seed: u64 },
    /// As a file lists them.
    Given(HashConstants),
}

/// A head's row is `(xor of token * multiplier) mod size + offset`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashConstants {
    /// One for each token of the longest n-gram, the newest first.
    pub multipliers: Vec<u64>,
    /// Table rows of each head.
    pub sizes: Vec<u64>,
    /// The first table row of each head.
    pub offsets: Vec<u64>,
}
