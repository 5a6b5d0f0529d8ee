//! Score-driven merging, as SentencePiece's BPE models need it (GGUF `tokenizer.ggml.model` =
//! `llama`: Llama 2, Gemma).
//!
//! There is no merge table: two neighbours merge when their text is a piece, the pair with the
//! highest score first, the leftmost of equals first. A character that is no piece is spelled in
//! byte pieces.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::TokenizerError;
use crate::vocab::{PieceKind, SPM_SPACE, Vocab};

pub(crate) struct Spm {
    scores: Vec<f32>,
    byte_ids: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// A space is put before text that starts the input or follows an added token.
    pub space_prefix: bool,
}

/// A piece of the text being merged; `len == 0` once it was merged into its left neighbour.
struct Symbol {
    start: usize,
    len: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then_with(|| other.left.cmp(&self.left))
    }
}
impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Pair {}

impl Spm {
    /// `scores` has one row a token.
    ///
    /// # Errors
    /// [`TokenizerError::BadScore`] for NaN, and [`TokenizerError::NoByteFallback`] when a byte
    /// has no piece and there is no unknown token either.
    pub fn new(
        vocab: &Vocab,
        scores: Vec<f32>,
        unknown: Option<u32>,
        space_prefix: bool,
    ) -> Result<Self, TokenizerError> {
        if let Some((id, _)) = (0u32..).zip(&scores).find(|(_, score)| score.is_nan()) {
            return Err(TokenizerError::BadScore { id });
        }
        let byte_ids: Vec<_> = (0..=255u8).map(|b| vocab.id_of(&format!("<0x{b:02X}>"))).collect();
        let absent = (0..=255u8).zip(&byte_ids).find(|(_, id)| id.is_none());
        if let (Some((byte, _)), None) = (absent, unknown) {
            return Err(TokenizerError::NoByteFallback { byte });
        }
        // +0.0 and -0.0 are the same score; `total_cmp` would order them.
        let scores = scores.into_iter().map(|score| score + 0.0).collect();
        Ok(Self { scores, byte_ids, unknown, space_prefix })
    }

    /// Appends the ids of `text`, which holds no added tokens.
    pub fn encode(&self, vocab: &Vocab, text: &str, after_added: bool, out: &mut Vec<u32>) {
        let prefix = if self.space_prefix && after_added { SPM_SPACE } else { "" };
        let text = format!("{prefix}{}", text.replace(' ', SPM_SPACE));
        let mut merge = Merge {
            symbols: split_chars(&text),
            queue: BinaryHeap::new(),
            score_of: |piece: &str| Some(self.scores[text_piece(vocab, piece)? as usize]),
            text: &text,
        };
        merge.run();
        for symbol in merge.symbols.iter().filter(|symbol| symbol.len > 0) {
            self.push_ids(vocab, &text[symbol.start..symbol.start + symbol.len], out);
        }
    }

    fn push_ids(&self, vocab: &Vocab, piece: &str, out: &mut Vec<u32>) {
        if let Some(id) = text_piece(vocab, piece) {
            out.push(id);
            return;
        }
        let bytes = piece.bytes().map(|byte| self.byte_ids[usize::from(byte)]);
        out.extend(bytes.filter_map(|id| id.or(self.unknown)));
    }
}

/// The merging of one text.
struct Merge<'a, F> {
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
    /// The score of a piece, `None` if the text is no piece.
    score_of: F,
}

impl<F: Fn(&str) -> Option<f32>> Merge<'_, F> {
    fn run(&mut self) {
        for left in 0..self.symbols.len() {
            self.push_pair(left);
        }
        while let Some(pair) = self.queue.pop() {
            let (left_len, right_len) = (self.symbols[pair.left].len, self.symbols[pair.right].len);
            // One of the two has merged since the pair was queued.
            if left_len == 0 || right_len == 0 || left_len + right_len != pair.len {
                continue;
            }
            self.symbols[pair.left].len = pair.len;
            self.symbols[pair.right].len = 0;
            let next = self.symbols[pair.right].next;
            self.symbols[pair.left].next = next;
            if let Some(next) = next {
                self.symbols[next].prev = Some(pair.left);
            }
            if let Some(prev) = self.symbols[pair.left].prev {
                self.push_pair(prev);
            }
            self.push_pair(pair.left);
        }
    }

    fn push_pair(&mut self, left: usize) {
        let Some(right) = self.symbols[left].next else { return };
        let (start, len) =
            (self.symbols[left].start, self.symbols[left].len + self.symbols[right].len);
        if let Some(score) = (self.score_of)(&self.text[start..start + len]) {
            self.queue.push(Pair { score, left, right, len });
        }
    }
}

/// The id of a piece that text may become: never a control or a byte piece.
fn text_piece(vocab: &Vocab, piece: &str) -> Option<u32> {
    let id = vocab.id_of(piece)?;
    match vocab.kind(id)? {
        PieceKind::Normal | PieceKind::UserDefined | PieceKind::Unused => Some(id),
        PieceKind::Control | PieceKind::Byte => None,
    }
}

fn split_chars(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
    for (start, c) in text.char_indices() {
        let at = symbols.len();
        if let Some(last) = symbols.last_mut() {
            last.next = Some(at);
        }
        symbols.push(Symbol { start, len: c.len_utf8(), prev: at.checked_sub(1), next: None });
    }
    symbols
}
