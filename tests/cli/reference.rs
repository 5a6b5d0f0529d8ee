//! What the small models of tests/oracle compute in float64.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part; tests may panic")]

use std::path::PathBuf;

use strata_formats::Checkpoint;

use crate::support::{repository, tensor_words};

/// A model and what is expected of it.
pub struct Oracle {
    pub dir: PathBuf,
    expected: Checkpoint,
    tokens: Checkpoint,
    lists: serde_json::Value,
}

impl Oracle {
    pub fn open(name: &str) -> Self {
        let dir = repository().join("tests/oracle").join(name);
        let text = std::fs::read_to_string(dir.join("expected.json")).unwrap();
        Self {
            expected: Checkpoint::open(dir.join("expected.safetensors")).unwrap(),
            tokens: Checkpoint::open(dir.join("tokens.safetensors")).unwrap(),
            lists: serde_json::from_str(&text).unwrap(),
            dir,
        }
    }

    pub fn prompt(&self, length: usize) -> Vec<u32> {
        tensor_words(&self.tokens, &format!("tokens_{length}"))
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_bits).collect()
    }

    /// A tensor of integers, none of which is negative.
    pub fn words(&self, name: &str) -> Vec<u32> {
        tensor_words(&self.expected, name)
    }

    pub fn bytes(&self, name: &str) -> &[u8] {
        self.expected.bytes_of(self.expected.tensor(name).unwrap())
    }

    /// Elements in each dimension, outermost first.
    pub fn dims(&self, name: &str) -> Vec<usize> {
        let dims = &self.expected.tensor(name).unwrap().dims;
        dims.iter().rev().map(|&dim| dim as usize).collect()
    }

    pub fn logits(&self, length: usize) -> Vec<f32> {
        self.floats(&format!("logits_{length}"))
    }

    pub fn greedy(&self, length: usize) -> Vec<u32> {
        ids(&self.lists["greedy"][length.to_string()])
    }

    /// Tokens that the draft head gives one after the other behind the first greedy one.
    pub fn chain(&self, length: usize, variant: &str) -> Vec<u32> {
        ids(&self.lists["mtp_chain"][length.to_string()][variant])
    }
}

fn ids(list: &serde_json::Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The largest difference of two lists of the same length.
pub fn worst(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // Not `f32::max` alone, which would let a NaN pass.
    differences.fold(0.0, |most: f32, d| if d.is_nan() { f32::INFINITY } else { most.max(d) })
}
