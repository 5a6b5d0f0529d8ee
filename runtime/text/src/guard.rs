//! Keeps text of a request from becoming control tokens.
//!
//! A template mixes its own control tokens with the text of users and tools, and the result is
//! one string. So before rendering, a *mark* (a character that occurs nowhere in the request) is
//! put behind the first character of everything in the request that could begin a control token.
//! After rendering, a control token is only parsed where no mark interrupts it; then the marks
//! are taken out, and the remaining text is encoded in one piece with what surrounds it.
//!
//! Marks must not disturb a template that looks into the text (`content.split('</think>')`), so
//! the strings that the template itself names are not marked, unless they are control tokens or
//! the beginning of one.

use std::borrow::Cow;
use std::collections::HashSet;

use serde_json::{Map, Value};

/// A rendered chat that still tells the template's text from the request's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedPrompt {
    marked: String,
    mark: char,
}

impl GuardedPrompt {
    pub(crate) fn new(marked: String, mark: char) -> Self {
        Self { marked, mark }
    }

    pub(crate) fn marked(&self) -> &str {
        &self.marked
    }

    pub(crate) fn mark(&self) -> char {
        self.mark
    }

    /// The prompt as plain text, equal to what an unguarded render gives.
    pub fn text(&self) -> String {
        self.marked.replace(self.mark, "")
    }
}

pub(crate) struct Guard<'a> {
    mark: char,
    controls: &'a [&'a str],
    /// Control tokens that begin with a letter, a digit or white space: rare to absent.
    words: Vec<&'a str>,
    /// First characters of control tokens that are neither letters, digits nor white space.
    openers: Vec<char>,
    /// Strings of the template that begin with an opener and are left whole.
    literals: Vec<&'a str>,
}

impl<'a> Guard<'a> {
    /// `literals` are the strings that the template's code names.
    pub fn new(mark: char, controls: &'a [&'a str], literals: &'a [String]) -> Self {
        let mut openers: Vec<char> =
            controls.iter().filter_map(|text| text.chars().next()).filter(is_opener).collect();
        openers.sort_unstable();
        openers.dedup();
        let words = controls.iter().filter(|text| !text.starts_with(openers.as_slice()));
        let words = words.copied().filter(|text| !text.is_empty()).collect();
        let begins_control = |text: &str| controls.iter().any(|control| control.starts_with(text));
        let literals = literals.iter().map(String::as_str);
        let literals = literals.filter(|text| {
            text.starts_with(openers.as_slice()) && text.len() > 1 && !begins_control(text)
        });
        let literals = literals.collect();
        Self { mark, controls, words, openers, literals }
    }

    /// Marks every string in `value`, names of fields included.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text).into_owned()),
            Value::Array(rows) => Value::Array(rows.iter().map(|row| self.value(row)).collect()),
            Value::Object(fields) => Value::Object(self.fields(fields)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    pub fn fields(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        fields.iter().map(|(key, value)| (self.text(key).into_owned(), self.value(value))).collect()
    }

    fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut marked = String::new();
        let mut done = 0;
        for (at, c) in text.char_indices() {
            if self.begins_danger(c, &text[at..]) {
                let next = at + c.len_utf8();
                marked.push_str(&text[done..next]);
                marked.push(self.mark);
                done = next;
            }
        }
        if done == 0 {
            return Cow::Borrowed(text);
        }
        marked.push_str(&text[done..]);
        Cow::Owned(marked)
    }

    fn begins_danger(&self, c: char, rest: &str) -> bool {
        let starts = |texts: &[&str]| texts.iter().any(|text| rest.starts_with(text));
        if self.openers.contains(&c) {
            return !starts(&self.literals) || starts(self.controls);
        }
        // Letters and spaces begin too much to be marked wherever they stand.
        starts(&self.words)
    }
}

fn is_opener(c: &char) -> bool {
    !c.is_alphanumeric() && !c.is_whitespace()
}

/// A character that occurs in none of `texts`, from blocks that are rare in any text. Printable,
/// so that nothing which shows a string escapes it.
pub(crate) fn unused_char(texts: &[&str]) -> Option<char> {
    let tiles = '\u{1F030}'..='\u{1F093}';
    let hieroglyphs = '\u{13000}'..='\u{1342E}';
    let private = '\u{100000}'..='\u{10FFFD}';
    let used: HashSet<char> =
        texts.iter().flat_map(|text| text.chars()).filter(|&c| c >= *hieroglyphs.start()).collect();
    tiles.chain(hieroglyphs).chain(private).find(|c| !used.contains(c))
}

/// The quoted strings inside `{{ }}` and `{% %}` of a template, with their escapes resolved.
pub(crate) fn literals_of(template: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find("{{").into_iter().chain(rest.find("{%")).min() {
        let mut chars = rest[open + 2..].char_indices();
        let mut end = rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' | '"' => literals.push(quoted(c, &mut chars)),
                '}' => {
                    end = open + 2 + at + 1;
                    break;
                }
                _ => {}
            }
        }
        rest = &rest[end..];
    }
    literals.sort_unstable();
    literals.dedup();
    literals
}

fn quoted(quote: char, chars: &mut std::str::CharIndices<'_>) -> String {
    let mut text = String::new();
    while let Some((_, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, 'r')) => text.push('\r'),
                Some((_, escaped)) => text.push(escaped),
                None => {}
            },
            c if c == quote => break,
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests;
