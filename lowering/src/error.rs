//! Why a plan cannot be made from an input.

use std::fmt;

use crate::place_experts::OtherBytes;

/// Users' mistakes and limits; each says what, where, what was found and what is needed.
#[derive(Clone, Debug, PartialEq)]
pub enum LowerError {
    /// A field of the configuration.
    Config {
        field: &'static str,
        found: String,
        need: &'static str,
    },
    /// No pass has the name behind which to stop.
    UnknownPass {
        found: String,
    },
    /// The configuration asks for the machine's own instruction set and there is none we know.
    NoNativeTarget,
    /// Graphs were given for other windows than the configuration's.
    Windows {
        found: usize,
        need: usize,
    },
    TensorMissing {
        weight: String,
        tensor: String,
        near: Option<String>,
        files: String,
    },
    TensorDims(Box<TensorFault>),
    TensorFormat(Box<TensorFault>),
    /// Slices of one weight with different element types.
    MixedFormats(Box<TensorFault>),
    /// The file says another size than type and dimensions give.
    TensorBytes {
        tensor: String,
        file: String,
        found: u64,
        need: u64,
    },
    /// A tensor that ends behind its file.
    TensorRange {
        tensor: String,
        file: String,
        end_bytes: u64,
        file_bytes: u64,
    },
    /// A shape that no kernel takes.
    Shape {
        node: String,
        what: &'static str,
        found: u64,
        need: String,
    },
    /// An op over these operands has no kernel.
    NoKernel {
        node: String,
        op: &'static str,
        found: String,
        need: &'static str,
    },
    Budget(Box<BudgetShortfall>),
    /// The finished plan breaks a rule of its format: a fault of the compiler.
    Plan {
        message: String,
    },
    /// Machine code could not be generated.
    Kernel {
        message: String,
    },
    /// A code generator process could not be started, or ended in the middle of a kernel.
    Worker {
        kernel: String,
        message: String,
    },
}

/// A tensor that does not fit the weight that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorFault {
    pub weight: String,
    pub tensor: String,
    pub file: String,
    pub found: String,
    pub need: String,
}

/// What the plan needs, by class, against what the configuration allows. All in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BudgetShortfall {
    pub device: String,
    pub budget: u64,
    pub weights: u64,
    /// Of `weights`, what could be read from the file instead.
    pub mappable: u64,
    /// Of `weights`, what could lie in a packed file instead.
    pub packable: u64,
    pub other: OtherBytes,
}

impl BudgetShortfall {
    /// Without the arena while that is not known.
    pub fn need(&self) -> u64 {
        let OtherBytes { states, arena, step, .. } = self.other;
        self.weights + states + arena.unwrap_or(0) + step
    }

    pub fn short(&self) -> u64 {
        self.need().saturating_sub(self.budget)
    }

    /// The most positions of a sequence whose pages leave `bytes` more; `None` if no page is left.
    fn fewer_positions(&self, bytes: u64) -> Option<u64> {
        let OtherBytes { page, pages, .. } = self.other;
        let dropped = (page > 0).then(|| bytes.div_ceil(page))?;
        let kept = u64::from(pages).checked_sub(dropped).filter(|&kept| kept > 0)?;
        Some(kept * u64::from(self.other.page_tokens))
    }

    /// Changes of the configuration each of which is enough.
    fn remedies(&self) -> Vec<String> {
        let short = self.short();
        let mut remedies = Vec::new();
        // With the policy Auto nothing is left to be freed.
        let (freed, moved) = match self.packable {
            0 => (self.mappable, format!("weights: Mapped (frees {})", mib(self.mappable))),
            packed => {
                let freed = self.mappable + packed;
                (freed, format!("weights: Auto (frees {} into a packed file)", mib(freed)))
            }
        };
        if freed >= short {
            remedies.push(moved.clone());
        }
        let positions = |bytes| {
            let tokens = self.fewer_positions(bytes)?;
            Some(format!("sequences.context_tokens of at most {tokens}"))
        };
        match positions(short) {
            Some(fewer) => remedies.push(fewer),
            None if (1..short).contains(&freed) => {
                let fewer = positions(short - freed);
                remedies.extend(fewer.map(|fewer| format!("{moved} with {fewer}")));
            }
            None => {}
        }
        remedies.push(format!("raise budget_mib by {}", short.div_ceil(1 << 20)));
        remedies
    }
}

/// Bytes as MiB with one decimal.
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

impl fmt::Display for BudgetShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the arena all numbers are lower bounds, and so is what a remedy has to free.
        let at_least = if self.other.arena.is_none() { "at least " } else { "" };
        write!(
            f,
            "{}: the plan needs {at_least}{} (weights {}, states {}, arena {}, step {}), the \
             budget is {}: {at_least}{} short; {}{}",
            self.device,
            mib(self.need()),
            mib(self.weights),
            mib(self.other.states),
            self.other.arena.map_or_else(|| "not known yet".into(), mib),
            mib(self.other.step),
            mib(self.budget),
            mib(self.short()),
            if self.other.arena.is_none() { "needed, before the arena: " } else { "" },
            self.remedies().join(", or "),
        )
    }
}

/// The weight, the tensor and its file.
impl fmt::Display for TensorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {}: tensor {} in {}", self.weight, self.tensor, self.file)
    }
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config { field, found, need } => {
                write!(f, "configuration: {field} is {found}, needs {need}")
            }
            Self::UnknownPass { found } => {
                write!(f, "no pass is called {found}; there are {}", crate::PASSES.join(", "))
            }
            Self::NoNativeTarget => write!(
                f,
                "configuration: target Native: this machine has no AVX2; name Avx2 or Avx512 to \
                 compile for another machine"
            ),
            Self::Windows { found, need } => {
                write!(f, "{found} graphs for {need} windows of the configuration")
            }
            Self::TensorMissing { weight, tensor, near, files } => {
                write!(f, "weight {weight}: no tensor {tensor} in {files}")?;
                match near {
                    Some(near) => write!(f, "; the nearest name is {near}"),
                    None => write!(f, "; is it the right weight file?"),
                }
            }
            Self::TensorDims(fault) => {
                write!(f, "{fault} is {}, the model needs {}", fault.found, fault.need)
            }
            Self::TensorFormat(fault) => write!(
                f,
                "{fault} is stored as {}, supported: {}; convert the file",
                fault.found, fault.need
            ),
            Self::MixedFormats(fault) => write!(
                f,
                "{fault} is stored as {}, its other parts as {}; convert them to one type",
                fault.found, fault.need
            ),
            Self::TensorBytes { tensor, file, found, need } => write!(
                f,
                "tensor {tensor} in {file} has {found} bytes, its type and dimensions need {need}: \
                 the file is damaged"
            ),
            Self::TensorRange { tensor, file, end_bytes, file_bytes } => write!(
                f,
                "tensor {tensor} ends at byte {end_bytes} of {file}, which has {file_bytes}: the \
                 file is cut short"
            ),
            Self::Shape { node, what, found, need } => {
                write!(f, "{node}: {what} is {found}, kernels need {need}")
            }
            Self::NoKernel { node, op, found, need } => {
                write!(f, "{node}: no kernel for {op} over {found}; needs {need}")
            }
            Self::Budget(shortfall) => shortfall.fmt(f),
            Self::Plan { message } => write!(
                f,
                "the finished plan cannot be opened: {message}; this is a fault of the compiler, \
                 please report it"
            ),
            Self::Kernel { message } => f.write_str(message),
            Self::Worker { kernel, message } => {
                write!(f, "code generator at kernel {kernel}: {message}")
            }
        }
    }
}

impl std::error::Error for LowerError {}
