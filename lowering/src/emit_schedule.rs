//! Nodes become commands: launches with addresses, and barriers where one is needed.

use std::collections::BTreeSet;

use strata_graph::{Graph, Id, NodeId, Table, TensorType, ValueId, cost};
use strata_kernels::KernelSpec;
use strata_plan::layout::{Arg, Command, NONE, Run, opcode};

use crate::compute_lifetimes::{Lifetimes, window_name};
use crate::pack_arena::ArenaLayout;
use crate::place_experts::{Tier, WeightPlaces};
use crate::report::PassReport;
use crate::select_kernels::{KernelChoice, Operand};
use crate::states::{StatePlaces, StepLayout};

/// Rows of SPACES. A plan has these six, then one for each file.
pub mod space_row {
    pub const WEIGHTS: u32 = 0;
    pub const ARENA: u32 = 1;
    pub const STATES: u32 = 2;
    pub const STEP: u32 = 3;
    pub const CONSTANTS: u32 = 4;
    /// Empty if all weights fit RAM.
    pub const PACK: u32 = 5;
    pub const FIRST_FILE: u32 = 6;
}

/// Where everything lies that all windows share.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    pub weights: &'a WeightPlaces,
    pub states: &'a StatePlaces,
    pub step: &'a StepLayout,
}

/// What all passes have learnt of one window.
#[derive(Clone, Copy, Debug)]
pub struct WindowTables<'a> {
    pub graph: &'a Graph,
    pub choices: &'a Table<NodeId, KernelChoice>,
    pub lifetimes: &'a Lifetimes,
    pub arena: &'a ArenaLayout,
}

/// The commands of one window.
#[derive(Clone, Debug, Default)]
pub struct WindowSchedule {
    /// `row` of a launch counts in `specs`, `args` in `args`.
    pub commands: Vec<Command>,
    /// The node of each command; the node behind it for a barrier.
    pub nodes: Vec<NodeId>,
    pub args: Vec<Arg>,
    /// Distinct specifications, in order of first use.
    pub specs: Vec<KernelSpec>,
    /// Where the logits lie.
    pub logits: Option<Arg>,
    /// What else stays readable behind the window.
    pub outputs: Vec<WindowOutput>,
    pub launches: u32,
    pub barriers: u32,
    pub bytes: u64,
    pub flops: u64,
}

/// A value that can be read behind its window.
#[derive(Clone, Debug)]
pub struct WindowOutput {
    /// Of its node; further results of a node have their number behind it.
    pub name: String,
    pub ty: TensorType,
    pub place: Arg,
}

/// Emits the commands of one window, in node order, with a barrier between groups.
pub fn emit_schedule(window: WindowTables<'_>, places: Places<'_>) -> (WindowSchedule, PassReport) {
    let graph = window.graph;
    let mut schedule = WindowSchedule::default();
    let mut rows: std::collections::BTreeMap<KernelSpec, u32> = std::collections::BTreeMap::new();
    let mut group = 0;
    for node in graph.nodes() {
        let choice = &window.choices[node.id];
        let node_group = window.lifetimes.groups.of_node[node.id];
        if node_group != group {
            group = node_group;
            schedule.barriers += 1;
            let args = Run { first: narrow(schedule.args.len()), count: 0 };
            push(&mut schedule, node.id, command(opcode::BARRIER, NONE, args, 0));
        }
        let row = *rows.entry(choice.spec).or_insert_with(|| {
            schedule.specs.push(choice.spec);
            narrow(schedule.specs.len() - 1)
        });
        let first = schedule.args.len();
        schedule.args.extend(choice.operands.iter().map(|&o| address(o, window, places)));
        let args = Run::of(first..schedule.args.len());
        push(&mut schedule, node.id, command(opcode::LAUNCH, row, args, choice.parts));
        schedule.launches += 1;
        let costs = cost(node.op, &graph.operand_types(&node), &graph.result_types(&node));
        schedule.bytes += costs.bytes;
        schedule.flops += costs.flops;
    }
    if let Some(&output) = graph.outputs().first() {
        schedule.logits = Some(address(Operand::Value(output), window, places));
    }
    schedule.outputs = graph.outputs().iter().skip(1).map(|&v| output(v, window, places)).collect();
    let report = report(graph, &schedule, window.arena.bytes);
    (schedule, report)
}

fn output(value: ValueId, window: WindowTables<'_>, places: Places<'_>) -> WindowOutput {
    let graph = window.graph;
    let node = graph.producer(value).expect("verify: outputs are computed");
    let name = match node.results().position(|result| result == value) {
        Some(number @ 1..) => format!("{}.{number}", node.name),
        _ => node.name.to_owned(),
    };
    let place = address(Operand::Value(value), window, places);
    WindowOutput { name, ty: graph.ty(value), place }
}

fn report(graph: &Graph, schedule: &WindowSchedule, arena_bytes: u64) -> PassReport {
    let layers = f64::from(narrow(layer_count(graph).max(1)));
    let in_layers = |opcode: u32| {
        let commands = schedule.commands.iter().zip(&schedule.nodes);
        let of = commands.filter(|(c, node)| c.opcode == opcode && is_in_layer(graph, **node));
        f64::from(narrow(of.count()))
    };
    PassReport::new("emit_schedule", window_name(graph))
        .count("launches_count", schedule.launches.into())
        .count("barriers_count", schedule.barriers.into())
        .real("launches_per_layer", in_layers(opcode::LAUNCH) / layers)
        .real("barriers_per_layer", in_layers(opcode::BARRIER) / layers)
        .count("window_bytes", schedule.bytes)
        .count("window_flops", schedule.flops)
        .count("transient_bytes", arena_bytes)
}

/// Different "blk.N." among the names of nodes.
fn layer_count(graph: &Graph) -> usize {
    let layer = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<u32>().ok();
    graph.nodes().filter_map(|node| layer(node.name)).collect::<BTreeSet<u32>>().len()
}

/// Nodes of a layer have its name in front: "blk.N.".
fn is_in_layer(graph: &Graph, node: NodeId) -> bool {
    graph.node(node).name.starts_with("blk.")
}

fn push(schedule: &mut WindowSchedule, node: NodeId, command: Command) {
    schedule.commands.push(command);
    schedule.nodes.push(node);
}

fn command(opcode: u32, row: u32, args: Run, parts: u32) -> Command {
    Command { opcode, stream: 0, row, args, grid: [parts, 0, 0] }
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a plan has fewer than 2^32 rows")
}

/// The place of an operand.
fn address(operand: Operand, window: WindowTables<'_>, places: Places<'_>) -> Arg {
    match operand {
        Operand::Value(value) => {
            Arg { space: space_row::ARENA, reserved: 0, offset: window.arena.offset(value) }
        }
        _ => place_of(operand, places),
    }
}

/// The place of an operand that is the same in all windows.
///
/// # Panics
/// If it is a value, which lies elsewhere in each window.
pub(crate) fn place_of(operand: Operand, places: Places<'_>) -> Arg {
    let at = |space: u32, offset: u64| Arg { space, reserved: 0, offset };
    let step = |offset: u32| at(space_row::STEP, u64::from(offset));
    match operand {
        Operand::Step => step(0),
        // Word 1 counts the logit rows.
        Operand::StepOfLogits => step(4),
        Operand::Tokens => step(places.step.tokens),
        Operand::Positions => step(places.step.positions),
        Operand::Slots => step(places.step.slots),
        Operand::Offsets => step(places.step.offsets),
        Operand::CommitSlots => step(places.step.commit_slots),
        Operand::CommitRows => step(places.step.commit_rows),
        Operand::LogitRows => step(places.step.logit_rows),
        Operand::PageTable => step(places.step.page_table),
        Operand::Value(value) => unreachable!("{value} has a place in its window only"),
        Operand::State(state) => at(space_row::STATES, places.states.of_state[state].offset),
        Operand::Weight(weight, form) => {
            let place = places.weights.get(weight, form).unwrap_or_else(|| {
                panic!("weight {} has no place in the form {form:?}", weight.index())
            });
            let space = match place.tier {
                Tier::Ram => space_row::WEIGHTS,
                Tier::Constant => space_row::CONSTANTS,
                Tier::Packed => space_row::PACK,
                Tier::Mapped => space_row::FIRST_FILE + place.file,
            };
            at(space, place.offset)
        }
    }
}
