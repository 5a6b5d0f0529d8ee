//! The commands and what they are called with.

use std::io::Write;

use clap::{CommandFactory, Parser, Subcommand};

use crate::CliError;

/// Compile very large language models for the machine at hand, and run them
#[derive(Debug, Parser)]
#[command(name = "strata", version, after_help = EXAMPLES)]
pub struct Cli {
    /// Print results only, no progress
    #[arg(long, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  strata import smollm2.gguf -o smollm2.ron
  strata compile smollm2.ron -o smollm2.plan
  strata run smollm2.plan --prompt 'Why is the sky blue?'
  strata run smollm2.plan --chat
  strata inspect smollm2.plan
  strata bench smollm2.plan -p 512 -n 128";

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a model definition from a checkpoint's metadata
    #[cfg(feature = "compiler")]
    Import(crate::import::ImportArgs),
    /// Compile a model definition into a plan for this machine
    #[cfg(feature = "compiler")]
    Compile(crate::compile::CompileArgs),
    /// Make up a weight set that fits a model definition, to measure speed with
    #[cfg(feature = "compiler")]
    Synth(crate::synth::SynthArgs),
    /// Generate text with a plan (or a model definition, which is compiled first)
    Run(crate::run::RunArgs),
    /// Print what a plan does and what it costs
    Inspect(crate::inspect::InspectArgs),
    /// Turn text into token ids, or back
    Tokenize(crate::tokenize::TokenizeArgs),
    /// Compute the logits of every position of a token sequence
    Logits(crate::logits::LogitsArgs),
    /// Compute the perplexity of a text
    Perplexity(crate::perplexity::PerplexityArgs),
    /// Hide a sentence in texts of several lengths and ask for it
    Needle(crate::needle::NeedleArgs),
    /// Measure a plan's prefill and decode speed against what the machine can do
    Bench(crate::bench::BenchArgs),
    /// Measure the machine: read bandwidth and integer arithmetic
    Probe(crate::probe::ProbeArgs),
    /// Write a completion script for a shell
    Completions { shell: clap_complete::Shell },
    /// Compile kernels read from standard input; used by `compile` itself
    #[cfg(feature = "compiler")]
    #[command(name = "codegen-worker", hide = true)]
    CodegenWorker,
}

impl Cli {
    /// Runs the command; results go to `out` only, so that a test needs no process.
    pub fn execute(&self, out: &mut dyn Write) -> Result<(), CliError> {
        let progress = crate::progress::Progress::new(self.quiet);
        match &self.command {
            #[cfg(feature = "compiler")]
            Command::Import(args) => crate::import::import(args, out),
            #[cfg(feature = "compiler")]
            Command::Compile(args) => crate::compile::compile(args, &progress, out),
            #[cfg(feature = "compiler")]
            Command::Synth(args) => crate::synth::synth(args, &progress, out),
            Command::Run(args) => crate::run::run(args, &progress, out),
            Command::Inspect(args) => crate::inspect::inspect(args, out),
            Command::Tokenize(args) => crate::tokenize::tokenize(args, out),
            Command::Logits(args) => crate::logits::logits(args, &progress, out),
            Command::Perplexity(args) => crate::perplexity::perplexity(args, &progress, out),
            Command::Needle(args) => crate::needle::needle(args, &progress, out),
            Command::Bench(args) => crate::bench::bench(args, &progress, out),
            Command::Probe(args) => crate::probe::probe(args, &progress, out),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut Self::command(), "strata", &mut script);
                Ok(out.write_all(&script)?)
            }
            #[cfg(feature = "compiler")]
            Command::CodegenWorker => crate::compile::codegen_worker(out),
        }
    }
}
