//! One op a file: `check` refuses shapes that it cannot take, `build` writes its code.

mod add;
pub mod kv;

use crate::builder::KernelBuilder;
use crate::error::KernelError;
use crate::spec::KernelSpec;

/// Refuses a specification whose shapes its op cannot take.
pub(crate) fn check(spec: &KernelSpec) -> Result<(), KernelError> {
    match spec {
        KernelSpec::Add(s) => require(spec, "k", s.k.into(), s.k % 16 == 0, "a multiple of 16"),
        _ => Ok(()),
    }
}

/// Writes the body of a checked specification's kernel.
pub(crate) fn build(k: &KernelBuilder<'_>, spec: &KernelSpec) {
    match *spec {
        KernelSpec::Add(s) => add::build(k, s),
        _ => {}
    }
}

/// An error that names the kernel unless `holds`.
pub(crate) fn require(
    spec: &KernelSpec,
    what: &'static str,
    found: u64,
    holds: bool,
    need: &'static str,
) -> Result<(), KernelError> {
    if holds {
        return Ok(());
    }
    Err(KernelError::Shape { kernel: spec.key(), what, found, need })
}
