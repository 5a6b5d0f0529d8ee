//! Thousands of damaged files: each is read or refused, none makes a reader panic, and what is read
//! keeps its promises. The seeds are made by the writer and by hand; the damage is the same in
//! every run.

mod support;

use strata_formats::{Gguf, Safetensors, TensorInfo, Value};
use support::*;

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// One to three changes: a byte, a 64-bit number, a cut, a repeated or a removed range.
fn damage(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut file = seed.to_vec();
    for _ in 0..=random.below(3) {
        if file.len() < 16 {
            break;
        }
        let at = random.below(file.len() - 8);
        let length = random.below(32).min(file.len() - at);
        match random.below(6) {
            0 => file[at] = random.next() as u8,
            1 => file[at] ^= 1 << random.below(8),
            2 => {
                let number = [0, 1, u64::MAX, 1 << 31, 1 << 63, 0xff][random.below(6)];
                file[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            3 => file.truncate(at),
            4 => {
                let range = file[at..at + length].to_vec();
                file.splice(at..at, range);
            }
            _ => {
                file.drain(at..at + length);
            }
        }
    }
    file
}

fn check_tensors(tensors: &[TensorInfo], file: &[u8]) {
    for tensor in tensors {
        let range = tensor.offset as usize..(tensor.offset + tensor.bytes) as usize;
        assert!(file.get(range).is_some(), "{tensor:?}");
        assert_eq!(tensor.ty.row_bytes(tensor.elements()), Some(tensor.bytes), "{tensor:?}");
    }
}

fn count_values(value: Value<'_>) -> usize {
    match value {
        Value::Array(array) => {
            let values: Vec<_> = array.iter().collect();
            assert_eq!(values.len(), array.len());
            values.into_iter().map(count_values).sum()
        }
        _ => 1,
    }
}

fn read_gguf(file: &[u8]) -> bool {
    match Gguf::from_bytes(file) {
        Ok(gguf) => {
            check_tensors(gguf.tensors(), file);
            assert_eq!(gguf.metadata().iter().count(), gguf.metadata().len());
            gguf.metadata().iter().map(|(_, value)| count_values(value)).sum::<usize>();
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn read_safetensors(file: &[u8]) -> bool {
    match Safetensors::from_bytes(file) {
        Ok(read) => {
            check_tensors(read.tensors(), file);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// Both outcomes must occur, or the damage tests nothing.
fn replay(seed: &[u8], read: fn(&[u8]) -> bool) {
    assert!(read(seed));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let good = (0..6000).filter(|_| read(&damage(seed, &mut random))).count();
    assert!(good > 100 && good < 5900, "{good} of 6000 were read");
    let header = seed.len().min(1200);
    for cut in 0..header {
        read(&seed[..cut]);
    }
}

#[test]
fn damaged_gguf_files() {
    replay(&sample_gguf(), read_gguf);
}

#[test]
fn damaged_safetensors_files() {
    let header = r#"{"__metadata__":{"format":"pt","n":"1"},
        "a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},
        "c":{"dtype":"F8_E4M3","shape":[0],"data_offsets":[32,32]}}       "#;
    replay(&safetensors(header, 32), read_safetensors);
}
