//! The text form of a graph. [`crate::parse`] reads it back.
//!
//! ```text
//! ; strata graph 1 | MODEL | verify 4 (logits 4) | STAGE | 3 nodes | 8208 bytes of weights
//! w0 = weight "blk.0.attn_norm" : f32[2048] named "blk.0.attn_norm.weight"
//! s0 = state append "kv.0" : f32[8, 128]
//!   %4 = rms_norm(%3, w0) eps=1e-6               : f32[4, 2048] @d0 "blk.0.attn_norm"
//! output %4
//! ```
//!
//! Weights and states stand in the order in which they were made, and a result's number is its
//! [`ValueId`], so numbers survive a round trip. `;` starts a comment.

use std::fmt::{self, Write};

use crate::graph::{Graph, Node, StateDef, StateKind, TensorSlice, Transform, ValueDef, WeightDef};
use crate::graph::{WeightSource, WindowKind};
use crate::table::{StateId, ValueId, WeightId};

/// The first words of a dump: the form and its version.
pub const HEADER: &str = "; strata graph 1";

/// Columns of a node before its types; longer nodes push their types to the right.
const NODE_COLUMNS: usize = 56;

impl WindowKind {
    /// The name in dumps.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Verify => "verify",
            Self::Draft => "draft",
        }
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        header(f, self)?;
        for value in self.values() {
            match self.value(value) {
                ValueDef::Weight(id) => weight(f, id, &self.weights()[id])?,
                ValueDef::State(id) => state(f, id, &self.states()[id])?,
                ValueDef::Result { .. } => {}
            }
        }
        for each in self.nodes() {
            node(f, self, &each)?;
        }
        if self.outputs().is_empty() {
            return Ok(());
        }
        writeln!(f, "output {}", operand_list(self, self.outputs()))
    }
}

fn header(f: &mut fmt::Formatter<'_>, graph: &Graph) -> fmt::Result {
    let bytes =
        graph.weights().values().fold(0, |sum: u64, def| sum.saturating_add(def.ty.bytes()));
    let window = graph.window;
    writeln!(
        f,
        "{HEADER} | {} | {} {} (logits {}) | {} | {} nodes | {bytes} bytes of weights",
        escape(&graph.model),
        window.kind.name(),
        window.rows,
        window.logit_rows,
        escape(&graph.stage),
        graph.node_count(),
    )
}

fn weight(f: &mut fmt::Formatter<'_>, id: WeightId, def: &WeightDef) -> fmt::Result {
    write!(f, "{id} = weight \"{}\" : {}", escape(&def.name), def.ty)?;
    match &def.source {
        WeightSource::Named(slices) if slices.is_empty() => {}
        WeightSource::Named(slices) => list(f, " named ", ", ", slices, slice)?,
        WeightSource::Parts(parts) => list(f, " parts ", ", ", parts, |part| {
            format!("{}:{}+{}", part.file, part.offset, part.bytes)
        })?,
        WeightSource::Constant(values) => {
            list(f, " constant ", " ", values, |value| format!("{value:?}"))?;
        }
        WeightSource::Integers(values) => {
            list(f, " integers ", " ", values, ToString::to_string)?;
        }
    }
    f.write_str(match def.transform {
        Transform::None => "\n",
        Transform::AddOne => " add_one\n",
        Transform::NegExp => " neg_exp\n",
    })
}

fn slice(slice: &TensorSlice) -> String {
    let name = escape(&slice.tensor);
    match slice.rows {
        Some((first, end)) => format!("\"{name}\"[{first}..{end}]"),
        None => format!("\"{name}\""),
    }
}

fn state(f: &mut fmt::Formatter<'_>, id: StateId, def: &StateDef) -> fmt::Result {
    write!(f, "{id} = state ")?;
    match def.kind {
        StateKind::Append => f.write_str("append")?,
        StateKind::Recurrent => f.write_str("recurrent")?,
        StateKind::Tail(rows) => write!(f, "tail {rows}")?,
    }
    write!(f, " \"{}\" : {}", escape(&def.name), def.row)?;
    if def.every != 1 {
        write!(f, " every {}", def.every)?;
    }
    if def.first != 0 {
        write!(f, " first {}", def.first)?;
    }
    if let Some(seed) = def.seed {
        write!(f, " seed {seed}")?;
    }
    f.write_str("\n")
}

fn node(f: &mut fmt::Formatter<'_>, graph: &Graph, node: &Node<'_>) -> fmt::Result {
    let results: Vec<ValueId> = node.results().collect();
    let mut left = format!(
        "  {} = {}({})",
        operand_list(graph, &results),
        node.op.name(),
        operand_list(graph, node.operands)
    );
    for (key, value) in node.op.attributes() {
        write!(left, " {key}={value}")?;
    }
    write!(f, "{left:<NODE_COLUMNS$}")?;
    list(f, " : ", ", ", &graph.result_types(node), ToString::to_string)?;
    writeln!(f, " @{} \"{}\"", node.device, escape(node.name))
}

fn list<T>(
    f: &mut fmt::Formatter<'_>,
    before: &str,
    between: &str,
    rows: &[T],
    text: impl Fn(&T) -> String,
) -> fmt::Result {
    let texts: Vec<String> = rows.iter().map(text).collect();
    write!(f, "{before}{}", texts.join(between))
}

/// `%N`, or `wN` for a weight and `sN` for the version of a state that the window begins with.
fn operand_list(graph: &Graph, values: &[ValueId]) -> String {
    let text = |&value: &ValueId| match graph.value(value) {
        ValueDef::Weight(weight) => weight.to_string(),
        ValueDef::State(state) => state.to_string(),
        ValueDef::Result { .. } => value.to_string(),
    };
    values.iter().map(text).collect::<Vec<String>>().join(", ")
}

/// Text that may stand between quotes or bars on one line.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '|' => out.push_str("\\u{7c}"),
            c if c.is_control() => {
                write!(out, "\\u{{{:x}}}", u32::from(c)).expect("a string takes any text");
            }
            c => out.push(c),
        }
    }
    out
}
