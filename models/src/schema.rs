//! The schema of a model definition. All sizes are element counts unless a field says otherwise.
//!
//! Every struct refuses unknown fields, so a misspelt field is an error at its line and never a
//! silent default.

mod attention;
mod draft;
mod ngram;

use serde::Deserialize;
use strata_graph::Activation;

pub use attention::{
    Attention, Bias, GatedDelta, Gqa, Indexer, OutputGate, Pairs, Projections, Rope, Scaling,
    ValueHeads,
};
pub use draft::{Draft, HiddenNorm, Mtp};
pub use ngram::{Hash, HashConstants, Ngram};

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
    #[serde(default)]
    pub residual: Residual,
    /// Number of layers. The runs of `blocks` are laid one after the other until this many layers
    /// are described: they start over where they end, and may be cut off in a later round.
    pub layers: u32,
    pub blocks: Vec<Block>,
    /// Embeddings of n-grams, added to the residual before one of the layers.
    #[serde(default)]
    pub ngram: Option<Ngram>,
    /// What guesses tokens ahead.
    #[serde(default)]
    pub draft: Option<Draft>,
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

/// What runs from layer to layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Residual {
    /// One row of `hidden` elements; a norm before each attention and each MLP.
    #[default]
    Plain,
    /// Several rows beside each other. A block reads a gated mean of the normed streams and writes
    /// its result into each with a weight of its own; there are no other norms between blocks.
    HyperConnections {
        streams: u16,
        /// Width between the two products that give the gates.
        low_rank: u32,
    },
}

impl Residual {
    /// Rows of `hidden` elements.
    pub fn streams(self) -> u16 {
        match self {
            Residual::Plain => 1,
            Residual::HyperConnections { streams, .. } => streams,
        }
    }
}

/// A run of equal layers: `x += attention(norm(x)); x += mlp(norm(x))`, or the same through
/// hyper-connections.
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
    /// An expert that every token goes through; its result is added.
    #[serde(default)]
    pub shared: Option<Shared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shared {
    pub intermediate: u32,
    /// Its result is scaled by the sigmoid of a learned product with the token.
    pub gate: bool,
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
    /// Parts of tensor names that the files spell otherwise: (ours, theirs).
    #[serde(default)]
    pub renamed: Vec<(String, String)>,
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
    /// The same with the experts of a layer in two tensors, gate and up in one.
    GgufFusedExperts,
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

    /// The block that `layer` is. The layer behind the last one is that of the draft head.
    ///
    /// # Panics
    /// As [`Self::block_index`].
    pub fn block(&self, layer: u32) -> &Block {
        match &self.draft {
            Some(Draft::Mtp(mtp)) if layer >= self.layers => &mtp.block,
            _ => &self.blocks[self.block_index(layer)],
        }
    }

    /// Every block that is described: those of the layers, then that of the draft head.
    pub fn all_blocks(&self) -> impl Iterator<Item = &Block> {
        let draft = self.draft.as_ref().map(|Draft::Mtp(mtp)| &*mtp.block);
        self.blocks.iter().chain(draft)
    }
}
