//! Fills the rows of a plan.

use std::collections::BTreeMap;

use strata_graph::{Graph, Id, StateKind, WindowKind};
use strata_kernels::ops::kv::KvKind;
use strata_kernels::{CompiledKernel, KernelSpec, Target};
use strata_plan::PlanImage;
use strata_plan::layout::{
    Arg, Command, Device, File, Kernel, Model, NONE, Output, Part, Provenance, Run, Schedule,
    Space, State, Target as TargetRow, Weight, cpu_feature, device, opcode, schedule, space, state,
    text, tier,
};

use crate::config::{Config, CpuDevice};
use crate::emit_commit::Commit;
use crate::emit_schedule::{WindowOutput, WindowSchedule, space_row};
use crate::input::{FileEntry, ModelFacts};
use crate::load_weights::LoadPiece;
use crate::place_experts::{Tier, WeightPlaces};
use crate::report::PassReport;
use crate::states::{Paging, StateForm, StatePlaces, StepLayout};

/// A window and all that was made for it.
#[derive(Debug)]
pub struct FinalWindow {
    pub graph: Graph,
    pub schedule: WindowSchedule,
    pub arena_bytes: u64,
}

/// All that a plan is written from.
#[derive(Debug)]
pub struct PlanParts<'a> {
    pub model: &'a ModelFacts,
    pub config: &'a Config,
    pub cpu: &'a CpuDevice,
    pub files: &'a [FileEntry],
    /// The graph as it was given, for one window.
    pub base: &'a Graph,
    pub windows: &'a [FinalWindow],
    pub commits: &'a [Commit],
    pub weights: &'a WeightPlaces,
    /// Name of the packed file.
    pub pack_file: &'a str,
    pub pieces: &'a [Vec<LoadPiece>],
    pub states: &'a StatePlaces,
    pub step: &'a StepLayout,
    pub paging: &'a Paging,
    /// Sorted; the kernels of every target are in this order.
    pub specs: &'a [KernelSpec],
    /// For each target of `cpu`, in its order, one for each of `specs`.
    pub kernels: &'a [CompiledKernel],
}

/// Writes all sections but the texts of reports, which [`write_reports`] adds last.
pub fn write_plan(parts: &PlanParts<'_>) -> (PlanImage, PassReport) {
    let mut image = PlanImage::default();
    let rows: BTreeMap<KernelSpec, u32> =
        parts.specs.iter().enumerate().map(|(i, &spec)| (spec, narrow(i))).collect();
    write_devices(&mut image, parts);
    write_files_and_spaces(&mut image, parts);
    write_code(&mut image, parts);
    write_weights(&mut image, parts, &rows);
    write_states(&mut image, parts);
    for window in parts.windows {
        write_window(&mut image, window, &rows);
    }
    if !parts.commits.is_empty() {
        write_commit(&mut image, parts, &rows);
    }
    write_texts(&mut image, parts);
    write_model(&mut image, parts);
    let report = PassReport::new("write_plan", "")
        .count("commands_count", image.commands.len() as u64)
        .count("args_count", image.args.len() as u64)
        .count("weights_space_bytes", parts.weights.ram_bytes)
        .count("pack_space_bytes", parts.weights.packed_bytes)
        .count("arena_space_bytes", arena_bytes(parts))
        .count("states_space_bytes", parts.states.bytes)
        .count("step_space_bytes", parts.step.bytes.into())
        .count("constants_space_bytes", 4 * image.constants.len() as u64)
        .count("code_bytes", image.code.len() as u64);
    (image, report)
}

/// Adds the numbers of all passes as one JSON text.
pub fn write_reports(image: &mut PlanImage, reports: &[PassReport]) {
    let all: Vec<serde_json::Value> = reports.iter().map(PassReport::to_json).collect();
    let body = serde_json::to_string_pretty(&all).expect("reports are plain data");
    image.text(text::REPORT, "passes", &body);
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a plan has fewer than 2^32 rows")
}

fn arena_bytes(parts: &PlanParts<'_>) -> u64 {
    parts.windows.iter().map(|w| w.arena_bytes).max().unwrap_or(0)
}

fn write_devices(image: &mut PlanImage, parts: &PlanParts<'_>) {
    let name = image.name("cpu");
    image.devices.push(Device {
        kind: device::CPU,
        name,
        budget_bytes: parts.cpu.budget_bytes.unwrap_or(0),
        threads: parts.cpu.threads,
        reserved: [0; 3],
    });
}

fn write_files_and_spaces(image: &mut PlanImage, parts: &PlanParts<'_>) {
    for entry in parts.files {
        let name = image.name(&entry.path);
        image.files.push(File {
            name,
            reserved: 0,
            bytes: entry.bytes,
            header_hash: entry.header_hash,
            reserved2: 0,
        });
    }
    image.constants = parts.weights.constants.iter().map(|&word| f32::from_bits(word)).collect();
    // A name only where there is a file to be named.
    let packed_bytes = parts.weights.packed_bytes;
    let pack = if packed_bytes > 0 { parts.pack_file } else { "pack" };
    let own = [
        (space_row::WEIGHTS, space::WEIGHTS, "weights", parts.weights.ram_bytes),
        (space_row::ARENA, space::ARENA, "arena", arena_bytes(parts)),
        (space_row::STATES, space::STATES, "states", parts.states.bytes),
        (space_row::STEP, space::STEP, "step", parts.step.bytes.into()),
        (space_row::CONSTANTS, space::CONSTANTS, "constants", 4 * image.constants.len() as u64),
        (space_row::PACK, space::PACK, pack, packed_bytes),
    ];
    for (row, kind, name, bytes) in own {
        debug_assert_eq!(row, narrow(image.spaces.len()));
        let name = image.name(name);
        image.spaces.push(Space { kind, device: 0, bytes, file: NONE, name, reserved: 0 });
    }
    for (file, entry) in parts.files.iter().enumerate() {
        let name = image.name(&entry.path);
        let (kind, bytes, file) = (space::FILE, entry.bytes, narrow(file));
        image.spaces.push(Space { kind, device: 0, bytes, file, name, reserved: 0 });
    }
}

/// The features that a target needs, as the plan's format numbers them.
///
/// # Panics
/// If the format has no number for one: a plan that asks for less than its code needs would be
/// opened by a machine that cannot run it.
fn feature_bits(target: Target) -> u64 {
    let bit = |name: &&str| {
        let row = cpu_feature::ALL.iter().find(|(_, known)| known == name);
        row.unwrap_or_else(|| panic!("the plan's format has no CPU feature {name}")).0
    };
    target.facts().required.iter().map(bit).fold(0, |bits, bit| bits | bit)
}

/// A short name for people: the op.
fn kernel_name(spec: &KernelSpec) -> String {
    let text = format!("{spec:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_lowercase()
}

fn write_code(image: &mut PlanImage, parts: &PlanParts<'_>) {
    let count = parts.specs.len();
    for (i, &target) in parts.cpu.targets.iter().enumerate() {
        let name = image.name(target.facts().name);
        image.targets.push(TargetRow {
            name,
            device: 0,
            features: feature_bits(target),
            first_kernel: narrow(i * count),
            kernel_count: narrow(count),
            rank: narrow(parts.cpu.targets.len() - i),
            reserved: 0,
        });
    }
    for kernel in parts.kernels {
        let start = image.code.len().next_multiple_of(CompiledKernel::ALIGN_BYTES);
        image.code.resize(start, 0);
        image.code.extend_from_slice(&kernel.bytes);
        let name = image.name(&kernel_name(&kernel.spec));
        let spec = image.name(&kernel.spec.key());
        let entry_bytes = u64::from(kernel.entry_bytes);
        image.kernels.push(Kernel {
            name,
            spec,
            code_offset: start as u64 + entry_bytes,
            code_bytes: kernel.bytes.len() as u64 - entry_bytes,
            reserved: 0,
        });
    }
}

fn write_weights(image: &mut PlanImage, parts: &PlanParts<'_>, rows: &BTreeMap<KernelSpec, u32>) {
    for (place, pieces) in parts.weights.rows.iter().zip(parts.pieces) {
        let def = &parts.base.weights()[place.weight];
        let first = image.parts.len();
        image.parts.extend(pieces.iter().map(|piece| Part {
            file: piece.file,
            kernel: piece.spec.map_or(NONE, |spec| rows[&spec]),
            offset: piece.offset,
            bytes: piece.bytes,
            destination: piece.destination,
            destination_bytes: piece.destination_bytes,
        }));
        let (tier, space) = match place.tier {
            Tier::Ram => (tier::RAM, space_row::WEIGHTS),
            Tier::Packed => (tier::PACKED, space_row::PACK),
            Tier::Mapped => (tier::MAPPED, space_row::FIRST_FILE + place.file),
            Tier::Constant => (tier::CONSTANT, space_row::CONSTANTS),
        };
        let name = image.name(&def.name);
        let dtype = image.name(def.ty.dtype.name());
        image.weights.push(Weight {
            name,
            dtype,
            tier,
            space,
            offset: place.offset,
            bytes: place.bytes,
            parts: Run::of(first..image.parts.len()),
            dims: four(def.ty.dims()),
            stored_bytes: def.ty.bytes(),
            reserved: [0; 4],
        });
    }
}

fn four(dims: &[u32]) -> [u32; 4] {
    let mut all = [1; 4];
    all[..dims.len()].copy_from_slice(dims);
    all
}

fn write_states(image: &mut PlanImage, parts: &PlanParts<'_>) {
    for (id, def) in parts.base.states().iter() {
        let place = parts.states.of_state[id];
        let (kind, tail_rows) = match def.kind {
            StateKind::Append => (state::APPEND, 0),
            StateKind::Recurrent => (state::RECURRENT, 0),
            StateKind::Tail(rows) => (state::TAIL, rows),
        };
        let (element, slots) = match place.form {
            StateForm::Pages(layout) => match layout.kind {
                KvKind::F32 => ("f32", None),
                KvKind::F16 => ("f16", None),
                KvKind::Int8 => ("i8", None),
            },
            StateForm::Slots { layout, value_bytes } => {
                (def.row.dtype.name(), Some((layout, value_bytes)))
            }
        };
        let pending = slots.filter(|(layout, _)| layout.pending_stride_bytes > 0);
        let name = image.name(&def.name);
        let dtype = image.name(element);
        image.states.push(State {
            name,
            kind,
            dtype,
            tail_rows,
            space: space_row::STATES,
            seed: def.seed.map_or(NONE, |seed| narrow(seed.index())),
            offset: place.offset,
            stride_bytes: place.stride_bytes,
            token_bytes: place.token_bytes,
            row: four(def.row.dims()),
            value_bytes: slots.map_or(0, |(_, value_bytes)| value_bytes),
            pending_bytes: pending.map_or(0, |(layout, _)| layout.pending_bytes),
            pending_stride_bytes: pending.map_or(0, |(layout, _)| layout.pending_stride_bytes),
            every: def.every,
            first: def.first,
        });
    }
}

fn write_window(image: &mut PlanImage, window: &FinalWindow, rows: &BTreeMap<KernelSpec, u32>) {
    let (graph, made) = (&window.graph, &window.schedule);
    let first_arg = narrow(image.args.len());
    image.args.extend_from_slice(&made.args);
    let logits = narrow(image.args.len());
    image.args.push(made.logits.unwrap_or(Arg { space: space_row::ARENA, reserved: 0, offset: 0 }));
    let first = image.commands.len();
    for (command, &node) in made.commands.iter().zip(&made.nodes) {
        let launch = command.opcode == opcode::LAUNCH;
        let row = if launch { rows[&made.specs[command.row as usize]] } else { command.row };
        let args = Run { first: command.args.first + first_arg, count: command.args.count };
        image.commands.push(Command { row, args, ..*command });
        let node = graph.node(node);
        let name = image.name(node.name);
        let op = image.name(if launch { node.op.name() } else { "barrier" });
        image.provenance.push(Provenance { node: narrow(node.id.index()), name, op, reserved: 0 });
    }
    let kind = match graph.window.kind {
        WindowKind::Prefill => schedule::PREFILL,
        WindowKind::Verify => schedule::VERIFY,
        WindowKind::Draft => schedule::DRAFT,
    };
    let outputs = write_outputs(image, &made.outputs);
    image.schedules.push(Schedule {
        device: 0,
        kind,
        rows: graph.window.rows,
        logit_rows: graph.window.logit_rows,
        commands: Run::of(first..image.commands.len()),
        logits: if made.logits.is_some() { logits } else { NONE },
        launches: made.launches,
        bytes: made.bytes,
        flops: made.flops,
        arena_bytes: window.arena_bytes,
        outputs,
    });
}

fn write_outputs(image: &mut PlanImage, outputs: &[WindowOutput]) -> Run {
    let first = image.outputs.len();
    for output in outputs {
        let arg = narrow(image.args.len());
        image.args.push(output.place);
        let name = image.name(&output.name);
        let dtype = image.name(output.ty.dtype.name());
        image.outputs.push(Output {
            name,
            dtype,
            arg,
            rank: narrow(output.ty.dims().len()),
            dims: four(output.ty.dims()),
            bytes: output.ty.bytes(),
            reserved: 0,
        });
    }
    Run::of(first..image.outputs.len())
}

fn write_commit(image: &mut PlanImage, parts: &PlanParts<'_>, rows: &BTreeMap<KernelSpec, u32>) {
    let first = image.commands.len();
    for commit in parts.commits {
        let first_arg = image.args.len();
        image.args.extend_from_slice(&commit.args);
        image.commands.push(Command {
            opcode: opcode::LAUNCH,
            stream: 0,
            row: rows[&commit.spec],
            args: Run::of(first_arg..image.args.len()),
            grid: [0; 3],
        });
        let name = image.name(&parts.base.states()[commit.state].name);
        let op = image.name("commit");
        image.provenance.push(Provenance { node: NONE, name, op, reserved: 0 });
    }
    image.schedules.push(Schedule {
        device: 0,
        kind: schedule::COMMIT,
        rows: 0,
        logit_rows: 0,
        commands: Run::of(first..image.commands.len()),
        logits: NONE,
        launches: narrow(parts.commits.len()),
        outputs: Run { first: 0, count: 0 },
        bytes: 0,
        flops: 0,
        arena_bytes: 0,
    });
}

fn write_texts(image: &mut PlanImage, parts: &PlanParts<'_>) {
    let config = serde_json::to_string_pretty(parts.config).expect("a configuration is plain data");
    image.text(text::CONFIG, &parts.config.name, &config);
    image.text(text::MODEL, &parts.model.name, &parts.model.definition);
    let base = format!("base {}", crate::compute_lifetimes::window_name(parts.base));
    image.text(text::GRAPH, &base, &parts.base.to_string());
    for window in parts.windows {
        let name = format!("final {}", crate::compute_lifetimes::window_name(&window.graph));
        image.text(text::GRAPH, &name, &window.graph.to_string());
    }
}

fn write_model(image: &mut PlanImage, parts: &PlanParts<'_>) {
    let (facts, step, paging) = (parts.model, parts.step, parts.paging);
    let first = image.tokens.len();
    image.tokens.extend_from_slice(&facts.stop_tokens);
    let chat_template = facts.chat_template.as_deref();
    let parameters = |def: &strata_graph::WeightDef| match def.source {
        strata_graph::WeightSource::Constant(_) => 0,
        _ => def.ty.elements(),
    };
    image.model = Model {
        name: image.name(&facts.name),
        vocab: facts.vocab,
        hidden: facts.hidden,
        layers: facts.layers,
        context_tokens: paging.context_tokens,
        slots: paging.slots,
        page_tokens: paging.page_tokens,
        pages: paging.pages,
        pages_per_slot: paging.pages_per_slot,
        max_rows: step.max_rows,
        max_logit_rows: step.max_logit_rows,
        bos: facts.bos.unwrap_or(NONE),
        add_bos: u32::from(facts.add_bos && facts.bos.is_some()),
        tokenizer_file: facts.tokenizer_file,
        chat_template: chat_template
            .map_or(NONE, |template| image.text(text::CHAT_TEMPLATE, "chat template", template)),
        device_count: narrow(image.devices.len()),
        step_tokens: step.tokens,
        step_positions: step.positions,
        step_slots: step.slots,
        step_logit_rows: step.logit_rows,
        step_page_table: step.page_table,
        step_offsets: step.offsets,
        step_commit_slots: step.commit_slots,
        step_commit_rows: step.commit_rows,
        verify_rows: step.verify_rows,
        draft_rows: step.draft_rows,
        step_bytes: step.bytes,
        stop_tokens: Run::of(first..image.tokens.len()),
        parameters: parts.base.weights().values().map(parameters).sum(),
        reserved: 0,
    };
}

#[cfg(test)]
mod tests;
