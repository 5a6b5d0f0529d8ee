//! `model.safetensors.index.json`: which file of a set holds a tensor.

use std::path::Path;

use serde::Deserialize;

use super::header::Pairs;
use crate::error::OpenError;
use crate::shards::sorted_by_name;

/// Tensor to file, as the index has it.
pub struct WeightMap {
    pub tensors: Vec<(String, String)>,
}

impl WeightMap {
    /// Reads an index. File names must be plain names: a path could lead out of the folder.
    pub fn parse(path: &Path, json: &[u8]) -> Result<WeightMap, OpenError> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: Pairs<String>,
        }
        let index: Index = serde_json::from_slice(json)
            .map_err(|error| OpenError::Json { path: path.to_path_buf(), error })?;
        let tensors = index.weight_map.0;
        sorted_by_name(&tensors, |(tensor, _)| tensor).map_err(|name| {
            OpenError::DuplicateTensor {
                name,
                first: path.to_path_buf(),
                second: path.to_path_buf(),
            }
        })?;
        for (_, file) in &tensors {
            if !is_plain_name(file) {
                return Err(OpenError::IndexPath { path: path.to_path_buf(), file: file.clone() });
            }
        }
        Ok(WeightMap { tensors })
    }

    /// The files, each once, in order of their names.
    pub fn files(&self) -> Vec<String> {
        let mut files: Vec<String> = self.tensors.iter().map(|(_, file)| file.clone()).collect();
        files.sort_unstable();
        files.dedup();
        files
    }
}

fn is_plain_name(file: &str) -> bool {
    !file.is_empty() && file != "." && file != ".." && !file.contains(['/', '\\', '\0', ':'])
}
