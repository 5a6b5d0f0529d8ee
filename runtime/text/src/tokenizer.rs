//! [`Tokenizer`]: text to token ids and back.

use crate::added::{AddedPieces, Part};
use crate::detokenizer::Detokenizer;
use crate::error::TokenizerError;
use crate::guard::GuardedPrompt;
use crate::pipeline::Pipeline;
use crate::spm::Spm;
use crate::vocab::{PieceKind, Vocab};

/// What to do with the text of a control token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// `<|im_end|>` becomes the control token: for prompts that a template wrote.
    Parse,
    /// `<|im_end|>` is text like any other: for what users wrote.
    AsText,
}

/// Ids with a role.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamedIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unk: Option<u32>,
    pub pad: Option<u32>,
    pub eot: Option<u32>,
}

pub(crate) enum Engine {
    Pipeline(Box<Pipeline>),
    Spm(Spm),
}

/// All that a tokenizer is built from.
pub(crate) struct Parts {
    pub engine: Engine,
    pub vocab: Vocab,
    pub added: AddedPieces,
    pub ids: NamedIds,
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    pub strip_space: bool,
}

/// A vocabulary with its rules. Immutable and usable from many threads.
///
/// Added tokens are cut out of a text before anything else sees it, the longest first.
/// User-defined ones (`<think>` in many models) are always matched; control tokens only under
/// [`Specials::Parse`], and text can never become one otherwise.
pub struct Tokenizer {
    engine: Engine,
    vocab: Vocab,
    added: AddedPieces,
    ids: NamedIds,
    end_ids: Vec<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    strip_space: bool,
}

/// Tokens that end a turn or a text in the models of the field. Files name one of them
/// as EOS, but models were trained to end with others as well.
const END_PIECES: [&str; 12] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|eot|>",
    "<eos>",
];

impl Tokenizer {
    pub(crate) fn from_parts(parts: Parts) -> Self {
        let Parts { engine, vocab, mut added, ids, prefix, suffix, strip_space } = parts;
        if let Engine::Pipeline(pipeline) = &engine {
            added.find_spelled_by_model(|text| {
                let whole = [Part { range: 0..text.len(), id: None }];
                pipeline.encode(text, &whole).unwrap_or_default()
            });
        }
        // Where such a text is an ordinary piece, it is a word of another vocabulary's.
        let structural = [Some(PieceKind::Control), Some(PieceKind::UserDefined)];
        let known = END_PIECES.iter().filter_map(|piece| vocab.id_of(piece));
        let known = known.filter(|&id| structural.contains(&vocab.kind(id)));
        let mut end_ids: Vec<u32> = ids.eos.into_iter().chain(ids.eot).chain(known).collect();
        end_ids.sort_unstable();
        end_ids.dedup();
        Self { engine, vocab, added, ids, end_ids, prefix, suffix, strip_space }
    }

    /// Token ids of `text`. With `add_bos`, what the vocabulary asks for is put around it (BOS
    /// before it for most, nothing for Qwen).
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] when a stage of the `tokenizers` crate fails.
    pub fn encode(
        &self,
        text: &str,
        specials: Specials,
        add_bos: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let body = self.encode_parts(text, &self.added.split(text, specials))?;
        if !add_bos {
            return Ok(body);
        }
        Ok([self.prefix.as_slice(), &body, &self.suffix].concat())
    }

    /// Token ids of a rendered chat: control tokens that the template wrote are parsed, text
    /// that came with the request is not. If the vocabulary asks for BOS, it is there once,
    /// whether the template wrote it or not.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_guarded(&self, prompt: &GuardedPrompt) -> Result<Vec<u32>, TokenizerError> {
        let mut text = String::with_capacity(prompt.marked().len());
        let mut parts = Vec::new();
        for part in self.added.split(prompt.marked(), Specials::Parse) {
            let start = text.len();
            text.extend(prompt.marked()[part.range].chars().filter(|&c| c != prompt.mark()));
            if part.id.is_some() {
                parts.push(Part { range: start..text.len(), id: part.id });
                continue;
            }
            let inner = self.added.split(&text[start..], Specials::AsText);
            parts.extend(inner.into_iter().map(|inner| Part {
                range: start + inner.range.start..start + inner.range.end,
                id: inner.id,
            }));
        }
        let body = self.encode_parts(&text, &parts)?;
        if body.starts_with(&self.prefix) {
            return Ok(body);
        }
        Ok([self.prefix.as_slice(), &body].concat())
    }

    fn encode_parts(&self, text: &str, parts: &[Part]) -> Result<Vec<u32>, TokenizerError> {
        let spm = match &self.engine {
            Engine::Pipeline(pipeline) => return pipeline.encode(text, parts),
            Engine::Spm(spm) => spm,
        };
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut after_added = true;
        for part in parts {
            match part.id {
                Some(id) => ids.push(id),
                None => spm.encode(&self.vocab, &text[part.range.clone()], after_added, &mut ids),
            }
            after_added = part.id.is_some();
        }
        Ok(ids)
    }

    /// The text of whole sequence `ids`. Bytes that are not UTF-8 become U+FFFD; a vocabulary
    /// that puts a space before the text (Llama 2) has it taken away again. `skip_special` leaves
    /// control tokens out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = Detokenizer::new(self, skip_special);
        let mut text = String::with_capacity(ids.len() * 4);
        for &id in ids {
            text.push_str(stream.push(id).unwrap_or_default());
        }
        text.push_str(stream.flush().unwrap_or_default());
        text
    }

    /// The exact bytes that a token stands for; empty for an id outside the vocabulary. May be
    /// part of a character.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// Count of ids, gaps included. A model's logits may have more rows: padding.
    pub fn vocab_len(&self) -> usize {
        self.vocab.len()
    }

    /// True for tokens that are structure and not text.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id) == Some(PieceKind::Control)
    }

    /// The id of a piece as the vocabulary spells it (`Ġthe`, `▁the`, `<|im_end|>`).
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        self.vocab.id_of(piece)
    }

    /// Beginning-of-text id, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The id that the file names as end of text.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// The padding id that the file names.
    pub fn pad(&self) -> Option<u32> {
        self.ids.pad
    }

    /// Ids that end a generation, in ascending order: EOS, end of turn, and the tokens that
    /// models of the field use as such.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// True when [`Self::encode`] puts BOS before a text.
    pub fn adds_bos(&self) -> bool {
        !self.prefix.is_empty()
    }

    /// True when a text decodes without the space that encoding put before it.
    pub(crate) fn strips_space(&self) -> bool {
        self.strip_space
    }

    pub(crate) fn added(&self) -> &AddedPieces {
        &self.added
    }

    /// The text of a token, for templates (`bos_token`, `eos_token`).
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }
}
