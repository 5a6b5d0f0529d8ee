//! Why a definition, or a checkpoint to import one from, was refused.

use std::fmt;
use std::path::PathBuf;

use strata_formats::{KeyError, OpenError, WriteError};
use strata_graph::ShapeError;

/// A model definition that cannot be read, made sense of or written.
#[derive(Debug)]
pub enum ModelError {
    Read {
        path: PathBuf,
        error: std::io::Error,
    },
    /// The text is not RON, or does not follow the schema. Lines and columns count from 1.
    Syntax {
        path: Option<PathBuf>,
        line: usize,
        column: usize,
        message: String,
    },
    /// A field whose value does not fit the others.
    Field {
        field: String,
        found: String,
        need: String,
    },
    Window {
        rows: u32,
        logit_rows: u32,
    },
    /// A draft window of a model that has no draft head.
    NoDraft {
        model: String,
    },
    /// The definition passes all checks and still gives an ill-typed node.
    Node {
        node: String,
        error: ShapeError,
    },
    /// A made-up checkpoint that GGUF cannot hold.
    Write(WriteError),
    /// The checkpoint cannot be opened.
    Open(OpenError),
    /// A key of a GGUF file is missing or has another type.
    Metadata {
        path: PathBuf,
        error: KeyError,
    },
    /// A checkpoint of a family for which there are no block builders.
    Architecture {
        path: PathBuf,
        found: String,
        known: String,
    },
    MissingKey {
        path: PathBuf,
        key: String,
        need: &'static str,
    },
    Key {
        path: PathBuf,
        key: String,
        found: String,
        need: String,
    },
    /// A tensor that the family always has.
    MissingTensor {
        path: PathBuf,
        tensor: String,
        need: &'static str,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Syntax { path, line, column, message } => {
                match path {
                    Some(path) => write!(f, "{}:", path.display())?,
                    None => write!(f, "model definition, line:column ")?,
                }
                write!(f, "{line}:{column}: {message}")
            }
            Self::Field { field, found, need } => {
                write!(f, "model definition: {field} is {found}, needs {need}")
            }
            Self::Window { rows, logit_rows } => write!(
                f,
                "a window of {rows} rows with {logit_rows} rows of logits: needs at least 1 row \
                 and between 1 and {rows} rows of logits"
            ),
            Self::NoDraft { model } => write!(
                f,
                "{model} has no draft head: needs the field `draft`, or windows of other kinds only"
            ),
            Self::Node { node, error } => write!(f, "node {node}: {error}"),
            Self::Open(error) => write!(f, "{error}"),
            Self::Write(error) => write!(f, "{error}"),
            Self::Metadata { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Architecture { path, found, known } => write!(
                f,
                "{}: architecture {found:?} is not known; known are {known}",
                path.display()
            ),
            Self::MissingKey { path, key, need } => {
                write!(f, "{}: the key {key} is missing, needs {need}", path.display())
            }
            Self::Key { path, key, found, need } => {
                write!(f, "{}: {key} is {found}, needs {need}", path.display())
            }
            Self::MissingTensor { path, tensor, need } => {
                write!(f, "{}: the tensor {tensor} is missing, needs {need}", path.display())
            }
        }
    }
}

impl std::error::Error for ModelError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { error, .. } => Some(error),
            Self::Node { error, .. } => Some(error),
            Self::Open(error) => Some(error),
            Self::Write(error) => Some(error),
            Self::Metadata { error, .. } => Some(error),
            _ => None,
        }
    }
}
