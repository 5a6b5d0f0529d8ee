//! Medians of pairs, as JSON and as a table.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::measure::{Pair, Perplexity, Tools};

/// One model's pairs and their medians.
#[derive(Debug, Serialize)]
pub struct ModelResult {
    pub file: String,
    pub prefill: Compared,
    pub decode: Compared,
    pub decode_fraction_of_read: f64,
    pub prefill_fraction_of_int8: f64,
    pub read_gb_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<Perplexity>,
    pub pairs: Vec<Pair>,
}

/// Tokens a second: medians of each engine, and the median of the pairs' ratios.
#[derive(Debug, Serialize)]
pub struct Compared {
    pub strata: f64,
    pub peer: f64,
    pub ratio: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl ModelResult {
    pub fn of(file: &Path, pairs: Vec<Pair>, perplexity: Option<Perplexity>) -> Self {
        let compare = |ours: fn(&Pair) -> f64, theirs: fn(&Pair) -> f64| Compared {
            strata: median(pairs.iter().map(ours)),
            peer: median(pairs.iter().map(theirs)),
            ratio: median(pairs.iter().map(|p| ours(p) / theirs(p))),
        };
        Self {
            file: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            prefill: compare(|p| p.strata.prefill, |p| p.peer.prefill),
            decode: compare(|p| p.strata.decode, |p| p.peer.decode),
            decode_fraction_of_read: median(pairs.iter().map(|p| p.decode_fraction_of_read)),
            prefill_fraction_of_int8: median(pairs.iter().map(|p| p.prefill_fraction_of_int8)),
            read_gb_per_s: median(pairs.iter().map(|p| p.read_gb_per_s)),
            perplexity,
            pairs,
        }
    }
}

/// All of one run.
#[derive(Debug, Serialize)]
pub struct Run {
    cpu: String,
    threads: u32,
    prompt_tokens: u32,
    decode_tokens: u32,
    models: Vec<ModelResult>,
}

impl Run {
    pub fn of(tools: &Tools, models: Vec<ModelResult>) -> Self {
        Self {
            cpu: cpu_name(),
            threads: tools.threads,
            prompt_tokens: tools.prompt_tokens,
            decode_tokens: tools.decode_tokens,
            models,
        }
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and strings") + "\n"
    }

    /// The table of docs/BENCHMARKS.md.
    pub fn to_markdown(&self) -> String {
        let mut text = format!(
            "{}, {} threads, prompt {}, decode {} tokens\n\n\
             | file | prefill, peer, ratio | decode, peer, ratio | decode / read | prefill / int8 | perplexity, peer |\n\
             | --- | --- | --- | --- | --- | --- |\n",
            self.cpu, self.threads, self.prompt_tokens, self.decode_tokens
        );
        for model in &self.models {
            let perplexity =
                model.perplexity.map_or("-".into(), |p| format!("{:.3}, {:.3}", p.strata, p.peer));
            let _ = writeln!(
                text,
                "| {} | {:.1}, {:.1}, {:.2}x | {:.1}, {:.1}, {:.2}x | {:.0} % of {:.1} GB/s | {:.0} % | {} |",
                model.file,
                model.prefill.strata,
                model.prefill.peer,
                model.prefill.ratio,
                model.decode.strata,
                model.decode.peer,
                model.decode.ratio,
                model.decode_fraction_of_read * 100.0,
                model.read_gb_per_s,
                model.prefill_fraction_of_int8 * 100.0,
                perplexity
            );
        }
        text
    }
}

fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or("unknown CPU".into(), |name| name.trim_start_matches([' ', '\t', ':']).to_owned())
}
