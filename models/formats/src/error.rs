//! Why a model could not be opened.

use std::fmt;
use std::path::PathBuf;

use crate::gguf::{GgufError, KeyError};
use crate::safetensors::SafetensorsError;
use crate::tokenizer_arrays::TokenizerFault;

/// A model file, or the set of files that make up a model, cannot be used.
#[derive(Debug)]
pub enum OpenError {
    Io {
        path: PathBuf,
        doing: &'static str,
        error: std::io::Error,
    },
    NotAFile {
        path: PathBuf,
    },
    /// Neither by its end (`.gguf`, `.safetensors`) nor by its first bytes.
    UnknownKind {
        path: PathBuf,
    },
    Gguf {
        path: PathBuf,
        error: GgufError,
    },
    Safetensors {
        path: PathBuf,
        error: SafetensorsError,
    },
    /// A key that the reader itself needs (`split.*`) has the wrong type.
    Key {
        path: PathBuf,
        error: KeyError,
    },
    Tokenizer {
        path: PathBuf,
        error: TokenizerFault,
    },
    Json {
        path: PathBuf,
        error: serde_json::Error,
    },
    /// Some files of a set are not there. `expected` is the number of files of the set.
    MissingShards {
        dir: PathBuf,
        expected: usize,
        missing: Vec<String>,
    },
    /// A file says that it is part of a split model, but its name does not say which part.
    ShardName {
        path: PathBuf,
        count: u64,
    },
    /// A file is not the part that its name says.
    ShardNumber {
        path: PathBuf,
        field: &'static str,
        found: Option<u64>,
        needed: u64,
    },
    /// The files together do not hold the number of tensors that the first one promises.
    ShardTensors {
        path: PathBuf,
        found: u64,
        needed: u64,
    },
    /// The same tensor in two files of a set.
    DuplicateTensor {
        name: String,
        first: PathBuf,
        second: PathBuf,
    },
    /// An index names a file by a path, which could lead out of the folder.
    IndexPath {
        path: PathBuf,
        file: String,
    },
    /// An index sends a tensor to a file that does not have it.
    IndexTensor {
        path: PathBuf,
        tensor: String,
        file: String,
    },
    /// A folder without a model.
    EmptyFolder {
        path: PathBuf,
    },
    /// A folder with several models.
    Ambiguous {
        path: PathBuf,
        found: Vec<String>,
    },
}

/// Lists of names are cut here, so that a message stays readable.
const NAMES_SHOWN: usize = 16;

fn name_list(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use OpenError as E;
        match self {
            E::Io { path, doing, error } => write!(f, "cannot {doing} {}: {error}", path.display()),
            E::NotAFile { path } => {
                write!(f, "{} is not a regular file; name a model file or folder", path.display())
            }
            E::UnknownKind { path } => write!(
                f,
                "{} is neither GGUF nor safetensors; name a .gguf file, a .safetensors file or a \
                 folder with one",
                path.display()
            ),
            E::Gguf { path, error } => write!(f, "{}: {error}", path.display()),
            E::Safetensors { path, error } => write!(f, "{}: {error}", path.display()),
            E::Key { path, error } => write!(f, "{}: {error}", path.display()),
            E::Tokenizer { path, error } => write!(f, "{}: {error}", path.display()),
            E::Json { path, error } => write!(f, "{}: not valid JSON: {error}", path.display()),
            _ => self.fmt_set(f),
        }
    }
}

impl OpenError {
    /// The faults of a set of files.
    fn fmt_set(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use OpenError as E;
        match self {
            E::MissingShards { dir, expected, missing } => write!(
                f,
                "{} of {expected} files of the model are missing in {}: {}; fetch them into the \
                 same folder",
                missing.len(),
                dir.display(),
                name_list(missing)
            ),
            E::ShardName { path, count } => write!(
                f,
                "{} is one of {count} parts, but its name does not say which; name it like \
                 NAME-00001-of-{count:05}.gguf, as it was published",
                path.display()
            ),
            E::ShardNumber { path, field, found, needed } => {
                let found = found.map_or("nothing".to_string(), |found| found.to_string());
                write!(
                    f,
                    "{}: `{field}` is {found}, but the set needs {needed} here; the file was \
                     renamed or belongs to another model",
                    path.display()
                )
            }
            E::ShardTensors { path, found, needed } => write!(
                f,
                "{}: the parts hold {found} tensors together, but `split.tensors.count` says \
                 {needed}; a part belongs to another version of the model",
                path.display()
            ),
            E::DuplicateTensor { name, first, second } => write!(
                f,
                "tensor `{name}` is in {} and again in {}; remove the file that is not part of \
                 the model",
                first.display(),
                second.display()
            ),
            E::IndexPath { path, file } => write!(
                f,
                "{}: file name `{file}` is a path; an index may only name files beside it",
                path.display()
            ),
            E::IndexTensor { path, tensor, file } => write!(
                f,
                "{}: tensor `{tensor}` should be in {file}, which does not have it; index and \
                 files are of different versions",
                path.display()
            ),
            E::EmptyFolder { path } => write!(
                f,
                "{} holds no model.safetensors, no index of one and no .gguf file",
                path.display()
            ),
            E::Ambiguous { path, found } => write!(
                f,
                "{} holds several models ({}); name the file",
                path.display(),
                name_list(found)
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Io { error, .. } => Some(error),
            OpenError::Gguf { error, .. } => Some(error),
            OpenError::Safetensors { error, .. } => Some(error),
            OpenError::Key { error, .. } => Some(error),
            OpenError::Tokenizer { error, .. } => Some(error),
            OpenError::Json { error, .. } => Some(error),
            _ => None,
        }
    }
}
