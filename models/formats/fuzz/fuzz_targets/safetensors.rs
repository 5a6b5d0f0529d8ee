//! Any bytes are a safetensors file or are refused; what is accepted keeps its promises.
//! `cargo +nightly fuzz run safetensors -- -max_total_time=60`
#![no_main]

use libfuzzer_sys::fuzz_target;
use strata_formats::Safetensors;

fuzz_target!(|file: &[u8]| {
    match Safetensors::from_bytes(file) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(read) => {
            let mut bytes = read.header().len() as u64;
            for tensor in read.tensors() {
                let range = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
                assert!(file.get(range).is_some());
                assert_eq!(tensor.ty.row_bytes(tensor.elements()), Some(tensor.bytes));
                bytes += tensor.bytes;
            }
            assert_eq!(bytes, file.len() as u64);
        }
    }
});
