//! Named pre-tokenizers of GGUF's `tokenizer.ggml.pre`.
//!
//! The patterns are those of the models' own `tokenizer.json` files. Each pattern cuts what the
//! one before it left; matches and the text between them are pieces of their own.

use tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use crate::error::TokenizerError;

/// Values of `tokenizer.ggml.pre` that can be loaded.
pub const KNOWN_PRE_TOKENIZERS: [&str; 9] =
    ["llama-bpe", "llama3", "llama-v3", "qwen2", "qwen35", "smollm", "gpt-2", "gpt2", "default"];

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Differs from [`QWEN2`] in that combining marks go with letters.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a pre-tokenizer name means for the whole tokenizer.
pub(crate) struct PreTokenizer {
    patterns: &'static [&'static str],
    /// Text is brought to Unicode form C first. GGUF does not carry the normalizer, but all
    /// models with these patterns were trained with it.
    pub nfc: bool,
    /// A word that is a token as a whole is not merged up from bytes.
    pub ignore_merges: bool,
    /// Whether BOS is added when the file does not say.
    pub add_bos: bool,
}

impl PreTokenizer {
    /// # Errors
    /// [`TokenizerError::UnknownPreTokenizer`].
    pub fn by_name(name: &str) -> Result<Self, TokenizerError> {
        let plain = |patterns| Self { patterns, nfc: false, ignore_merges: false, add_bos: false };
        Ok(match name {
            "llama-bpe" | "llama3" | "llama-v3" => {
                Self { ignore_merges: true, add_bos: true, ..plain(&[LLAMA3]) }
            }
            "qwen2" => Self { nfc: true, ..plain(&[QWEN2]) },
            "qwen35" => Self { nfc: true, ..plain(&[QWEN35]) },
            "smollm" => plain(&[r"\p{N}", GPT2]),
            "gpt-2" | "gpt2" => plain(&[GPT2]),
            "" | "default" => {
                plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"])
            }
            _ => return Err(TokenizerError::UnknownPreTokenizer { found: name.to_owned() }),
        })
    }

    /// The stages as the `tokenizers` crate runs them, byte-level alphabet last.
    pub fn stages(&self) -> Result<Sequence, TokenizerError> {
        let mut stages = Vec::with_capacity(self.patterns.len() + 1);
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|error| TokenizerError::Encode { detail: error.to_string() })?;
            stages.push(PreTokenizerWrapper::Split(split));
        }
        stages.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        Ok(Sequence::new(stages))
    }
}
