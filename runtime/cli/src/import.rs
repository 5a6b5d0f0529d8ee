//! `strata import`.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::CliError;
use crate::error::Doing;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata import smollm2.gguf -o smollm2.ron
  strata import ./Qwen3-0.6B/ -o qwen3-0.6b.ron    # safetensors and config.json")]
pub struct ImportArgs {
    /// A GGUF file (the first of a split one), or a folder with safetensors and config.json
    checkpoint: PathBuf,
    /// Where the definition goes; printed if not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs `strata import`.
pub fn import(args: &ImportArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let mut definition = strata_models::import(&args.checkpoint)
        .doing(format!("importing {}", args.checkpoint.display()))?;
    let folder = args.output.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    definition.weights.files = vec![relative_to(folder, &args.checkpoint)?];
    let text = strata_models::to_ron(&definition);
    match &args.output {
        Some(path) => crate::files::write_whole(path, text.as_bytes()),
        None => Ok(out.write_all(text.as_bytes())?),
    }
}

/// `path` as a file in `folder` should name it: relative if it lies below, else absolute.
pub fn relative_to(folder: &Path, path: &Path) -> Result<String, CliError> {
    let full = |path: &Path| {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        std::fs::canonicalize(path).map_err(|error| CliError::Read { path: path.to_owned(), error })
    };
    let (folder, path) = (full(folder)?, full(path)?);
    let name = path.strip_prefix(&folder).unwrap_or(&path);
    name.to_str()
        .map(str::to_owned)
        .ok_or_else(|| CliError::Usage(format!("{} is not UTF-8: rename it", name.display())))
}
