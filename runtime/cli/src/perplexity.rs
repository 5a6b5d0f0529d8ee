//! `strata perplexity`.

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use strata_replay::{Engine, Row};

use crate::CliError;
use crate::error::Doing;
use crate::generate::{Loaded, open_with_vocabulary};
use crate::progress::Progress;
use crate::vocabulary::Vocabulary;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The text is cut into chunks of --context tokens; the second half of each is scored, as llama.cpp does.

Example:
  strata perplexity model.plan wiki.txt --context 512 --chunks 8")]
pub struct PerplexityArgs {
    plan: PathBuf,
    /// Text file in UTF-8
    file: PathBuf,
    /// Tokens in a chunk
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    context: u32,
    /// Chunks at most; all if not given
    #[arg(long)]
    chunks: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Worker threads; the plan's number, or all allowed cores, if not given
    #[arg(short, long)]
    threads: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Perplexity {
    perplexity: f64,
    /// Mean negative log likelihood, in nats a token.
    nats_per_token: f64,
    bits_per_byte: f64,
    tokens: u64,
    chunks: u32,
    context_tokens: u32,
}

/// Runs `strata perplexity`.
pub fn perplexity(
    args: &PerplexityArgs,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let text = crate::files::read_text(&args.file)?;
    let Loaded { mut engine, vocabulary } =
        open_with_vocabulary(&args.plan, args.threads, progress)?;
    let tokens = vocabulary.encode_document(&text)?;
    let vocab = engine.model().vocab;
    if let Some(token) = tokens.iter().find(|token| **token >= vocab) {
        return Err(CliError::Usage(format!(
            "the vocabulary gives token {token}, the model has {vocab}: the two do not belong together"
        )));
    }
    let result = score(&mut engine, &vocabulary, &tokens, args, progress)?;
    if args.json {
        serde_json::to_writer(&mut *out, &result).doing("writing JSON")?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "perplexity {:.4} over {} tokens ({} chunks of {}), {:.4} nats a token, {:.4} bits a byte",
            result.perplexity,
            result.tokens,
            result.chunks,
            result.context_tokens,
            result.nats_per_token,
            result.bits_per_byte
        )?;
    }
    Ok(())
}

fn score(
    engine: &mut Engine,
    vocabulary: &Vocabulary,
    tokens: &[u32],
    args: &PerplexityArgs,
    progress: &Progress,
) -> Result<Perplexity, CliError> {
    let context = args.context as usize;
    let chunks = (tokens.len() / context).min(args.chunks.map_or(usize::MAX, |c| c as usize));
    if chunks == 0 {
        return Err(CliError::Usage(format!(
            "{} has {} tokens, a chunk needs {context}: take a longer text or a smaller --context",
            args.file.display(),
            tokens.len()
        )));
    }
    let bar = progress.count("chunks", chunks as u64);
    let (mut nats, mut bytes, mut scored) = (0.0, 0usize, 0u64);
    for chunk in tokens.chunks_exact(context).take(chunks) {
        let mut chunk = chunk.to_vec();
        if let Some(bos) = vocabulary.leading_token() {
            chunk[0] = bos;
        }
        let first = context / 2;
        let mut next = first + 1;
        each_logits(engine, &chunk[..context - 1], first, |logits| {
            nats -= log_probability(logits, chunk[next]);
            bytes += vocabulary.token_bytes(chunk[next]);
            scored += 1;
            next += 1;
        })?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mean = nats / scored as f64;
    Ok(Perplexity {
        perplexity: mean.exp(),
        nats_per_token: mean,
        bits_per_byte: nats / std::f64::consts::LN_2 / bytes.max(1) as f64,
        tokens: scored,
        chunks: u32::try_from(chunks).unwrap_or(u32::MAX),
        context_tokens: args.context,
    })
}

/// Computes the logits of the positions from `first` on of a fresh sequence, in order.
pub fn each_logits(
    engine: &mut Engine,
    tokens: &[u32],
    first: usize,
    mut each: impl FnMut(&[f32]),
) -> Result<(), CliError> {
    let slot = engine.new_sequence().doing("starting a sequence")?;
    let (silent, wanted) = tokens.split_at(first);
    let (largest, largest_wanted) = (engine.model().max_rows, engine.model().max_logit_rows);
    let silent = silent.chunks(largest as usize).map(|tokens| (tokens, false));
    let wanted = wanted.chunks(largest_wanted as usize).map(|tokens| (tokens, true));
    let mut result = Ok(());
    for (tokens, logits) in silent.chain(wanted) {
        let rows: Vec<Row> = tokens.iter().map(|&token| Row { token, slot, logits }).collect();
        match engine.run(&rows) {
            Ok(output) => (0..output.count()).for_each(|i| each(output.logits(i))),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    engine.release(slot);
    result.doing("running a window")
}

/// `ln softmax(logits)[token]`, in f64.
fn log_probability(logits: &[f32], token: u32) -> f64 {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - top).exp()).sum();
    f64::from(logits[token as usize] - top) - sum.ln()
}
