//! GGUF, versions 2 and 3, little-endian.
//!
//! Layout: magic, version, tensor count, metadata count; metadata (key, type, value); one record a
//! tensor (name, rank, dimensions innermost first, type, offset); padding to the alignment; data.
//! Written after the format description at
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod cursor;
mod error;
mod metadata;
mod value;

pub use error::{GgufError, KeyError};
pub use metadata::Metadata;
pub use value::{Array, Value, ValueType};

use crate::checkpoint::TensorInfo;
use crate::shards::sorted_by_name;
use crate::source::FileBytes;
use crate::tensor_type::{TensorType, element_count};
use cursor::{Cursor, Place};
use metadata::Entry;

/// Dimensions of a tensor, at most.
pub const MAX_RANK: u32 = 4;
/// Arrays in arrays, at most; files in use have one level.
pub const MAX_ARRAY_DEPTH: u32 = 4;
/// Bytes of a key, at most, by the format's description.
pub const MAX_KEY_BYTES: u64 = 65_535;
/// Largest alignment: a huge page. More would only be a way to make sums overflow.
pub const MAX_ALIGNMENT: u32 = 2 << 20;
/// Alignment of a file that names none.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Key length, type, one byte of value. An empty key is refused later, with its index.
const LEAST_ENTRY_BYTES: u64 = 8 + 4 + 1;
/// Name length, rank, type, offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// One GGUF file, completely checked.
#[derive(Clone, Debug)]
pub struct Gguf {
    source: FileBytes,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    header_bytes: u64,
}

impl Gguf {
    /// Reads a file that lies in memory. Copies it: meant for tests and fuzzing.
    ///
    /// # Errors
    /// Anything that is wrong with it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Gguf, GgufError> {
        Gguf::read(FileBytes::from(bytes.to_vec()))
    }

    /// Reads and checks the header of `source`; tensors stay where they are.
    ///
    /// # Errors
    /// Anything that is wrong with it; after that, every range lies inside the file.
    pub fn read(source: FileBytes) -> Result<Gguf, GgufError> {
        let mut cursor = Cursor::new(&source);
        let version = read_version(&mut cursor)?;
        let tensor_count = cursor.u64("tensor count")?;
        let entry_count = cursor.u64("metadata count")?;
        let entry_count = cursor.check_count("metadata entries", entry_count, LEAST_ENTRY_BYTES)?;
        let mut entries = Vec::new();
        for index in 0..entry_count {
            entries.push(read_entry(&mut cursor, index as u64)?);
        }
        let metadata = Metadata::new(source.clone(), entries)
            .map_err(|key| GgufError::DuplicateKey { key })?;
        let alignment = alignment(&metadata)?;

        cursor.place = Place::Header;
        let tensor_count = cursor.check_count("tensors", tensor_count, LEAST_TENSOR_BYTES)?;
        let mut tensors = Vec::new();
        for index in 0..tensor_count {
            tensors.push(read_tensor(&mut cursor, index as u64, alignment)?);
        }
        let header_bytes = cursor.at() as u64;
        let data_begin = header_bytes.next_multiple_of(alignment);
        for tensor in &mut tensors {
            place_in_file(tensor, data_begin, source.len() as u64)?;
        }
        sorted_by_name(&tensors, |tensor| &tensor.name)
            .map_err(|name| GgufError::DuplicateTensor { name })?;
        Ok(Gguf { version, metadata, tensors, header_bytes, source })
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Tensors in the order of the file; `file` is 0 in all.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Everything before the padding that comes before the data.
    pub fn header(&self) -> &[u8] {
        &self.source[..self.header_bytes as usize]
    }

    pub fn source(&self) -> &FileBytes {
        &self.source
    }
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let magic = cursor.take(cursor.left().min(4), "magic")?;
    if magic != b"GGUF" {
        return Err(GgufError::NotGguf { found: magic.to_vec() });
    }
    match cursor.u32("version")? {
        version @ (2 | 3) => Ok(version),
        // A small number written with the other byte order.
        found if found != 0 && found & 0xffff == 0 => Err(GgufError::BigEndian),
        found => Err(GgufError::Version { found }),
    }
}

fn read_entry(cursor: &mut Cursor<'_>, index: u64) -> Result<Entry, GgufError> {
    cursor.place = Place::Key(index);
    let key = cursor.text("key")?;
    match key.len() as u64 {
        0 => return Err(GgufError::EmptyKey { index }),
        found if found > MAX_KEY_BYTES => return Err(GgufError::KeyBytes { index, found }),
        _ => {}
    }
    cursor.place = Place::Value(key);
    let ty = value::read_type(cursor)?;
    let at = cursor.at();
    value::read_value(cursor, ty, 0)?;
    Ok(Entry { key: key.to_string(), ty, at, bytes: cursor.at() - at })
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(found)) if found.is_power_of_two() && found <= MAX_ALIGNMENT => {
            Ok(found.into())
        }
        Some(Value::U32(found)) => Err(GgufError::Alignment { found }),
        Some(other) => Err(GgufError::AlignmentType { found: other.value_type().name() }),
    }
}

/// Reads one record; `offset` is still counted from the data.
fn read_tensor(
    cursor: &mut Cursor<'_>,
    index: u64,
    alignment: u64,
) -> Result<TensorInfo, GgufError> {
    cursor.place = Place::Tensor(index);
    let name = cursor.text("name")?;
    if name.is_empty() {
        return Err(GgufError::EmptyTensorName { index });
    }
    cursor.place = Place::Named(name);
    let tensor = || name.to_string();
    let rank = cursor.u32("rank")?;
    if rank > MAX_RANK {
        return Err(GgufError::Rank { tensor: tensor(), found: rank });
    }
    let dims = (0..rank).map(|_| cursor.u64("dimension")).collect::<Result<Vec<u64>, _>>()?;
    let id = cursor.u32("type")?;
    let ty = TensorType::from_ggml(id)
        .ok_or_else(|| GgufError::TensorType { tensor: tensor(), found: id })?;
    let offset = cursor.u64("offset")?;
    if !offset.is_multiple_of(alignment) {
        return Err(GgufError::Offset { tensor: tensor(), found: offset, alignment });
    }
    // A tensor without dimensions is one number.
    let row = dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(ty.block_elements()) {
        return Err(GgufError::RowElements { tensor: tensor(), ty, found: row });
    }
    let bytes = element_count(&dims)
        .and_then(|elements| ty.row_bytes(elements))
        .ok_or_else(|| GgufError::TensorBytes { tensor: tensor(), ty, dims: dims.clone() })?;
    Ok(TensorInfo { name: tensor(), ty, dims, file: 0, offset, bytes })
}

/// Turns the offset into one from the beginning of the file, and checks the range.
fn place_in_file(
    tensor: &mut TensorInfo,
    data_begin: u64,
    file_bytes: u64,
) -> Result<(), GgufError> {
    let begin = data_begin.checked_add(tensor.offset);
    let end = begin.and_then(|begin| begin.checked_add(tensor.bytes));
    match (begin, end) {
        (Some(begin), Some(end)) if end <= file_bytes => {
            tensor.offset = begin;
            Ok(())
        }
        _ => Err(GgufError::Range {
            tensor: tensor.name.clone(),
            begin: begin.unwrap_or(u64::MAX),
            bytes: tensor.bytes,
            file_bytes,
        }),
    }
}
