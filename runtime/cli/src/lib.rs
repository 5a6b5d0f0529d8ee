//! The command line: parses arguments, shows progress, prints results. It decides nothing about
//! models, plans or kernels; each command is a few calls into the room that does.
//!
//! Results go to standard output, progress and notes to standard error. Exit codes: 0 done, 1 the
//! work failed, 2 the command line was wrong.

mod bench;
mod chat;
mod cli;
#[cfg(feature = "compiler")]
mod compile;
mod error;
mod files;
mod generate;
#[cfg(feature = "compiler")]
mod import;
mod inspect;
mod logits;
mod needle;
mod perplexity;
mod probe;
mod progress;
mod run;
mod speculation;
#[cfg(feature = "compiler")]
mod synth;
mod tokenize;
mod trace;
mod vocabulary;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

pub use error::CliError;

/// Runs one command line; the first of `args` is the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match cli::Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { 2 } else { 0 };
            // A closed pipe is the reader's choice, not a failure.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let stdout = std::io::stdout();
    let mut out = std::io::BufWriter::new(stdout.lock());
    let result = cli.execute(&mut out).and_then(|()| Ok(out.flush()?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "strata: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
