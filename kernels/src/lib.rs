//! Generated kernels: an op with its shapes baked in ([`KernelSpec`]) becomes relocation-free
//! machine code for a [`Target`].
//!
//! Every kernel keeps the numeric contract, whose definition is [`reference`]: its results are
//! equal to the reference bit for bit, for any count of rows and parts.

pub mod builder;
pub mod codegen;
pub mod error;
mod flatten;
pub mod formats;
pub mod math;
pub mod ops;
pub mod reference;
pub mod run;
pub mod spec;
pub mod target;

#[cfg(test)]
mod tests;

pub use codegen::{CompiledKernel, compile, text};
pub use error::KernelError;
pub use spec::KernelSpec;
pub use target::Target;
