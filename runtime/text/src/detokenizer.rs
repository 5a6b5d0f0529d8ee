//! Tokens to text while they are generated.

use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into whole UTF-8. Bytes of an unfinished character are held back
/// until the rest comes, so what [`push`](Self::push) returns never splits a code point, and all
/// of it together is what [`Tokenizer::decode`] gives for the whole sequence.
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    held: Vec<u8>,
    text: String,
    skip_special: bool,
    strip_space: bool,
}

impl<'a> Detokenizer<'a> {
    /// For a text of its own: a vocabulary that puts a space before each text (Llama 2) has it
    /// taken away. `skip_special` leaves control tokens out.
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        let strip_space = tokenizer.strips_space();
        Self { tokenizer, held: Vec::new(), text: String::new(), skip_special, strip_space }
    }

    /// For the continuation of a prompt: a leading space belongs to the text.
    pub fn continuing(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer, skip_special) }
    }

    /// Takes one token and returns the text that is now complete, or `None` if there is none
    /// yet. Bytes that can never become UTF-8 are U+FFFD.
    pub fn push(&mut self, id: u32) -> Option<&str> {
        let control = self.tokenizer.is_control(id);
        if control && self.skip_special {
            return None;
        }
        let mut bytes = self.tokenizer.token_bytes(id);
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            if !control {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.held.extend_from_slice(bytes);
        self.text.clear();
        let complete = complete_len(&self.held);
        for chunk in self.held[..complete].utf8_chunks() {
            self.text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held.drain(..complete);
        (!self.text.is_empty()).then_some(self.text.as_str())
    }

    /// The rest at the end of the stream: U+FFFD if it ended inside a character, else `None`.
    pub fn flush(&mut self) -> Option<&str> {
        if self.held.is_empty() {
            return None;
        }
        self.held.clear();
        self.text.clear();
        self.text.push(char::REPLACEMENT_CHARACTER);
        Some(&self.text)
    }
}

/// Length of the prefix that later bytes cannot change: all but an unfinished character.
fn complete_len(bytes: &[u8]) -> usize {
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(_) => return bytes.len(),
            Err(error) => {
                done += error.valid_up_to();
                match error.error_len() {
                    Some(broken) => done += broken,
                    None => return done,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
