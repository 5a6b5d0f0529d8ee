//! The ops: one enum arm and one row of [`crate::rules`] each.

use std::fmt;

/// The gate of a gated feed-forward block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Activation {
    Silu,
    /// The tanh form.
    Gelu,
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
attr_by_names!(Activation { Silu "silu", Gelu "gelu" });
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

    // Made by passes.
    /// f32 to 8-bit activations.
    Quantize "quantize" { };
    RmsNormQuantize "rms_norm_quantize" { eps: f32 };
    /// An RMS norm in f32, and the same rows in 8 bit.
    RmsNormBoth "rms_norm_both" { eps: f32 };
    /// `residual + rms_norm(x) * gain`.
    RmsNormAdd "rms_norm_add" { eps: f32 };
    /// `act(a) * b`.
    ActMul "act_mul" { act: Activation, quantize: bool };
    /// `act(x gate^T) * (x up^T)`.
    GatedMatmul "gated_matmul" { act: Activation, quantize: bool };
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
