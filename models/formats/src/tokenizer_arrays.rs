//! Tokenizer arrays of GGUF metadata that belong together. A tokenizer that trusts them would read
//! past the shorter one, or meet a merge of a piece that has no id.

use std::collections::HashSet;
use std::fmt;

use crate::gguf::{KeyError, Metadata};

const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";
/// One entry for each token.
const PER_TOKEN: [&str; 2] = ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"];

/// The tokenizer's arrays contradict each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerFault {
    Key(KeyError),
    Length { key: &'static str, found: usize, tokens: usize },
    MergeForm { index: usize, merge: String },
    MergePiece { index: usize, merge: String, piece: String },
}

impl fmt::Display for TokenizerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use TokenizerFault as E;
        match self {
            E::Key(error) => error.fmt(f),
            E::Length { key, found, tokens } => write!(
                f,
                "metadata key `{key}` has {found} entries, needed {tokens}, one for each token"
            ),
            E::MergeForm { index, merge } => write!(
                f,
                "merge {index} of `{MERGES}` is `{merge}`, needed two pieces with a space between"
            ),
            E::MergePiece { index, merge, piece } => write!(
                f,
                "merge {index} of `{MERGES}`, `{merge}`, names the piece `{piece}`, which is no token"
            ),
        }
    }
}

impl std::error::Error for TokenizerFault {}

impl From<KeyError> for TokenizerFault {
    fn from(error: KeyError) -> TokenizerFault {
        TokenizerFault::Key(error)
    }
}

/// Scores and token types, where they are there, are as many as the tokens. Cheap: reads no element.
///
/// # Errors
/// They are not, or one of the keys is no array.
pub fn check_array_lengths(metadata: &Metadata) -> Result<(), TokenizerFault> {
    let Some(tokens) = metadata.array(TOKENS)? else { return Ok(()) };
    for key in PER_TOKEN {
        let Some(array) = metadata.array(key)? else { continue };
        if array.len() != tokens.len() {
            let (found, tokens) = (array.len(), tokens.len());
            return Err(TokenizerFault::Length { key, found, tokens });
        }
    }
    Ok(())
}

/// Every merge joins two tokens to a third. Reads all tokens and merges, so it is left to whoever
/// builds the tokenizer.
///
/// # Errors
/// The first merge that does not.
pub fn check_merges(metadata: &Metadata) -> Result<(), TokenizerFault> {
    let Some(merges) = metadata.strs(MERGES)? else { return Ok(()) };
    let tokens: HashSet<&str> = metadata.required(TOKENS, Metadata::strs)?.into_iter().collect();
    for (index, merge) in merges.into_iter().enumerate() {
        let Some((left, right)) = merge.split_once(' ') else {
            return Err(TokenizerFault::MergeForm { index, merge: merge.to_string() });
        };
        for piece in [left, right, &format!("{left}{right}")] {
            if !tokens.contains(piece) {
                let (merge, piece) = (merge.to_string(), piece.to_string());
                return Err(TokenizerFault::MergePiece { index, merge, piece });
            }
        }
    }
    Ok(())
}
