//! From specifications to machine code: relocation-free blobs that run wherever they are mapped.

use crate::builder::{KernelBuilder, Output, Workspace};
use crate::error::KernelError;
use crate::flatten::flatten;
use crate::ops;
use crate::spec::KernelSpec;
use crate::target::Target;

/// Machine code of one kernel. It may be placed at any address that is a multiple of
/// [`ALIGN_BYTES`](CompiledKernel::ALIGN_BYTES) and needs nothing outside of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledKernel {
    pub spec: KernelSpec,
    pub bytes: Vec<u8>,
    /// Offset of the entry point in `bytes`.
    pub entry_bytes: u32,
}

impl CompiledKernel {
    pub const ALIGN_BYTES: usize = 64;
}

/// Compiles each specification for `target`, in order.
///
/// # Errors
/// The first specification that cannot be compiled, by its key.
pub fn compile(specs: &[KernelSpec], target: Target) -> Result<Vec<CompiledKernel>, KernelError> {
    let workspace = Workspace::new();
    specs.iter().map(|spec| compile_one(&workspace, spec, target)).collect()
}

fn compile_one(
    workspace: &Workspace,
    spec: &KernelSpec,
    target: Target,
) -> Result<CompiledKernel, KernelError> {
    let object = emit(workspace, spec, target, Output::Object)?;
    let (bytes, entry_bytes) = flatten(&object, spec)?;
    Ok(CompiledKernel { spec: *spec, bytes, entry_bytes })
}

/// The kernel's assembly, or its LLVM IR before optimisation, for reading.
///
/// # Errors
/// As [`compile`].
pub fn text(spec: &KernelSpec, target: Target, output: Output) -> Result<String, KernelError> {
    let bytes = emit(&Workspace::new(), spec, target, output)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn emit(
    workspace: &Workspace,
    spec: &KernelSpec,
    target: Target,
    output: Output,
) -> Result<Vec<u8>, KernelError> {
    ops::check(spec)?;
    let builder = KernelBuilder::new(workspace, target);
    ops::build(&builder, spec);
    builder.finish();
    builder.emit(output).map_err(|message| KernelError::Llvm { kernel: spec.key(), message })
}
