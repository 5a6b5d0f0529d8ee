//! What can be wrong with a safetensors file.

use std::fmt;

use super::{MAX_HEADER_BYTES, MAX_RANK};
use crate::tensor_type::TensorType;

/// Why a safetensors file is refused. Offsets count from the beginning of the data, as in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SafetensorsError {
    Short {
        file_bytes: u64,
    },
    NotSafetensors,
    HeaderTooLong {
        found: u64,
        first: [u8; 8],
    },
    HeaderCut {
        found: u64,
        left: u64,
    },
    Header {
        line: u64,
        column: u64,
        reason: String,
    },
    DuplicateTensor {
        name: String,
    },
    DuplicateKey {
        key: String,
    },
    Dtype {
        tensor: String,
        found: String,
    },
    Rank {
        tensor: String,
        found: usize,
    },
    Range {
        tensor: String,
        begin: u64,
        end: u64,
        data_bytes: u64,
    },
    RowElements {
        tensor: String,
        ty: TensorType,
        found: u64,
    },
    Bytes {
        tensor: String,
        ty: TensorType,
        shape: Vec<u64>,
        found: u64,
        needed: Option<u64>,
    },
    /// A gap or an overlap before this tensor.
    Cover {
        tensor: String,
        begin: u64,
        needed: u64,
    },
    Remainder {
        covered: u64,
        data_bytes: u64,
    },
}

impl fmt::Display for SafetensorsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use SafetensorsError as E;
        match self {
            E::Short { file_bytes } => write!(
                f,
                "the file has {file_bytes} bytes, a safetensors file has at least 10; fetch it again"
            ),
            E::NotSafetensors => {
                write!(f, "not a safetensors file: its header does not begin with `{{`")
            }
            E::HeaderTooLong { found, first } => write!(
                f,
                "the header claims {found} bytes, at most {MAX_HEADER_BYTES} are allowed (the file \
                 begins with `{}`; is it a safetensors file?)",
                first.escape_ascii()
            ),
            E::HeaderCut { found, left } => write!(
                f,
                "the header claims {found} bytes, the file has {left} left; it is cut short or \
                 damaged, fetch it again"
            ),
            E::Header { reason, .. } => write!(f, "the header cannot be read: {reason}"),
            E::DuplicateTensor { name } => write!(f, "tensor `{name}` is there twice"),
            E::DuplicateKey { key } => write!(f, "`__metadata__` key `{key}` is there twice"),
            _ => self.fmt_tensor(f),
        }
    }
}

impl SafetensorsError {
    /// The faults of one tensor.
    fn fmt_tensor(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use SafetensorsError as E;
        match self {
            E::Dtype { tensor, found } => {
                write!(f, "tensor `{tensor}` is of type `{found}`, which is not known")
            }
            E::Rank { tensor, found } => {
                write!(
                    f,
                    "tensor `{tensor}` has {found} dimensions, at most {MAX_RANK} are allowed"
                )
            }
            E::Range { tensor, begin, end, data_bytes } => write!(
                f,
                "tensor `{tensor}` lies at bytes {begin} to {end} of {data_bytes} bytes of data; \
                 the file is cut short or damaged, fetch it again"
            ),
            E::RowElements { tensor, ty, found } => write!(
                f,
                "tensor `{tensor}` has rows of {found} elements, {ty} needs a multiple of {}",
                ty.block_elements()
            ),
            E::Bytes { tensor, ty, shape, found, needed: Some(needed) } => write!(
                f,
                "tensor `{tensor}` with shape {shape:?} of {ty} needs {needed} bytes, its range \
                 has {found}"
            ),
            E::Bytes { tensor, ty, shape, needed: None, .. } => {
                write!(f, "tensor `{tensor}` with shape {shape:?} of {ty} is larger than any file")
            }
            E::Cover { tensor, begin, needed } => write!(
                f,
                "tensor `{tensor}` begins at byte {begin} of the data, the one before ends at \
                 {needed}; gaps and overlaps are not allowed"
            ),
            E::Remainder { covered, data_bytes } => write!(
                f,
                "the tensors cover {covered} bytes of {data_bytes} bytes of data; nothing else may \
                 be in the file"
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for SafetensorsError {}
