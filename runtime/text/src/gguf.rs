//! A tokenizer from the metadata of a GGUF file.

use std::collections::HashSet;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::unicode::NFC;

use crate::added::{AddedPiece, AddedPieces};
use crate::error::TokenizerError;
use crate::pipeline::Pipeline;
use crate::pre_tokenizer::PreTokenizer;
use crate::spm::Spm;
use crate::tokenizer::{Engine, NamedIds, Parts, Tokenizer};
use crate::vocab::{Piece, PieceKind, Spelling, Vocab, byte_piece};

/// The `tokenizer.ggml.*` keys of a GGUF file, as plain columns. Absent keys are `None` or empty.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab {
    /// `model`: `gpt2` or `llama`.
    pub model: String,
    /// `pre`: one of [`crate::KNOWN_PRE_TOKENIZERS`]; read for `gpt2` only, empty means `default`.
    pub pre: String,
    /// `tokens`: the piece of each id.
    pub tokens: Vec<String>,
    /// `scores`: one row a token; needed by `llama`.
    pub scores: Option<Vec<f32>>,
    /// `token_type`: one row a token. 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    /// 6 byte, 0 undefined (read as normal). Without it all tokens are normal, except the named
    /// ones and `<0xNN>` of a `llama` model.
    pub types: Option<Vec<i32>>,
    /// `merges`: two pieces with a space between them, best first; needed by `gpt2`.
    pub merges: Vec<String>,
    /// `bos_token_id`
    pub bos: Option<u32>,
    /// `eos_token_id`
    pub eos: Option<u32>,
    /// `unknown_token_id`
    pub unk: Option<u32>,
    /// `padding_token_id`
    pub pad: Option<u32>,
    /// `eot_token_id`
    pub eot: Option<u32>,
    /// `add_bos_token`; by default on for `llama` and for the Llama 3 pre-tokenizers
    pub add_bos: Option<bool>,
    /// `add_eos_token`; off by default
    pub add_eos: Option<bool>,
    /// `add_space_prefix`; read for `llama` only, on by default
    pub add_space_prefix: Option<bool>,
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// Everything in [`TokenizerError`] that can be wrong with a vocabulary; nothing of the file
    /// is trusted, and no input makes this panic.
    pub fn from_gguf(source: &GgufVocab) -> Result<Self, TokenizerError> {
        let spm = match source.model.as_str() {
            "gpt2" => false,
            "llama" => true,
            _ => return Err(TokenizerError::UnknownModel { found: source.model.clone() }),
        };
        check_columns(source)?;
        let ids = named_ids(source, spm)?;
        let spelling = if spm { Spelling::Spm } else { Spelling::ByteLevel };
        let pieces = pieces(source, &ids, spm)?;
        let added = AddedPieces::new(added_pieces(&pieces));
        let vocab = Vocab::new(pieces, spelling)?;
        let add_bos_by_default;
        let mut strip_space = false;
        let engine = if spm {
            let scores = source.scores.as_ref().ok_or(TokenizerError::ShortColumn {
                column: "scores",
                found_rows: 0,
                needed_rows: source.tokens.len(),
            })?;
            let scores = scores[..source.tokens.len()].to_vec();
            add_bos_by_default = true;
            strip_space = source.add_space_prefix.unwrap_or(true);
            Engine::Spm(Spm::new(&vocab, scores, ids.unk, strip_space)?)
        } else {
            let pre = PreTokenizer::by_name(&source.pre)?;
            add_bos_by_default = pre.add_bos && ids.bos.is_some();
            Engine::Pipeline(Box::new(bpe_pipeline(source, &vocab, &pre)?))
        };
        let need = |add: bool, id: Option<u32>, name| match (add, id) {
            (true, None) => Err(TokenizerError::NoSpecialId { name }),
            (true, Some(id)) => Ok(vec![id]),
            (false, _) => Ok(Vec::new()),
        };
        let prefix = need(source.add_bos.unwrap_or(add_bos_by_default), ids.bos, "BOS")?;
        let suffix = need(source.add_eos.unwrap_or(false), ids.eos, "EOS")?;
        Ok(Self::from_parts(Parts { engine, vocab, added, ids, prefix, suffix, strip_space }))
    }
}

fn check_columns(source: &GgufVocab) -> Result<(), TokenizerError> {
    let needed_rows = source.tokens.len();
    let columns = [
        ("scores", source.scores.as_ref().map(Vec::len)),
        ("token_type", source.types.as_ref().map(Vec::len)),
    ];
    for (column, rows) in columns {
        if let Some(found_rows) = rows.filter(|&rows| rows < needed_rows) {
            return Err(TokenizerError::ShortColumn { column, found_rows, needed_rows });
        }
    }
    Ok(())
}

/// The named ids, with the defaults of SentencePiece for a `llama` model that leaves them out.
fn named_ids(source: &GgufVocab, spm: bool) -> Result<NamedIds, TokenizerError> {
    let vocab_tokens = source.tokens.len();
    let or = |id: Option<u32>, default: u32| {
        id.or((spm && (default as usize) < vocab_tokens).then_some(default))
    };
    // Token 0 stands for unknown text only if it is not text itself.
    let unknown_first = source.types.as_ref().is_none_or(|types| types.first() == Some(&2));
    let ids = NamedIds {
        bos: or(source.bos, 1),
        eos: or(source.eos, 2),
        unk: if unknown_first { or(source.unk, 0) } else { source.unk },
        pad: source.pad,
        eot: source.eot,
    };
    let named =
        [("bos", ids.bos), ("eos", ids.eos), ("unk", ids.unk), ("pad", ids.pad), ("eot", ids.eot)];
    for (name, id) in named {
        if let Some(found) = id.filter(|&id| id as usize >= vocab_tokens) {
            return Err(TokenizerError::IdOutOfRange { name, found, vocab_tokens });
        }
    }
    Ok(ids)
}

fn pieces(source: &GgufVocab, ids: &NamedIds, spm: bool) -> Result<Vec<Piece>, TokenizerError> {
    let structural = [ids.bos, ids.eos, ids.eot];
    let mut pieces = Vec::with_capacity(source.tokens.len());
    for (id, name) in (0u32..).zip(&source.tokens) {
        let kind = match source.types.as_ref().map(|types| types[id as usize]) {
            None if spm && byte_piece(name).is_some() => PieceKind::Byte,
            // A file may forget to mark the tokens that it names.
            None | Some(0 | 1) if structural.contains(&Some(id)) => PieceKind::Control,
            None | Some(0 | 1) => PieceKind::Normal,
            Some(2 | 3) => PieceKind::Control,
            Some(4) => PieceKind::UserDefined,
            Some(5) => PieceKind::Unused,
            Some(6) => PieceKind::Byte,
            Some(found) => return Err(TokenizerError::BadType { id, found }),
        };
        pieces.push(Piece { name: name.clone(), kind });
    }
    Ok(pieces)
}

fn added_pieces(pieces: &[Piece]) -> Vec<AddedPiece> {
    let added = (0u32..).zip(pieces).filter_map(|(id, piece)| {
        let control = match piece.kind {
            PieceKind::Control => true,
            PieceKind::UserDefined => false,
            PieceKind::Normal | PieceKind::Byte | PieceKind::Unused => return None,
        };
        Some(AddedPiece { id, text: piece.name.clone(), control, ..AddedPiece::default() })
    });
    added.collect()
}

fn bpe_pipeline(
    source: &GgufVocab,
    vocab: &Vocab,
    pre: &PreTokenizer,
) -> Result<Pipeline, TokenizerError> {
    let merges = merges(source)?;
    let model = BPE::builder()
        .vocab_and_merges(vocab.ids().clone(), merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| absent_piece(source, vocab, &error.to_string()))?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    if pre.nfc {
        tokenizer.with_normalizer(Some(NFC));
    }
    tokenizer.with_pre_tokenizer(Some(pre.stages()?));
    Ok(Pipeline(tokenizer))
}

/// Merges in order of rank; of two equal ones the first counts.
fn merges(source: &GgufVocab) -> Result<Vec<(String, String)>, TokenizerError> {
    if source.merges.is_empty() {
        return Err(TokenizerError::NoMerges);
    }
    let mut seen = HashSet::with_capacity(source.merges.len());
    let mut merges = Vec::with_capacity(source.merges.len());
    for (rank, text) in source.merges.iter().enumerate() {
        let bad = || TokenizerError::BadMerge { rank, text: text.clone() };
        let (left, right) = split_merge(text).ok_or_else(bad)?;
        if seen.insert(text) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    Ok(merges)
}

/// The first piece may itself be a space, so the separator is looked for after its first
/// character.
fn split_merge(text: &str) -> Option<(&str, &str)> {
    let first_len = text.chars().next()?.len_utf8();
    let at = first_len + text[first_len..].find(' ')?;
    let (left, right) = (&text[..at], &text[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// Which merge made the model refuse the vocabulary. Looked for only then: three look-ups a merge
/// are a third of the time that loading takes.
fn absent_piece(source: &GgufVocab, vocab: &Vocab, detail: &str) -> TokenizerError {
    for (rank, text) in source.merges.iter().enumerate() {
        let Some((left, right)) = split_merge(text) else { continue };
        for piece in [left, right, &format!("{left}{right}")] {
            if vocab.id_of(piece).is_none() {
                let piece = piece.to_owned();
                return TokenizerError::MergePieceAbsent { rank, piece };
            }
        }
    }
    TokenizerError::Encode { detail: detail.to_owned() }
}

#[cfg(test)]
mod tests;
