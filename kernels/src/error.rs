//! Why a kernel could not be made.

use std::fmt;

/// Every variant names the kernel by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// A shape that the op cannot take.
    Shape { kernel: String, what: &'static str, found: u64, need: &'static str },
    /// LLVM refused the kernel: a fault of its builder.
    Llvm { kernel: String, message: String },
    /// The object file cannot be flattened.
    Object { kernel: String, message: String },
    /// The code calls a symbol outside of itself.
    ExternalSymbol { kernel: String, symbol: String },
    /// The code has data that it could write.
    WritableSection { kernel: String, section: String, bytes: u64 },
    /// The machine refused executable memory.
    Map { bytes: u64, message: String },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { kernel, what, found, need } => {
                write!(f, "kernel {kernel}: {what} is {found}, need {need}: choose another kernel")
            }
            Self::Llvm { kernel, message } => {
                write!(f, "kernel {kernel}: LLVM refused it: {message}")
            }
            Self::Object { kernel, message } => {
                write!(f, "kernel {kernel}: its object file cannot be flattened: {message}")
            }
            Self::ExternalSymbol { kernel, symbol } => write!(
                f,
                "kernel {kernel}: its code calls {symbol}, found outside of it, need none: \
                 build the op from element operations"
            ),
            Self::WritableSection { kernel, section, bytes } => write!(
                f,
                "kernel {kernel}: section {section} holds {bytes} writable bytes, need 0: \
                 use scratch"
            ),
            Self::Map { bytes, message } => {
                write!(f, "mapping {bytes} bytes of code failed: {message}")
            }
        }
    }
}

impl std::error::Error for KernelError {}
