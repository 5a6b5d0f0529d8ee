//! `strata probe`, and the cached measurements of this machine.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strata_replay::probe::{int8_peak, read_bandwidth};

use crate::CliError;
use crate::error::Doing;
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  strata probe --json")]
pub struct ProbeArgs {
    /// Threads to measure with; all allowed cores if not given
    #[arg(short, long)]
    threads: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a machine can do at most, with a number of threads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MachineProfile {
    pub threads: u32,
    /// Sequential reads from huge pages, all threads together.
    pub read_gb_per_s: f64,
    /// 8-bit multiplies and adds, all threads together; two operations a product.
    pub int8_gop_per_s: f64,
}

/// Runs `strata probe`.
pub fn probe(args: &ProbeArgs, progress: &Progress, out: &mut dyn Write) -> Result<(), CliError> {
    let profile = measure(thread_count(args.threads), progress)?;
    keep(&profile)?;
    if args.json {
        serde_json::to_writer(&mut *out, &profile).doing("writing JSON")?;
        writeln!(out)?;
    } else {
        writeln!(out, "threads      {:>10}", profile.threads)?;
        writeln!(out, "read         {:>10.1} GB/s", profile.read_gb_per_s)?;
        writeln!(out, "int8         {:>10.1} Gop/s", profile.int8_gop_per_s)?;
    }
    Ok(())
}

/// The measurements for so many threads: from the cache, or taken now and kept.
pub fn profile(threads: Option<u32>, progress: &Progress) -> Result<MachineProfile, CliError> {
    let threads = thread_count(threads);
    if let Ok(text) = std::fs::read_to_string(cache_file(threads)?)
        && let Ok(profile) = serde_json::from_str::<MachineProfile>(&text)
        && profile.threads == threads
    {
        return Ok(profile);
    }
    let profile = measure(threads, progress)?;
    keep(&profile)?;
    Ok(profile)
}

/// What `bench` samples beside its runs, since the machine's memory may be shared.
pub fn sample_read_bandwidth(threads: u32) -> Result<f64, CliError> {
    read_bandwidth(threads, 1).doing("measuring the read bandwidth")
}

pub fn thread_count(threads: Option<u32>) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    threads.unwrap_or(cores).max(1)
}

fn measure(threads: u32, progress: &Progress) -> Result<MachineProfile, CliError> {
    let bar = progress.count("probing", 2);
    let read_gb_per_s = read_bandwidth(threads, 5).doing("measuring the read bandwidth")?;
    bar.inc(1);
    let int8_gop_per_s = int8_peak(threads).doing("measuring the int8 peak")?;
    bar.finish_and_clear();
    Ok(MachineProfile { threads, read_gb_per_s, int8_gop_per_s })
}

fn keep(profile: &MachineProfile) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(profile).doing("writing JSON")?;
    crate::files::write_whole(&cache_file(profile.threads)?, text.as_bytes())
}

fn cache_file(threads: u32) -> Result<PathBuf, CliError> {
    Ok(crate::files::cache_dir()?.join(format!("machine-{threads}.json")))
}
