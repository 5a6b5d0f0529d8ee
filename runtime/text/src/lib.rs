//! Text in and out of a model: tokenizers, chat templates, the streaming detokenizer and stop
//! strings.
//!
//! This crate depends on no other crate of the workspace: a GGUF vocabulary arrives as plain
//! columns ([`GgufVocab`]), a checkpoint's as the path of its `tokenizer.json`.
//!
//! | from | to | by |
//! | --- | --- | --- |
//! | chat request | token ids | [`encode_chat`] = [`ChatTemplate`] + [`Tokenizer`] |
//! | prompt text | token ids | [`Tokenizer::encode`] |
//! | token ids | whole UTF-8 | [`Detokenizer`] |
//! | whole UTF-8 | text up to a stop string | [`StopFilter`] |

mod added;
mod byte_level;
mod chat;
mod detokenizer;
mod error;
mod gguf;
mod guard;
mod hf_file;
mod pipeline;
mod pre_tokenizer;
mod python;
mod spm;
mod stops;
mod strftime;
mod template;
mod tokenizer;
mod vocab;

pub use chat::{ChatError, encode_chat};
pub use detokenizer::Detokenizer;
pub use error::TokenizerError;
pub use gguf::GgufVocab;
pub use guard::GuardedPrompt;
pub use pre_tokenizer::KNOWN_PRE_TOKENIZERS;
pub use stops::{Emit, StopError, StopFilter};
pub use template::{ChatRequest, ChatTemplate, TemplateError};
pub use tokenizer::{Specials, Tokenizer};
