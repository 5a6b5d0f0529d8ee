//! Attention kinds and their parts.

use serde::Deserialize;
use strata_graph::{Activation, Pairing};

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Attention {
    Gqa(Gqa),
    GatedDelta(GatedDelta),
}

/// Causal softmax attention in which groups of query heads share a head of keys and values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gqa {
    pub heads: u16,
    pub kv_heads: u16,
    pub head_dim: u16,
    /// Each head of queries and keys is normed before rope.
    #[serde(default)]
    pub qk_norm: bool,
    #[serde(default)]
    pub bias: Bias,
    pub rope: Rope,
    /// The result is multiplied by the sigmoid of as many gates, which stand in the query matrix:
    /// for each head its query rows, then its gate rows.
    #[serde(default)]
    pub gate: bool,
    /// Factor on `q . k`; `head_dim^-0.5` if absent.
    #[serde(default)]
    pub scale: Option<f32>,
    /// Positions that a query sees, its own included; all earlier ones if absent.
    #[serde(default)]
    pub window: Option<u32>,
    /// A query sees chosen blocks of positions only.
    #[serde(default)]
    pub indexer: Option<Indexer>,
}

impl Gqa {
    /// Factor on `q . k`.
    pub fn score_scale(&self) -> f32 {
        self.scale.unwrap_or_else(|| (1.0 / f64::from(self.head_dim).sqrt()) as f32)
    }
}

/// Which projections of an attention block add a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Bias {
    #[default]
    None,
    /// Queries, keys and values.
    Qkv,
    /// Those and the output.
    All,
}

/// Rotary embedding of queries and keys.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the frequencies: pair `i` turns by `theta^(-2 i / dims)` radians a position.
    pub theta: f64,
    /// Leading dimensions of a head that are turned; all if absent.
    #[serde(default)]
    pub dims: Option<u16>,
    #[serde(default)]
    pub pairing: Pairs,
    #[serde(default)]
    pub scaling: Scaling,
}

/// Which two elements of a head are turned together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Pairs {
    /// `(i, i + dims / 2)`, as in published checkpoints.
    #[default]
    Halves,
    /// `(2 i, 2 i + 1)`, as in GGUF files of the llama family.
    Adjacent,
}

impl From<Pairs> for Pairing {
    fn from(pairs: Pairs) -> Self {
        match pairs {
            Pairs::Halves => Pairing::Halves,
            Pairs::Adjacent => Pairing::Adjacent,
        }
    }
}

/// How the frequencies are changed for contexts longer than the first training's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Scaling {
    #[default]
    None,
    /// Every frequency is divided by `factor`.
    Linear { factor: f64 },
    /// Wavelengths above `original_context / low` are divided by `factor`, those below
    /// `original_context / high` stay, and between them the two are blended.
    Llama3 { factor: f64, low: f64, high: f64, original_context: u32 },
    /// One divisor for each pair, as a GGUF's `rope_freqs.weight` holds them.
    Divisors(Vec<f32>),
}

/// What chooses blocks of positions for sparse attention: a small attention of its own over the mean
/// keys of blocks. Blocks that are not complete yet are always seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Query heads; there is one key head.
    pub heads: u16,
    pub head_dim: u16,
    /// Positions in complete blocks that a query sees at most.
    pub budget_tokens: u32,
    /// Positions in a block.
    pub block: u16,
}

/// A recurrent layer: a causal convolution, then the gated delta rule on one matrix of
/// `head_dim x head_dim` for each value head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatedDelta {
    /// Heads of queries and of keys.
    pub key_heads: u16,
    pub value_heads: u16,
    /// Elements of a head, of keys as of values.
    pub head_dim: u16,
    /// Rows that the convolution sees, the newest included.
    pub conv_taps: u16,
    /// What the output gate goes through.
    pub gate: OutputGate,
    #[serde(default)]
    pub order: ValueHeads,
    #[serde(default)]
    pub projections: Projections,
}

impl GatedDelta {
    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> u32 {
        (2 * u32::from(self.key_heads) + u32::from(self.value_heads)) * u32::from(self.head_dim)
    }

    /// Width of the values.
    pub fn value_width(&self) -> u32 {
        u32::from(self.value_heads) * u32::from(self.head_dim)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum OutputGate {
    Sigmoid,
    Silu,
}

impl From<OutputGate> for Activation {
    fn from(gate: OutputGate) -> Self {
        match gate {
            OutputGate::Sigmoid => Activation::Sigmoid,
            OutputGate::Silu => Activation::Silu,
        }
    }
}

/// Which key head a value head goes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ValueHeads {
    /// `value head / (value heads / key heads)`, as in published checkpoints.
    #[default]
    Grouped,
    /// `value head mod key heads`, as converters of some families lay them.
    Tiled,
}

/// How the input projections of a recurrent layer are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Projections {
    /// Queries, keys and values in one matrix; gates, write strengths and decays in one each.
    #[default]
    Separate,
    /// Write strengths and decays in one matrix, by key head. In the Hf layouts queries, keys,
    /// values and gates are one matrix by key head too; GGUF files keep the gates apart.
    FusedByKeyHead,
}
