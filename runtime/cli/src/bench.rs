//! `strata bench`.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;
use strata_plan::Plan;
use strata_plan::layout::{Schedule, schedule};
use strata_replay::{Engine, Row, SlotId};

use crate::CliError;
use crate::error::Doing;
use crate::generate::open_engine;
use crate::probe::MachineProfile;
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Speeds are medians over the repetitions; each repetition reads the prompt into an empty sequence, then
decodes behind it. The read bandwidth is sampled beside the repetitions.

Example:
  strata bench model.plan -p 512 -n 128 -r 5 --json")]
pub struct BenchArgs {
    plan: PathBuf,
    /// Tokens of the prompt
    #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Tokens to decode
    #[arg(short = 'n', long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    decode_tokens: u32,
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Also time each op of both phases
    #[arg(long)]
    ops: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Worker threads; all allowed cores if not given
    #[arg(short, long)]
    threads: Option<u32>,
}

/// Tokens a second: median, least and most of the repetitions.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(0.0);
        Self { median: at(values.len() / 2), min: at(0), max: at(values.len().wrapping_sub(1)) }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    threads: u32,
    prompt_tokens: u32,
    decode_tokens: u32,
    repetitions: u32,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
    prefill: Spread,
    decode: Spread,
    /// Bytes that a decode window reads and writes, from the plan.
    decode_bytes: u64,
    decode_gb_per_s: f64,
    /// Of the read bandwidth sampled beside the repetitions.
    decode_fraction_of_read: f64,
    prefill_gop_per_s: f64,
    prefill_fraction_of_int8: f64,
    read_gb_per_s: f64,
    int8_gop_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ops: Option<Ops>,
}

#[derive(Debug, Serialize)]
struct Ops {
    prefill: Vec<OpTime>,
    decode: Vec<OpTime>,
}

/// Time of all launches of one op in one window.
#[derive(Clone, Debug, Serialize)]
struct OpTime {
    op: String,
    launches: u32,
    microseconds: f64,
    share: f64,
}

/// Runs `strata bench`.
pub fn bench(args: &BenchArgs, progress: &Progress, out: &mut dyn Write) -> Result<(), CliError> {
    let machine = crate::probe::profile(args.threads, progress)?;
    let mut engine = open_engine(&args.plan, args.threads, progress)?;
    check_room(&engine, args)?;
    let bar = progress.count("repetitions", u64::from(args.repetitions));
    let (mut prefill, mut decode, mut read) = (Vec::new(), Vec::new(), Vec::new());
    repetition(&mut engine, args)?;
    for _ in 0..args.repetitions {
        read.push(crate::probe::sample_read_bandwidth(machine.threads)?);
        let (prefill_s, decode_s) = repetition(&mut engine, args)?;
        prefill.push(f64::from(args.prompt_tokens) / prefill_s);
        decode.push(f64::from(args.decode_tokens) / decode_s);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let machine = MachineProfile { read_gb_per_s: Spread::of(read).median, ..machine };
    let mut report = report(&engine, args, machine, (Spread::of(prefill), Spread::of(decode)));
    if args.ops {
        report.ops = Some(time_ops(&mut engine, args)?);
    }
    if args.json {
        serde_json::to_writer(&mut *out, &report).doing("writing JSON")?;
        writeln!(out)?;
        Ok(())
    } else {
        print(&report, out)
    }
}

fn check_room(engine: &Engine, args: &BenchArgs) -> Result<(), CliError> {
    let need = u64::from(args.prompt_tokens) + u64::from(args.decode_tokens);
    let context = engine.model().context_tokens;
    if need > u64::from(context) {
        return Err(CliError::Usage(format!(
            "-p {} and -n {} need {need} tokens of context, the plan has {context}",
            args.prompt_tokens, args.decode_tokens
        )));
    }
    Ok(())
}

/// Tokens without meaning: a fixed walk over the vocabulary.
fn token(vocab: u32, step: u32) -> u32 {
    let mixed = step.wrapping_mul(2_654_435_761).rotate_left(13) ^ step;
    mixed % vocab
}

/// Seconds of prefill and of decode.
fn repetition(engine: &mut Engine, args: &BenchArgs) -> Result<(f64, f64), CliError> {
    let slot = engine.new_sequence().doing("starting a sequence")?;
    let (vocab, window) = (engine.model().vocab, engine.model().max_rows);
    let began = Instant::now();
    let mut at = 0;
    while at < args.prompt_tokens {
        let count = window.min(args.prompt_tokens - at);
        let last = at + count == args.prompt_tokens;
        let rows: Vec<Row> = (0..count)
            .map(|i| Row { token: token(vocab, at + i), slot, logits: last && i + 1 == count })
            .collect();
        engine.run(&rows).doing("running a prefill window")?;
        at += count;
    }
    let prefill = began.elapsed().as_secs_f64();
    let began = Instant::now();
    for step in 0..args.decode_tokens {
        decode_step(engine, slot, args.prompt_tokens + step)?;
    }
    let decode = began.elapsed().as_secs_f64();
    engine.release(slot);
    Ok((prefill, decode))
}

fn decode_step(engine: &mut Engine, slot: SlotId, step: u32) -> Result<(), CliError> {
    let row = Row { token: token(engine.model().vocab, step), slot, logits: true };
    engine.run(&[row]).doing("running a decode window")?;
    Ok(())
}

/// The schedule of the smallest window that holds `rows`.
fn schedule_for(plan: &Plan, rows: u32) -> Option<&Schedule> {
    plan.schedules()
        .iter()
        .filter(|s| matches!(s.kind, schedule::PREFILL | schedule::VERIFY) && s.rows >= rows)
        .min_by_key(|s| s.rows)
}

fn report(
    engine: &Engine,
    args: &BenchArgs,
    machine: MachineProfile,
    (prefill, decode): (Spread, Spread),
) -> Report {
    let plan = engine.plan();
    let model = engine.model();
    let decode_bytes = schedule_for(plan, 1).map_or(0, |s| s.bytes);
    let window = args.prompt_tokens.min(model.max_rows);
    let prefill_ops = schedule_for(plan, window).map_or(0.0, |s| {
        // One row of a prompt asks for logits; the schedule's count is of all that may.
        let head = 2 * u64::from(model.hidden) * u64::from(model.vocab);
        let idle = u64::from(s.logit_rows.saturating_sub(1)) * head;
        s.flops.saturating_sub(idle) as f64 / f64::from(s.rows)
    });
    let decode_gb_per_s = decode_bytes as f64 * decode.median / 1e9;
    let prefill_gop_per_s = prefill_ops * prefill.median / 1e9;
    Report {
        model: plan.name(model.name).to_owned(),
        threads: engine.threads(),
        prompt_tokens: args.prompt_tokens,
        decode_tokens: args.decode_tokens,
        repetitions: args.repetitions,
        prefill_tokens_per_s: prefill.median,
        decode_tokens_per_s: decode.median,
        prefill,
        decode,
        decode_bytes,
        decode_gb_per_s,
        decode_fraction_of_read: decode_gb_per_s / machine.read_gb_per_s,
        prefill_gop_per_s,
        prefill_fraction_of_int8: prefill_gop_per_s / machine.int8_gop_per_s,
        read_gb_per_s: machine.read_gb_per_s,
        int8_gop_per_s: machine.int8_gop_per_s,
        ops: None,
    }
}

fn time_ops(engine: &mut Engine, args: &BenchArgs) -> Result<Ops, CliError> {
    let vocab = engine.model().vocab;
    let slot = engine.new_sequence().doing("starting a sequence")?;
    let count = args.prompt_tokens.min(engine.model().max_rows);
    let rows = |first: u32, count: u32| -> Vec<Row> {
        (first..first + count)
            .map(|i| Row { token: token(vocab, i), slot, logits: i + 1 == first + count })
            .collect()
    };
    let mut times = |rows: &[Row]| -> Result<Vec<OpTime>, CliError> {
        let timed = engine.run_timed(rows).doing("timing a window")?;
        let (schedule, nanoseconds) = (timed.schedule, timed.nanoseconds.to_vec());
        Ok(by_op(engine.plan(), schedule, &nanoseconds))
    };
    let ops = Ops { prefill: times(&rows(0, count))?, decode: times(&rows(count, 1))? };
    engine.release(slot);
    Ok(ops)
}

/// Sums the time of each command by its op, slowest first.
fn by_op(plan: &Plan, schedule: usize, nanoseconds: &[u64]) -> Vec<OpTime> {
    let mut ops: Vec<OpTime> = Vec::new();
    let range = plan.schedules()[schedule].commands.range();
    let total: u64 = nanoseconds.iter().sum();
    for (provenance, &ns) in plan.provenance()[range].iter().zip(nanoseconds) {
        let op = plan.name(provenance.op);
        let at = ops.iter().position(|o| o.op == op).unwrap_or_else(|| {
            ops.push(OpTime { op: op.into(), launches: 0, microseconds: 0.0, share: 0.0 });
            ops.len() - 1
        });
        ops[at].launches += 1;
        ops[at].microseconds += ns as f64 / 1e3;
        ops[at].share += ns as f64 / total.max(1) as f64;
    }
    ops.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
    ops
}

fn print(report: &Report, out: &mut dyn Write) -> Result<(), CliError> {
    let line = |out: &mut dyn Write, phase: &str, tokens: u32, s: &Spread| {
        writeln!(
            out,
            "{phase:<8} {tokens:>6} tokens {:>10.2} tokens/s  [{:.2} - {:.2}]",
            s.median, s.min, s.max
        )
    };
    writeln!(
        out,
        "{}, {} threads, {} repetitions",
        report.model, report.threads, report.repetitions
    )?;
    line(out, "prefill", report.prompt_tokens, &report.prefill)?;
    writeln!(
        out,
        "         {:.1} Gop/s, {:.1} % of the int8 peak ({:.1})",
        report.prefill_gop_per_s,
        report.prefill_fraction_of_int8 * 100.0,
        report.int8_gop_per_s
    )?;
    line(out, "decode", report.decode_tokens, &report.decode)?;
    writeln!(
        out,
        "         {:.2} GB/s, {:.1} % of the read bandwidth ({:.1})",
        report.decode_gb_per_s,
        report.decode_fraction_of_read * 100.0,
        report.read_gb_per_s
    )?;
    let Some(ops) = &report.ops else { return Ok(()) };
    for (phase, times) in [("prefill", &ops.prefill), ("decode", &ops.decode)] {
        writeln!(out, "\n{phase:<24} {:>9} {:>12} {:>7}", "launches", "us", "share")?;
        for time in times {
            writeln!(
                out,
                "{:<24} {:>9} {:>12.1} {:>6.1}%",
                time.op,
                time.launches,
                time.microseconds,
                time.share * 100.0
            )?;
        }
    }
    Ok(())
}
