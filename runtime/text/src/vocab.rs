//! The pieces of a vocabulary by id: their kind, their name and the bytes they stand for.

use tokenizers::models::bpe::Vocab as IdsByName;

use crate::byte_level;
use crate::error::TokenizerError;

/// More tokens than any known model has by a factor of 50; bounds what a bad file can allocate.
pub(crate) const MAX_TOKENS: u64 = 1 << 24;

/// The character that stands for a space in SentencePiece vocabularies.
pub(crate) const SPM_SPACE: &str = "\u{2581}";

/// What a piece is for. GGUF's `unknown` counts as [`PieceKind::Control`]: it is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceKind {
    /// Ordinary text, reached by merges.
    Normal,
    /// Structure, never text: matched only when the caller asks for it.
    Control,
    /// Text that is one token wherever it stands.
    UserDefined,
    /// One raw byte, spelled `<0xNN>`.
    Byte,
    /// Reserved.
    Unused,
}

/// How the name of a normal piece stands for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// The alphabet of [`byte_level`].
    ByteLevel,
    /// UTF-8 with U+2581 for a space; byte pieces are `<0xNN>`.
    Spm,
}

/// One row while a vocabulary is being built.
pub(crate) struct Piece {
    pub name: String,
    pub kind: PieceKind,
}

pub(crate) struct Vocab {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    kinds: Vec<PieceKind>,
    ids: IdsByName,
}

impl Vocab {
    /// Builds the tables from rows in order of id. A row with an empty name is a gap: it has no
    /// name and no bytes.
    ///
    /// # Errors
    /// [`TokenizerError::NoTokens`], [`TokenizerError::TooManyTokens`] and
    /// [`TokenizerError::DuplicatePiece`].
    pub fn new(pieces: Vec<Piece>, spelling: Spelling) -> Result<Self, TokenizerError> {
        if pieces.is_empty() {
            return Err(TokenizerError::NoTokens);
        }
        check_count(pieces.len() as u64)?;
        let mut vocab = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(pieces.len()),
            kinds: Vec::with_capacity(pieces.len()),
            ids: IdsByName::with_capacity(pieces.len()),
        };
        for (id, piece) in (0u32..).zip(pieces) {
            push_piece_bytes(&piece, spelling, &mut vocab.bytes);
            vocab.ends.push(vocab.bytes.len());
            vocab.kinds.push(piece.kind);
            if piece.name.is_empty() {
                continue;
            }
            if let Some(&first_id) = vocab.ids.get(&piece.name) {
                let piece = piece.name;
                return Err(TokenizerError::DuplicatePiece { piece, first_id, second_id: id });
            }
            vocab.ids.insert(piece.name, id);
        }
        Ok(vocab)
    }

    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    pub fn id_of(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    pub fn kind(&self, id: u32) -> Option<PieceKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The bytes that a token stands for; empty for an id outside the vocabulary.
    pub fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// Ids by name, without the gaps.
    pub fn ids(&self) -> &IdsByName {
        &self.ids
    }
}

/// # Errors
/// [`TokenizerError::TooManyTokens`] above [`MAX_TOKENS`].
pub(crate) fn check_count(found: u64) -> Result<(), TokenizerError> {
    if found > MAX_TOKENS {
        return Err(TokenizerError::TooManyTokens { found, limit: MAX_TOKENS });
    }
    Ok(())
}

/// The byte that `<0xNN>` names.
pub(crate) fn byte_piece(name: &str) -> Option<u8> {
    let hex = name.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

fn push_piece_bytes(piece: &Piece, spelling: Spelling, out: &mut Vec<u8>) {
    match (piece.kind, spelling) {
        (PieceKind::Control, _) | (PieceKind::UserDefined, Spelling::ByteLevel) => {
            out.extend_from_slice(piece.name.as_bytes());
        }
        (PieceKind::Byte, _) => out.extend(byte_piece(&piece.name)),
        (_, Spelling::ByteLevel) => byte_level::push_bytes(&piece.name, out),
        (_, Spelling::Spm) => {
            out.extend_from_slice(piece.name.replace(SPM_SPACE, " ").as_bytes());
        }
    }
}
