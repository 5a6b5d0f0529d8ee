//! From a chat request to the tokens a model reads.

use std::fmt;

use crate::error::TokenizerError;
use crate::template::{ChatRequest, ChatTemplate, TemplateError};
use crate::tokenizer::Tokenizer;

/// Why a chat has no tokens.
#[derive(Debug)]
pub enum ChatError {
    /// The template failed or refused.
    Template(TemplateError),
    /// The prompt could not be encoded.
    Tokenizer(TokenizerError),
}

impl fmt::Display for ChatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(error) => error.fmt(f),
            Self::Tokenizer(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ChatError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Template(error) => Some(error),
            Self::Tokenizer(error) => Some(error),
        }
    }
}

impl From<TemplateError> for ChatError {
    fn from(error: TemplateError) -> Self {
        Self::Template(error)
    }
}

impl From<TokenizerError> for ChatError {
    fn from(error: TokenizerError) -> Self {
        Self::Tokenizer(error)
    }
}

/// Token ids of a chat. Control tokens that the template writes are parsed; text of messages,
/// tools and arguments is never one, whatever it spells, and is otherwise encoded as it would be
/// without that care.
///
/// # Errors
/// [`ChatError`] of the template or of the tokenizer.
pub fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    request: &ChatRequest,
) -> Result<Vec<u32>, ChatError> {
    let mut request = request.clone();
    let text_of = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    request.bos_token = request.bos_token.or_else(|| text_of(tokenizer.bos()));
    request.eos_token = request.eos_token.or_else(|| text_of(tokenizer.eos()));
    let controls: Vec<&str> =
        tokenizer.added().controls().map(|piece| piece.text.as_str()).collect();
    let prompt = template.render_guarded(&request, &controls)?;
    Ok(tokenizer.encode_guarded(&prompt)?)
}
