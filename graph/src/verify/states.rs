//! Rules of states: one chain of versions each, on one device, of the rows they are declared with.

use super::error::{Fault, Place, VerifyError};
use crate::graph::{Graph, Node, StateKind, ValueDef};
use crate::op::Op;
use crate::table::{DeviceId, Id, StateId, Table, ValueId};
use crate::types::DType;

/// The latest version of each state, and the device of the nodes that touch it, node by node.
pub(super) struct Versions {
    latest: Table<StateId, Option<ValueId>>,
    devices: Table<StateId, Option<DeviceId>>,
    /// The state of which a value is a version.
    states: Table<ValueId, Option<StateId>>,
}

impl Versions {
    /// The versions that the window begins with. Checks the declarations.
    pub(super) fn of(graph: &Graph, errors: &mut Vec<VerifyError>) -> Self {
        let mut latest: Table<_, _> = graph.states().keys().map(|_| None).collect();
        let devices = graph.states().keys().map(|_| None).collect();
        let mut states: Table<_, _> = graph.values().map(|_| None).collect();
        for value in graph.values() {
            if let ValueDef::State(state) = graph.value(value) {
                latest.set(state, Some(value));
                states.set(value, Some(state));
            }
        }
        for (id, def) in graph.states().iter() {
            let mut fail = |fault| {
                let place = Place::State { id, name: def.name.clone() };
                errors.push(VerifyError { place, fault });
            };
            let mut earlier = graph.states().iter().take(id.index());
            if let Some((earlier, _)) = earlier.find(|(_, other)| other.name == def.name) {
                fail(Fault::StateName { earlier });
            }
            if def.row.elements() == 0 {
                fail(Fault::EmptyRow { found: def.row });
            }
            if let Some(fault) = wrong_seed(graph, id) {
                fail(fault);
            }
        }
        Self { latest, devices, states }
    }

    /// Every reader reads the latest version before it; a node that makes a version is the only
    /// one that the old version passes to.
    pub(super) fn check(&mut self, graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) {
        let is_state = |v: &ValueId| graph.ty(*v).dtype == DType::State;
        let versions = node.operands.iter().copied().filter(is_state);
        // A node reads all its versions before it makes any.
        let mut results = node.results().filter(is_state);
        let wants = wanted_states(graph, node);
        for (number, found) in versions.enumerate() {
            // A version without a state comes from a node that was refused already.
            let Some(state) = self.states[found] else { continue };
            let latest = self.latest[state];
            if let Some(need) = latest.filter(|&need| need != found) {
                faults.push(Fault::Version { state, found, need });
            }
            let device = self.devices[state].unwrap_or(node.device);
            self.devices.set(state, Some(device));
            if device != node.device {
                faults.push(Fault::StateDevice { state, found: node.device, need: device });
            }
            if let Some(want) = wants.get(number) {
                want.check(graph, state, faults);
            }
            if let Some(result) = results.next() {
                self.latest.set(state, Some(result));
                self.states.set(result, Some(state));
            }
        }
    }
}

/// A seed is an earlier state of the same kind and rows.
fn wrong_seed(graph: &Graph, id: StateId) -> Option<Fault> {
    let def = &graph.states()[id];
    let seed = def.seed?;
    let fits = seed.index() < id.index()
        && graph.states()[seed].kind == def.kind
        && graph.states()[seed].row == def.row
        && def.kind != StateKind::Append;
    (!fits).then_some(Fault::Seed { found: seed })
}

/// What an op needs of one of its states.
struct Want {
    kind: StateKind,
    /// Shape of a row, or only its elements if there is one number.
    row: Vec<u32>,
    /// Positions that share a row.
    every: u32,
}

impl Want {
    fn new(kind: StateKind, row: &[u32]) -> Self {
        Self { kind, row: row.to_vec(), every: 1 }
    }

    fn check(&self, graph: &Graph, state: StateId, faults: &mut Vec<Fault>) {
        let def = &graph.states()[state];
        if def.kind != self.kind {
            let (found, need) = (kind_name(def.kind), kind_name(self.kind));
            faults.push(Fault::StateKind { state, found, need });
            return;
        }
        let need = def.row.dims().to_vec();
        let fits = match self.row[..] {
            [width] => u64::from(width) == def.row.elements(),
            _ => self.row == need,
        };
        if !fits {
            faults.push(Fault::StateRow { state, found: self.row.clone(), need });
        }
        if def.every != self.every {
            faults.push(Fault::StateEvery { state, found: def.every, need: self.every });
        }
    }
}

fn kind_name(kind: StateKind) -> String {
    match kind {
        StateKind::Append => "append".into(),
        StateKind::Recurrent => "recurrent".into(),
        StateKind::Tail(rows) => format!("tail {rows}"),
    }
}

/// What `node` needs of its states, in the order of its operands: what it appends or attends to is
/// what the state stores.
fn wanted_states(graph: &Graph, node: &Node<'_>) -> Vec<Want> {
    let width = |operand: usize| graph.ty(node.operands[operand]).last_dim();
    let append = |row: &[u32]| Want::new(StateKind::Append, row);
    let tail = |rows: u32, width: u32| Want::new(StateKind::Tail(rows), &[width]);
    match *node.op {
        Op::StateAppend {} => vec![append(&[width(1)])],
        Op::Attention { kv_heads, head_dim, .. }
        | Op::AttentionPrologue { kv_heads, head_dim, .. }
        | Op::SparseAttention { kv_heads, head_dim, .. } => {
            vec![append(&[kv_heads.into(), head_dim.into()])]
        }
        Op::Conv1d { taps, dilation } => {
            vec![tail((u32::from(taps) - 1) * u32::from(dilation), width(1))]
        }
        Op::GatedDelta { value_heads, head_dim, .. } => {
            let row = [value_heads.into(), head_dim.into(), head_dim.into()];
            vec![Want::new(StateKind::Recurrent, &row)]
        }
        Op::BlockKeys { block, .. } => {
            let keys = Want { every: block.into(), ..append(&[1, width(2)]) };
            vec![tail(u32::from(block).saturating_sub(1), width(2)), keys]
        }
        Op::BlockScores { heads, block, .. } => {
            vec![Want { every: block.into(), ..append(&[1, width(0) / u32::from(heads)]) }]
        }
        Op::NgramRows { ngram, .. } => vec![tail(u32::from(ngram) - 1, 1)],
        Op::ShiftRows {} => vec![tail(1, width(1))],
        Op::ReadTail { width } => vec![tail(1, width)],
        _ => Vec::new(),
    }
}
