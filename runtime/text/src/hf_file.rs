//! A tokenizer from a checkpoint's `tokenizer.json`, with `tokenizer_config.json` beside it.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use serde::de::IgnoredAny;
use serde_json::Value;
use tokenizers::{AddedVocabulary, DecoderWrapper};

use crate::added::{AddedPiece, AddedPieces};
use crate::error::TokenizerError;
use crate::pipeline::Pipeline;
use crate::template::ChatTemplate;
use crate::tokenizer::{Engine, NamedIds, Parts, Tokenizer};
use crate::vocab::{Piece, PieceKind, Spelling, Vocab, byte_piece, check_count};

impl Tokenizer {
    /// Reads a `tokenizer.json`. If a `tokenizer_config.json` lies beside it, it names BOS, EOS,
    /// the unknown and the padding token, which the former does not.
    ///
    /// # Errors
    /// [`TokenizerError::File`], [`TokenizerError::Json`], [`TokenizerError::UnsupportedDecoder`],
    /// [`TokenizerError::DuplicatePiece`] and [`TokenizerError::TooManyTokens`].
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let json = fs::read(path).map_err(|source| file_error(path, source))?;
        let mut hf = parse(&json)
            .map_err(|detail| TokenizerError::Json { path: path.to_owned(), detail })?;
        let (spelling, strip_space) = spelling(hf.get_decoder())
            .ok_or_else(|| TokenizerError::UnsupportedDecoder { path: path.to_owned() })?;
        let (mut prefix, suffix) = around(&hf)?;
        let added = added_pieces(&hf);
        let pieces = pieces(&hf, &added, spelling, path)?;
        let vocab = Vocab::new(pieces, spelling)?;
        let config = config_beside(path)?;
        let named = |key: &str| vocab.id_of(token_text(&config, key)?);
        let ids = NamedIds {
            bos: prefix.first().copied().or_else(|| named("bos_token")),
            eos: named("eos_token"),
            unk: named("unk_token"),
            pad: named("pad_token"),
            eot: None,
        };
        if prefix.is_empty() && config.get("add_bos_token") == Some(&Value::Bool(true)) {
            prefix.extend(ids.bos);
        }
        // Added tokens are cut out here, where text can be kept from becoming one.
        hf.with_added_vocabulary(AddedVocabulary::new());
        let engine = Engine::Pipeline(Box::new(Pipeline(hf)));
        let added = AddedPieces::new(added);
        Ok(Self::from_parts(Parts { engine, vocab, added, ids, prefix, suffix, strip_space }))
    }
}

impl ChatTemplate {
    /// The chat template of a checkpoint, given the path of its `tokenizer.json`: the file
    /// `chat_template.jinja` beside it, else `chat_template` of `tokenizer_config.json` (of
    /// several, the one named `default`). `None` if there is neither.
    ///
    /// # Errors
    /// [`TokenizerError::File`] and [`TokenizerError::Json`].
    pub fn source_beside(path: &Path) -> Result<Option<String>, TokenizerError> {
        let file = path.with_file_name("chat_template.jinja");
        match fs::read_to_string(&file) {
            Ok(source) => return Ok(Some(source)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(file_error(&file, error)),
        }
        let config = config_beside(path)?;
        let template = match config.get("chat_template") {
            Some(Value::Array(named)) => named
                .iter()
                .find(|row| row["name"] == "default")
                .and_then(|row| row["template"].as_str()),
            template => template.and_then(Value::as_str),
        };
        Ok(template.map(str::to_owned))
    }
}

/// The `tokenizers` crate panics on some files that it should refuse. What is not JSON at all is
/// found before it sees the file; what else it trips over becomes an error as well.
fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    serde_json::from_slice::<IgnoredAny>(json).map_err(|error| error.to_string())?;
    match catch_unwind(|| tokenizers::Tokenizer::from_bytes(json)) {
        Ok(parsed) => parsed.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizers crate gave up on this file".to_owned()),
    }
}

fn file_error(path: &Path, source: std::io::Error) -> TokenizerError {
    TokenizerError::File { path: path.to_owned(), source }
}

fn config_beside(path: &Path) -> Result<Value, TokenizerError> {
    let path = path.with_file_name("tokenizer_config.json");
    match fs::read(&path) {
        Ok(json) => serde_json::from_slice(&json)
            .map_err(|error| TokenizerError::Json { path, detail: error.to_string() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(source) => Err(file_error(&path, source)),
    }
}

/// `"bos_token": "<s>"` or `"bos_token": {"content": "<s>", ...}`
fn token_text<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    let token = config.get(key)?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// How pieces stand for bytes, and whether a decoded text loses one leading space.
fn spelling(decoder: Option<&DecoderWrapper>) -> Option<(Spelling, bool)> {
    match decoder? {
        DecoderWrapper::ByteLevel(_) => Some((Spelling::ByteLevel, false)),
        DecoderWrapper::Metaspace(_) => Some((Spelling::Spm, true)),
        DecoderWrapper::Sequence(sequence) => {
            let stages = sequence.get_decoders();
            let has = |wanted: fn(&DecoderWrapper) -> bool| stages.iter().any(wanted);
            if has(|stage| matches!(stage, DecoderWrapper::ByteLevel(_))) {
                return Some((Spelling::ByteLevel, false));
            }
            let spm = has(|stage| matches!(stage, DecoderWrapper::ByteFallback(_)));
            let strip = has(|stage| matches!(stage, DecoderWrapper::Strip(_)));
            spm.then_some((Spelling::Spm, strip))
        }
        _ => None,
    }
}

/// The tokens that the post-processor puts before and after a text.
fn around(hf: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let ids = |add_special| {
        hf.encode("a", add_special)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode { detail: error.to_string() })
    };
    let (plain, full) = (ids(false)?, ids(true)?);
    let at = full.windows(plain.len().max(1)).position(|window| window == plain);
    Ok(at.map_or((Vec::new(), Vec::new()), |at| {
        (full[..at].to_vec(), full[at + plain.len()..].to_vec())
    }))
}

fn added_pieces(hf: &tokenizers::Tokenizer) -> Vec<AddedPiece> {
    let added = hf.get_added_tokens_decoder().into_iter().map(|(id, token)| AddedPiece {
        id,
        text: token.content,
        control: token.special,
        lstrip: token.lstrip,
        rstrip: token.rstrip,
        single_word: token.single_word,
    });
    added.collect()
}

fn pieces(
    hf: &tokenizers::Tokenizer,
    added: &[AddedPiece],
    spelling: Spelling,
    path: &Path,
) -> Result<Vec<Piece>, TokenizerError> {
    let names = hf.get_vocab(true);
    let count = names.values().max().map_or(0, |&id| u64::from(id) + 1);
    check_count(count)?;
    // Ids without a piece stay unused gaps.
    let gap = || Piece { name: String::new(), kind: PieceKind::Unused };
    let mut pieces: Vec<Piece> =
        std::iter::repeat_with(gap).take(usize::try_from(count).unwrap_or(0)).collect();
    for (name, id) in names {
        let piece = &mut pieces[id as usize];
        if !piece.name.is_empty() {
            let detail = format!("token {id} is both {:?} and {name:?}", piece.name);
            return Err(TokenizerError::Json { path: path.to_owned(), detail });
        }
        let byte = spelling == Spelling::Spm && byte_piece(&name).is_some();
        *piece = Piece { name, kind: if byte { PieceKind::Byte } else { PieceKind::Normal } };
    }
    for token in added {
        if let Some(piece) = pieces.get_mut(token.id as usize) {
            piece.kind = if token.control { PieceKind::Control } else { PieceKind::UserDefined };
        }
    }
    Ok(pieces)
}
