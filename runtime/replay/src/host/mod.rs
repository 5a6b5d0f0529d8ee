//! What the CPU device asks of the operating system. The only files of this crate with `unsafe`.

mod affinity;
mod code;
mod cpu;
mod disk;
mod futex;
mod memory;
mod memory_limit;
mod peak;
mod pool;

pub use affinity::use_all_cores;
pub(crate) use code::{Code, KernelEntry};
pub(crate) use cpu::{cpu_features, missing_features};
pub(crate) use disk::{FillableFile, free_bytes};
pub(crate) use memory::{Filling, HugeMemory, MappedFile};
pub(crate) use memory_limit::available_bytes;
pub(crate) use peak::int8_operations;
pub(crate) use pool::{Pool, Worker};
