//! What a graph can have wrong with it.

use std::fmt;

use crate::error::ShapeError;
use crate::table::{DeviceId, NodeId, StateId, ValueId, WeightId};
use crate::types::{DType, TensorType};

/// A rule that does not hold, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyError {
    pub place: Place,
    pub fault: Fault,
}

/// The row at fault, with its name.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    Graph,
    Node { id: NodeId, op: &'static str, name: String },
    Weight { id: WeightId, name: String },
    State { id: StateId, name: String },
}

/// The rule, what was found and what is needed.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// An operand that no earlier row makes.
    Order { operand: ValueId },
    /// Operands that do not fit the op.
    Shape(ShapeError),
    /// A result whose type is not what the op gives.
    ResultType { result: ValueId, found: TensorType, need: TensorType },
    /// Another number of results than the op gives.
    ResultCount { found: usize, need: usize },
    /// An operand that is a weight and should be computed, or the other way round.
    Source { operand: &'static str, need: &'static str },
    /// A version of a state that is not the latest one at this node.
    Version { state: StateId, found: ValueId, need: ValueId },
    /// An op that needs another kind of state.
    StateKind { state: StateId, found: String, need: String },
    /// An append state with another number of positions a row than the op stores.
    StateEvery { state: StateId, found: u32, need: u32 },
    /// A seed that is not an earlier state of the same rows, or of one that grows.
    Seed { found: StateId },
    /// Rows of another shape than the state stores.
    StateRow { state: StateId, found: Vec<u32>, need: Vec<u32> },
    /// A node on another device than the state.
    StateDevice { state: StateId, found: DeviceId, need: DeviceId },
    /// An operand with another number of rows than the window or its neighbours give it.
    RowCount { operand: &'static str, found: u32, need: u32 },
    /// A dispatch for another number of experts than the bank holds.
    Experts { found: u32, need: u32 },
    /// An element type that no weight can have.
    WeightElement { found: DType },
    /// A weight without elements.
    Empty { found: TensorType },
    /// A state whose rows have no elements.
    EmptyRow { found: TensorType },
    /// Rows of a weight in products that are not whole blocks, or not whole groups of partial sums.
    BlockMultiple { dtype: DType, found: u32, need: u64 },
    /// Another number of constants or of stored bytes than the type has.
    SourceLength { unit: &'static str, found: u64, need: u64 },
    /// A slice that is empty or backwards.
    Slice { tensor: String, first: u32, end: u32 },
    /// A name that an earlier state has.
    StateName { earlier: StateId },
    /// A window without rows, or with more logits than rows.
    Window { rows: u32, logit_rows: u32 },
    /// Nothing to compute the window for.
    NoOutput,
    /// An output that no row makes, or that is no tensor of floats.
    Output { output: ValueId, found: Option<TensorType> },
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Graph => f.write_str("graph")?,
            Place::Node { id, op, name } => write!(f, "{id} {op} \"{name}\"")?,
            Place::Weight { id, name } => write!(f, "{id} weight \"{name}\"")?,
            Place::State { id, name } => write!(f, "{id} state \"{name}\"")?,
        }
        write!(f, ": {}: {}", self.fault.rule(), self.fault)
    }
}

impl Fault {
    /// The name of the rule that does not hold.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Order { .. } => "order",
            Self::Shape(_) | Self::ResultType { .. } | Self::ResultCount { .. } => "types",
            Self::Source { .. } => "operand source",
            Self::Version { .. } => "state versions",
            Self::StateKind { .. } => "state kind",
            Self::Seed { .. } => "state seed",
            Self::StateRow { .. } | Self::StateEvery { .. } | Self::EmptyRow { .. } => "state row",
            Self::StateDevice { .. } => "state device",
            Self::StateName { .. } => "state name",
            Self::RowCount { .. } => "rows",
            Self::Experts { .. } => "experts",
            Self::WeightElement { .. } | Self::Empty { .. } => "weight type",
            Self::BlockMultiple { .. } => "weight rows",
            Self::SourceLength { .. } | Self::Slice { .. } => "weight source",
            Self::Window { .. } => "window",
            Self::NoOutput | Self::Output { .. } => "outputs",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { operand } => write!(f, "reads {operand}, needs an earlier value"),
            Self::Shape(error) => error.fmt(f),
            Self::ResultType { result, found, need } => {
                write!(f, "{result} is {found}, needs {need}")
            }
            Self::ResultCount { found, need } => write!(f, "has {found} results, needs {need}"),
            Self::Source { operand, need } => write!(f, "{operand} needs to be {need}"),
            Self::Version { state, found, need } => {
                write!(f, "reads {found}, needs {need}, the latest version of {state}")
            }
            Self::StateKind { state, found, need } => {
                write!(f, "{state} is of kind {found}, needs {need}")
            }
            Self::StateRow { state, found, need } => {
                write!(f, "gives {state} rows of {found:?}, needs {need:?}")
            }
            Self::StateEvery { state, found, need } => {
                write!(f, "{state} has a row every {found} positions, needs one every {need}")
            }
            Self::Seed { found } => {
                write!(f, "begins with {found}, needs an earlier state of the same kind and rows")
            }
            Self::StateDevice { state, found, need } => {
                write!(f, "is on {found}, needs {need}, where {state} is")
            }
            Self::RowCount { operand, found, need } => {
                write!(f, "{operand} has {found} rows, needs {need}")
            }
            Self::Experts { found, need } => {
                write!(f, "the dispatch is for {found} experts, needs {need}")
            }
            Self::WeightElement { found } => {
                write!(f, "elements are {found}, needs a float or block format")
            }
            Self::Empty { found } | Self::EmptyRow { found } => {
                write!(f, "is {found}, needs at least one element")
            }
            Self::BlockMultiple { dtype, found, need } => {
                write!(f, "a row has {found} elements of {dtype}, needs a multiple of {need}")
            }
            Self::SourceLength { unit, found, need } => {
                write!(f, "its source has {found} {unit}, needs {need}")
            }
            Self::Slice { tensor, first, end } => {
                write!(f, "\"{tensor}\" is cut to rows {first}..{end}, needs first < end")
            }
            Self::StateName { earlier } => {
                write!(f, "has the name of {earlier}, needs a name of its own")
            }
            Self::Window { rows, logit_rows } => write!(
                f,
                "{rows} rows with logits of {logit_rows}, needs at least 1 row and no more logits"
            ),
            Self::NoOutput => f.write_str("found no output, needs at least one"),
            Self::Output { output, found: None } => {
                write!(f, "{output} does not exist, needs a value of this graph")
            }
            Self::Output { output, found: Some(found) } => {
                write!(f, "{output} is {found}, needs a computed tensor, the first of f32")
            }
        }
    }
}

impl std::error::Error for VerifyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Shape(error) => Some(error),
            _ => None,
        }
    }
}
