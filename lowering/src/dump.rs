//! Text forms of side tables and schedules, for `stop_after` and dumps of phases.

use std::fmt::Write;

use strata_graph::{Graph, NodeId, Table};
use strata_plan::layout::{Arg, opcode};

use crate::compute_lifetimes::{Lifetimes, value_name, window_name};
use crate::emit_schedule::{WindowSchedule, space_row};
use crate::pack_arena::ArenaLayout;
use crate::select_kernels::KernelChoice;

/// The kernel of each node.
pub(crate) fn choices_text(graph: &Graph, choices: &Table<NodeId, KernelChoice>) -> String {
    let mut text = header(graph, "kernels", &format!("{} launches", choices.len()));
    for node in graph.nodes() {
        let choice = &choices[node.id];
        push(&mut text, format_args!("  {:<28} {}", node.name, choice.spec.key()));
    }
    text
}

/// The place of each value, in order of creation.
pub(crate) fn arena_text(graph: &Graph, lifetimes: &Lifetimes, arena: &ArenaLayout) -> String {
    let mut text = header(graph, "packed", &format!("arena {} bytes", arena.bytes));
    for (value, lifetime) in lifetimes.of_value.iter() {
        let (Some(lifetime), Some(offset)) = (lifetime, arena.offsets[value]) else { continue };
        push(
            &mut text,
            format_args!(
                "  arena+{offset:#010x} {:>10} bytes  groups {}..={}  {}",
                lifetime.bytes,
                lifetime.first,
                lifetime.last,
                value_name(graph, value),
            ),
        );
    }
    for (name, bytes) in &arena.at_peak {
        push(&mut text, format_args!("  ; at peak {bytes:>10} bytes  {name}"));
    }
    text
}

/// Commands with their addresses.
pub(crate) fn schedule_text(graph: &Graph, schedule: &WindowSchedule) -> String {
    let counts = format!("{} launches, {} barriers", schedule.launches, schedule.barriers);
    let mut text = header(graph, "schedule", &counts);
    for (i, (command, &node)) in schedule.commands.iter().zip(&schedule.nodes).enumerate() {
        if command.opcode == opcode::BARRIER {
            push(&mut text, format_args!("  {i:04} barrier"));
            continue;
        }
        let args: Vec<String> =
            schedule.args[command.args.range()].iter().map(address_text).collect();
        let node = graph.node(node);
        let parts = if command.grid[0] == 0 { "all".into() } else { command.grid[0].to_string() };
        push(
            &mut text,
            format_args!(
                "  {i:04} launch k{:02} {:<20} parts {parts:<4} {} ; {}",
                command.row,
                node.op.name(),
                args.join(" "),
                node.name,
            ),
        );
    }
    text
}

fn address_text(arg: &Arg) -> String {
    let space = match arg.space {
        space_row::WEIGHTS => "weights".into(),
        space_row::ARENA => "arena".into(),
        space_row::STATES => "states".into(),
        space_row::STEP => "step".into(),
        space_row::CONSTANTS => "constants".into(),
        space_row::PACK => "pack".into(),
        file => format!("file{}", file - space_row::FIRST_FILE),
    };
    format!("{space}+{:#x}", arg.offset)
}

fn header(graph: &Graph, stage: &str, counts: &str) -> String {
    format!("; strata {stage} 1 | {} | {} | {counts}\n", graph.model, window_name(graph))
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a string does not fail");
}
