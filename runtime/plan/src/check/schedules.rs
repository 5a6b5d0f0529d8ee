//! Rows of SCHEDULES, and of the sections that they are made of.

use super::rows::{kernel_count, rows};
use super::states::has_pending;
use crate::error::{At, PlanError};
use crate::layout::{Command, NONE, Output, Schedule, device, opcode, schedule, space};
use crate::open::Plan;

pub(super) fn schedules(plan: &Plan) -> Result<(), PlanError> {
    for (at, row) in rows("SCHEDULES", plan.schedules()) {
        at.code("kind", row.kind, schedule::ALL)?;
        let device = at.reference("device", row.device, plan.devices().len(), "DEVICES")?;
        at.run("commands", row.commands, plan.commands().len(), "COMMANDS")?;
        at.run("outputs", row.outputs, plan.outputs().len(), "OUTPUTS")?;
        window(plan, at, row)?;
        logits(plan, at, row)?;
        let kind = at.code("device", plan.devices()[device].kind, device::ALL)?;
        for index in row.commands.range() {
            command(plan, index, row.device, kind)?;
        }
    }
    kinds(plan)
}

/// How many rows a schedule of its kind takes.
fn window(plan: &Plan, at: At, row: &Schedule) -> Result<(), PlanError> {
    let model = plan.model();
    if row.kind == schedule::COMMIT {
        at.equal("rows", u64::from(row.rows), 0)?;
        at.equal("logit_rows", u64::from(row.logit_rows), 0)?;
        at.equal("logits", u64::from(row.logits), u64::from(NONE))?;
        return at.equal("outputs.count", u64::from(row.outputs.count), 0);
    }
    at.at_least("rows", u64::from(row.rows), 1)?;
    at.at_most("rows", u64::from(row.rows), u64::from(model.max_rows))?;
    if row.kind == schedule::DRAFT {
        at.equal("logit_rows", u64::from(row.logit_rows), u64::from(row.rows))?;
    }
    at.at_most("logit_rows", u64::from(row.logit_rows), u64::from(model.max_logit_rows))
}

/// What the schedules are together.
fn kinds(plan: &Plan) -> Result<(), PlanError> {
    let (at, model) = (At { section: "MODEL", row: 0 }, plan.model());
    let of = |kind: u32| plan.schedules().iter().filter(move |row| row.kind == kind);
    let largest = |kind: u32| of(kind).map(|row| row.rows).max().unwrap_or(0);
    let (verify, draft) = (largest(schedule::VERIFY), largest(schedule::DRAFT));
    at.equal("verify_rows", u64::from(model.verify_rows), u64::from(verify))?;
    at.equal("draft_rows", u64::from(model.draft_rows), u64::from(draft))?;
    let commits = of(schedule::COMMIT).count() as u64;
    at.at_most("schedules of kind COMMIT", commits, 1)?;
    if has_pending(plan) {
        at.at_least("schedules of kind COMMIT", commits, 1)?;
    }
    Ok(())
}

/// Logits are read by the host: f32, in the arena.
fn logits(plan: &Plan, at: At, row: &Schedule) -> Result<(), PlanError> {
    let Some(arg) = at.optional("logits", row.logits, plan.args().len(), "ARGS")? else {
        return at.equal("logit_rows", u64::from(row.logit_rows), 0);
    };
    let arg = &plan.args()[arg];
    let space = &plan.spaces()[arg.space as usize];
    at.equal("kind of space of logits", u64::from(space.kind), u64::from(space::ARENA))?;
    at.align("logits", arg.offset, 4)?;
    let elements = u64::from(row.logit_rows) * u64::from(plan.model().vocab);
    at.range("logits", arg.offset, elements.saturating_mul(4), space.bytes)
}

/// Outputs are read by the host: in the arena.
pub(super) fn outputs(plan: &Plan) -> Result<(), PlanError> {
    for (at, row) in rows("OUTPUTS", plan.outputs()) {
        at.name(plan, "name", row.name)?;
        at.name(plan, "dtype", row.dtype)?;
        at.reserve([row.reserved])?;
        let arg = at.reference("arg", row.arg, plan.args().len(), "ARGS")?;
        let arg = &plan.args()[arg];
        let space = &plan.spaces()[arg.space as usize];
        at.equal("kind of space", u64::from(space.kind), u64::from(space::ARENA))?;
        dims(at, row)?;
        at.range("arg", arg.offset, row.bytes, space.bytes)?;
        if let Some(element) = element_bytes(plan.name(row.dtype)) {
            at.align("arg", arg.offset, element)?;
            let elements = row.dims.iter().fold(1, |n: u64, &dim| n.saturating_mul(dim.into()));
            at.equal("bytes", row.bytes, elements.saturating_mul(element))?;
        }
    }
    Ok(())
}

fn dims(at: At, row: &Output) -> Result<(), PlanError> {
    at.at_least("rank", u64::from(row.rank), 1)?;
    at.at_most("rank", u64::from(row.rank), row.dims.len() as u64)?;
    at.at_least("bytes", row.bytes, 1)?;
    for (index, &dim) in row.dims.iter().enumerate() {
        at.at_least("dims", u64::from(dim), 1)?;
        if index >= row.rank as usize {
            at.equal("dims behind rank", u64::from(dim), 1)?;
        }
    }
    Ok(())
}

/// Bytes of an element of the types that are not blocks.
fn element_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "u64" => Some(8),
        "f32" | "u32" => Some(4),
        "f16" | "bf16" => Some(2),
        "i8" | "u8" => Some(1),
        _ => None,
    }
}

/// One command of a schedule of `device`, whose kind is called `kind`.
fn command(plan: &Plan, index: usize, device: u32, kind: &'static str) -> Result<(), PlanError> {
    let at = At { section: "COMMANDS", row: index };
    let row: &Command = &plan.commands()[index];
    match row.opcode {
        opcode::LAUNCH => {
            at.reference("row", row.row, kernel_count(plan, device), "KERNELS")?;
            at.at_least("args.count", u64::from(row.args.count), 1)
        }
        opcode::BARRIER => Ok(()),
        _ => {
            let opcode = at.code("opcode", row.opcode, opcode::ALL)?;
            Err(PlanError::Opcode { command: index, opcode, device: kind })
        }
    }
}
