//! What a model computes for one window of rows: typed tables, ops, states and the rules between
//! them. This crate knows no target, no file and no kernel.
//!
//! A [`Graph`] is a struct of arrays with typed ids. A row refers only to earlier rows, so the order
//! of nodes is an order of evaluation, there are no cycles and every analysis is one loop forward.
//! Graphs are immutable once [`GraphBuilder::finish`] has returned; a pass makes a new one.

mod cost;
pub mod dump;
mod error;
mod graph;
pub mod lens;
mod op;
pub mod parse;
mod rebuild;
mod rules;
mod table;
mod types;
pub mod verify;

pub use cost::{Cost, cost};
pub use error::ShapeError;
pub use graph::{
    Graph, GraphBuilder, Node, Part, StateDef, StateKind, TensorSlice, Transform, ValueDef,
    WeightDef, WeightSource, Window, WindowKind,
};
pub use op::{Activation, Attr, Op, Pairing};
pub use rebuild::{Rebuild, Rebuilt};
pub use rules::{operand_names, result_types};
pub use table::{DeviceId, Id, NodeId, Rows, StateId, Table, ValueId, WeightId};
pub use types::{ACTIVATION_SPAN_BYTES, DType, SPAN, TensorType};
