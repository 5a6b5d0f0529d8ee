//! Writes GGUF version 3.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::gguf::{DEFAULT_ALIGNMENT, MAX_KEY_BYTES, MAX_RANK, ValueType};
use crate::tensor_type::{TensorType, element_count};

/// A metadata value to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    /// All elements must be of the named type.
    Array(ValueType, Vec<WriteValue>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl WriteValue {
    pub fn strs<'a>(texts: impl IntoIterator<Item = &'a str>) -> WriteValue {
        let texts = texts.into_iter().map(|text| WriteValue::Str(text.to_string()));
        WriteValue::Array(ValueType::Str, texts.collect())
    }

    pub fn u32s(numbers: impl IntoIterator<Item = u32>) -> WriteValue {
        WriteValue::Array(ValueType::U32, numbers.into_iter().map(WriteValue::U32).collect())
    }

    pub fn f32s(numbers: impl IntoIterator<Item = f32>) -> WriteValue {
        WriteValue::Array(ValueType::F32, numbers.into_iter().map(WriteValue::F32).collect())
    }

    fn value_type(&self) -> ValueType {
        match self {
            WriteValue::U8(_) => ValueType::U8,
            WriteValue::I8(_) => ValueType::I8,
            WriteValue::U16(_) => ValueType::U16,
            WriteValue::I16(_) => ValueType::I16,
            WriteValue::U32(_) => ValueType::U32,
            WriteValue::I32(_) => ValueType::I32,
            WriteValue::F32(_) => ValueType::F32,
            WriteValue::Bool(_) => ValueType::Bool,
            WriteValue::Str(_) => ValueType::Str,
            WriteValue::Array(..) => ValueType::Array,
            WriteValue::U64(_) => ValueType::U64,
            WriteValue::I64(_) => ValueType::I64,
            WriteValue::F64(_) => ValueType::F64,
        }
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            WriteValue::U8(v) => out.push(*v),
            WriteValue::I8(v) => out.extend(v.to_le_bytes()),
            WriteValue::U16(v) => out.extend(v.to_le_bytes()),
            WriteValue::I16(v) => out.extend(v.to_le_bytes()),
            WriteValue::U32(v) => out.extend(v.to_le_bytes()),
            WriteValue::I32(v) => out.extend(v.to_le_bytes()),
            WriteValue::F32(v) => out.extend(v.to_le_bytes()),
            WriteValue::Bool(v) => out.push(u8::from(*v)),
            WriteValue::Str(text) => append_text(out, text),
            WriteValue::U64(v) => out.extend(v.to_le_bytes()),
            WriteValue::I64(v) => out.extend(v.to_le_bytes()),
            WriteValue::F64(v) => out.extend(v.to_le_bytes()),
            WriteValue::Array(element, values) => {
                out.extend(element.id().to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                for value in values {
                    value.append_to(out);
                }
            }
        }
    }

    /// Whether arrays hold what they say, and are not nested deeper than a reader allows.
    fn is_sound(&self, depth: u32) -> bool {
        match self {
            WriteValue::Array(element, values) => {
                depth < crate::gguf::MAX_ARRAY_DEPTH
                    && values.iter().all(|v| v.value_type() == *element && v.is_sound(depth + 1))
            }
            _ => true,
        }
    }
}

fn append_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Why a file was not written.
#[derive(Debug)]
pub enum WriteError {
    Io {
        path: PathBuf,
        error: io::Error,
    },
    /// Empty, too long, or there already.
    Key {
        key: String,
    },
    /// An array whose elements are not of its type, or nested too deep.
    Array {
        key: String,
    },
    /// Empty name, or there already.
    Name {
        name: String,
    },
    /// More than four dimensions, a type that GGUF does not have, a row that is not a whole number
    /// of blocks, or a size beyond 64 bits.
    Shape {
        name: String,
        ty: TensorType,
        dims: Vec<u64>,
    },
    /// The filler wrote another number of bytes than the tensor has.
    Bytes {
        name: String,
        found: u64,
        needed: u64,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Io { path, error } => write!(f, "cannot write {}: {error}", path.display()),
            WriteError::Key { key } => write!(
                f,
                "metadata key `{key}` is empty, longer than {MAX_KEY_BYTES} bytes or there twice"
            ),
            WriteError::Array { key } => {
                write!(
                    f,
                    "the array of `{key}` holds other types than it says, or is nested too deep"
                )
            }
            WriteError::Name { name } => {
                write!(f, "the name of tensor `{name}` is empty or there twice")
            }
            WriteError::Shape { name, ty, dims } => write!(
                f,
                "tensor `{name}` with dimensions {dims:?} cannot be stored as {ty} in GGUF (at most \
                 {MAX_RANK} dimensions, rows of a multiple of {} elements)",
                ty.block_elements()
            ),
            WriteError::Bytes { name, found, needed } => {
                write!(f, "tensor `{name}` was given {found} bytes, needed {needed}")
            }
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WriteError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

struct Declared {
    name: String,
    ty: TensorType,
    dims: Vec<u64>,
    offset: u64,
    bytes: u64,
}

/// Collects metadata and tensors, then writes them; tensor data is asked for one tensor at a time,
/// so that a file may be larger than memory.
#[derive(Default)]
pub struct GgufWriter {
    entries: Vec<(String, WriteValue)>,
    tensors: Vec<Declared>,
    /// Where the next tensor begins, from the beginning of the data.
    end: u64,
}

impl GgufWriter {
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Adds a key. Keys are written in the order in which they are added.
    ///
    /// # Errors
    /// The key is empty, too long or there already, or an array is not what it says.
    pub fn set(&mut self, key: &str, value: WriteValue) -> Result<(), WriteError> {
        let bytes = key.len() as u64;
        let twice = self.entries.iter().any(|entry| entry.0 == key);
        // The alignment decides the layout, so it is the writer's.
        if bytes == 0 || bytes > MAX_KEY_BYTES || twice || key == "general.alignment" {
            return Err(WriteError::Key { key: key.to_string() });
        }
        if !value.is_sound(0) {
            return Err(WriteError::Array { key: key.to_string() });
        }
        self.entries.push((key.to_string(), value));
        Ok(())
    }

    /// Adds a tensor; `dims` are innermost first. Returns the number of its bytes.
    ///
    /// # Errors
    /// The name is empty or there already, or GGUF cannot hold this type and shape.
    pub fn declare(&mut self, name: &str, ty: TensorType, dims: &[u64]) -> Result<u64, WriteError> {
        if name.is_empty() || self.tensors.iter().any(|tensor| tensor.name == name) {
            return Err(WriteError::Name { name: name.to_string() });
        }
        let whole_rows = dims.first().unwrap_or(&1).is_multiple_of(ty.block_elements());
        let stored = dims.len() <= MAX_RANK as usize && ty.ggml_id().is_some() && whole_rows;
        let bytes = element_count(dims).and_then(|elements| ty.row_bytes(elements));
        let placed = bytes.and_then(|bytes| {
            let end = self.end.checked_add(bytes)?.checked_next_multiple_of(DEFAULT_ALIGNMENT)?;
            Some((bytes, end))
        });
        let Some((bytes, end)) = placed.filter(|_| stored) else {
            let (name, dims) = (name.to_string(), dims.to_vec());
            return Err(WriteError::Shape { name, ty, dims });
        };
        let (name, dims, offset) = (name.to_string(), dims.to_vec(), self.end);
        self.tensors.push(Declared { name, ty, dims, offset, bytes });
        self.end = end;
        Ok(bytes)
    }

    fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            append_text(&mut out, key);
            out.extend(value.value_type().id().to_le_bytes());
            value.append_to(&mut out);
        }
        for tensor in &self.tensors {
            append_text(&mut out, &tensor.name);
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            let id = tensor.ty.ggml_id().expect("checked when it was declared");
            out.extend(id.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        out
    }

    /// Writes the file to `sink`. `fill` is called for each tensor in the order of declaration and
    /// must write exactly its bytes.
    ///
    /// # Errors
    /// The sink fails, or `fill` writes another number of bytes. Errors name `path`.
    pub fn write_to(
        &self,
        path: &Path,
        sink: &mut dyn Write,
        mut fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let io = |error| WriteError::Io { path: path.to_path_buf(), error };
        sink.write_all(&self.header()).map_err(io)?;
        for (index, tensor) in self.tensors.iter().enumerate() {
            let mut counted = Counted { sink, bytes: 0 };
            fill(index, &mut counted).map_err(io)?;
            let (found, needed) = (counted.bytes, tensor.bytes);
            if found != needed {
                return Err(WriteError::Bytes { name: tensor.name.clone(), found, needed });
            }
            let padding = needed.next_multiple_of(DEFAULT_ALIGNMENT) - needed;
            sink.write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize]).map_err(io)?;
        }
        Ok(())
    }

    /// Writes to a temporary file beside `path`, then renames it, so that `path` never holds half a
    /// model.
    ///
    /// # Errors
    /// As [`GgufWriter::write_to`]; the temporary file is removed then.
    pub fn write_file(
        &self,
        path: &Path,
        fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), WriteError> {
        let io = |error| WriteError::Io { path: path.to_path_buf(), error };
        in_place_of(path, |file| {
            let mut sink = BufWriter::with_capacity(1 << 20, file);
            self.write_to(path, &mut sink, fill)?;
            sink.into_inner().map_err(|error| io(error.into_error()))
        })
    }

    /// [`GgufWriter::write_file`] without the data: the file has its full length, and takes no room
    /// for it where the file system can leave holes.
    ///
    /// # Errors
    /// The file cannot be written; the temporary file is removed then.
    pub fn write_sparse_file(&self, path: &Path) -> Result<(), WriteError> {
        let io = |error| WriteError::Io { path: path.to_path_buf(), error };
        in_place_of(path, |mut file| {
            let header = self.header();
            file.write_all(&header).map_err(io)?;
            file.set_len(header.len() as u64 + self.end).map_err(io)?;
            Ok(file)
        })
    }
}

/// Has a temporary file beside `path` written, then renames it.
fn in_place_of(
    path: &Path,
    write: impl FnOnce(File) -> Result<File, WriteError>,
) -> Result<(), WriteError> {
    let io = |error| WriteError::Io { path: path.to_path_buf(), error };
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = File::create(&part).map_err(io).and_then(write).and_then(|file| {
        file.sync_all().map_err(io)?;
        fs::rename(&part, path).map_err(io)
    });
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&part);
    }
    written
}

/// Passes bytes on and counts them.
struct Counted<'a> {
    sink: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.sink.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}
