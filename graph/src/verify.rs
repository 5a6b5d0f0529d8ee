//! The rules that hold for every graph at every stage, in one list.
//!
//! A builder checks types as it goes; what a window as a whole must keep is checked here, after
//! each pass. Nothing here depends on a target.

mod error;
mod states;
#[cfg(test)]
mod tests;
mod weights;

use crate::graph::{Graph, Node, ValueDef};
use crate::op::Op;
use crate::rules::{operand_names, result_types};
use crate::table::{Id, ValueId};
use crate::types::DType;

pub use error::{Fault, Place, VerifyError};

/// One rule of a node. It may index operands freely: arity and order are checked before.
type NodeRule = fn(&Graph, &Node<'_>, &mut Vec<Fault>);

/// Rules of nodes; each looks at one node at a time. What spans nodes is in [`states`].
const NODE_RULES: &[NodeRule] = &[operand_sources, row_counts, dispatched_experts, summed_experts];

/// Checks `graph` against all rules.
///
/// # Errors
/// All rules that do not hold, in the order window, weights, states, nodes, outputs. A node whose
/// operands or types are wrong is not checked further.
pub fn verify(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    let mut errors = Vec::new();
    let window = graph.window;
    if window.rows == 0 || window.logit_rows > window.rows {
        let fault = Fault::Window { rows: window.rows, logit_rows: window.logit_rows };
        errors.push(VerifyError { place: Place::Graph, fault });
    }
    weights::check(graph, &mut errors);
    let mut states = states::Versions::of(graph, &mut errors);
    for node in graph.nodes() {
        let mut faults = Vec::new();
        if order(graph, &node, &mut faults) && types(graph, &node, &mut faults) {
            for rule in NODE_RULES {
                rule(graph, &node, &mut faults);
            }
            states.check(graph, &node, &mut faults);
        }
        let place = || Place::Node { id: node.id, op: node.op.name(), name: node.name.to_owned() };
        errors.extend(faults.into_iter().map(|fault| VerifyError { place: place(), fault }));
    }
    outputs(graph, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Operands are made before they are read.
fn order(graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) -> bool {
    let before = faults.len();
    for &operand in node.operands {
        let exists = operand.index() < graph.value_count();
        if !exists || graph.producer(operand).is_some_and(|producer| producer.id >= node.id) {
            faults.push(Fault::Order { operand });
        }
    }
    faults.len() == before
}

/// Operands fit the op, and results are what it gives.
fn types(graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) -> bool {
    let (rows, logit_rows) = (graph.window.rows, graph.window.logit_rows);
    let needs = match result_types(node.op, &graph.operand_types(node), rows, logit_rows) {
        Ok(needs) => needs,
        Err(error) => {
            faults.push(Fault::Shape(error));
            return false;
        }
    };
    let before = faults.len();
    let found = graph.result_types(node);
    if found.len() != needs.len() {
        faults.push(Fault::ResultCount { found: found.len(), need: needs.len() });
    }
    for ((result, found), need) in node.results().zip(found).zip(needs) {
        if found != need {
            faults.push(Fault::ResultType { result, found, need });
        }
    }
    faults.len() == before
}

/// Whether an operand of this name is a weight in every graph.
fn is_weight(operand: &str) -> bool {
    matches!(
        operand,
        "table"
            | "weight"
            | "bias"
            | "gain"
            | "inverse_frequencies"
            | "query_gain"
            | "key_gain"
            | "gate"
            | "up"
            | "down"
            | "filter"
            | "rates"
            | "dt_bias"
            | "hash"
    )
}

/// Operands that are weights come from the weight table, and all others do not.
fn operand_sources(graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) {
    for (operand, &value) in operand_names(node.op).into_iter().zip(node.operands) {
        match (is_weight(operand), graph.weight_of(value).is_some()) {
            (true, false) => faults.push(Fault::Source { operand, need: "a weight" }),
            (false, true) => faults.push(Fault::Source { operand, need: "computed" }),
            _ => {}
        }
    }
}

/// Rows of activations that are read together are the same rows.
///
/// Rows come from the window (`embed`, `rope_angles`), from `gather_rows` and from `expert_gated`;
/// all other ops keep those of their first operand, so that only what mixes them needs a look.
fn row_counts(graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) {
    let rows =
        |operand: usize| graph.ty(node.operands[operand]).dims().first().copied().unwrap_or(1);
    let window = graph.window.rows;
    let needs: Vec<(usize, u32)> = match node.op {
        Op::GatherRows {} | Op::Attention { .. } => vec![(0, window)],
        Op::StateAppend {} => vec![(1, window), (2, window)],
        Op::Conv1d { .. } | Op::ShiftRows {} => vec![(1, window)],
        Op::GatedDelta { .. } => vec![(1, window), (2, window), (3, window)],
        Op::BlockKeys { .. } => vec![(2, window)],
        Op::BlockScores { .. } | Op::BlockTop { .. } => vec![(0, window)],
        Op::SparseAttention { .. } => vec![(0, window), (2, window)],
        Op::AttentionPrologue { .. } => (1..5).map(|operand| (operand, window)).collect(),
        Op::Rope { .. } => vec![(1, rows(0))],
        Op::ExpertMlp { .. } => vec![(1, rows(0)), (2, rows(0))],
        Op::ExpertDown {} => {
            let experts = graph.ty(node.operands[2]).dims()[0];
            vec![(1, rows(0).saturating_add(experts.saturating_add(2)))]
        }
        Op::ExpertGated { .. } => {
            dispatch(graph, node.operands[1]).map_or(vec![], |(ids_rows, _)| vec![(0, ids_rows)])
        }
        _ => vec![],
    };
    let names = operand_names(node.op);
    for (operand, need) in needs {
        let found = rows(operand);
        if found != need {
            faults.push(Fault::RowCount { operand: names[operand], found, need });
        }
    }
}

/// Rows of the router behind a dispatch, and the number of experts it sorts for.
fn dispatch(graph: &Graph, value: ValueId) -> Option<(u32, u32)> {
    let node = graph.producer(value)?;
    let (rows, width) =
        (graph.ty(node.operands[0]).dims()[0], graph.ty(node.operands[0]).last_dim());
    match *node.op {
        Op::ExpertDispatch { experts } => Some((rows, experts.into())),
        Op::RouteDispatch { .. } if node.results().nth(2) == Some(value) => Some((rows, width)),
        _ => None,
    }
}

/// The ids that `expert_sum` reads are a router's, over as many experts as the bank holds.
fn summed_experts(graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) {
    let Op::ExpertSum { .. } = node.op else { return };
    let need = graph.ty(node.operands[3]).dims()[0];
    let router = graph.producer(node.operands[1]).filter(|router| {
        matches!(router.op, Op::Route { .. } | Op::RouteDispatch { .. })
            && router.result() == node.operands[1]
    });
    match router.map(|router| graph.ty(router.operands[0]).last_dim()) {
        Some(found) if found != need => faults.push(Fault::Experts { found, need }),
        Some(_) => {}
        None => faults.push(Fault::Source { operand: "ids", need: "a router's" }),
    }
}

/// The dispatch sorts for as many experts as the bank holds.
fn dispatched_experts(graph: &Graph, node: &Node<'_>, faults: &mut Vec<Fault>) {
    if !matches!(node.op, Op::ExpertGated { .. } | Op::ExpertDown {}) {
        return;
    }
    let need = graph.ty(node.operands[2]).dims()[0];
    match dispatch(graph, node.operands[1]) {
        Some((_, found)) if found != need => faults.push(Fault::Experts { found, need }),
        Some(_) => {}
        None => faults.push(Fault::Source { operand: "dispatch", need: "an expert_dispatch" }),
    }
}

fn outputs(graph: &Graph, errors: &mut Vec<VerifyError>) {
    let mut fail = |fault| errors.push(VerifyError { place: Place::Graph, fault });
    if graph.outputs().is_empty() {
        fail(Fault::NoOutput);
    }
    for (number, &output) in graph.outputs().iter().enumerate() {
        if output.index() >= graph.value_count() {
            fail(Fault::Output { output, found: None });
            continue;
        }
        // Logits come first; what else stays readable may be of any type.
        let computed = matches!(graph.value(output), ValueDef::Result { .. });
        let dtype = graph.ty(output).dtype;
        let fits = if number == 0 { dtype == DType::F32 } else { dtype != DType::State };
        if !computed || !fits {
            fail(Fault::Output { output, found: Some(graph.ty(output)) });
        }
    }
}
