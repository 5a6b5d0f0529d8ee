//! Words, numbers and strings of one line.

use std::str::FromStr;

use super::error::ParseFault;

/// What is left of a line. Spaces before a token never matter.
pub(super) struct Cursor<'t> {
    rest: &'t str,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(line: &'t str) -> Self {
        Self { rest: line.trim_start() }
    }

    /// Whether nothing is left but a comment.
    pub(super) fn at_end(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with(';')
    }

    pub(super) fn end(&self) -> Result<(), ParseFault> {
        if self.at_end() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }

    pub(super) fn starts_with(&self, text: &str) -> bool {
        self.rest.starts_with(text)
    }

    pub(super) fn starts_with_digit(&self) -> bool {
        self.rest.starts_with(|c: char| c.is_ascii_digit())
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(text) else { return false };
        self.rest = rest.trim_start();
        true
    }

    pub(super) fn expect(&mut self, text: &str, need: &'static str) -> Result<(), ParseFault> {
        if self.eat(text) { Ok(()) } else { Err(self.expected(need)) }
    }

    pub(super) fn expected(&self, need: &'static str) -> ParseFault {
        ParseFault::expected(self.rest.trim_end(), need)
    }

    /// Letters, digits and `_ . + - ?`: names, element types and attribute values.
    pub(super) fn word(&mut self) -> Option<&'t str> {
        self.take(|c| c.is_ascii_alphanumeric() || "_.+-?".contains(c))
    }

    /// A number without sign that fits `T`.
    pub(super) fn number<T: FromStr>(&mut self, need: &'static str) -> Result<T, ParseFault> {
        let fault = self.expected(need);
        let digits = self.take(|c| c.is_ascii_digit());
        digits.and_then(|text| text.parse().ok()).ok_or(fault)
    }

    /// Text between quotes.
    pub(super) fn string(&mut self) -> Result<String, ParseFault> {
        let fault = self.expected("a string between quotes");
        let Some(body) = self.rest.strip_prefix('"') else { return Err(fault) };
        let mut escaped = false;
        for (at, c) in body.char_indices() {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => {
                    self.rest = body[at + 1..].trim_start();
                    return unescape(&body[..at]).ok_or(fault);
                }
                _ => {}
            }
        }
        Err(fault)
    }

    fn take(&mut self, part: impl Fn(char) -> bool) -> Option<&'t str> {
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        (!taken.is_empty()).then_some(taken)
    }
}

/// Undoes the escapes of a dump: `\"`, `\\` and `\u{HEX}`.
pub(super) fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(hex) = rest.strip_prefix("u{") {
            let (digits, after) = hex.split_once('}')?;
            out.push(char::from_u32(u32::from_str_radix(digits, 16).ok()?)?);
            rest = after;
        } else {
            let c = rest.chars().next().filter(|c| matches!(c, '"' | '\\'))?;
            out.push(c);
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    Some(out)
}
