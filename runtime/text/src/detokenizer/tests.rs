use super::*;
use crate::GgufVocab;

/// Byte tokens 3..259 of a score-driven vocabulary, then a few pieces.
fn tokenizer(space_prefix: bool) -> Tokenizer {
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁Hi", "▁", "日"].map(str::to_owned));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend([1; 3]);
    Tokenizer::from_gguf(&GgufVocab {
        model: "llama".into(),
        scores: Some(vec![0.0; tokens.len()]),
        types: Some(types),
        tokens,
        add_space_prefix: Some(space_prefix),
        ..GgufVocab::default()
    })
    .unwrap()
}

const HI: u32 = 259;

fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer, true);
    let mut out: Vec<String> =
        ids.iter().map(|&id| detokenizer.push(id).unwrap_or_default().to_owned()).collect();
    out.push(detokenizer.flush().unwrap_or_default().to_owned());
    out
}

fn byte_ids(bytes: &[u8]) -> Vec<u32> {
    bytes.iter().map(|&byte| u32::from(byte) + 3).collect()
}

#[test]
fn s10_a_four_token_emoji_is_one_delta() {
    let out = stream(&tokenizer(false), &byte_ids("😀".as_bytes()));
    assert_eq!(out, ["", "", "", "😀", ""]);
}

#[test]
fn s11_a_character_over_two_tokens_goes_on() {
    let mut ids = byte_ids("中a文".as_bytes());
    ids.push(261);
    let out = stream(&tokenizer(false), &ids);
    assert_eq!(out.concat(), "中a文日");
    assert!(!out.concat().contains(char::REPLACEMENT_CHARACTER));
}

#[test]
fn broken_bytes_are_replaced_as_soon_as_they_are_known_to_be() {
    let tokenizer = tokenizer(false);
    assert_eq!(stream(&tokenizer, &byte_ids(b"\xFFa")), ["\u{FFFD}", "a", ""]);
    assert_eq!(stream(&tokenizer, &byte_ids(b"\xF0\x9Fa")), ["", "", "\u{FFFD}a", ""]);
    assert_eq!(stream(&tokenizer, &byte_ids(b"a\xF0\x9F\x98")), ["a", "", "", "", "\u{FFFD}"]);
}

#[test]
fn streams_and_whole_decodes_agree_on_any_bytes() {
    let tokenizer = tokenizer(true);
    let mut state = 1u32;
    for _ in 0..200 {
        let bytes: Vec<u8> = (0..12)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                [0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x98, 0x80, b'a', 0xC3, 0xA9]
                    [state as usize >> 16 & 7]
            })
            .collect();
        let ids = byte_ids(&bytes);
        assert_eq!(stream(&tokenizer, &ids).concat(), String::from_utf8_lossy(&bytes));
        assert_eq!(tokenizer.decode(&ids, true), String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn the_space_prefix_is_taken_away_once_and_only_at_the_start() {
    let with = tokenizer(true);
    assert_eq!(stream(&with, &[1, HI, HI]).concat(), "Hi Hi");
    assert_eq!(with.decode(&[HI, HI], true), "Hi Hi");
    assert_eq!(with.decode(&[1, HI], false), "<s> Hi");
    assert_eq!(Detokenizer::continuing(&with, true).push(HI), Some(" Hi"));
    assert_eq!(stream(&tokenizer(false), &[HI]).concat(), " Hi");
}

#[test]
fn an_id_outside_the_vocabulary_has_no_text() {
    assert_eq!(stream(&tokenizer(false), &[70_000, HI]).concat(), " Hi");
}
