//! safetensors: a 64-bit header length, a JSON header, data.
//!
//! Written after the format description at <https://github.com/huggingface/safetensors>. As there,
//! the tensors must cover the data exactly: no gap, no overlap, nothing after the last.

mod error;
mod header;
mod index;

pub use error::SafetensorsError;
pub(crate) use index::WeightMap;

use crate::checkpoint::TensorInfo;
use crate::source::FileBytes;
use crate::tensor_type::{TensorType, element_count};
use header::{Header, RawTensor};

/// Longest header, as the reference reader has it.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Dimensions of a tensor, at most. Vision weights have five.
pub const MAX_RANK: usize = 8;

const LENGTH_BYTES: u64 = 8;

/// One safetensors file, completely checked.
#[derive(Clone, Debug)]
pub struct Safetensors {
    source: FileBytes,
    metadata: Vec<(String, String)>,
    tensors: Vec<TensorInfo>,
    header_bytes: u64,
}

impl Safetensors {
    /// Reads a file that lies in memory. Copies it: meant for tests and fuzzing.
    ///
    /// # Errors
    /// Anything that is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Safetensors, SafetensorsError> {
        Safetensors::read(FileBytes::from(bytes.to_vec()))
    }

    /// Reads and checks the header of `source`; tensors stay where they are.
    ///
    /// # Errors
    /// Anything that is wrong with it; after that, every range lies inside the file.
    pub fn read(source: FileBytes) -> Result<Safetensors, SafetensorsError> {
        let json = header_json(&source)?;
        let header_bytes = LENGTH_BYTES + json.len() as u64;
        let data_bytes = source.len() as u64 - header_bytes;
        let header = Header::parse(json)?;
        let mut tensors = header
            .tensors
            .into_iter()
            .map(|(name, raw)| read_tensor(name, raw, data_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        check_cover(&tensors, data_bytes)?;
        for tensor in &mut tensors {
            tensor.offset += header_bytes;
        }
        Ok(Safetensors { metadata: header.metadata, tensors, header_bytes, source })
    }

    /// The free text pairs of `__metadata__`, in the order of the file.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// Tensors in the order of the header; `file` is 0 in all.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Length and JSON.
    pub fn header(&self) -> &[u8] {
        &self.source[..self.header_bytes as usize]
    }

    pub fn source(&self) -> &FileBytes {
        &self.source
    }
}

fn header_json(source: &[u8]) -> Result<&[u8], SafetensorsError> {
    let file_bytes = source.len() as u64;
    let Some((length, rest)) = source.split_first_chunk::<8>() else {
        return Err(SafetensorsError::Short { file_bytes });
    };
    let found = u64::from_le_bytes(*length);
    if found > MAX_HEADER_BYTES {
        return Err(SafetensorsError::HeaderTooLong { found, first: *length });
    }
    if found > rest.len() as u64 {
        return Err(SafetensorsError::HeaderCut { found, left: rest.len() as u64 });
    }
    let json = &rest[..found as usize];
    if json.first() != Some(&b'{') {
        return Err(SafetensorsError::NotSafetensors);
    }
    Ok(json)
}

/// Checks one entry; `offset` is still counted from the data.
fn read_tensor(
    name: String,
    raw: RawTensor,
    data_bytes: u64,
) -> Result<TensorInfo, SafetensorsError> {
    type E = SafetensorsError;
    let Some(ty) = TensorType::from_safetensors(&raw.dtype) else {
        return Err(E::Dtype { tensor: name, found: raw.dtype });
    };
    if raw.shape.len() > MAX_RANK {
        return Err(E::Rank { tensor: name, found: raw.shape.len() });
    }
    let [begin, end] = raw.data_offsets;
    let found = match end.checked_sub(begin) {
        Some(bytes) if end <= data_bytes => bytes,
        _ => return Err(E::Range { tensor: name, begin, end, data_bytes }),
    };
    let row = raw.shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.block_elements()) {
        return Err(E::RowElements { tensor: name, ty, found: row });
    }
    let needed = element_count(&raw.shape).and_then(|elements| ty.row_bytes(elements));
    if needed != Some(found) {
        return Err(E::Bytes { tensor: name, ty, shape: raw.shape, found, needed });
    }
    let mut dims = raw.shape;
    dims.reverse();
    Ok(TensorInfo { name, ty, dims, file: 0, offset: begin, bytes: found })
}

/// In order of their beginnings, each tensor begins where the one before ends.
fn check_cover(tensors: &[TensorInfo], data_bytes: u64) -> Result<(), SafetensorsError> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|tensor| (tensor.offset, tensor.bytes));
    let mut end = 0;
    for tensor in order {
        if tensor.offset != end {
            return Err(SafetensorsError::Cover {
                tensor: tensor.name.clone(),
                begin: tensor.offset,
                needed: end,
            });
        }
        end += tensor.bytes;
    }
    if end != data_bytes {
        return Err(SafetensorsError::Remainder { covered: end, data_bytes });
    }
    Ok(())
}
