//! `strata inspect`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use strata_plan::Plan;
use strata_plan::dump::{Summary, schedule_name, write_schedule};
use strata_plan::layout::text;

use crate::CliError;
use crate::error::Doing;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata inspect model.plan
  strata inspect model.plan --schedule 'verify 1'
  strata inspect model.plan --graph 'final prefill 512' --format dot | dot -Tsvg -o graph.svg
  strata inspect model.plan --asm matmul
  strata inspect model.plan --diff other.plan --format json")]
pub struct InspectArgs {
    plan: PathBuf,
    /// The graph of a window, e.g. 'final verify 1'; 'base verify 1' is the one before fusion
    #[arg(long, value_name = "WINDOW", group = "what")]
    graph: Option<String>,
    /// The commands of a window
    #[arg(long, value_name = "WINDOW", group = "what")]
    schedule: Option<String>,
    /// The machine code of the kernels whose name or specification contains this
    #[arg(long, value_name = "KERNEL", group = "what")]
    asm: Option<String>,
    /// What another plan does differently
    #[arg(long, value_name = "PLAN", group = "what")]
    diff: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
    /// Graphs only
    Dot,
}

/// Runs `strata inspect`.
pub fn inspect(args: &InspectArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let plan = open(&args.plan)?;
    let format = if args.json { Format::Json } else { args.format };
    if format == Format::Dot && args.graph.is_none() {
        return Err(CliError::Usage("--format dot needs --graph WINDOW".into()));
    }
    if let Some(window) = &args.graph {
        graph(&plan, window, format, out)
    } else if let Some(window) = &args.schedule {
        let text = schedule_text(&plan, window)?;
        lines(format, "schedule", &text, out)
    } else if let Some(kernel) = &args.asm {
        let text = assembly(&plan, kernel)?;
        lines(format, "assembly", &text, out)
    } else if let Some(other) = &args.diff {
        let differences = differences(&whole(&plan)?, &whole(&open(other)?)?);
        print_differences(&differences, format, out)
    } else if format == Format::Json {
        print_json(&whole(&plan)?, out)
    } else {
        write!(out, "{}", Summary::of(&plan))?;
        print_peaks(&plan, out)
    }
}

fn open(path: &Path) -> Result<Plan, CliError> {
    Plan::open(path).doing(format!("opening {}", path.display()))
}

fn print_json(value: &Value, out: &mut dyn Write) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value).doing("writing JSON")?;
    Ok(writeln!(out)?)
}

/// Text as it is, or as a JSON array of its lines.
fn lines(format: Format, name: &str, text: &str, out: &mut dyn Write) -> Result<(), CliError> {
    match format {
        Format::Json => print_json(&json!({ name: text.lines().collect::<Vec<_>>() }), out),
        Format::Text | Format::Dot => Ok(out.write_all(text.as_bytes())?),
    }
}

fn graph(plan: &Plan, window: &str, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
    let graphs: Vec<_> = plan.texts().iter().filter(|row| row.kind == text::GRAPH).collect();
    // 'verify 1' is what is run, 'base' the graph before any pass, of the one window it is kept of.
    let is_wanted = |name: &str| {
        name == window
            || name.strip_prefix("final ") == Some(window)
            || name.split_once(' ').is_some_and(|(kind, _)| kind == "base" && window == kind)
    };
    let Some(row) = graphs.iter().find(|row| is_wanted(plan.name(row.name))) else {
        let known: Vec<&str> = graphs.iter().map(|row| plan.name(row.name)).collect();
        return Err(unknown("graph", window, &known));
    };
    let body = plan.text_body(row);
    if format != Format::Dot {
        return lines(format, "graph", body, out);
    }
    #[cfg(feature = "compiler")]
    {
        let parsed = strata_graph::parse::parse(body).doing("reading the graph of the plan")?;
        Ok(out.write_all(strata_graph::lens::dot(&parsed).as_bytes())?)
    }
    #[cfg(not(feature = "compiler"))]
    Err(CliError::Usage("--format dot needs a strata built with the compiler".into()))
}

fn unknown(what: &str, found: &str, known: &[&str]) -> CliError {
    CliError::Usage(format!("no {what} '{found}' in the plan, there are: {}", known.join(", ")))
}

fn schedule_text(plan: &Plan, window: &str) -> Result<String, CliError> {
    let names: Vec<String> = plan.schedules().iter().map(schedule_name).collect();
    let Some(index) = names.iter().position(|name| name == window) else {
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        return Err(unknown("schedule", window, &known));
    };
    let mut text = String::new();
    write_schedule(&mut text, plan, index).doing("printing the schedule")?;
    Ok(text)
}

/// The code itself, disassembled: what is printed is what runs.
fn assembly(plan: &Plan, wanted: &str) -> Result<String, CliError> {
    use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, NasmFormatter};
    let mut text = String::new();
    for target in plan.targets() {
        let first = target.first_kernel as usize;
        for kernel in &plan.kernels()[first..first + target.kernel_count as usize] {
            let (name, spec) = (plan.name(kernel.name), plan.name(kernel.spec));
            if !name.contains(wanted) && !spec.contains(wanted) {
                continue;
            }
            text.push_str(&format!("; {} {name} {spec}\n", plan.name(target.name)));
            let start = kernel.code_offset as usize;
            let code = &plan.code()[start..start + kernel.code_bytes as usize];
            let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
            let mut formatter = NasmFormatter::new();
            let mut instruction = Instruction::default();
            while decoder.can_decode() {
                decoder.decode_out(&mut instruction);
                text.push_str(&format!("{:6x}  ", instruction.ip()));
                formatter.format(&instruction, &mut text);
                text.push('\n');
            }
        }
    }
    if text.is_empty() {
        let Some(target) = plan.targets().first() else { return Ok(text) };
        let first = target.first_kernel as usize;
        let mut known: Vec<&str> = plan.kernels()[first..first + target.kernel_count as usize]
            .iter()
            .map(|kernel| plan.name(kernel.name))
            .collect();
        known.sort_unstable();
        known.dedup();
        return Err(unknown("kernel", wanted, &known));
    }
    Ok(text)
}

fn reports(plan: &Plan) -> Result<Value, CliError> {
    let body = plan.text_of_kind(text::REPORT).unwrap_or("[]");
    serde_json::from_str(body).doing("reading the reports of the plan")
}

/// For each window the bytes of its scratch at the fullest moment, and what lies there then.
fn print_peaks(plan: &Plan, out: &mut dyn Write) -> Result<(), CliError> {
    let reports = reports(plan)?;
    let packed = reports.as_array().into_iter().flatten().filter(|r| r["pass"] == "pack_arena");
    writeln!(out, "\narena at its peak")?;
    for report in packed {
        write!(out, "  {:<14}", report["window"].as_str().unwrap_or_default())?;
        let numbers = report["numbers"].as_object();
        for (name, bytes) in numbers.into_iter().flatten() {
            write!(out, " {name} {bytes}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// All that there is to say of a plan, as JSON.
fn whole(plan: &Plan) -> Result<Value, CliError> {
    let s = Summary::of(plan);
    let named = |rows: Vec<(String, Value)>| Value::Object(rows.into_iter().collect());
    Ok(json!({
        "model": s.model, "parameters": s.parameters, "layers": s.layers, "vocab": s.vocab,
        "context_tokens": s.context_tokens, "slots": s.slots, "pages": s.pages,
        "page_tokens": s.page_tokens, "memory_bytes": s.memory_bytes(),
        "targets": named(s.targets.iter().map(|t| (t.name.clone(), json!({
            "features": t.features, "kernel_count": t.kernel_count, "code_bytes": t.code_bytes,
        }))).collect()),
        "spaces": named(s.spaces.iter().map(|r| (r.name.clone(), json!({
            "kind": r.kind, "bytes": r.bytes, "mapped": r.mapped,
        }))).collect()),
        "weights": named(s.weights.iter().map(|w| (format!("{} {}", w.tier, w.dtype), json!({
            "weight_count": w.weight_count, "bytes": w.bytes, "stored_bytes": w.stored_bytes,
        }))).collect()),
        "experts": s.experts.map(|e| json!({
            "count": e.count, "layers": e.layers, "bytes": e.bytes, "expert_bytes": e.expert_bytes,
        })),
        "states": named(s.states.iter().map(|r| (r.name.clone(), json!({
            "kind": r.kind, "dtype": r.dtype, "bytes": r.bytes, "token_bytes": r.token_bytes,
            "sequence_bytes": r.sequence_bytes, "pending_bytes": r.pending_bytes,
        }))).collect()),
        "windows": named(s.windows.iter().map(|w| (w.name.clone(), json!({
            "rows": w.rows, "logit_rows": w.logit_rows, "commands": w.commands,
            "launches": w.launches, "launches_per_layer": w.launches_per_layer(),
            "layers": w.layers, "barriers": w.barriers, "bytes": w.bytes, "flops": w.flops,
            "arena_bytes": w.arena_bytes,
        }))).collect()),
        "kernels": named(s.kernels.iter().map(|k| (k.spec.clone(), json!({
            "name": k.name, "code_bytes": k.code_bytes, "launches": k.launches,
        }))).collect()),
        "reports": reports(plan)?,
    }))
}

/// Leaves of two JSON values that are not the same: path, one, other.
fn differences(one: &Value, other: &Value) -> Vec<(String, Value, Value)> {
    let mut found = Vec::new();
    compare("", one, other, &mut found);
    found
}

fn compare(path: &str, one: &Value, other: &Value, found: &mut Vec<(String, Value, Value)>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let missing = Value::Null;
            let only_other = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(only_other) {
                let side = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or(missing.clone())
                };
                compare(&format!("{path}/{key}"), &side(a), &side(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}/{index}"), a, b, found);
            }
        }
        _ if one == other => {}
        _ => found.push((path.to_owned(), one.clone(), other.clone())),
    }
}

fn print_differences(
    found: &[(String, Value, Value)],
    format: Format,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if format == Format::Json {
        let rows: Vec<Value> = found
            .iter()
            .map(|(path, one, other)| json!({ "path": path, "one": one, "other": other }))
            .collect();
        return print_json(&Value::Array(rows), out);
    }
    for (path, one, other) in found {
        writeln!(out, "{path}: {one} -> {other}")?;
    }
    if found.is_empty() {
        writeln!(out, "the plans are the same")?;
    }
    Ok(())
}
