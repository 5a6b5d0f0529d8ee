//! Draft heads.

use serde::Deserialize;

use super::Block;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Draft {
    Mtp(Mtp),
}

/// One more layer that guesses the token after the next from the residual behind the last layer and
/// the next token. Embedding and output table are the model's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mtp {
    pub hidden_norm: HiddenNorm,
    pub block: Box<Block>,
}

/// How the residual is normed before it is joined with the token. The published files do not say;
/// both are in use, and what is drafted differs, never what is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum HiddenNorm {
    /// All streams together.
    Full,
    /// Each stream by itself.
    Grouped,
}
