//! Added tokens: pieces that are cut out of a text before the pre-tokenizer sees it.
//!
//! The longest piece wins at each position, and positions are tried from left to right.

use std::collections::HashMap;
use std::ops::Range;

use crate::tokenizer::Specials;

/// A piece that is matched in raw text.
#[derive(Clone, Debug, Default)]
pub(crate) struct AddedPiece {
    pub id: u32,
    pub text: String,
    /// Matched only when the caller parses specials.
    pub control: bool,
    /// Takes the white space to its left with it.
    pub lstrip: bool,
    /// Takes the white space to its right with it.
    pub rstrip: bool,
    /// Not matched inside a word.
    pub single_word: bool,
}

/// A byte range of a text: one added token, or text for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub range: Range<usize>,
    pub id: Option<u32>,
}

#[derive(Default)]
pub(crate) struct AddedPieces {
    pieces: Vec<AddedPiece>,
    index_of: HashMap<String, usize>,
    /// For each first byte, the distinct lengths of pieces in bytes, longest first.
    lengths: HashMap<u8, Vec<usize>>,
    /// For each piece, whether the model itself would give its id for its text.
    spelled_by_model: Vec<bool>,
}

impl AddedPieces {
    /// Pieces with an empty text are left out.
    pub fn new(pieces: Vec<AddedPiece>) -> Self {
        let mut added = Self::default();
        for piece in pieces {
            let Some(&first) = piece.text.as_bytes().first() else { continue };
            let lengths = added.lengths.entry(first).or_default();
            if let Err(at) = lengths.binary_search_by(|length| piece.text.len().cmp(length)) {
                lengths.insert(at, piece.text.len());
            }
            added.index_of.insert(piece.text.clone(), added.pieces.len());
            added.pieces.push(piece);
        }
        added.spelled_by_model = vec![false; added.pieces.len()];
        added
    }

    pub fn controls(&self) -> impl Iterator<Item = &AddedPiece> {
        self.pieces.iter().filter(|piece| piece.control)
    }

    /// Marks the control pieces that ordinary encoding of their own text would produce. Such a
    /// text is cut after its first character, so that it can never become the token.
    pub fn find_spelled_by_model(&mut self, mut encode: impl FnMut(&str) -> Vec<u32>) {
        for (piece, spelled) in self.pieces.iter().zip(&mut self.spelled_by_model) {
            *spelled = piece.control && encode(&piece.text).contains(&piece.id);
        }
    }

    /// Cuts `text` into added tokens and text. Without parsing, control pieces stay text.
    pub fn split(&self, text: &str, specials: Specials) -> Vec<Part> {
        let mut parts = Vec::new();
        let (mut start, mut at) = (0, 0);
        while at < text.len() {
            let Some(index) = self.match_at(text, at, specials) else {
                at += char_len(text, at);
                continue;
            };
            let piece = &self.pieces[index];
            if piece.control && specials == Specials::AsText {
                at += char_len(text, at);
                push_text(&mut parts, start..at);
                start = at;
                continue;
            }
            let (mut from, mut to) = (at, at + piece.text.len());
            if piece.lstrip {
                from = text[..from].trim_end().len().max(start);
            }
            if piece.rstrip {
                to = text.len() - text[to..].trim_start().len();
            }
            push_text(&mut parts, start..from);
            parts.push(Part { range: from..to, id: Some(piece.id) });
            (start, at) = (to, to);
        }
        push_text(&mut parts, start..text.len());
        parts
    }

    /// The longest piece at byte `at` that may be cut here.
    fn match_at(&self, text: &str, at: usize, specials: Specials) -> Option<usize> {
        let rest = &text.as_bytes()[at..];
        let lengths = self.lengths.get(rest.first()?)?;
        lengths.iter().filter(|&&length| length <= rest.len()).find_map(|&length| {
            let index = *self.index_of.get(text.get(at..at + length)?)?;
            let piece = &self.pieces[index];
            if piece.control && specials == Specials::AsText && !self.spelled_by_model[index] {
                return None;
            }
            let inside_word = piece.single_word
                && (text[..at].ends_with(is_word_char)
                    || text[at + length..].starts_with(is_word_char));
            (!inside_word).then_some(index)
        })
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn char_len(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(1, char::len_utf8)
}

fn push_text(parts: &mut Vec<Part>, range: Range<usize>) {
    if !range.is_empty() {
        parts.push(Part { range, id: None });
    }
}

#[cfg(test)]
mod tests;
