//! Runs plans: memory, threads, sequences and the hot loop. It never sees a graph or a compiler.
//!
//! [`Engine::open`] checks, allocates and loads; after that windows of rows run without an
//! allocation, a lock or a system call other than sleeping.

mod bind;
mod draft;
mod error;
mod held;
mod host;
mod load;
mod open;
mod outputs;
mod pack;
mod pages;
pub mod probe;
mod replay;
mod sample;
mod save;
mod sequences;
mod session;
pub mod speculate;
mod state;
mod step;
#[cfg(test)]
mod test_plan;
#[cfg(test)]
mod tests;
mod windows;

pub use error::{MemoryNeeds, ReplayError};
pub use host::use_all_cores;
pub use open::{EngineOptions, check_files};
pub use outputs::NamedOutput;
pub use pack::PackFault;
pub use sample::{Sampler, Sampling, argmax};
pub use save::StateFault;
pub use sequences::{Row, SlotId};
pub use session::{Engine, Output, Timed};
