//! Strata and a peer (llama.cpp) on the same files, in turn, in one run: a shared machine drifts, so
//! only pairs of runs that stand side by side are compared, and medians of their ratios are quoted.

mod measure;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use measure::{BenchError, Tools};

/// Measure strata beside llama.cpp on real models
#[derive(Debug, Parser)]
#[command(after_help = "\
Example:
  cargo build --release -p strata
  cargo run --release -p strata-bench -- --models model-files --peer peer/bin \\
      --text topics.txt -o bench/results/cpu.json")]
struct Args {
    /// Folder with the GGUF files of `make models`
    #[arg(long, value_name = "DIR")]
    models: PathBuf,
    /// Folder with the peer's llama-bench and llama-perplexity
    #[arg(long, value_name = "DIR")]
    peer: PathBuf,
    /// The strata command
    #[arg(long, value_name = "FILE", default_value = "target/release/strata")]
    strata: PathBuf,
    /// Only these files of the folder
    #[arg(long, value_name = "FILE")]
    file: Vec<String>,
    /// Pairs of runs for each model
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    #[arg(short, long, default_value_t = 512)]
    prompt_tokens: u32,
    #[arg(short = 'n', long, default_value_t = 128)]
    decode_tokens: u32,
    #[arg(short, long, default_value_t = 2)]
    threads: u32,
    /// Also compare the perplexity of this text (8 chunks of 512 tokens)
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Where the measurements go
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strata-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), BenchError> {
    let tools = Tools {
        strata: args.strata.clone(),
        peer: args.peer.clone(),
        threads: args.threads,
        prompt_tokens: args.prompt_tokens,
        decode_tokens: args.decode_tokens,
    };
    let files = measure::model_files(&args.models, &args.file)?;
    let mut results = Vec::new();
    for file in files {
        eprintln!("{}", file.display());
        let plan = tools.compile(&file)?;
        let mut pairs = Vec::new();
        for round in 0..args.rounds {
            let pair = tools.pair(&file, &plan)?;
            eprintln!(
                "  {}: prefill {:.1} / {:.1}, decode {:.2} / {:.2}",
                round + 1,
                pair.strata.prefill,
                pair.peer.prefill,
                pair.strata.decode,
                pair.peer.decode
            );
            pairs.push(pair);
        }
        let perplexity =
            args.text.as_ref().map(|text| tools.perplexity(&file, &plan, text)).transpose()?;
        results.push(report::ModelResult::of(&file, pairs, perplexity));
    }
    let run = report::Run::of(&tools, results);
    measure::write_whole(&args.output, &run.to_json())?;
    eprint!("{}", run.to_markdown());
    Ok(())
}
