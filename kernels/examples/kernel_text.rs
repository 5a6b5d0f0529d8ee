//! Prints a kernel's assembly: `cargo run -p strata-kernels --example kernel_text -- KEY TARGET`,
//! with a key as errors and plans print it, and `avx2` or `avx512`.

use strata_kernels::builder::Output;
use strata_kernels::{KernelSpec, Target, text};

#[allow(clippy::print_stdout, reason = "a tool that prints what it makes")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let key = args.next().ok_or("the first argument is a kernel's key")?;
    let target = match args.next().as_deref() {
        Some("avx512") => Target::X86Avx512,
        Some("avx2") | None => Target::X86Avx2,
        Some(other) => return Err(format!("no target {other}: avx2 or avx512").into()),
    };
    let spec: KernelSpec = ron::from_str(&key)?;
    println!("{}", text(&spec, target, Output::Assembly)?);
    Ok(())
}
