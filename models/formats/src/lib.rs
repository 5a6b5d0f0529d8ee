//! Model files: hardened readers for GGUF and safetensors, the tensor types that they hold, and a
//! scalar reference decode of the quantised blocks.
//!
//! All checks are made once, at open: counts and lengths against the bytes that are left, checked
//! arithmetic, ranges inside the file, no name twice. What a reader returns after that needs no
//! further check. Tensors are never copied; they are slices of the mapped file.
//!
//! Not done here: what a key or a tensor *means* (that is the room of models), and kernels.

pub mod blocks;
mod checkpoint;
mod error;
pub mod gguf;
mod hash;
mod numbers;
mod safetensors;
mod shards;
mod source;
mod tensor_type;
mod tokenizer_arrays;
mod writer;

pub use blocks::{DecodeError, decode, decodes};
pub use checkpoint::{Checkpoint, CheckpointFile, Kind, TensorInfo};
pub use error::OpenError;
pub use gguf::{Array, Gguf, GgufError, KeyError, Metadata, Value, ValueType};
pub use hash::fnv1a_64;
pub use numbers::{bf16_to_f32, f16_to_f32};
pub use safetensors::{Safetensors, SafetensorsError};
pub use source::FileBytes;
pub use tensor_type::TensorType;
pub use tokenizer_arrays::{TokenizerFault, check_array_lengths, check_merges};
pub use writer::{GgufWriter, WriteError, WriteValue};
