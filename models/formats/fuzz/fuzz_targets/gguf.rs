//! Any bytes are a GGUF file or are refused; what is accepted keeps its promises.
//! `cargo +nightly fuzz run gguf -- -max_total_time=60`
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_formats::{Gguf, Value, check_array_lengths, check_merges};

fuzz_target!(|file: &[u8]| {
    match Gguf::from_bytes(file) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(gguf) => {
            for tensor in gguf.tensors() {
                let range = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
                assert!(file.get(range).is_some());
                assert_eq!(tensor.ty.row_bytes(tensor.elements()), Some(tensor.bytes));
            }
            let metadata = gguf.metadata();
            assert_eq!(metadata.iter().count(), metadata.len());
            for (key, value) in metadata.iter() {
                assert_eq!(metadata.get(key).is_some(), metadata.contains(key));
                check_value(value);
            }
            let _ = check_array_lengths(metadata);
            let _ = check_merges(metadata);
        }
    }
});

fn check_value(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().count(), array.len());
        array.iter().for_each(check_value);
    }
}
