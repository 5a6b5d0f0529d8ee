//! Sets of files, folders, and one view over both formats.
#![allow(clippy::unwrap_used, reason = "clippy sees no test in the functions that tests share")]

mod support;

use std::fs::{self, File};

use strata_formats::{
    Checkpoint, GgufWriter, Kind, OpenError, TensorType, WriteError, WriteValue, fnv1a_64,
};
use support::*;

/// One part of a split model with a tensor of each name.
fn part(number: u16, count: u16, total: i32, names: &[&str]) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("split.no", WriteValue::U16(number)).unwrap();
    writer.set("split.count", WriteValue::U16(count)).unwrap();
    writer.set("split.tensors.count", WriteValue::I32(total)).unwrap();
    if number == 0 {
        writer.set("general.name", WriteValue::Str("parts".into())).unwrap();
    }
    for name in names {
        writer.declare(name, TensorType::F32, &[2]).unwrap();
    }
    let mut file = Vec::new();
    let fill = |_, sink: &mut dyn std::io::Write| sink.write_all(&[number as u8; 8]);
    writer.write_to("part".as_ref(), &mut file, fill).unwrap();
    file
}

fn split(folder: &Folder) {
    folder.write("m-00001-of-00003.gguf", &part(0, 3, 4, &["a"]));
    folder.write("m-00002-of-00003.gguf", &part(1, 3, 4, &["b", "c"]));
    folder.write("m-00003-of-00003.gguf", &part(2, 3, 4, &["d"]));
}

#[test]
fn a_split_model_is_one_checkpoint() {
    let folder = Folder::new();
    split(&folder);
    for name in ["m-00001-of-00003.gguf", "m-00003-of-00003.gguf", ""] {
        let checkpoint = folder.open(name).unwrap();
        assert_eq!(checkpoint.kind(), Kind::Gguf);
        assert_eq!(checkpoint.files().len(), 3);
        assert_eq!(checkpoint.metadata().unwrap().str("general.name"), Ok(Some("parts")));
        let names: Vec<_> = checkpoint.tensors().map(|t| (t.name.as_str(), t.file)).collect();
        assert_eq!(names, [("a", 0), ("b", 1), ("c", 1), ("d", 2)]);
        let d = checkpoint.tensor("d").unwrap();
        assert_eq!(checkpoint.bytes_of(d), [2; 8]);
        assert_eq!(checkpoint.tensor("e"), None);
        assert_eq!(checkpoint.config_json(), None);
    }
}

/// F14: part 1 is there, others are not.
#[test]
fn missing_parts_are_listed_by_name() {
    let folder = Folder::new();
    split(&folder);
    for missing in ["m-00002-of-00003.gguf", "m-00003-of-00003.gguf"] {
        fs::remove_file(folder.0.join(missing)).unwrap();
    }
    let error = folder.open("m-00001-of-00003.gguf").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("2 of 3 files"), "{text}");
    assert!(text.contains("m-00002-of-00003.gguf, m-00003-of-00003.gguf"), "{text}");
}

#[test]
fn parts_must_be_of_one_set() {
    let folder = Folder::new();
    split(&folder);
    let open = || folder.open("m-00001-of-00003.gguf").unwrap_err();
    folder.write("m-00002-of-00003.gguf", &part(2, 3, 4, &["b", "c"]));
    assert!(matches!(open(), OpenError::ShardNumber { field: "split.no", needed: 1, .. }));
    folder.write("m-00002-of-00003.gguf", &part(1, 4, 4, &["b", "c"]));
    assert!(matches!(open(), OpenError::ShardNumber { field: "split.count", .. }));
    folder.write("m-00002-of-00003.gguf", &sample_gguf());
    assert!(matches!(open(), OpenError::ShardNumber { found: None, .. }));
    folder.write("m-00002-of-00003.gguf", &part(1, 3, 4, &["b"]));
    assert!(matches!(open(), OpenError::ShardTensors { found: 3, needed: 4, .. }));
    folder.write("m-00002-of-00003.gguf", &part(1, 3, 4, &["b", "d"]));
    let error = open();
    assert!(matches!(&error, OpenError::DuplicateTensor { name, .. } if name == "d"), "{error}");
    let lone = folder.write("m.gguf", &part(0, 3, 4, &["a"]));
    let error = Checkpoint::open(lone).unwrap_err();
    assert!(matches!(error, OpenError::ShardName { count: 3, .. }));
    assert!(error.to_string().contains("-00001-of-00003.gguf"), "{error}");
}

fn tensor_json(name: &str, begin: usize) -> String {
    let end = begin + 4;
    format!(r#""{name}":{{"dtype":"U8","shape":[2,2],"data_offsets":[{begin},{end}]}}"#)
}

fn index(map: &[(&str, &str)]) -> String {
    let pairs: Vec<_> = map.iter().map(|(t, file)| format!(r#""{t}":"{file}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, pairs.join(","))
}

const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";
const INDEX: &str = "model.safetensors.index.json";

fn sharded(folder: &Folder) {
    let one = format!("{{{},{}}}", tensor_json("a", 0), tensor_json("b", 4));
    folder.write(ONE, &safetensors(&one, 8));
    folder.write(TWO, &safetensors(&format!("{{{}}}", tensor_json("c", 0)), 4));
}

#[test]
fn sharded_safetensors_with_and_without_an_index() {
    let folder = Folder::new();
    sharded(&folder);
    assert_eq!(folder.open(TWO).unwrap().tensors().len(), 3);
    folder.write(INDEX, index(&[("a", ONE), ("b", ONE), ("c", TWO)]).as_bytes());
    folder.write("config.json", br#"{"model_type":"x"}"#);
    folder.write("tokenizer.json", b"{}");
    for name in ["", ONE, INDEX] {
        let checkpoint = folder.open(name).unwrap();
        assert_eq!((checkpoint.kind(), checkpoint.files().len()), (Kind::Safetensors, 2));
        assert_eq!(checkpoint.tensor("c").unwrap().file, 1);
        assert_eq!(checkpoint.config_json().unwrap()["model_type"], "x");
        assert!(checkpoint.tokenizer_json().unwrap().ends_with("tokenizer.json"));
        assert!(checkpoint.metadata().is_none());
    }
}

#[test]
fn an_index_must_be_true_and_stay_in_its_folder() {
    let folder = Folder::new();
    sharded(&folder);
    let open = |map: &[(&str, &str)]| {
        folder.write(INDEX, index(map).as_bytes());
        folder.open("").unwrap_err()
    };
    let error = open(&[("a", ONE), ("b", TWO), ("c", TWO)]);
    assert!(matches!(&error, OpenError::IndexTensor { tensor, .. } if tensor == "b"), "{error}");
    let error = open(&[("a", ONE), ("z", TWO)]);
    assert!(matches!(&error, OpenError::IndexTensor { tensor, .. } if tensor == "z"), "{error}");
    for file in ["../model.safetensors", "/etc/passwd", "..", "sub/x", "", "c:x"] {
        assert!(matches!(open(&[("a", file)]), OpenError::IndexPath { .. }), "{file}");
    }
    assert!(matches!(open(&[("a", ONE), ("a", TWO)]), OpenError::DuplicateTensor { .. }));
    let error = open(&[("a", ONE), ("c", "gone.safetensors")]);
    assert!(error.to_string().contains("gone.safetensors"), "{error}");
    folder.write(INDEX, b"{}");
    assert!(matches!(folder.open("").unwrap_err(), OpenError::Json { .. }));
}

#[test]
fn folders_hold_one_model() {
    let folder = Folder::new();
    assert!(matches!(folder.open("").unwrap_err(), OpenError::EmptyFolder { .. }));
    assert!(matches!(folder.open("no.gguf").unwrap_err(), OpenError::Io { .. }));
    folder.write("a.gguf", &sample_gguf());
    assert_eq!(folder.open("").unwrap().tensors().len(), 4);
    folder.write("b.gguf", &sample_gguf());
    let error = folder.open("").unwrap_err();
    assert!(error.to_string().contains("a.gguf, b.gguf"), "{error}");
}

#[test]
fn files_without_an_ending_are_known_by_their_first_bytes() {
    let folder = Folder::new();
    folder.write("blob1", &sample_gguf());
    folder.write("blob2", &safetensors(&format!("{{{}}}", tensor_json("a", 0)), 4));
    folder.write("blob3", b"something else");
    folder.write("blob4", b"");
    assert_eq!(folder.open("blob1").unwrap().kind(), Kind::Gguf);
    assert_eq!(folder.open("blob2").unwrap().kind(), Kind::Safetensors);
    for name in ["blob3", "blob4"] {
        assert!(matches!(folder.open(name).unwrap_err(), OpenError::UnknownKind { .. }));
    }
    folder.write("empty.gguf", b"");
    assert!(matches!(folder.open("empty.gguf").unwrap_err(), OpenError::Gguf { .. }));
}

#[test]
fn the_hash_is_of_the_header_only() {
    let folder = Folder::new();
    let mut bytes = sample_gguf();
    let hash_of = |bytes: &[u8]| {
        folder.write("a.gguf", bytes);
        let checkpoint = folder.open("a.gguf").unwrap();
        assert_eq!(checkpoint.files()[0].bytes, bytes.len() as u64);
        checkpoint.files()[0].header_hash
    };
    let before = hash_of(&bytes);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert_eq!(hash_of(&bytes), before);
    let at = bytes.windows(5).position(|w| w == b"llama").unwrap();
    bytes[at] = b'm';
    assert_ne!(hash_of(&bytes), before);

    let text = format!("{{{}}}", tensor_json("a", 0));
    folder.write("b.safetensors", &safetensors(&text, 4));
    let checkpoint = folder.open("b.safetensors").unwrap();
    assert_eq!(checkpoint.files()[0].header_hash, fnv1a_64(&safetensors(&text, 0)));
}

/// F11: sizes beyond 32 bits are kept, not cut. The file is sparse and takes no room.
#[test]
fn sizes_are_64_bits_wide() {
    let folder = Folder::new();
    let dims = [65_536u64, 65_537];
    let header = Raw::new(1, 0).tensor("t", &dims, TensorType::I8.ggml_id().unwrap(), 0).data(0);
    let path = folder.write("big.gguf", &header.0);
    let bytes = dims[0] * dims[1];
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(header.0.len() as u64 + bytes).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensor = checkpoint.tensor("t").unwrap();
    assert_eq!((tensor.bytes, tensor.elements()), (4_295_032_832, 4_295_032_832));
    assert_eq!(checkpoint.bytes_of(tensor).len() as u64, bytes);
    assert_eq!(checkpoint.bytes_at(0, tensor.offset + 1, bytes), None);
    assert_eq!(checkpoint.bytes_at(0, u64::MAX, 2), None);
    file.set_len(header.0.len() as u64 + bytes - 1).unwrap();
    assert!(matches!(Checkpoint::open(&path).unwrap_err(), OpenError::Gguf { .. }));
}

#[test]
fn the_writer_refuses_what_a_reader_would() {
    let mut writer = GgufWriter::new();
    writer.set("k", WriteValue::U32(1)).unwrap();
    for key in ["", "k", "general.alignment"] {
        assert!(matches!(writer.set(key, WriteValue::U32(1)), Err(WriteError::Key { .. })));
    }
    let mixed = WriteValue::Array(strata_formats::ValueType::U8, vec![WriteValue::U32(1)]);
    assert!(matches!(writer.set("m", mixed), Err(WriteError::Array { .. })));
    writer.declare("t", TensorType::F32, &[2]).unwrap();
    assert!(matches!(writer.declare("t", TensorType::F32, &[2]), Err(WriteError::Name { .. })));
    for (ty, dims) in [
        (TensorType::Q4_K, &[255u64][..]),
        (TensorType::U8, &[4]),
        (TensorType::F32, &[1, 1, 1, 1, 1]),
        (TensorType::F32, &[1 << 62, 4]),
    ] {
        assert!(matches!(writer.declare("x", ty, dims), Err(WriteError::Shape { .. })), "{dims:?}");
    }
}

#[test]
fn a_file_that_fails_leaves_nothing_behind() {
    let folder = Folder::new();
    let mut writer = GgufWriter::new();
    writer.declare("t", TensorType::F32, &[2]).unwrap();
    let path = folder.0.join("out.gguf");
    let found = writer.write_file(&path, |_, sink| sink.write_all(&[1; 7])).unwrap_err();
    assert!(matches!(found, WriteError::Bytes { found: 7, needed: 8, .. }));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    writer.write_file(&path, |_, sink| sink.write_all(&[1; 8])).unwrap();
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.bytes_of(checkpoint.tensor("t").unwrap()), [1; 8]);
}
