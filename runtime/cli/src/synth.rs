//! `strata synth`.

use std::io::Write;
use std::path::PathBuf;

use strata_models::Mix;

use crate::CliError;
use crate::error::Doing;
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata synth models/qwen3.8-flash-next.gguf.ron -o slice.gguf --layers 4 --ngram-rows 64000
  strata synth models/qwen3.8-flash-next.gguf.ron -o full.gguf --headers
  strata import slice.gguf -o slice.ron    # the definition that goes with the file")]
pub struct SynthArgs {
    /// Model definition of the GGUF layout
    model: PathBuf,
    /// The GGUF file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Leave the weights out: the file has its full length but takes no room, and can be compiled
    #[arg(long)]
    headers: bool,
    /// Tensor types: one for all, or parts like dense=Q8_0,gate_up=Q4_K,down=Q4_0,table=Q8_0
    #[arg(long, value_name = "MIX")]
    quant: Option<Mix>,
    /// Layers instead of the definition's
    #[arg(long, value_name = "N")]
    layers: Option<u32>,
    /// Rows of the table of n-grams instead of the definition's, about
    #[arg(long, value_name = "N")]
    ngram_rows: Option<u32>,
    /// Leave the draft head out
    #[arg(long)]
    no_draft: bool,
}

/// Runs `strata synth`.
pub fn synth(args: &SynthArgs, progress: &Progress, out: &mut dyn Write) -> Result<(), CliError> {
    let definition = strata_models::parse(&crate::files::read_text(&args.model)?)
        .doing(format!("reading {}", args.model.display()))?;
    let mut definition = strata_models::resize(&definition, args.layers, args.ngram_rows);
    if args.no_draft {
        definition.draft = None;
    }
    let file = strata_models::synthesize(&definition, &args.quant.unwrap_or_default())
        .doing(format!("making up weights of {}", definition.name))?;
    let doing = format!("writing {}", args.output.display());
    if args.headers {
        file.write_headers(&args.output).doing(doing)?;
    } else {
        let bar = progress.bytes("weights");
        bar.set_length(file.bytes());
        let written = file.write(&args.output, |bytes| bar.inc(bytes));
        bar.finish_and_clear();
        written.doing(doing)?;
    }
    let (count, gb) = (file.tensor_count(), file.bytes() as f64 / 1e9);
    let left_out = if args.headers { ", left out" } else { "" };
    writeln!(out, "wrote {}: {count} tensors, {gb:.2} GB{left_out}", args.output.display())?;
    Ok(())
}
