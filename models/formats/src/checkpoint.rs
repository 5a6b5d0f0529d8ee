//! One view over the files of a model, whatever their format.

mod open;

use std::path::PathBuf;

use crate::gguf::Metadata;
use crate::source::FileBytes;
use crate::tensor_type::TensorType;

/// The format of a checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Gguf,
    Safetensors,
}

/// Where a tensor lies, and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub ty: TensorType,
    /// Innermost first, as in GGUF; shapes of safetensors are turned round.
    pub dims: Vec<u64>,
    /// Index into [`Checkpoint::files`].
    pub file: u32,
    /// From the beginning of the file.
    pub offset: u64,
    pub bytes: u64,
}

impl TensorInfo {
    /// Product of the dimensions; 1 for a tensor without any.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    pub path: PathBuf,
    pub bytes: u64,
    /// FNV-1a over everything before the data; changes if any tensor's name, type, shape or place
    /// does.
    pub header_hash: u64,
}

/// An open model: its files are mapped, every tensor's range is checked, no tensor is there twice.
#[derive(Debug)]
pub struct Checkpoint {
    kind: Kind,
    files: Vec<CheckpointFile>,
    sources: Vec<FileBytes>,
    tensors: Vec<TensorInfo>,
    /// Indices of `tensors`, sorted by name.
    by_name: Vec<u32>,
    metadata: Option<Metadata>,
    config: Option<serde_json::Value>,
    tokenizer_json: Option<PathBuf>,
}

impl Checkpoint {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The files in order: of a split model, part 1 first.
    pub fn files(&self) -> &[CheckpointFile] {
        &self.files
    }

    /// All tensors, file by file, in the order of the files.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let found =
            self.by_name.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name));
        found.ok().map(|at| &self.tensors[self.by_name[at] as usize])
    }

    /// The stored bytes of a tensor of this checkpoint, in the mapped file.
    ///
    /// # Panics
    /// If `tensor` is of another checkpoint and does not lie in this one.
    pub fn bytes_of(&self, tensor: &TensorInfo) -> &[u8] {
        self.bytes_at(tensor.file, tensor.offset, tensor.bytes)
            .expect("the ranges of a checkpoint's own tensors were checked at open")
    }

    /// Any range of a file; `None` if it does not lie in it.
    pub fn bytes_at(&self, file: u32, offset: u64, bytes: u64) -> Option<&[u8]> {
        let source = self.sources.get(file as usize)?;
        let begin = usize::try_from(offset).ok()?;
        let end = usize::try_from(offset.checked_add(bytes)?).ok()?;
        source.get(begin..end)
    }

    /// The mapped bytes of a file, to be kept beyond the life of the checkpoint.
    pub fn source(&self, file: u32) -> Option<&FileBytes> {
        self.sources.get(file as usize)
    }

    /// Metadata of a GGUF file; of part 1 where the model is split.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// `config.json` beside safetensors files, if it is there.
    pub fn config_json(&self) -> Option<&serde_json::Value> {
        self.config.as_ref()
    }

    /// Path of `tokenizer.json` beside safetensors files, if it is there.
    pub fn tokenizer_json(&self) -> Option<&std::path::Path> {
        self.tokenizer_json.as_deref()
    }
}
