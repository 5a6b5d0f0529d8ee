//! The schema of a model definition. All sizes are element counts unless a field says otherwise.
//!
//! Every struct refuses unknown fields, so a misspelt field is an error at its line and never a
//! silent default.

use serde::Deserialize;
use strata_graph::{Activation, Pairing};

/// One model: its sizes, its blocks and where its weights and words are.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelDef {
    pub name: String,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Rows of the embedding table.
    pub vocab: u32,
    /// Positions that the model was made for, in tokens.
    pub context: u32,
    /// All norms of the model; the same `eps` holds for the norms of single heads.
    pub norm: Norm,
    /// Factor on the embedding rows.
    #[serde(default = "one")]
    pub embed_scale: f32,
    /// Number of layers. The runs of `blocks` are laid one after the other until this many layers
    /// are described: they start over where they end, and may be cut off in a later round.
    pub layers: u32,
    pub blocks: Vec<Block>,
    pub head: Head,
    pub weights: Weights,
    pub tokens: Tokens,
    pub tokenizer: TokenizerSource,
    pub chat_template: ChatTemplate,
}

fn one() -> f32 {
    1.0
}

fn one_layer() -> u32 {
    1
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Norm {
    /// `x / sqrt(mean(x^2) + eps) * gain`.
    RmsNorm {
        eps: f32,
        /// The gains are stored as `gain - 1`, as published Gemma checkpoints do. GGUF files hold
        /// the gain itself.
        #[serde(default)]
        zero_centred: bool,
    },
}

impl Norm {
    pub fn eps(self) -> f32 {
        let Norm::RmsNorm { eps, .. } = self;
        eps
    }

    pub fn zero_centred(self) -> bool {
        let Norm::RmsNorm { zero_centred, .. } = self;
        zero_centred
    }
}

/// A run of equal layers: `x += attention(norm(x)); x += mlp(norm(x))`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Layers in the run.
    #[serde(default = "one_layer")]
    pub repeat: u32,
    pub attention: Attention,
    /// The results of attention and MLP are normed before they are added to the residual.
    #[serde(default)]
    pub post_norms: bool,
    pub mlp: Mlp,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Attention {
    Gqa(Gqa),
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
    /// Factor on `q . k`; `head_dim^-0.5` if absent.
    #[serde(default)]
    pub scale: Option<f32>,
    /// Positions that a query sees, its own included; all earlier ones if absent.
    #[serde(default)]
    pub window: Option<u32>,
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

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Mlp {
    Gated(Gated),
    Moe(Moe),
}

/// `down(act(gate x) * up x)`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gated {
    pub intermediate: u32,
    pub act: Act,
}

/// Gated experts, `top_k` of them a token, weighted by a softmax router.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    pub experts: u16,
    pub top_k: u16,
    /// Width of one expert.
    pub intermediate: u32,
    /// The weights of the chosen experts are scaled to sum 1.
    pub norm_top_k: bool,
    pub act: Act,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Act {
    Silu,
    /// The tanh form.
    Gelu,
}

impl From<Act> for Activation {
    fn from(act: Act) -> Self {
        match act {
            Act::Silu => Activation::Silu,
            Act::Gelu => Activation::Gelu,
        }
    }
}

/// The product that gives logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Head {
    /// With the embedding table.
    Tied,
    /// With a table of its own.
    Untied,
}

/// Where the weights are and how they are named.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    pub layout: Layout,
    /// What stands before `embed_tokens` and `layers` in the names of the Hf layouts.
    #[serde(default = "prefix")]
    pub prefix: String,
    /// GGUF files (the first shard of a split one), safetensors files or directories, relative to
    /// the definition.
    pub files: Vec<String>,
}

fn prefix() -> String {
    "model.".into()
}

/// A table of weight names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Layout {
    Gguf,
    /// Published safetensors, one tensor for each matrix of each expert.
    Hf,
    /// The same with the experts of a layer in two tensors, gate and up in one.
    HfFusedExperts,
}

/// Token ids with a meaning of their own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    #[serde(default)]
    pub bos: Option<u32>,
    /// Generation stops at any of these.
    pub eos: Vec<u32>,
    /// A text begins with `bos`.
    #[serde(default)]
    pub add_bos: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub enum TokenizerSource {
    /// The metadata of the GGUF file, or `tokenizer.json` beside the safetensors.
    SameAsWeights,
    /// A GGUF file or a `tokenizer.json`, relative to the definition.
    File(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub enum ChatTemplate {
    /// The model is not made for chat.
    None,
    /// The metadata of the GGUF file, or `chat_template.jinja` or the field `chat_template` of
    /// `tokenizer_config.json` beside the tokenizer.
    SameAsTokenizer,
    /// A Jinja file, relative to the definition.
    File(String),
}

impl ModelDef {
    /// Which run of `blocks` describes `layer`.
    ///
    /// # Panics
    /// If the runs hold no layer; `build` and `parse` have refused such a definition.
    pub fn block_index(&self, layer: u32) -> usize {
        let period: u32 = self.blocks.iter().map(|b| b.repeat).sum();
        let mut left = layer % period;
        for (index, block) in self.blocks.iter().enumerate() {
            if left < block.repeat {
                return index;
            }
            left -= block.repeat;
        }
        unreachable!("a layer within the period lies in one of its runs")
    }

    /// The block that `layer` is.
    ///
    /// # Panics
    /// As [`Self::block_index`].
    pub fn block(&self, layer: u32) -> &Block {
        &self.blocks[self.block_index(layer)]
    }
}
