//! Fixtures: golden encodings, vocabularies, and a reader for the metadata of real GGUF files.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a broken fixture is to fail the test")]

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use strata_text::{GgufVocab, Specials, Tokenizer};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(name)).unwrap()).unwrap()
}

/// A file of `make models`, or `None` with the reason printed.
pub fn model_file(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model-files").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: model-files/{name} is absent, run `make models`");
    None
}

pub fn nano() -> Tokenizer {
    Tokenizer::from_file(&fixture("nano_tokenizer.json")).unwrap()
}

/// The vocabulary of the nano model as its GGUF file carries it.
pub fn nano_gguf() -> GgufVocab {
    let file = json("nano_tokenizer.json");
    let mut names: HashMap<u64, &str> = HashMap::new();
    for (name, id) in file["model"]["vocab"].as_object().unwrap() {
        names.insert(id.as_u64().unwrap(), name);
    }
    let mut types = vec![1; 4096];
    for token in file["added_tokens"].as_array().unwrap() {
        let id = token["id"].as_u64().unwrap();
        names.insert(id, token["content"].as_str().unwrap());
        types[id as usize] = if token["special"] == true { 3 } else { 4 };
    }
    let merges = file["model"]["merges"].as_array().unwrap().iter().map(|merge| match merge {
        Value::String(text) => text.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    GgufVocab {
        model: "gpt2".into(),
        pre: "qwen35".into(),
        tokens: (0..4096).map(|id| names[&id].to_owned()).collect(),
        types: Some(types),
        merges: merges.collect(),
        eos: Some(4089),
        pad: Some(4087),
        add_bos: Some(false),
        ..GgufVocab::default()
    }
}

/// The small score-driven vocabulary.
pub fn spm_gguf(space_prefix: bool) -> GgufVocab {
    let file = json("spm_vocab.json");
    let column = |name: &str| file[name].as_array().unwrap().clone();
    GgufVocab {
        model: "llama".into(),
        tokens: column("tokens").iter().map(|v| v.as_str().unwrap().to_owned()).collect(),
        scores: Some(column("scores").iter().map(|v| v.as_f64().unwrap() as f32).collect()),
        types: Some(column("types").iter().map(|v| v.as_i64().unwrap() as i32).collect()),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_bos: Some(true),
        add_space_prefix: Some(space_prefix),
        ..GgufVocab::default()
    }
}

/// Compares with golden rows `{text, specials, ids}`; `known` may leave rows out.
pub fn check_golden(tokenizer: &Tokenizer, rows: &Value, known: impl Fn(&Value) -> bool) -> usize {
    let mut checked = 0;
    for row in rows.as_array().unwrap().iter().filter(|row| known(row)) {
        let text = row["text"].as_str().unwrap();
        let specials = if row["specials"] == "parse" { Specials::Parse } else { Specials::AsText };
        let expected: Vec<u32> =
            row["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let found = tokenizer.encode(text, specials, false).unwrap();
        assert_eq!(found, expected, "{text:?} {specials:?}");
        checked += 1;
    }
    checked
}

/// Reads the `tokenizer.*` keys of a GGUF v3 file that is known to be good.
pub fn gguf_vocab(path: &Path) -> (GgufVocab, Option<String>) {
    let mut bytes = Vec::new();
    // The metadata comes first and is far smaller than this in all files of the tests.
    std::io::Read::read_to_end(
        &mut std::io::Read::take(fs::File::open(path).unwrap(), 32 << 20),
        &mut bytes,
    )
    .unwrap();
    let mut reader = Reader { bytes: &bytes[16..] };
    let mut keys: HashMap<String, Value> = HashMap::new();
    for _ in 0..reader.u64() {
        let key = reader.string();
        let kind = reader.u32();
        let value = reader.value(kind);
        keys.insert(key, value);
    }
    let take = |name: &str| keys.get(&format!("tokenizer.ggml.{name}")).cloned();
    let list = |name: &str| take(name).and_then(|v| v.as_array().cloned());
    let id = |name: &str| take(name).and_then(|v| v.as_u64()).map(|v| v as u32);
    let flag = |name: &str| take(name).and_then(|v| v.as_bool());
    let text = |name: &str| take(name).and_then(|v| v.as_str().map(str::to_owned));
    let texts = |name: &str| {
        list(name).unwrap_or_default().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let vocab = GgufVocab {
        model: text("model").unwrap(),
        pre: text("pre").unwrap_or_default(),
        tokens: texts("tokens"),
        scores: list("scores").map(|l| l.iter().map(|v| v.as_f64().unwrap() as f32).collect()),
        types: list("token_type").map(|l| l.iter().map(|v| v.as_i64().unwrap() as i32).collect()),
        merges: texts("merges"),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unk: id("unknown_token_id"),
        pad: id("padding_token_id"),
        eot: id("eot_token_id"),
        add_bos: flag("add_bos_token"),
        add_eos: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
    };
    let template = keys.get("tokenizer.chat_template").and_then(|v| v.as_str().map(str::to_owned));
    (vocab, template)
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.bytes.split_first_chunk().unwrap();
        self.bytes = rest;
        *head
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn string(&mut self) -> String {
        let len = self.u64() as usize;
        let (text, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            0 => u8::from_le_bytes(self.take()).into(),
            1 => i8::from_le_bytes(self.take()).into(),
            2 => u16::from_le_bytes(self.take()).into(),
            3 => i16::from_le_bytes(self.take()).into(),
            4 => self.u32().into(),
            5 => i32::from_le_bytes(self.take()).into(),
            6 => f32::from_le_bytes(self.take()).into(),
            7 => (self.take::<1>()[0] != 0).into(),
            8 => self.string().into(),
            9 => {
                let row_kind = self.u32();
                (0..self.u64()).map(|_| self.value(row_kind)).collect()
            }
            10 => self.u64().into(),
            11 => i64::from_le_bytes(self.take()).into(),
            12 => f64::from_le_bytes(self.take()).into(),
            _ => panic!("GGUF value type {kind}"),
        }
    }
}
