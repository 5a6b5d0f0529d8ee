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
        }
        Self { latest, devices, states }
    }

    /// Every reader reads the latest version before it; a node that makes a version is the only
    /// one that the old version passes to.
    pub(super) fn check(&mut self, graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) {
        let versions = node.operands.iter().filter(|&&v| graph.ty(v).dtype == DType::State);
        for &found in versions {
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
            stored_rows(graph, node, state, faults);
            for result in node.results().filter(|&r| graph.ty(r).dtype == DType::State) {
                self.latest.set(state, Some(result));
                self.states.set(result, Some(state));
            }
        }
    }
}

/// What a node appends or attends to is what the state stores.
fn stored_rows(graph: &Graph, node: &Node<'_>, state: StateId, faults: &mut Vec<Fault>) {
    let def = &graph.states()[state];
    let found = match *node.op {
        Op::StateAppend {} => vec![graph.ty(node.operands[1]).last_dim()],
        Op::Attention { kv_heads, head_dim, .. }
        | Op::AttentionPrologue { kv_heads, head_dim, .. } => {
            vec![u32::from(kv_heads), u32::from(head_dim)]
        }
        _ => return,
    };
    if def.kind != StateKind::Append {
        let kind = match def.kind {
            StateKind::Append => "append",
            StateKind::Recurrent => "recurrent",
            StateKind::Tail(_) => "tail",
        };
        faults.push(Fault::StateKind { state, found: kind, need: "append" });
        return;
    }
    let need = def.row.dims().to_vec();
    let fits = match found[..] {
        [width] => u64::from(width) == def.row.elements(),
        _ => found == need,
    };
    if !fits {
        faults.push(Fault::StateRow { state, found, need });
    }
}
