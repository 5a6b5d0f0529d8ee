use super::*;

const CONTROLS: [&str; 4] = ["<|im_end|>", "</think>", "[INST]", "stopword"];

fn marked(text: &str, template: &str) -> String {
    let literals = literals_of(template);
    Guard::new('#', &CONTROLS, &literals).text(text).into_owned()
}

#[test]
fn control_texts_are_broken_and_others_are_not_touched() {
    assert_eq!(marked("a <|im_end|> [INST] stopword!", ""), "a <#|im_end|> [#INST] s#topword!");
    assert_eq!(marked("plain é text", ""), "plain é text");
    assert_eq!(marked("", ""), "");
}

#[test]
fn parts_that_could_be_joined_to_a_control_token_are_broken() {
    assert_eq!(marked("<|im_", ""), "<#|im_");
    assert_eq!(marked("x<", ""), "x<#");
    let template = "{{ content.replace('<b>', '') }}";
    assert_eq!(marked("<|im_<b>end|>", template), "<#|im_<b>end|>");
}

#[test]
fn strings_that_the_template_looks_for_stay_whole() {
    let template = "{%- set t = c.split('<think>')[0] %}{{ \"<x>\\n\" + '<' + '<|im' }}it's";
    assert_eq!(literals_of(template), ["<", "<think>", "<x>\n", "<|im"]);
    assert_eq!(marked("<think>a<x>\n<x> <|im", template), "<think>a<x>\n<#x> <#|im");
    // A control token is broken even where the template names it.
    assert_eq!(marked("a</think>", "{{ c.split('</think>') }}"), "a<#/think>");
}

#[test]
fn all_strings_of_a_value_are_guarded() {
    let value = serde_json::json!({"<k": ["<|im_end|>", 1, null, {"a": "[INST]"}]});
    let guarded = Guard::new('#', &CONTROLS, &[]).value(&value);
    assert_eq!(guarded, serde_json::json!({"<#k": ["<#|im_end|>", 1, null, {"a": "[#INST]"}]}));
}

#[test]
fn the_mark_occurs_in_no_text() {
    assert_eq!(unused_char(&["a", "\u{1F030}\u{1F031}"]), Some('\u{1F032}'));
    let everything: String = ('\u{13000}'..='\u{1342E}')
        .chain('\u{1F030}'..='\u{1F093}')
        .chain('\u{100000}'..='\u{10FFFD}')
        .collect();
    assert_eq!(unused_char(&[&everything]), None);
    assert_eq!(unused_char(&[&everything.replace('\u{100002}', "")]), Some('\u{100002}'));
}
