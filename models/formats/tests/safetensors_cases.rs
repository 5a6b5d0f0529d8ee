//! Faults that a safetensors file can have, and the right answer to each.
#![allow(clippy::unwrap_used, reason = "clippy sees no test in the functions that tests share")]

mod support;

use strata_formats::{Safetensors, SafetensorsError as E, TensorType};
use support::safetensors;

fn error(header: &str, data: usize) -> E {
    let error = Safetensors::from_bytes(&safetensors(header, data)).unwrap_err();
    assert!(error.to_string().len() > 10);
    error
}

fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

#[test]
fn a_sound_file_is_read() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[3,2],"data_offsets":[4,16]},
        "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
        "none":{"dtype":"I64","shape":[0,5],"data_offsets":[4,4]}}   "#;
    let bytes = safetensors(header, 16);
    let file = Safetensors::from_bytes(&bytes).unwrap();
    let [b, a, none] = file.tensors() else { panic!("three tensors") };
    assert_eq!(
        (b.name.as_str(), b.ty, &b.dims[..], b.bytes),
        ("b", TensorType::BF16, &[2, 3][..], 12)
    );
    assert_eq!(b.offset, bytes.len() as u64 - 12);
    assert_eq!((a.elements(), a.bytes, none.elements(), none.bytes), (1, 4, 0, 0));
    assert_eq!(file.metadata(), [("format".to_string(), "pt".to_string())]);
    assert_eq!(file.header().len(), bytes.len() - 16);
}

#[test]
fn types_smaller_than_a_byte_are_counted_in_bits() {
    let file = Safetensors::from_bytes(&safetensors(&one("F4", "[3,2]", "[0,3]"), 3)).unwrap();
    assert_eq!(file.tensors()[0].elements(), 6);
    assert!(matches!(error(&one("F4", "[2,3]", "[0,3]"), 3), E::RowElements { .. }));
}

#[test]
fn the_length_of_the_header_is_bounded() {
    assert_eq!(Safetensors::from_bytes(&[0; 7]).unwrap_err(), E::Short { file_bytes: 7 });
    assert_eq!(Safetensors::from_bytes(&[0; 8]).unwrap_err(), E::NotSafetensors);
    let mut file = safetensors("{}", 0);
    file[0] = 3;
    assert_eq!(Safetensors::from_bytes(&file).unwrap_err(), E::HeaderCut { found: 3, left: 2 });
    let found = Safetensors::from_bytes(&[0xff; 16]).unwrap_err();
    assert!(matches!(found, E::HeaderTooLong { found: u64::MAX, .. }));
}

#[test]
fn the_header_is_strict_json() {
    for bad in [
        r#"{"t":"#,
        r#"{"t":{"dtype":"F32","shape":[1]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}}"#,
        r#"{"t":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}}"#,
        r#"{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#,
        r#"{"__metadata__":{"a":1}}"#,
        r#"{"__metadata__":{},"__metadata__":{}}"#,
        r#"{} {}"#,
    ] {
        assert!(matches!(error(bad, 4), E::Header { .. }), "{bad}");
    }
    let deep = format!("{{\"t\":{}", "[".repeat(100_000));
    assert!(matches!(error(&deep, 0), E::Header { .. }));
    assert_eq!(error("[]", 0), E::NotSafetensors);
}

#[test]
fn names_are_unique() {
    let t = r#""t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    assert_eq!(error(&format!("{{{t},{t}}}"), 0), E::DuplicateTensor { name: "t".into() });
    let twice = r#"{"__metadata__":{"k":"1","k":"2"}}"#;
    assert_eq!(error(twice, 0), E::DuplicateKey { key: "k".into() });
}

#[test]
fn type_shape_and_range_agree() {
    let tensor = || "t".to_string();
    let found = error(&one("Q4_K", "[256]", "[0,144]"), 144);
    assert_eq!(found, E::Dtype { tensor: tensor(), found: "Q4_K".into() });
    let found = error(&one("F32", "[2]", "[0,4]"), 4);
    assert!(matches!(found, E::Bytes { found: 4, needed: Some(8), .. }));
    let found = error(&one("F32", "[4294967296,4294967296]", "[0,4]"), 4);
    assert!(matches!(found, E::Bytes { needed: None, .. }));
    assert!(matches!(error(&one("U8", "[1]", "[4,3]"), 8), E::Range { .. }));
    assert!(matches!(error(&one("U8", "[9]", "[0,9]"), 8), E::Range { data_bytes: 8, .. }));
    let found = error(&one("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 8);
    assert!(matches!(found, E::Range { .. }));
    let found = error(&one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1);
    assert_eq!(found, E::Rank { tensor: tensor(), found: 9 });
}

#[test]
fn the_data_is_covered_exactly() {
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{a}}},
                "b":{{"dtype":"U8","shape":[4],"data_offsets":{b}}}}}"#
        )
    };
    let overlap = E::Cover { tensor: "b".into(), begin: 3, needed: 4 };
    assert_eq!(error(&two("[0,4]", "[3,7]"), 7), overlap);
    let gap = E::Cover { tensor: "b".into(), begin: 5, needed: 4 };
    assert_eq!(error(&two("[0,4]", "[5,9]"), 9), gap);
    let same = E::Cover { tensor: "b".into(), begin: 0, needed: 4 };
    assert_eq!(error(&two("[0,4]", "[0,4]"), 4), same);
    assert_eq!(error(&two("[0,4]", "[4,8]"), 9), E::Remainder { covered: 8, data_bytes: 9 });
}
