//! Faults that GGUF files have been seen with in the field, and the right answer to each.
#![allow(clippy::unwrap_used, reason = "clippy sees no test in the functions that tests share")]

mod support;

use strata_formats::{
    Gguf, GgufError, KeyError, Metadata, TensorType, TokenizerFault, Value, ValueType,
    check_array_lengths, check_merges,
};
use support::*;

fn error(raw: Raw) -> GgufError {
    let error = Gguf::from_bytes(&raw.0).unwrap_err();
    let text = error.to_string();
    assert!(text.len() > 10 && !text.contains('\n'), "{text}");
    error
}

#[test]
fn every_kind_of_value_reads_back() {
    let gguf = Gguf::from_bytes(&sample_gguf()).unwrap();
    let m = gguf.metadata();
    assert_eq!(gguf.version(), 3);
    assert_eq!(m.len(), 19);
    assert_eq!(m.keys().nth(1), Some("a.u8"));
    assert_eq!(m.str("general.architecture"), Ok(Some("llama")));
    assert_eq!(m.u32("a.u8"), Ok(Some(200)));
    assert_eq!(m.i64("a.i8"), Ok(Some(-3)));
    assert_eq!(m.u32("a.u16"), Ok(Some(60_000)));
    assert_eq!(m.i64("a.i16"), Ok(Some(-300)));
    assert_eq!(m.u32("a.u32"), Ok(Some(4_000_000_000)));
    assert_eq!(m.i64("a.i32"), Ok(Some(-70_000)));
    assert_eq!(m.u64("a.u64"), Ok(Some(1 << 63)));
    assert_eq!(m.i64("a.i64"), Ok(Some(-1 << 62)));
    assert_eq!(m.f32("a.f32"), Ok(Some(0.5)));
    assert_eq!(m.f32("a.f64"), Ok(Some(1e-6)));
    assert_eq!(m.f32("a.u8"), Ok(Some(200.0)));
    assert_eq!(m.bool("a.bool"), Ok(Some(true)));
    assert_eq!(m.strs("a.texts"), Ok(Some(vec!["a", "", "\u{1f600}"])));
    assert_eq!(m.u32s("a.u32s"), Ok(Some(vec![1, 2, 3])));
    assert_eq!(m.u64s("a.bytes"), Ok(Some(vec![7, 8])));
    assert_eq!(m.f32s("a.f32s"), Ok(Some(vec![0.25, -1.0])));
    assert_eq!(m.bools("a.bools"), Ok(Some(vec![false, true])));
    assert_eq!(m.array("a.bytes").unwrap().unwrap().u8_slice(), Some(&[7, 8][..]));
    assert!(m.array("a.empty").unwrap().unwrap().is_empty());
    let nested = m.array("a.nested").unwrap().unwrap();
    let Some(Value::Array(second)) = nested.iter().nth(1) else { panic!("an array") };
    assert_eq!(second.element_type(), ValueType::Str);
    assert_eq!(second.strs().unwrap().collect::<Vec<_>>(), ["x"]);
}

#[test]
fn a_getter_says_what_it_found() {
    let gguf = Gguf::from_bytes(&sample_gguf()).unwrap();
    let m = gguf.metadata();
    let key = || "a.texts".to_string();
    let found = "array of text".to_string();
    assert_eq!(m.u32("a.texts"), Err(KeyError::Type { key: key(), found, needed: "u32" }));
    let fit = KeyError::Fit { key: "a.i8".into(), found: "-3".into(), needed: "u32" };
    assert_eq!(m.u32("a.i8"), Err(fit));
    assert!(matches!(m.u32("a.u64"), Err(KeyError::Fit { .. })));
    assert!(matches!(m.u32("a.bool"), Err(KeyError::Type { .. })));
    assert!(matches!(m.f32s("a.texts"), Err(KeyError::Type { .. })));
    let missing = KeyError::Missing { key: "no".into() };
    assert_eq!(m.required("no", Metadata::u32), Err(missing));
    assert_eq!(m.required("a.u8", Metadata::u32), Ok(200));
}

/// F13: a key that is only described in the format is not needed.
#[test]
fn optional_keys_stay_optional() {
    let gguf = Gguf::from_bytes(&Raw::new(0, 0).0).unwrap();
    assert_eq!(gguf.metadata().str("general.description"), Ok(None));
    assert_eq!(gguf.metadata().u32s("general.description"), Ok(None));
    assert!(gguf.metadata().is_empty() && gguf.tensors().is_empty());
}

#[test]
fn tensors_have_types_dims_and_ranges() {
    let file = sample_gguf();
    let gguf = Gguf::from_bytes(&file).unwrap();
    let t = &gguf.tensors()[2];
    assert_eq!((t.name.as_str(), t.ty), ("blk.0.ffn_up.weight", TensorType::Q4_K));
    assert_eq!((&t.dims[..], t.bytes, t.elements()), (&[256, 2, 2][..], 576, 1024));
    assert_eq!(t.offset % 32, 0);
    let range = t.offset as usize..(t.offset + t.bytes) as usize;
    assert!(file[range].iter().all(|&byte| byte == 3));
    assert_eq!((gguf.tensors()[3].bytes, gguf.tensors()[3].elements()), (4, 1));
}

#[test]
fn version_2_is_read_and_others_are_refused() {
    let file = Raw::version(2, 0, 1).key("k", U32, &7u32.to_le_bytes());
    assert_eq!(Gguf::from_bytes(&file.0).unwrap().metadata().u32("k"), Ok(Some(7)));
    for found in [0, 1, 4, u32::MAX] {
        assert_eq!(error(Raw::version(found, 0, 0)), GgufError::Version { found });
    }
    assert_eq!(error(Raw::version(3u32.swap_bytes(), 0, 0)), GgufError::BigEndian);
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let text = error(Raw(b"version https://git-lfs".to_vec())).to_string();
    assert!(text.contains("Git LFS"), "{text}");
    let text = error(Raw(b"<!DOCTYPE html>".to_vec())).to_string();
    assert!(text.contains("web page"), "{text}");
    assert!(matches!(error(Raw(vec![])), GgufError::NotGguf { .. }));
}

/// F1: 37 bytes, one key of length 0.
#[test]
fn an_empty_key_is_refused_with_its_index() {
    let raw = Raw::new(0, 1).key("", U8, &[1]);
    assert_eq!(raw.0.len(), 37);
    assert_eq!(error(raw), GgufError::EmptyKey { index: 0 });
    let raw = Raw::new(0, 2).key("a", U8, &[1]).key("", U8, &[1]);
    assert_eq!(error(raw), GgufError::EmptyKey { index: 1 });
    assert_eq!(GgufError::EmptyKey { index: 1 }.to_string(), "metadata key 1 is empty");
}

/// F2: more dimensions than the format has.
#[test]
fn more_than_four_dimensions_are_refused() {
    for rank in [5usize, 9] {
        let raw = Raw::new(1, 0).tensor("t", &vec![1; rank], 0, 0).data(64);
        assert_eq!(error(raw), GgufError::Rank { tensor: "t".into(), found: rank as u32 });
    }
    let raw = Raw::new(1, 0).text("t").bytes(&u32::MAX.to_le_bytes()).data(64);
    assert_eq!(error(raw), GgufError::Rank { tensor: "t".into(), found: u32::MAX });
}

/// F3: a product that wraps to four bytes.
#[test]
fn dimensions_whose_product_wraps_are_refused() {
    for dims in [[u64::MAX, 2, 1, 1], [1 << 32, 1 << 32, 1, 1], [0, u64::MAX, u64::MAX, 1]] {
        let raw = Raw::new(1, 0).tensor("t", &dims, 0, 0).data(64);
        let (tensor, ty, dims) = ("t".into(), TensorType::F32, dims.to_vec());
        assert_eq!(error(raw), GgufError::TensorBytes { tensor, ty, dims });
    }
}

/// F4: one dimension patched to 2^42 + 1, in a file that is otherwise sound.
#[test]
fn a_patched_dimension_is_refused_with_the_tensor() {
    let mut file = sample_gguf();
    let name = b"token_embd.weight";
    let at = file.windows(name.len()).position(|window| window == name).unwrap() + name.len();
    let second = at + 4 + 8;
    assert_eq!(file[second], 3);
    file[second..second + 8].copy_from_slice(&((1u64 << 42) + 1).to_le_bytes());
    let error = error(Raw(file));
    assert!(matches!(&error, GgufError::Range { tensor, .. } if tensor == "token_embd.weight"));
    assert!(error.to_string().contains("`token_embd.weight`"));
}

/// F6: a text of 1 GiB in a small file; counts that the file has no room for.
#[test]
fn lengths_and_counts_are_bounded_by_the_file() {
    let raw = Raw::new(0, 1).text("k").bytes(&STR.to_le_bytes()).bytes(&(1u64 << 30).to_le_bytes());
    assert!(matches!(error(raw), GgufError::Truncated { needed: 0x4000_0000, left: 0, .. }));
    let raw = Raw::new(0, 1).key("k", ARRAY, &array(STR, 1 << 40, &[0; 100]));
    let found = error(raw);
    assert!(matches!(found, GgufError::Count { most: 12, .. }));
    assert!(found.to_string().contains("value of `k`"), "{found}");
    let raw = Raw::new(0, 1).key("k", ARRAY, &array(U64, u64::MAX / 2, &[0; 16]));
    assert!(matches!(error(raw), GgufError::Count { most: 2, .. }));
    let raw = Raw::new(0, u64::MAX).data(100);
    assert!(matches!(error(raw), GgufError::Count { found: u64::MAX, .. }));
    let raw = Raw::new(u64::MAX, 0).data(100);
    assert!(matches!(error(raw), GgufError::Count { what: "tensors", .. }));
}

/// F6 and F7: alignment.
#[test]
fn alignment_is_a_bounded_power_of_two_of_type_u32() {
    let with = |ty, value: &[u8]| Raw::new(0, 1).key("general.alignment", ty, value);
    for found in [0, 3, 33, 1 << 30, 1 << 31, u32::MAX] {
        assert_eq!(error(with(U32, &found.to_le_bytes())), GgufError::Alignment { found });
    }
    let found = error(with(I32, &32i32.to_le_bytes()));
    assert_eq!(found, GgufError::AlignmentType { found: "i32" });
    let found = error(with(U64, &32u64.to_le_bytes()));
    assert_eq!(found, GgufError::AlignmentType { found: "u64" });

    let raw =
        Raw::new(1, 1).key("general.alignment", U32, &64u32.to_le_bytes()).tensor("t", &[1], 0, 64);
    let mut file = raw.0;
    file.resize(file.len().next_multiple_of(64) + 68, 0);
    let gguf = Gguf::from_bytes(&file).unwrap();
    assert_eq!(gguf.tensors()[0].offset, file.len() as u64 - 4);
}

/// F7: an offset near 2^64, to which the beginning of the data is added.
#[test]
fn offsets_do_not_wrap() {
    let raw = Raw::new(1, 0).tensor("t", &[1], 0, u64::MAX - 31).data(64);
    assert!(matches!(error(raw), GgufError::Range { .. }));
    let raw = Raw::new(1, 0).tensor("t", &[1], 0, 4).data(64);
    let tensor = "t".to_string();
    assert_eq!(error(raw), GgufError::Offset { tensor, found: 4, alignment: 32 });
}

/// F10: a tensor that ends one byte behind the file.
#[test]
fn every_range_lies_in_the_file() {
    let make = |data| Raw::new(2, 0).tensor("a", &[8], 0, 0).tensor("b", &[9], 0, 32).data(data);
    assert!(Gguf::from_bytes(&make(68).0).is_ok());
    let text = error(make(67)).to_string();
    assert!(text.contains("`b` needs 36 bytes"), "{text}");
}

/// F12: the same key twice; the same tensor twice.
#[test]
fn names_are_unique() {
    let raw = Raw::new(0, 3).key("k", U8, &[1]).key("j", U8, &[1]).key("k", U8, &[2]);
    assert_eq!(error(raw), GgufError::DuplicateKey { key: "k".into() });
    let raw = Raw::new(2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(64);
    assert_eq!(error(raw), GgufError::DuplicateTensor { name: "t".into() });
    let raw = Raw::new(1, 0).tensor("", &[1], 0, 0).data(64);
    assert_eq!(error(raw), GgufError::EmptyTensorName { index: 0 });
}

#[test]
fn values_are_what_their_type_allows() {
    let bad = |ty, value: &[u8]| error(Raw::new(0, 1).key("k", ty, value));
    let place = || "value of `k`".to_string();
    assert_eq!(bad(13, &[0; 8]), GgufError::ValueType { place: place(), found: 13 });
    assert_eq!(bad(BOOL, &[2]), GgufError::Bool { place: place(), found: 2 });
    assert_eq!(bad(ARRAY, &array(BOOL, 2, &[1, 9])), GgufError::Bool { place: place(), found: 9 });
    let text = [2u64.to_le_bytes().as_slice(), &[b'a', 0xff]].concat();
    let at = Raw::new(0, 1).key("k", STR, &[0; 8]).0.len() as u64 + 1;
    assert_eq!(bad(STR, &text), GgufError::NotUtf8 { place: place(), at });
}

#[test]
fn arrays_are_not_nested_without_end() {
    let nest =
        |levels: usize| (1..levels).fold(array(U8, 1, &[5]), |inner, _| array(ARRAY, 1, &inner));
    let file = Raw::new(0, 1).key("k", ARRAY, &nest(4));
    assert!(Gguf::from_bytes(&file.0).is_ok());
    for levels in [5, 100_000] {
        let mut value = array(ARRAY, 1, &[]).repeat(levels - 1);
        value.extend(array(U8, 1, &[5]));
        let found = error(Raw::new(0, 1).key("k", ARRAY, &value));
        assert_eq!(found, GgufError::ArrayDepth { place: "value of `k`".into() });
    }
}

#[test]
fn types_are_known_and_rows_are_whole_blocks() {
    let with = |dims: &[u64], ty| error(Raw::new(1, 0).tensor("t", dims, ty, 0).data(4096));
    let text = with(&[32], 4).to_string();
    assert!(text.contains("Q4_2"), "{text}");
    assert_eq!(with(&[32], 999), GgufError::TensorType { tensor: "t".into(), found: 999 });
    let (tensor, ty) = ("t".to_string(), TensorType::Q4_K);
    assert_eq!(with(&[128, 2], 12), GgufError::RowElements { tensor, ty, found: 128 });
}

/// F17: arrays of the tokenizer that do not fit each other.
#[test]
fn tokenizer_arrays_must_agree() {
    let texts = |texts: &[&str]| {
        let bytes = texts.iter().fold(Raw(vec![]), |raw, text| raw.text(text)).0;
        array(STR, texts.len() as u64, &bytes)
    };
    let tokens = |scores: &[f32], merges: &[&str]| {
        let scores_bytes: Vec<u8> = scores.iter().flat_map(|score| score.to_le_bytes()).collect();
        let raw = Raw::new(0, 3)
            .key("tokenizer.ggml.tokens", ARRAY, &texts(&["a", "b", "ab"]))
            .key("tokenizer.ggml.scores", ARRAY, &array(F32, scores.len() as u64, &scores_bytes))
            .key("tokenizer.ggml.merges", ARRAY, &texts(merges));
        Gguf::from_bytes(&raw.0).unwrap()
    };
    let good = tokens(&[0.0; 3], &["a b"]);
    assert_eq!(check_array_lengths(good.metadata()), Ok(()));
    assert_eq!(check_merges(good.metadata()), Ok(()));
    let key = "tokenizer.ggml.scores";
    let short = TokenizerFault::Length { key, found: 2, tokens: 3 };
    assert_eq!(check_array_lengths(tokens(&[0.0; 2], &[]).metadata()), Err(short));
    let form = TokenizerFault::MergeForm { index: 1, merge: "ab".into() };
    assert_eq!(check_merges(tokens(&[], &["a b", "ab"]).metadata()), Err(form));
    for (merge, piece) in [("a c", "c"), ("b a", "ba")] {
        let (merge, piece) = (merge.to_string(), piece.to_string());
        let fault = TokenizerFault::MergePiece { index: 0, merge: merge.clone(), piece };
        assert_eq!(check_merges(tokens(&[], &[&merge]).metadata()), Err(fault));
    }
}
