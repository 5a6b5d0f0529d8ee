//! What can be wrong with a GGUF file.

use std::fmt;

use super::{MAX_ALIGNMENT, MAX_ARRAY_DEPTH, MAX_KEY_BYTES, MAX_RANK};
use crate::tensor_type::TensorType;

/// Why a GGUF file is refused. `place` names the key or the tensor, `at` is a byte of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GgufError {
    NotGguf {
        found: Vec<u8>,
    },
    BigEndian,
    Version {
        found: u32,
    },
    Truncated {
        place: String,
        field: &'static str,
        at: u64,
        needed: u64,
        left: u64,
    },
    /// More entries than the rest of the file could hold.
    Count {
        place: String,
        what: &'static str,
        found: u64,
        most: u64,
    },
    EmptyKey {
        index: u64,
    },
    KeyBytes {
        index: u64,
        found: u64,
    },
    DuplicateKey {
        key: String,
    },
    NotUtf8 {
        place: String,
        at: u64,
    },
    ValueType {
        place: String,
        found: u32,
    },
    Bool {
        place: String,
        found: u8,
    },
    ArrayDepth {
        place: String,
    },
    AlignmentType {
        found: &'static str,
    },
    Alignment {
        found: u32,
    },
    EmptyTensorName {
        index: u64,
    },
    DuplicateTensor {
        name: String,
    },
    Rank {
        tensor: String,
        found: u32,
    },
    TensorType {
        tensor: String,
        found: u32,
    },
    RowElements {
        tensor: String,
        ty: TensorType,
        found: u64,
    },
    TensorBytes {
        tensor: String,
        ty: TensorType,
        dims: Vec<u64>,
    },
    Offset {
        tensor: String,
        found: u64,
        alignment: u64,
    },
    Range {
        tensor: String,
        begin: u64,
        bytes: u64,
        file_bytes: u64,
    },
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use GgufError as E;
        match self {
            E::NotGguf { found } => not_gguf(f, found),
            E::BigEndian => write!(
                f,
                "this GGUF file is big-endian; convert it to little-endian (gguf-convert-endian)"
            ),
            E::Version { found } => {
                write!(f, "GGUF version {found} is not known; versions 2 and 3 can be read")
            }
            E::Truncated { place, field, at, needed, left } => write!(
                f,
                "{place}: {field} at byte {at} needs {needed} bytes, the file has {left} left; it \
                 is cut short or damaged, fetch it again"
            ),
            E::Count { place, what, found, most } => write!(
                f,
                "{place}: {found} {what} are claimed, but the file has room for at most {most}; it \
                 is cut short or damaged, fetch it again"
            ),
            E::EmptyKey { index } => write!(f, "metadata key {index} is empty"),
            E::KeyBytes { index, found } => {
                write!(
                    f,
                    "metadata key {index} has {found} bytes, at most {MAX_KEY_BYTES} are allowed"
                )
            }
            E::DuplicateKey { key } => {
                write!(
                    f,
                    "metadata key `{key}` is there twice; readers would disagree on its value"
                )
            }
            E::NotUtf8 { place, at } => {
                write!(f, "{place}: the text at byte {at} is not valid UTF-8")
            }
            E::ValueType { place, found } => {
                write!(f, "{place}: value type {found} is not known (0 to 12 are)")
            }
            E::Bool { place, found } => {
                write!(f, "{place}: {found} is not a bool, which is 0 or 1")
            }
            E::ArrayDepth { place } => {
                write!(f, "{place}: arrays are nested deeper than {MAX_ARRAY_DEPTH}")
            }
            E::AlignmentType { found } => {
                write!(f, "`general.alignment` is of type {found}, it must be u32")
            }
            E::Alignment { found } => write!(
                f,
                "`general.alignment` is {found}, it must be a power of two up to {MAX_ALIGNMENT}"
            ),
            _ => self.fmt_tensor(f),
        }
    }
}

fn not_gguf(f: &mut fmt::Formatter<'_>, found: &[u8]) -> fmt::Result {
    write!(f, "not a GGUF file: it begins with `{}`, needed `GGUF`", found.escape_ascii())?;
    match found {
        b"vers" => write!(f, "; this looks like a Git LFS pointer, fetch the file itself"),
        b"<!DO" | b"<htm" => write!(f, "; this looks like a web page, fetch the file itself"),
        b"PK\x03\x04" => write!(f, "; this looks like a PyTorch archive, convert it"),
        _ => Ok(()),
    }
}

impl GgufError {
    /// The faults of one tensor.
    fn fmt_tensor(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use GgufError as E;
        match self {
            E::EmptyTensorName { index } => write!(f, "the name of tensor {index} is empty"),
            E::DuplicateTensor { name } => write!(f, "tensor `{name}` is there twice"),
            E::Rank { tensor, found } => {
                write!(
                    f,
                    "tensor `{tensor}` has {found} dimensions, at most {MAX_RANK} are allowed"
                )
            }
            E::TensorType { tensor, found } => match TensorType::withdrawn_ggml_name(*found) {
                Some(name) => write!(
                    f,
                    "tensor `{tensor}` is of type {name} ({found}), which was withdrawn; use a \
                     newer file of the model"
                ),
                None => write!(f, "tensor `{tensor}` is of type {found}, which is not known"),
            },
            E::RowElements { tensor, ty, found } => write!(
                f,
                "tensor `{tensor}` has rows of {found} elements, {ty} needs a multiple of {}",
                ty.block_elements()
            ),
            E::TensorBytes { tensor, ty, dims } => write!(
                f,
                "tensor `{tensor}` with dimensions {dims:?} of {ty} is larger than any file"
            ),
            E::Offset { tensor, found, alignment } => write!(
                f,
                "tensor `{tensor}` begins at offset {found}, which is not a multiple of the \
                 alignment {alignment}"
            ),
            E::Range { tensor, begin, bytes, file_bytes } => write!(
                f,
                "tensor `{tensor}` needs {bytes} bytes from byte {begin}, the file has \
                 {file_bytes}; it is cut short or damaged, fetch it again"
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for GgufError {}

/// A metadata key is absent or does not hold what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyError {
    Missing {
        key: String,
    },
    /// `found` is the type that is there, `needed` what was asked for.
    Type {
        key: String,
        found: String,
        needed: &'static str,
    },
    /// A number that does not fit the asked type.
    Fit {
        key: String,
        found: String,
        needed: &'static str,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Missing { key } => write!(f, "metadata key `{key}` is missing"),
            KeyError::Type { key, found, needed } => {
                write!(f, "metadata key `{key}` is {found}, needed {needed}")
            }
            KeyError::Fit { key, found, needed } => {
                write!(f, "metadata key `{key}` is {found}, which does not fit {needed}")
            }
        }
    }
}

impl std::error::Error for KeyError {}
