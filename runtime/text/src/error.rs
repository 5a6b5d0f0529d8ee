//! Why a vocabulary was refused, or a text could not be encoded.

use std::fmt;
use std::path::PathBuf;

use crate::pre_tokenizer::KNOWN_PRE_TOKENIZERS;

/// Why a tokenizer could not be built or used. A vocabulary is checked whole when it is loaded.
#[derive(Debug)]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` is neither `gpt2` nor `llama`.
    UnknownModel { found: String },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not known.
    UnknownPreTokenizer { found: String },
    /// The vocabulary has no tokens.
    NoTokens,
    /// A column has fewer rows than there are tokens.
    ShortColumn { column: &'static str, found_rows: usize, needed_rows: usize },
    /// The same piece has two ids.
    DuplicatePiece { piece: String, first_id: u32, second_id: u32 },
    /// A BPE vocabulary without merges.
    NoMerges,
    /// A merge is not two pieces with a space between them.
    BadMerge { rank: usize, text: String },
    /// A merge needs a piece that the vocabulary lacks.
    MergePieceAbsent { rank: usize, piece: String },
    /// A score is not a number.
    BadScore { id: u32 },
    /// A token type outside 0..=6.
    BadType { id: u32, found: i32 },
    /// A named token's id is not in the vocabulary.
    IdOutOfRange { name: &'static str, found: u32, vocab_tokens: usize },
    /// A BOS or EOS must be added, but the vocabulary does not say which.
    NoSpecialId { name: &'static str },
    /// A score-driven vocabulary can spell neither a byte nor an unknown token.
    NoByteFallback { byte: u8 },
    /// The vocabulary is larger than this crate will allocate for.
    TooManyTokens { found: u64, limit: u64 },
    /// A file could not be read.
    File { path: PathBuf, source: std::io::Error },
    /// A `tokenizer.json` is not one.
    Json { path: PathBuf, detail: String },
    /// A `tokenizer.json` whose decoder is neither byte-level nor SentencePiece-like.
    UnsupportedDecoder { path: PathBuf },
    /// The pre-tokenizer or model failed on a text.
    Encode { detail: String },
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel { found } => {
                write!(f, "tokenizer.ggml.model is '{found}', need 'gpt2' or 'llama'")
            }
            Self::UnknownPreTokenizer { found } => write!(
                f,
                "tokenizer.ggml.pre is '{found}', need one of {}: a wrong one gives wrong tokens, \
                 so there is no fallback; a tokenizer.json beside the model can be used instead",
                KNOWN_PRE_TOKENIZERS.join(", ")
            ),
            Self::NoTokens => write!(f, "tokenizer.ggml.tokens is empty"),
            Self::ShortColumn { column, found_rows, needed_rows } => write!(
                f,
                "tokenizer.ggml.{column} has {found_rows} rows, need {needed_rows}, one a token: \
                 the file is damaged, fetch it again"
            ),
            Self::DuplicatePiece { piece, first_id, second_id } => {
                write!(f, "piece {piece:?} is both token {first_id} and token {second_id}")
            }
            Self::NoMerges => write!(f, "tokenizer.ggml.merges is empty, a gpt2 model needs it"),
            Self::BadMerge { rank, text } => {
                write!(f, "merge {rank} is {text:?}, need two pieces with a space between them")
            }
            Self::MergePieceAbsent { rank, piece } => {
                write!(f, "merge {rank} needs piece {piece:?}, which is not a token")
            }
            Self::BadScore { id } => write!(f, "the score of token {id} is not a number"),
            Self::BadType { id, found } => {
                write!(f, "the type of token {id} is {found}, need 0 to 6")
            }
            Self::IdOutOfRange { name, found, vocab_tokens } => {
                write!(f, "{name} is token {found}, but there are {vocab_tokens} tokens")
            }
            Self::NoSpecialId { name } => {
                write!(f, "the vocabulary asks for {name} to be added, but does not give its id")
            }
            Self::NoByteFallback { byte } => write!(
                f,
                "no token <0x{byte:02X}> and no unknown token: some texts could not be encoded"
            ),
            Self::TooManyTokens { found, limit } => {
                write!(f, "{found} tokens, the limit is {limit}")
            }
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Json { path, detail } => write!(f, "{}: {detail}", path.display()),
            Self::UnsupportedDecoder { path } => write!(
                f,
                "{}: the decoder is neither ByteLevel nor Replace and ByteFallback",
                path.display()
            ),
            Self::Encode { detail } => write!(f, "the text could not be encoded: {detail}"),
        }
    }
}

impl std::error::Error for TokenizerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            _ => None,
        }
    }
}
