//! A vocabulary that reads any text byte by byte; its other tokens are numbers.

use strata_formats::{GgufWriter, ValueType, WriteError, WriteValue};

use crate::schema::{ChatTemplate, ModelDef};

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// Names of the tokens that end a text: the first is the one that ends a turn, if there are more.
const ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

const TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
{{ message.content }}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes tokenizer keys for the tokens of `def`.
pub(super) fn write(def: &ModelDef, out: &mut GgufWriter) -> Result<(), WriteError> {
    let mut names: Vec<String> = (0..def.vocab).map(|id| format!("tok{id}")).collect();
    let bytes = (0..=255u8).map(byte_name).map(String::from);
    names.iter_mut().zip(bytes.chain(["to".to_owned()])).for_each(|(name, new)| *name = new);
    let mut types = vec![NORMAL; names.len()];
    let tokens = &def.tokens;
    let ends = &ENDS[usize::from(tokens.eos.len() < 2)..];
    let named = tokens.eos.iter().copied().zip(ends.iter().copied());
    for (id, name) in named.chain(tokens.bos.map(|bos| (bos, "<|bos|>"))) {
        // A text may begin with the token that ends it.
        if types[id as usize] != CONTROL {
            names[id as usize] = name.to_owned();
            types[id as usize] = CONTROL;
        }
    }
    let pre = if def.ngram.is_some() { "qwen35" } else { "qwen2" };
    out.set("tokenizer.ggml.model", WriteValue::Str("gpt2".into()))?;
    out.set("tokenizer.ggml.pre", WriteValue::Str(pre.into()))?;
    out.set("tokenizer.ggml.tokens", WriteValue::strs(names.iter().map(String::as_str)))?;
    let types = types.into_iter().map(WriteValue::I32).collect();
    out.set("tokenizer.ggml.token_type", WriteValue::Array(ValueType::I32, types))?;
    out.set("tokenizer.ggml.merges", WriteValue::strs(["t o"]))?;
    if let Some(&eos) = tokens.eos.first() {
        out.set("tokenizer.ggml.eos_token_id", WriteValue::U32(eos))?;
    }
    if let Some(bos) = tokens.bos {
        out.set("tokenizer.ggml.bos_token_id", WriteValue::U32(bos))?;
    }
    out.set("tokenizer.ggml.add_bos_token", WriteValue::Bool(tokens.add_bos))?;
    if def.chat_template != ChatTemplate::None {
        out.set("tokenizer.chat_template", WriteValue::Str(TEMPLATE.into()))?;
    }
    Ok(())
}

/// The character that stands for a byte in byte-level vocabularies: itself if it can be seen, else
/// the next free one from 256 on.
fn byte_name(byte: u8) -> char {
    let seen = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if seen(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !seen(byte)).count();
    char::from_u32(256 + before as u32).expect("a character a little above 255")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_names_of_byte_level_vocabularies() {
        let cases = [(b'a', 'a'), (b' ', '\u{120}'), (b'\n', '\u{10a}'), (0, '\u{100}')];
        for (byte, name) in cases {
            assert_eq!(byte_name(byte), name);
        }
        assert_eq!((byte_name(0xad), byte_name(0xff)), ('\u{143}', '\u{ff}'));
        let mut names: Vec<char> = (0..=255).map(byte_name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 256);
    }
}
