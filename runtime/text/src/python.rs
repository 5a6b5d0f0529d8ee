//! JSON as Python's `json.dumps` writes it: templates print tool schemas with it, and a model
//! has learned its spaces.

use serde_json::{Number, Value};

/// The arguments of `json.dumps` that templates use.
pub(crate) struct JsonStyle {
    pub ensure_ascii: bool,
    pub indent: Option<usize>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    /// Never escaped: it marks text of the request and is taken out later.
    pub mark: Option<char>,
}

impl JsonStyle {
    /// Python's defaults for this `indent`, with `ensure_ascii` off as chat templates have it.
    pub fn new(indent: Option<usize>) -> Self {
        Self {
            ensure_ascii: false,
            indent,
            item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
            mark: None,
        }
    }

    pub fn dump(&self, value: &Value) -> String {
        let mut out = String::new();
        self.push(value, 1, &mut out);
        out
    }

    fn push(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Number(number) => out.push_str(&number_text(number)),
            Value::String(text) => self.push_string(text, out),
            Value::Array(rows) if rows.is_empty() => out.push_str("[]"),
            Value::Array(rows) => {
                out.push('[');
                for (index, row) in rows.iter().enumerate() {
                    self.push_gap(index, depth, out);
                    self.push(row, depth + 1, out);
                }
                self.push_line(depth - 1, out);
                out.push(']');
            }
            Value::Object(fields) if fields.is_empty() => out.push_str("{}"),
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort_keys {
                    fields.sort_unstable_by_key(|(key, _)| *key);
                }
                out.push('{');
                for (index, (key, value)) in fields.into_iter().enumerate() {
                    self.push_gap(index, depth, out);
                    self.push_string(key, out);
                    out.push_str(&self.key_separator);
                    self.push(value, depth + 1, out);
                }
                self.push_line(depth - 1, out);
                out.push('}');
            }
        }
    }

    fn push_gap(&self, index: usize, depth: usize, out: &mut String) {
        if index > 0 {
            out.push_str(&self.item_separator);
        }
        self.push_line(depth, out);
    }

    fn push_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn push_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                '\0'..='\u{1F}' => push_escape(c, out),
                c if self.ensure_ascii && c > '~' && Some(c) != self.mark => push_escape(c, out),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn push_escape(c: char, out: &mut String) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        out.push_str(&format!("\\u{unit:04x}"));
    }
}

/// Integers as they are; other numbers in their shortest form, with an exponent below 1e-4 and
/// from 1e16 on, of a sign and two digits at least.
fn number_text(number: &Number) -> String {
    let Some(value) = number.as_f64().filter(|_| number.is_f64()) else {
        return number.to_string();
    };
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spaces_and_order_are_pythons() {
        let value = json!({"b": [1, 2.0, true, null], "a": {}, "é": "\u{1}\"\\/\u{7f}日"});
        assert_eq!(
            JsonStyle::new(None).dump(&value),
            "{\"b\": [1, 2.0, true, null], \"a\": {}, \"é\": \"\\u0001\\\"\\\\/\u{7f}日\"}"
        );
        assert_eq!(
            JsonStyle::new(Some(2)).dump(&json!({"a": [1, {"b": []}]})),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ]\n}"
        );
        let ascii = JsonStyle { ensure_ascii: true, sort_keys: true, ..JsonStyle::new(None) };
        assert_eq!(
            ascii.dump(&json!({"b": "é\u{7f}😀", "a": 0})),
            "{\"a\": 0, \"b\": \"\\u00e9\\u007f\\ud83d\\ude00\"}"
        );
    }

    #[test]
    fn floats_are_pythons() {
        for (value, text) in [
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(JsonStyle::new(None).dump(&json!(value)), text);
        }
    }
}
