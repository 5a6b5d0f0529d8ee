//! Model files made by hand, byte by byte, so that they may be wrong in any way.
#![allow(dead_code, reason = "each test file uses a part of this")]
#![allow(clippy::unwrap_used, reason = "outside a test function, but only ever run by tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use strata_formats::{Checkpoint, GgufWriter, OpenError, TensorType, WriteValue};

/// Ids of metadata value types.
pub const U8: u32 = 0;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STR: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// A GGUF file in the making. Counts are what was said, not what was added.
pub struct Raw(pub Vec<u8>);

impl Raw {
    pub fn new(tensors: u64, entries: u64) -> Raw {
        Raw::version(3, tensors, entries)
    }

    pub fn version(version: u32, tensors: u64, entries: u64) -> Raw {
        let raw = Raw(b"GGUF".to_vec());
        raw.bytes(&version.to_le_bytes())
            .bytes(&tensors.to_le_bytes())
            .bytes(&entries.to_le_bytes())
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }

    pub fn text(self, text: &str) -> Raw {
        self.bytes(&(text.len() as u64).to_le_bytes()).bytes(text.as_bytes())
    }

    pub fn key(self, key: &str, ty: u32, value: &[u8]) -> Raw {
        self.text(key).bytes(&ty.to_le_bytes()).bytes(value)
    }

    pub fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Raw {
        let dims_bytes: Vec<u8> = dims.iter().flat_map(|dim| dim.to_le_bytes()).collect();
        self.text(name)
            .bytes(&(dims.len() as u32).to_le_bytes())
            .bytes(&dims_bytes)
            .bytes(&ty.to_le_bytes())
            .bytes(&offset.to_le_bytes())
    }

    /// Padding to 32 and `count` bytes of data.
    pub fn data(mut self, count: usize) -> Raw {
        let begin = self.0.len().next_multiple_of(32);
        self.0.resize(begin + count, 0);
        self
    }
}

/// Element type, count and elements of an array value.
pub fn array(element: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&element.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// A safetensors file of this header and `data` bytes of data.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

/// A GGUF file with one key of every kind and tensors of some types.
pub fn sample_gguf() -> Vec<u8> {
    use strata_formats::ValueType as T;
    let mut writer = GgufWriter::new();
    let mut set = |key: &str, value| writer.set(key, value).unwrap();
    set("general.architecture", WriteValue::Str("llama".into()));
    set("a.u8", WriteValue::U8(200));
    set("a.i8", WriteValue::I8(-3));
    set("a.u16", WriteValue::U16(60_000));
    set("a.i16", WriteValue::I16(-300));
    set("a.u32", WriteValue::U32(4_000_000_000));
    set("a.i32", WriteValue::I32(-70_000));
    set("a.u64", WriteValue::U64(1 << 63));
    set("a.i64", WriteValue::I64(-1 << 62));
    set("a.f32", WriteValue::F32(0.5));
    set("a.f64", WriteValue::F64(1e-6));
    set("a.bool", WriteValue::Bool(true));
    set("a.texts", WriteValue::strs(["a", "", "\u{1f600}"]));
    set("a.u32s", WriteValue::u32s([1, 2, 3]));
    set("a.f32s", WriteValue::f32s([0.25, -1.0]));
    set(
        "a.bools",
        WriteValue::Array(T::Bool, vec![WriteValue::Bool(false), WriteValue::Bool(true)]),
    );
    set("a.bytes", WriteValue::Array(T::U8, vec![WriteValue::U8(7), WriteValue::U8(8)]));
    set(
        "a.nested",
        WriteValue::Array(T::Array, vec![WriteValue::u32s([1]), WriteValue::strs(["x"])]),
    );
    set("a.empty", WriteValue::Array(T::Str, vec![]));
    writer.declare("token_embd.weight", TensorType::Q8_0, &[64, 3]).unwrap();
    writer.declare("blk.0.attn_norm.weight", TensorType::F32, &[5]).unwrap();
    writer.declare("blk.0.ffn_up.weight", TensorType::Q4_K, &[256, 2, 2]).unwrap();
    writer.declare("scalar", TensorType::I32, &[]).unwrap();
    let mut file = Vec::new();
    let sizes = [204, 20, 576, 4];
    let fill = |index: usize, sink: &mut dyn std::io::Write| {
        sink.write_all(&vec![index as u8 + 1; sizes[index]])
    };
    writer.write_to(Path::new("sample"), &mut file, fill).unwrap();
    file
}

/// A folder that is removed at the end of the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("formats-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    pub fn open(&self, name: &str) -> Result<Checkpoint, OpenError> {
        Checkpoint::open(self.0.join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
