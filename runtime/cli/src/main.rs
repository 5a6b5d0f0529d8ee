//! The `strata` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    strata::main(std::env::args_os())
}
