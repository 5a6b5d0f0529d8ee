//! Encodings against golden ids of the reference implementations: `tokenizers` 0.22.2 for
//! `tokenizer.json`, llama.cpp b12032 for GGUF vocabularies. Texts that are not in Unicode form C
//! were normalized before llama.cpp saw them where the model was trained that way (qwen2).
#![allow(clippy::unwrap_used, reason = "a broken fixture is to fail the test")]

mod common;

use common::{check_golden, fixture, gguf_vocab, json, model_file, nano, nano_gguf, spm_gguf};
use strata_text::{Detokenizer, Specials, Tokenizer};

#[test]
fn nano_from_json() {
    assert_eq!(check_golden(&nano(), &json("nano.json"), |_| true), 27);
}

#[test]
fn nano_from_gguf_gives_the_same_ids() {
    let tokenizer = Tokenizer::from_gguf(&nano_gguf()).unwrap();
    assert_eq!(check_golden(&tokenizer, &json("nano.json"), |_| true), 27);
    assert_eq!(tokenizer.end_ids(), [4087, 4089]);
    assert_eq!(tokenizer.vocab_len(), 4096);
    let from_file = nano();
    for id in 0..4096 {
        assert_eq!(tokenizer.token_bytes(id), from_file.token_bytes(id), "token {id}");
        assert_eq!(tokenizer.is_control(id), from_file.is_control(id), "token {id}");
    }
}

#[test]
fn spm_with_and_without_space_prefix() {
    for prefix in [true, false] {
        let tokenizer = Tokenizer::from_gguf(&spm_gguf(prefix)).unwrap();
        let rows = json("gguf_spm.json");
        let checked = check_golden(&tokenizer, &rows, |row| row["space_prefix"] == prefix);
        assert_eq!(checked, 30);
    }
}

#[test]
fn real_json_files() {
    for (name, golden) in
        [("qwen3", "qwen3.json"), ("llama3", "llama3.json"), ("gemma3", "gemma3.json")]
    {
        let Some(path) = model_file(&format!("tokenizers/{name}/tokenizer.json")) else { continue };
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        assert!(check_golden(&tokenizer, &json(golden), |_| true) > 20);
        check_round_trips(&tokenizer, &json(golden));
        // This copy of Llama 3 leaves BOS to its template.
        assert_eq!(tokenizer.adds_bos(), name == "gemma3");
    }
}

#[test]
fn real_gguf_files() {
    for (name, golden) in [
        ("SmolLM2-135M-Instruct-Q4_1.gguf", "gguf_smollm2.json"),
        ("gemma-3-270m-Q4_K_M.gguf", "gguf_gemma3.json"),
        ("qwen2.5-coder-0.5b-instruct-Q4_K_M.gguf", "gguf_qwen2.json"),
    ] {
        let Some(path) = model_file(name) else { continue };
        let tokenizer = Tokenizer::from_gguf(&gguf_vocab(&path).0).unwrap();
        // The fixtures of Gemma and Qwen have no `</s>`: it is HTML there, but llama.cpp takes it
        // for an end token by its name.
        assert!(check_golden(&tokenizer, &json(golden), |_| true) > 20);
        check_round_trips(&tokenizer, &json(golden));
    }
}

#[test]
fn round_trips_of_small_vocabularies() {
    check_round_trips(&nano(), &json("nano.json"));
    let spm = Tokenizer::from_gguf(&spm_gguf(false)).unwrap();
    check_round_trips(&spm, &json("nano.json"));
    // With a space prefix, text behind an added token gains a space, as in the reference.
    let prefixed = Tokenizer::from_gguf(&spm_gguf(true)).unwrap();
    let mut rows = json("nano.json");
    rows.as_array_mut().unwrap().retain(|row| !row["text"].as_str().unwrap().contains('<'));
    assert!(rows.as_array().unwrap().len() > 15);
    check_round_trips(&prefixed, &rows);
}

/// What was encoded decodes to itself (up to form C), whole and as a stream.
fn check_round_trips(tokenizer: &Tokenizer, rows: &serde_json::Value) {
    // Not in form C, or U+2581 itself, which SentencePiece cannot tell from a space.
    let changes = |text: &str| text.contains(['\u{301}', '\u{303}', '\u{308}', '\u{212b}', '▁']);
    for row in rows.as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        if changes(text) {
            continue;
        }
        for specials in [Specials::Parse, Specials::AsText] {
            let ids = tokenizer.encode(text, specials, true).unwrap();
            let decoded = tokenizer.decode(&ids, false);
            if specials == Specials::AsText {
                assert_eq!(tokenizer.decode(&ids, true), text);
                assert!(
                    !ids[usize::from(tokenizer.adds_bos())..]
                        .iter()
                        .any(|&id| tokenizer.is_control(id))
                );
            }
            let mut stream = Detokenizer::new(tokenizer, false);
            let mut streamed: String =
                ids.iter().filter_map(|&id| stream.push(id).map(str::to_owned)).collect();
            streamed.extend(stream.flush());
            assert_eq!(streamed, decoded);
        }
    }
}

#[test]
fn k1_and_k7_added_tokens_are_cut_before_the_pre_tokenizer() {
    let tokenizer = nano();
    let ids = tokenizer.encode("X.<|im_end|>", Specials::Parse, false).unwrap();
    assert_eq!((ids.len(), ids[2]), (3, 4089));
    let ids = tokenizer.encode("<|im_start|>system", Specials::Parse, false).unwrap();
    assert_eq!(ids[0], 4088);
}

#[test]
fn k3_user_defined_tokens_are_one_id_each() {
    let tokenizer = Tokenizer::from_gguf(&nano_gguf()).unwrap();
    for specials in [Specials::Parse, Specials::AsText] {
        assert_eq!(tokenizer.encode("<think></think>", specials, false).unwrap(), [4090, 4091]);
    }
    assert_eq!(tokenizer.vocab_len(), 4096);
}

#[test]
fn k5_no_space_prefix_is_lost_or_doubled_after_a_special() {
    let rows = json("gguf_spm.json");
    let tokenizer = Tokenizer::from_gguf(&spm_gguf(true)).unwrap();
    let checked =
        check_golden(&tokenizer, &rows, |row| row["text"] == "<s>G" && row["space_prefix"] == true);
    assert_eq!(checked, 2);
}

#[test]
fn k8_huge_texts() {
    let tokenizer = nano();
    let spm = Tokenizer::from_gguf(&spm_gguf(true)).unwrap();
    for text in [" ".repeat(400_000), "a".repeat(400_000), "\n \t".repeat(100_000)] {
        for tokenizer in [&tokenizer, &spm] {
            let ids = tokenizer.encode(&text, Specials::AsText, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), text);
        }
    }
}

/// Each part of the file in turn is replaced by what does not belong there.
#[test]
fn no_damage_of_a_tokenizer_json_makes_it_panic() {
    let dir = std::env::temp_dir().join(format!("strata-text-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("tokenizer.json");
    let good = json("nano_tokenizer.json");
    let pointers = [
        "/added_tokens",
        "/added_tokens/0/id",
        "/added_tokens/1/content",
        "/normalizer/type",
        "/pre_tokenizer/pretokenizers/0/pattern/Regex",
        "/pre_tokenizer/pretokenizers/0/behavior",
        "/decoder",
        "/decoder/type",
        "/model/type",
        "/model/vocab",
        "/model/vocab/!",
        "/model/merges",
        "/model/merges/0",
        "/model/unk_token",
        "/post_processor",
    ];
    let wrong = [
        serde_json::json!(null),
        serde_json::json!(0),
        serde_json::json!(-1),
        serde_json::json!(4_294_967_295u32),
        serde_json::json!("(unclosed ["),
        serde_json::json!([]),
        serde_json::json!({}),
        serde_json::json!([{"id": 5, "content": "x", "special": true}]),
    ];
    let mut refused = 0;
    for pointer in pointers {
        for value in &wrong {
            let mut file = good.clone();
            *file.pointer_mut(pointer).unwrap() = value.clone();
            std::fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
            match Tokenizer::from_file(&path) {
                Ok(tokenizer) => {
                    let _ids = tokenizer.encode("a <|im_end|> é", Specials::Parse, true);
                }
                Err(error) => refused += usize::from(error.to_string().contains("tokenizer.json")),
            }
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(refused > 60, "{refused}");
}

#[test]
fn a_missing_or_damaged_file_is_an_error() {
    let absent = Tokenizer::from_file(&fixture("absent.json")).err().unwrap().to_string();
    assert!(absent.contains("absent.json"), "{absent}");
    let damaged = Tokenizer::from_file(&fixture("nano_template.jinja")).err().unwrap().to_string();
    assert!(damaged.contains("nano_template.jinja"), "{damaged}");
}
