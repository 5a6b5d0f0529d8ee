//! The commands of a window, one a line.

use std::fmt::{self, Write};

use crate::layout::{self, Arg, Command, NONE, Schedule, opcode, space};
use crate::open::Plan;

/// "prefill 512", "verify 4", "commit".
pub fn schedule_name(schedule: &Schedule) -> String {
    let known = layout::schedule::ALL.iter().find(|(code, _)| *code == schedule.kind);
    let kind = known.map_or("unknown", |(_, name)| name).to_lowercase();
    if schedule.kind == layout::schedule::COMMIT {
        return kind;
    }
    format!("{kind} {}", schedule.rows)
}

/// Writes row `index` of SCHEDULES as text: a line for the window, then one for each command.
///
/// Columns are the command's number, what it does, the kernel's row and name, its parts at most
/// (0 for all), its operands as space+offset, and the node that it came from.
///
/// # Errors
/// Those of `out`.
///
/// # Panics
/// If `index` is not of this plan.
pub fn write_schedule(out: &mut dyn Write, plan: &Plan, index: usize) -> fmt::Result {
    let schedule = &plan.schedules()[index];
    let commands = &plan.commands()[schedule.commands.range()];
    let device = &plan.devices()[schedule.device as usize];
    let streams = commands
        .iter()
        .map(|command| command.stream)
        .max()
        .map_or(0, |last| last.saturating_add(1));
    writeln!(
        out,
        "; strata plan {} | {} | {} | {}{} | {} commands | {} launches | {} barriers | {streams} \
         streams | arena {} B | {} B | {} flop",
        layout::FORMAT,
        plan.name(plan.model().name),
        schedule_name(schedule),
        plan.name(device.name),
        schedule.device,
        commands.len(),
        schedule.launches,
        count(commands, opcode::BARRIER),
        schedule.arena_bytes,
        schedule.bytes,
        schedule.flops
    )?;
    for (number, row) in schedule.commands.range().enumerate() {
        write_command(out, plan, number, row)?;
    }
    if schedule.logits != NONE {
        let logits = operand(plan, &plan.args()[schedule.logits as usize]);
        let vocab = plan.model().vocab;
        writeln!(out, "; logits f32[{}, {vocab}] at {logits}", schedule.logit_rows)?;
    }
    for output in &plan.outputs()[schedule.outputs.range()] {
        let (name, dtype) = (plan.name(output.name), plan.name(output.dtype));
        let dims = &output.dims[..output.rank as usize];
        let place = operand(plan, &plan.args()[output.arg as usize]);
        writeln!(out, "; output {name} {dtype}{dims:?} at {place}")?;
    }
    Ok(())
}

pub(super) fn count(commands: &[Command], opcode: u32) -> usize {
    commands.iter().filter(|command| command.opcode == opcode).count()
}

fn write_command(out: &mut dyn Write, plan: &Plan, number: usize, row: usize) -> fmt::Result {
    let (command, source) = (&plan.commands()[row], &plan.provenance()[row]);
    let known = opcode::ALL.iter().find(|(code, _)| *code == command.opcode);
    let verb = known.map_or("unknown", |(_, name)| name).to_lowercase();
    if command.opcode != opcode::LAUNCH {
        return writeln!(out, "  {number:04} {verb}");
    }
    let kernel = kernel_name(plan, command.row);
    write!(out, "  {number:04} {verb:<7} k{:03} {kernel:<20} ", command.row)?;
    write!(out, "s{} parts {}", command.stream, command.grid[0])?;
    for arg in &plan.args()[command.args.range()] {
        write!(out, "  {}", operand(plan, arg))?;
    }
    writeln!(out, "  ; %{} {}", source.node, plan.name(source.name))
}

/// Kernels of all targets have the same names, row by row.
fn kernel_name(plan: &Plan, row: u32) -> &str {
    let first = plan.targets().first().map_or(0, |target| target.first_kernel);
    plan.kernels().get((first + row) as usize).map_or("", |kernel| plan.name(kernel.name))
}

/// "arena+0x04000".
fn operand(plan: &Plan, arg: &Arg) -> String {
    let row = &plan.spaces()[arg.space as usize];
    if row.kind == space::FILE {
        return format!("file{}+{:#07x}", row.file, arg.offset);
    }
    if row.kind == space::PACK {
        return format!("pack+{:#07x}", arg.offset);
    }
    format!("{}+{:#07x}", plan.name(row.name), arg.offset)
}
