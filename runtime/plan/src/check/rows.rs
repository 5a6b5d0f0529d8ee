//! Every field of every row: codes, row numbers, ranges, and what one section asks of another.

use std::path::Path;

use super::LARGEST_BYTES;
use super::schedules::{outputs, schedules};
use super::states::states;
use crate::error::{At, PlanError};
use crate::layout::{
    Model, NONE, PACK_HEADER_BYTES, Space, Target, Weight, cpu_feature, device, opcode, space,
    text, tier,
};
use crate::open::Plan;

/// Pages that a plan may have: the host keeps a reference count for each of them.
const MOST_PAGES: u64 = 1 << 26;

/// Checks all rows of `plan`, whose sections are already known to be arrays of their types.
pub(crate) fn contents(plan: &Plan) -> Result<(), PlanError> {
    exact_rows("MODEL", plan.model_rows().len(), 1)?;
    exact_rows("PROVENANCE", plan.provenance().len(), plan.commands().len())?;
    names(plan)?;
    texts(plan)?;
    devices(plan)?;
    files(plan)?;
    kernels(plan)?;
    targets(plan)?;
    spaces(plan)?;
    model(plan)?;
    states(plan)?;
    weights(plan)?;
    args(plan)?;
    commands(plan)?;
    outputs(plan)?;
    schedules(plan)
}

fn exact_rows(section: &'static str, found: usize, needed: usize) -> Result<(), PlanError> {
    if found == needed {
        return Ok(());
    }
    Err(PlanError::SectionRows { section, found, needed })
}

pub(super) fn rows<'a, T>(
    section: &'static str,
    rows: &'a [T],
) -> impl Iterator<Item = (At, &'a T)> {
    rows.iter().enumerate().map(move |(row, value)| (At { section, row }, value))
}

impl At {
    pub(super) fn name(
        self,
        plan: &Plan,
        field: &'static str,
        found: u32,
    ) -> Result<(), PlanError> {
        self.reference(field, found, plan.names().len(), "NAMES").map(drop)
    }
}

fn names(plan: &Plan) -> Result<(), PlanError> {
    let bytes = plan.name_bytes();
    for (at, name) in rows("NAMES", plan.names()) {
        let (offset, length) = (u64::from(name.offset), u64::from(name.bytes));
        at.range("bytes", offset, length, bytes.len() as u64)?;
        let start = name.offset as usize;
        let body = &bytes[start..start + name.bytes as usize];
        std::str::from_utf8(body).map_err(|_| PlanError::Utf8 { at })?;
    }
    Ok(())
}

fn texts(plan: &Plan) -> Result<(), PlanError> {
    let bytes = plan.text_bytes();
    for (at, row) in rows("TEXTS", plan.texts()) {
        at.code("kind", row.kind, text::ALL)?;
        at.name(plan, "name", row.name)?;
        at.reserve([row.reserved])?;
        at.range("bytes", row.offset, row.bytes, bytes.len() as u64)?;
        let start = usize::try_from(row.offset).expect("inside the section");
        let length = usize::try_from(row.bytes).expect("inside the section");
        let body = &bytes[start..start + length];
        std::str::from_utf8(body).map_err(|_| PlanError::Utf8 { at })?;
    }
    Ok(())
}

/// The replayer has one memory and one pool: rows of a second device would run on the first.
fn devices(plan: &Plan) -> Result<(), PlanError> {
    exact_rows("DEVICES", plan.devices().len(), 1)?;
    for (at, row) in rows("DEVICES", plan.devices()) {
        at.code("kind", row.kind, device::ALL)?;
        at.name(plan, "name", row.name)?;
        at.reserve(row.reserved)?;
    }
    Ok(())
}

fn files(plan: &Plan) -> Result<(), PlanError> {
    for (at, row) in rows("FILES", plan.files()) {
        at.name(plan, "name", row.name)?;
        at.at_most("bytes", row.bytes, LARGEST_BYTES)?;
        at.reserve([u64::from(row.reserved), row.reserved2])?;
    }
    Ok(())
}

fn kernels(plan: &Plan) -> Result<(), PlanError> {
    for (at, row) in rows("KERNELS", plan.kernels()) {
        at.name(plan, "name", row.name)?;
        at.name(plan, "spec", row.spec)?;
        at.at_least("code_bytes", row.code_bytes, 1)?;
        at.range("code_offset", row.code_offset, row.code_bytes, plan.code().len() as u64)?;
        at.reserve([row.reserved])?;
    }
    Ok(())
}

fn targets(plan: &Plan) -> Result<(), PlanError> {
    let known = cpu_feature::ALL.iter().fold(0, |bits, (bit, _)| bits | bit);
    for (at, row) in rows("TARGETS", plan.targets()) {
        at.name(plan, "name", row.name)?;
        at.reference("device", row.device, plan.devices().len(), "DEVICES")?;
        // All features are of x86-64: with one of them, no other CPU takes this code for its own.
        at.at_least("features", row.features, 1)?;
        if row.features & !known != 0 {
            return Err(PlanError::Code { at, field: "features", found: row.features });
        }
        let end = u64::from(row.first_kernel) + u64::from(row.kernel_count);
        at.at_most("first_kernel + kernel_count", end, plan.kernels().len() as u64)?;
        let first = plan.targets().iter().find(|other| other.device == row.device);
        let needed = first.map_or(row.kernel_count, |other: &Target| other.kernel_count);
        at.equal("kernel_count", u64::from(row.kernel_count), u64::from(needed))?;
        at.reserve([row.reserved])?;
    }
    Ok(())
}

/// Kernels that a command on `device` can name: each of its targets has as many.
pub(super) fn kernel_count(plan: &Plan, device: u32) -> usize {
    let target = plan.targets().iter().find(|target| target.device == device);
    target.map_or(0, |target| target.kernel_count as usize)
}

fn spaces(plan: &Plan) -> Result<(), PlanError> {
    let all = plan.spaces();
    for (at, row) in rows("SPACES", all) {
        at.code("kind", row.kind, space::ALL)?;
        at.name(plan, "name", row.name)?;
        at.reference("device", row.device, plan.devices().len(), "DEVICES")?;
        at.at_most("bytes", row.bytes, LARGEST_BYTES)?;
        at.reserve([row.reserved])?;
        if row.kind == space::FILE {
            let file = at.reference("file", row.file, plan.files().len(), "FILES")?;
            at.at_most("bytes", row.bytes, plan.files()[file].bytes)?;
            continue;
        }
        at.equal("file", u64::from(row.file), u64::from(NONE))?;
        let same = |other: &&Space| other.kind == row.kind;
        at.equal("spaces of this kind", all.iter().filter(same).count() as u64, 1)?;
        if row.kind == space::PACK {
            pack(plan, at, row)?;
        }
        if row.kind == space::CONSTANTS {
            at.at_most("bytes", row.bytes, size_of_val(plan.constants()) as u64)?;
        }
    }
    Ok(())
}

/// The packed file is written, so it lies beside the plan and nowhere else; one that is not empty has
/// room for its header.
fn pack(plan: &Plan, at: At, row: &Space) -> Result<(), PlanError> {
    let name = plan.name(row.name);
    if Path::new(name).file_name().is_none_or(|last| last != name) {
        return Err(PlanError::FileName { at, found: name.to_owned() });
    }
    at.at_least("bytes", row.bytes, if row.bytes > 0 { PACK_HEADER_BYTES } else { 0 })
}

fn model(plan: &Plan) -> Result<(), PlanError> {
    let at = At { section: "MODEL", row: 0 };
    let row = plan.model();
    at.name(plan, "name", row.name)?;
    for (field, found) in [
        ("vocab", row.vocab),
        ("hidden", row.hidden),
        ("context_tokens", row.context_tokens),
        ("slots", row.slots),
        ("page_tokens", row.page_tokens),
        ("pages", row.pages),
        ("max_rows", row.max_rows),
        ("max_logit_rows", row.max_logit_rows),
    ] {
        at.at_least(field, u64::from(found), 1)?;
    }
    at.at_most("pages", u64::from(row.pages), MOST_PAGES)?;
    let reach = u64::from(row.pages_per_slot) * u64::from(row.page_tokens);
    at.at_most("context_tokens", u64::from(row.context_tokens), reach)?;
    at.at_most("add_bos", u64::from(row.add_bos), 1)?;
    if row.add_bos == 1 {
        at.at_most("bos", u64::from(row.bos), u64::from(row.vocab) - 1)?;
    }
    at.equal("device_count", u64::from(row.device_count), plan.devices().len() as u64)?;
    at.optional("tokenizer_file", row.tokenizer_file, plan.files().len(), "FILES")?;
    at.optional("chat_template", row.chat_template, plan.texts().len(), "TEXTS")?;
    at.run("stop_tokens", row.stop_tokens, plan.tokens().len(), "TOKENS")?;
    at.reserve([row.reserved])?;
    step_layout(at, row)?;
    let step = plan.spaces().iter().find(|space| space.kind == space::STEP);
    at.at_most("step_bytes", u64::from(row.step_bytes), step.map_or(0, |space| space.bytes))
}

/// The arrays of the STEP space lie behind its 64-byte header, aligned and apart.
fn step_layout(at: At, row: &Model) -> Result<(), PlanError> {
    const HEADER_BYTES: u64 = 64;
    let table = u64::from(row.slots) * u64::from(row.pages_per_slot);
    let mut arrays = [
        ("step_tokens", row.step_tokens, u64::from(row.max_rows)),
        ("step_positions", row.step_positions, u64::from(row.max_rows)),
        ("step_slots", row.step_slots, u64::from(row.max_rows)),
        ("step_logit_rows", row.step_logit_rows, u64::from(row.max_logit_rows)),
        ("step_page_table", row.step_page_table, table),
        ("step_offsets", row.step_offsets, u64::from(row.max_rows)),
        ("step_commit_slots", row.step_commit_slots, u64::from(row.slots)),
        ("step_commit_rows", row.step_commit_rows, u64::from(row.slots)),
    ];
    arrays.sort_by_key(|&(_, offset, _)| offset);
    let mut earliest = HEADER_BYTES;
    for (field, offset, count) in arrays {
        let offset = u64::from(offset);
        at.align(field, offset, 4)?;
        at.at_least(field, offset, earliest)?;
        let bytes = count.saturating_mul(4);
        at.range(field, offset, bytes, u64::from(row.step_bytes))?;
        earliest = offset + bytes;
    }
    Ok(())
}

fn weights(plan: &Plan) -> Result<(), PlanError> {
    for (at, row) in rows("PARTS", plan.parts()) {
        let file = at.reference("file", row.file, plan.files().len(), "FILES")?;
        at.range("offset", row.offset, row.bytes, plan.files()[file].bytes)?;
        if row.kernel == NONE {
            at.equal("destination_bytes", row.destination_bytes, row.bytes)?;
        } else {
            at.reference("kernel", row.kernel, kernel_count(plan, 0), "KERNELS")?;
        }
    }
    for (at, row) in rows("WEIGHTS", plan.weights()) {
        at.name(plan, "name", row.name)?;
        at.name(plan, "dtype", row.dtype)?;
        at.code("tier", row.tier, tier::ALL)?;
        at.reserve(row.reserved)?;
        let space = at.reference("space", row.space, plan.spaces().len(), "SPACES")?;
        let space = &plan.spaces()[space];
        let kind = match row.tier {
            tier::RAM => space::WEIGHTS,
            tier::MAPPED => space::FILE,
            tier::PACKED => space::PACK,
            _ => space::CONSTANTS,
        };
        at.equal("kind of space", u64::from(space.kind), u64::from(kind))?;
        at.range("offset", row.offset, row.bytes, space.bytes)?;
        at.run("parts", row.parts, plan.parts().len(), "PARTS")?;
        if row.tier == tier::PACKED {
            at.at_least("offset", row.offset, PACK_HEADER_BYTES)?;
        }
        if matches!(row.tier, tier::RAM | tier::PACKED) {
            weight_parts(plan, row)?;
        }
    }
    Ok(())
}

fn weight_parts(plan: &Plan, weight: &Weight) -> Result<(), PlanError> {
    for index in weight.parts.range() {
        let (at, part) = (At { section: "PARTS", row: index }, &plan.parts()[index]);
        at.range("destination", part.destination, part.destination_bytes, weight.bytes)?;
    }
    Ok(())
}

fn args(plan: &Plan) -> Result<(), PlanError> {
    for (at, row) in rows("ARGS", plan.args()) {
        let space = at.reference("space", row.space, plan.spaces().len(), "SPACES")?;
        at.reserve([row.reserved])?;
        at.range("offset", row.offset, 1, plan.spaces()[space].bytes)?;
    }
    Ok(())
}

fn commands(plan: &Plan) -> Result<(), PlanError> {
    for (at, row) in rows("COMMANDS", plan.commands()) {
        at.code("opcode", row.opcode, opcode::ALL)?;
        at.run("args", row.args, plan.args().len(), "ARGS")?;
    }
    for (at, row) in rows("PROVENANCE", plan.provenance()) {
        at.optional("name", row.name, plan.names().len(), "NAMES")?;
        at.optional("op", row.op, plan.names().len(), "NAMES")?;
        at.reserve([row.reserved])?;
    }
    Ok(())
}
