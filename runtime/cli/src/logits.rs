//! `strata logits`.

use std::io::Write;
use std::path::PathBuf;

use crate::CliError;
use crate::generate::open_engine;
use crate::perplexity::each_logits;
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  strata logits model.plan --tokens 1,2,3 -o logits.safetensors   # tensor `logits`, F32 [3, vocab]")]
pub struct LogitsArgs {
    plan: PathBuf,
    /// Token ids
    #[arg(long, value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Write all logits to a safetensors file; without it the best five of each position are printed
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Worker threads; the plan's number, or all allowed cores, if not given
    #[arg(short, long)]
    threads: Option<u32>,
}

/// Runs `strata logits`.
pub fn logits(args: &LogitsArgs, progress: &Progress, out: &mut dyn Write) -> Result<(), CliError> {
    let mut engine = open_engine(&args.plan, args.threads, progress)?;
    let mut all = Vec::new();
    each_logits(&mut engine, &args.tokens, 0, |row| all.push(row.to_vec()))?;
    match &args.output {
        Some(path) => crate::files::write_whole(path, &safetensors("logits", &all)),
        None => print_best(&args.tokens, &all, out),
    }
}

fn print_best(tokens: &[u32], rows: &[Vec<f32>], out: &mut dyn Write) -> Result<(), CliError> {
    for (token, row) in tokens.iter().zip(rows) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        write!(out, "{token:>8} ->")?;
        for &id in order.iter().take(5) {
            write!(out, "  {id} ({:.4})", row[id])?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// One F32 tensor of equal rows as a safetensors file: the length of the header (u64), the header
/// (JSON), the values; all little-endian.
fn safetensors(name: &str, rows: &[Vec<f32>]) -> Vec<u8> {
    let width = rows.first().map_or(0, Vec::len);
    let bytes = rows.len() * width * 4;
    let mut header = serde_json::json!({
        name: { "dtype": "F32", "shape": [rows.len(), width], "data_offsets": [0, bytes] }
    })
    .to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend(rows.iter().flatten().flat_map(|value| value.to_le_bytes()));
    file
}
