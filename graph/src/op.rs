//! The ops: one enum arm and one row of [`crate::rules`] each.

use std::fmt;

/// The gate of a gated feed-forward block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Activation {
    Silu,
    /// The tanh form.
    Gelu,
    Sigmoid,
}

/// Which two elements rotary embedding turns together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Pairing {
    /// `(i, i + dims / 2)`, as in NeoX and the published checkpoints.
    Halves,
    /// `(2 i, 2 i + 1)`, as in GGUF files of the llama family.
    Adjacent,
}

/// The text form of an attribute, in both directions.
pub trait Attr: Sized {
    fn to_text(&self) -> String;
    fn from_text(text: &str) -> Option<Self>;
}

macro_rules! attr_by_from_str {
    ($($ty:ty),*) => {$(
        impl Attr for $ty {
            fn to_text(&self) -> String {
                format!("{self:?}")
            }
            fn from_text(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )*};
}
attr_by_from_str!(u16, u32, f32, bool);

macro_rules! attr_by_names {
    ($ty:ty { $($arm:ident $text:literal),* }) => {
        impl Attr for $ty {
            fn to_text(&self) -> String {
                match self { $(<$ty>::$arm => $text.into(),)* }
            }
            fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(<$ty>::$arm),)* _ => None }
            }
        }
    };
}
attr_by_names!(Activation { Silu "silu", Gelu "gelu", Sigmoid "sigmoid" });
attr_by_names!(Pairing { Halves "halves", Adjacent "adjacent" });

macro_rules! ops {
    ($($(#[$doc:meta])* $arm:ident $text:literal { $($attr:ident: $ty:ty),* };)*) => {
        /// What a node computes. Attributes are inline; weights and states are operands.
        #[derive(Clone, Copy, PartialEq, Debug)]
        pub enum Op {$($(#[$doc])* $arm { $($attr: $ty),* },)*}

        impl Op {
            pub const NAMES: &[&str] = &[$($text,)*];

            /// The name in dumps.
            pub fn name(&self) -> &'static str {
                match self {$(Op::$arm { .. } => $text,)*}
            }

            /// Attributes in their fixed order, as text.
            pub fn attributes(&self) -> Vec<(&'static str, String)> {
                match self {$(
                    Op::$arm { $($attr),* } => vec![$((stringify!($attr), $attr.to_text()),)*],
                )*}
            }

            /// The op with this name, its attributes looked up by `attribute`. The error is the
            /// attribute that is missing or malformed, or the op's name if that is unknown.
            pub fn from_text<'a>(
                name: &'a str,
                attribute: &dyn Fn(&str) -> Option<&'a str>,
            ) -> Result<Self, String> {
                match name {
                    $($text => Ok(Op::$arm {$(
                        $attr: attribute(stringify!($attr))
                            .and_then(<$ty as Attr>::from_text)
                            .ok_or_else(|| format!("attribute {}", stringify!($attr)))?,
                    )*}),)*
                    _ => Err(format!("op {name}")),
                }
            }
        }
    };
}

ops! {
    /// Rows of a table by the window's token ids, times `scale`.
    Embed "embed" { scale: f32 };
    /// Cosines, then sines, of `position * inverse frequency`: one row for each row of the window.
    RopeAngles "rope_angles" { dims: u16 };
    /// Rows of which logits are wanted.
    GatherRows "gather_rows" { };
    RmsNorm "rms_norm" { eps: f32 };
    /// RMS norm of each head by itself, with one shared gain.
    HeadNorm "head_norm" { eps: f32, heads: u16 };
    Rope "rope" { heads: u16, dims: u16, pairing: Pairing };
    /// `x w^T`, then `+ bias`, then `+ residual`, where the flags say so.
    Matmul "matmul" { bias: bool, residual: bool };
    /// Appends a row of keys and values at each row's position.
    StateAppend "state_append" { };
    /// Causal softmax attention. `window` is the number of visible positions, 0 for all.
    Attention "attention" {
        heads: u16, kv_heads: u16, head_dim: u16, window: u32, scale: f32, quantize: bool
    };
    Add "add" { };
    Mul "mul" { };
    Silu "silu" { };
    Gelu "gelu" { };
    /// Softmax over all experts, the best `top_k` in descending order, scaled to sum 1 if `norm`.
    Route "route" { top_k: u16, norm: bool };
    /// Gated feed-forward experts, summed in the order of the router.
    ExpertMlp "expert_mlp" { act: Activation };


    // Hyper-connections: a residual of several streams beside each other in a row.
    /// The row once for each stream.
    StreamRepeat "stream_repeat" { streams: u16 };
    /// `[e | h_c]` for each stream `h_c` of `h`.
    StreamConcat "stream_concat" { streams: u16 };
    /// The same product on each of the streams of a row.
    StreamMatmul "stream_matmul" { streams: u16 };
    /// RMS norm of each group of a row by itself, with a gain for each element.
    GroupRmsNorm "group_rms_norm" { eps: f32, groups: u16 };
    /// `silu(x * scale)`.
    ScaledSilu "scaled_silu" { scale: f32 };
    /// The mean over streams of `sigmoid(gates_c) * normed_c`.
    HcRead "hc_read" { streams: u16 };
    /// `residual_c + 2 sigmoid(inject_c / streams) * y`.
    HcWrite "hc_write" { streams: u16 };

    // Recurrent layers.
    /// Depthwise causal convolution over rows, then silu. Tap `taps - 1` meets the row itself.
    Conv1d "conv1d" { taps: u16, dilation: u16 };
    /// The gated delta rule, row by row; gives what each row reads and the state.
    GatedDelta "gated_delta" {
        key_heads: u16, value_heads: u16, head_dim: u16, tiled: bool, interleaved: bool
    };
    /// RMS norm of each head, times the gain, times `act(z)`.
    GatedHeadNorm "gated_head_norm" { eps: f32, heads: u16, act: Activation };
    /// `a + sigmoid(logit) * b`, one logit a row.
    GatedAdd "gated_add" { };

    // Sparse attention over blocks of positions.
    /// Pools, norms, turns and stores the keys of blocks that a row completes.
    BlockKeys "block_keys" { dims: u16, block: u16, eps: f32 };
    /// `sum over heads of relu(query . key) / sqrt(head_dim)` for each complete block.
    BlockScores "block_scores" { heads: u16, block: u16, blocks: u32 };
    /// The best `keep` blocks in order of position, then the block that is not complete yet.
    BlockTop "block_top" { block: u16, keep: u32 };
    /// Attention over selected blocks.
    SparseAttention "sparse_attention" {
        heads: u16, kv_heads: u16, head_dim: u16, block: u16, scale: f32, quantize: bool
    };

    // Embeddings of n-grams.
    /// Table rows of the n-grams that end at each row, by hash.
    NgramRows "ngram_rows" { ngram: u16, heads: u16 };
    /// The table's rows of a row's ids beside each other.
    NgramEmbed "ngram_embed" { };
    /// `sigmoid(sign(s) sqrt(max(|s|, 1e-6))) * value` with `s = key_c . query_c / sqrt(width)`.
    NgramGate "ngram_gate" { streams: u16 };

    // Rows of the step before.
    /// The row before each row, and the last one kept.
    ShiftRows "shift_rows" { };
    /// The last row that the state keeps.
    ReadTail "read_tail" { width: u32 };

    // Made by passes.
    /// f32 to 8-bit activations.
    Quantize "quantize" { };
    RmsNormQuantize "rms_norm_quantize" { eps: f32 };
    /// An RMS norm in f32, and the same rows in 8 bit.
    RmsNormBoth "rms_norm_both" { eps: f32 };
    /// `group_rms_norm` in 8 bit; with `keep` the f32 rows come first. So in the next ones.
    GroupRmsNormQuantize "group_rms_norm_quantize" { eps: f32, groups: u16, keep: bool };
    ScaledSiluQuantize "scaled_silu_quantize" { scale: f32 };
    HcReadQuantize "hc_read_quantize" { streams: u16, keep: bool };
    /// `hc_write`, then the norm of each stream of it: gives the residual, the normed rows and, with
    /// `quantize`, those in 8 bit. With `shared` what is written is `y + sigmoid(logit) * shared`.
    HcWriteNorm "hc_write_norm" { streams: u16, eps: f32, shared: bool, quantize: bool };
    GatedHeadNormQuantize "gated_head_norm_quantize" { eps: f32, heads: u16, act: Activation };
    /// `residual + rms_norm(x) * gain`.
    RmsNormAdd "rms_norm_add" { eps: f32 };
    /// `act(a) * b`.
    ActMul "act_mul" { act: Activation, quantize: bool };
    /// `act(x gate^T) * (x up^T)`.
    GatedMatmul "gated_matmul" { act: Activation, quantize: bool };
    /// Products of one input with `count` weights, a result each. The input is there in f32, in
    /// 8 bit or both, as the weights need it.
    Projections "projections" { count: u16, floats: bool, quantised: bool };
    /// Head norms (if `norm`), rope and append in one go; gives the rotated queries and the state.
    AttentionPrologue "attention_prologue" {
        heads: u16, kv_heads: u16, head_dim: u16, dims: u16, eps: f32, pairing: Pairing, norm: bool
    };
    /// The rows of each expert, sorted by expert.
    ExpertDispatch "expert_dispatch" { experts: u16 };
    /// Gives what `route` does, and what `expert_dispatch` makes of the ids.
    RouteDispatch "route_dispatch" { top_k: u16, norm: bool };
    ExpertGated "expert_gated" { act: Activation, quantize: bool };
    ExpertDown "expert_down" { };
    /// Weighted sum of a row's experts, then `+ residual` if the flag says so.
    ExpertCombine "expert_combine" { residual: bool };
    /// `expert_down` and `expert_combine` without the rows between them.
    ExpertSum "expert_sum" { residual: bool };
}

const _: () = assert!(size_of::<Op>() <= 16);

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
