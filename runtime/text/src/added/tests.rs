use super::*;

fn pieces() -> AddedPieces {
    let piece = |id, text: &str, control| AddedPiece {
        id,
        text: text.to_owned(),
        control,
        ..AddedPiece::default()
    };
    AddedPieces::new(vec![
        piece(10, "<|a|>", true),
        piece(11, "<|a|><|b|>", true),
        piece(12, "<think>", false),
        AddedPiece { rstrip: true, lstrip: true, ..piece(13, "<mask>", true) },
        AddedPiece { single_word: true, ..piece(14, "word", false) },
    ])
}

fn shown(text: &str, specials: Specials) -> Vec<(&str, Option<u32>)> {
    pieces().split(text, specials).into_iter().map(|p| (&text[p.range], p.id)).collect()
}

#[test]
fn longest_piece_wins_and_text_is_kept() {
    assert_eq!(
        shown("x<|a|><|b|>y<|a|>", Specials::Parse),
        [("x", None), ("<|a|><|b|>", Some(11)), ("y", None), ("<|a|>", Some(10))]
    );
    assert_eq!(shown("", Specials::Parse), []);
    assert_eq!(shown("<|a|", Specials::Parse), [("<|a|", None)]);
}

#[test]
fn control_stays_text_and_user_defined_does_not() {
    assert_eq!(shown("é<|a|><think>", Specials::AsText), [("é<|a|>", None), ("<think>", Some(12))]);
}

#[test]
fn strip_flags_take_white_space() {
    assert_eq!(
        shown("a  <mask> \n b", Specials::Parse),
        [("a", None), ("  <mask> \n ", Some(13)), ("b", None)]
    );
}

#[test]
fn single_word_is_not_cut_from_a_word() {
    assert_eq!(shown("sword", Specials::AsText), [("sword", None)]);
    assert_eq!(shown("a word.", Specials::AsText), [("a ", None), ("word", Some(14)), (".", None)]);
}

#[test]
fn a_control_text_that_the_model_spells_is_broken() {
    let mut added = pieces();
    added.find_spelled_by_model(|text| if text == "<|a|>" { vec![10] } else { vec![0] });
    let text = "x<|a|>y";
    let parts: Vec<_> =
        added.split(text, Specials::AsText).into_iter().map(|p| (&text[p.range], p.id)).collect();
    assert_eq!(parts, [("x<", None), ("|a|>y", None)]);
}
