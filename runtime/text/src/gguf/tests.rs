use super::*;
use crate::Specials;

fn bpe() -> GgufVocab {
    let tokens = ["a", "b", "c", "ab", "abc", "Ġ", "<|x|>", "<t>"];
    GgufVocab {
        model: "gpt2".into(),
        pre: "gpt-2".into(),
        tokens: tokens.map(str::to_owned).to_vec(),
        types: Some(vec![1, 1, 1, 1, 1, 1, 3, 4]),
        merges: vec!["a b".into(), "ab c".into()],
        ..GgufVocab::default()
    }
}

fn spm() -> GgufVocab {
    let tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "ba", "▁"];
    GgufVocab {
        model: "llama".into(),
        tokens: tokens.map(str::to_owned).to_vec(),
        scores: Some(vec![0.0, 0.0, 0.0, -5.0, -5.0, -1.0, -1.0, -5.0]),
        types: Some(vec![2, 3, 3, 1, 1, 1, 1, 1]),
        unk: Some(0),
        add_space_prefix: Some(false),
        ..GgufVocab::default()
    }
}

fn error(vocab: &GgufVocab) -> String {
    Tokenizer::from_gguf(vocab).err().expect("the vocabulary is wrong").to_string()
}

#[test]
fn merges_go_by_rank() {
    let tokenizer = Tokenizer::from_gguf(&bpe()).unwrap();
    assert_eq!(tokenizer.encode("abc abc", Specials::AsText, true).unwrap(), [4, 5, 4]);
}

#[test]
fn equal_scores_merge_from_the_left() {
    let tokenizer = Tokenizer::from_gguf(&spm()).unwrap();
    assert_eq!(tokenizer.encode("abab", Specials::AsText, false).unwrap(), [5, 5]);
    assert_eq!(tokenizer.encode("bab", Specials::AsText, true).unwrap(), [1, 6, 4]);
    assert_eq!(tokenizer.encode("aéb", Specials::AsText, false).unwrap(), [3, 0, 0, 4]);
}

#[test]
fn a_merge_cannot_spell_a_control_token_in_text() {
    let mut vocab = bpe();
    vocab.types = Some(vec![1, 1, 1, 1, 3, 1, 3, 4]);
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert_eq!(tokenizer.encode("abc", Specials::Parse, false).unwrap(), [4]);
    let text = tokenizer.encode("xabc", Specials::AsText, false).unwrap();
    assert!(!text.contains(&4), "{text:?}");
    let mut vocab = spm();
    vocab.types = Some(vec![2, 3, 3, 1, 1, 3, 1, 1]);
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert_eq!(tokenizer.encode("ab", Specials::AsText, false).unwrap(), [3, 4]);
}

#[test]
fn f17_short_columns() {
    let mut vocab = spm();
    vocab.scores.as_mut().unwrap().pop();
    assert!(error(&vocab).contains("scores has 7 rows, need 8"));
    vocab.scores = None;
    assert!(error(&vocab).contains("scores has 0 rows, need 8"));
    let mut vocab = bpe();
    vocab.types = Some(vec![1; 7]);
    assert!(error(&vocab).contains("token_type has 7 rows, need 8"));
}

#[test]
fn f17_merges_of_absent_pieces() {
    for (merge, message) in [
        ("a x", "merge 1 needs piece \"x\""),
        ("b a", "merge 1 needs piece \"ba\""),
        ("ab", "merge 1 is \"ab\", need two pieces"),
        ("a ", "merge 1 is \"a \", need two pieces"),
        ("", "merge 1 is \"\", need two pieces"),
        ("é", "merge 1 is \"é\", need two pieces"),
    ] {
        let mut vocab = bpe();
        vocab.merges[1] = merge.into();
        assert!(error(&vocab).contains(message), "{}", error(&vocab));
    }
    let vocab = GgufVocab { merges: Vec::new(), ..bpe() };
    assert!(error(&vocab).contains("merges is empty"));
}

#[test]
fn names_ids_types_and_scores_are_checked() {
    let known = error(&GgufVocab { pre: "tekken".into(), ..bpe() });
    assert!(known.contains("'tekken'") && known.contains("llama-bpe, llama3"), "{known}");
    assert!(error(&GgufVocab { model: "bert".into(), ..bpe() }).contains("'bert'"));
    assert!(error(&GgufVocab { tokens: Vec::new(), ..bpe() }).contains("tokens is empty"));
    assert!(error(&GgufVocab { bos: Some(8), ..bpe() }).contains("bos is token 8"));
    assert!(error(&GgufVocab { add_bos: Some(true), ..bpe() }).contains("BOS"));
    assert!(error(&GgufVocab { add_eos: Some(true), ..bpe() }).contains("EOS"));
    assert!(error(&GgufVocab { types: Some(vec![9; 8]), ..bpe() }).contains("token 0 is 9"));
    let mut vocab = bpe();
    vocab.tokens[2] = "a".into();
    assert!(error(&vocab).contains("both token 0 and token 2"));
    let mut vocab = spm();
    vocab.scores.as_mut().unwrap()[3] = f32::NAN;
    assert!(error(&vocab).contains("token 3 is not a number"));
}

#[test]
fn a_vocabulary_that_cannot_spell_every_byte_needs_an_unknown_token() {
    let mut vocab = spm();
    vocab.types.as_mut().unwrap()[0] = 3;
    assert!(Tokenizer::from_gguf(&vocab).is_ok());
    vocab.unk = None;
    assert!(error(&vocab).contains("no token <0x00>"), "{}", error(&vocab));
}

#[test]
fn empty_pieces_are_gaps() {
    let mut vocab = bpe();
    vocab.tokens.extend([String::new(), String::new()]);
    vocab.types.as_mut().unwrap().extend([5, 3]);
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert_eq!(tokenizer.vocab_len(), 10);
    assert_eq!(tokenizer.token_bytes(9), b"");
    assert_eq!(tokenizer.encode("ab", Specials::Parse, false).unwrap(), [3]);
}

#[test]
fn named_tokens_are_control_even_if_the_file_forgets_it() {
    let mut vocab = bpe();
    vocab.types = None;
    vocab.eos = Some(6);
    let tokenizer = Tokenizer::from_gguf(&vocab).unwrap();
    assert!(tokenizer.is_control(6));
    assert_eq!(tokenizer.end_ids(), [6]);
    assert_eq!(tokenizer.encode("a<|x|>", Specials::Parse, false).unwrap(), [0, 6]);
}

/// A linear congruential generator: the same damage on each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn no_damage_makes_it_panic() {
    let mut dice = Dice(7);
    let words = ["", " ", "a", "ab", "<0x41>", "<0xZZ>", "\u{2581}", "é", "a b", "<|x|>", "Ġ a"];
    let mut accepted = 0;
    for round in 0..1000 {
        let mut vocab = if round % 2 == 0 { bpe() } else { spm() };
        for _ in 0..=dice.below(2) {
            let (word, at) = (words[dice.below(words.len())].to_owned(), dice.below(8));
            match dice.below(8) {
                0 => vocab.tokens[at] = word,
                1 => vocab.merges.push(word),
                2 => vocab.types.as_mut().unwrap()[at] = dice.below(9) as i32 - 1,
                3 => drop(vocab.scores.as_mut().map(|scores| scores[at] = f32::NEG_INFINITY)),
                4 => vocab.bos = Some(dice.below(12) as u32),
                5 => vocab.unk = Some(dice.below(12) as u32),
                6 => vocab.tokens.push(word),
                _ => vocab.model = ["gpt2", "llama"][at % 2].into(),
            }
            vocab.types.as_mut().unwrap().resize(vocab.tokens.len(), 1);
            if let Some(scores) = vocab.scores.as_mut() {
                scores.resize(vocab.tokens.len(), -1.0);
            }
        }
        let Ok(tokenizer) = Tokenizer::from_gguf(&vocab) else { continue };
        for text in ["", "abc ab", "<|x|><t>é", "<0x41>\u{2581}"] {
            let ids = tokenizer.encode(text, Specials::AsText, true).unwrap();
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
            tokenizer.decode(&ids, false);
            tokenizer.encode(text, Specials::Parse, false).unwrap();
        }
        accepted += 1;
    }
    assert!((150..950).contains(&accepted), "{accepted}");
}
