//! The graph: tables of nodes, values, weights and states for one window.

use crate::error::ShapeError;
use crate::op::Op;
use crate::rules::result_types;
use crate::table::{DeviceId, Id, NodeId, Rows, StateId, Table, ValueId, WeightId};
use crate::types::{DType, TensorType};

/// What a window is for. All kinds give the same bits for a row; they differ in speed only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WindowKind {
    Prefill,
    Verify,
    /// One row a sequence, for the draft head.
    Draft,
}

/// A fixed number of rows; how many of them are live is known only when it is replayed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Window {
    pub kind: WindowKind,
    pub rows: u32,
    /// Rows of which logits can be asked for at most.
    pub logit_rows: u32,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueDef {
    /// Result `index` of a node.
    Result {
        node: NodeId,
        index: u32,
    },
    Weight(WeightId),
    /// The version of a state that the window begins with.
    State(StateId),
}

/// A byte range of one file that holds a part of a weight, in the weight's own element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    pub file: u32,
    pub offset: u64,
    pub bytes: u64,
}

/// Where the bytes of a weight are.
#[derive(Clone, PartialEq, Debug)]
pub enum WeightSource {
    /// Tensors of the checkpoint by name, concatenated along the outermost dimension. Each may be
    /// cut to a range of the rows of its second-innermost dimension, within every outer slice.
    Named(Vec<TensorSlice>),
    /// The same, looked up.
    Parts(Vec<Part>),
    /// Values that the model definition implies.
    Constant(Vec<f32>),
    /// The same, whole numbers.
    Integers(Vec<u64>),
}

/// What is done to the values of a vector on loading.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transform {
    #[default]
    None,
    /// The stored values are zero-centred gains: 1 is added.
    AddOne,
    /// The stored values are logarithms of rates: `-exp(x)`.
    NegExp,
}

/// A tensor of the checkpoint, or the rows `rows` of each of its matrices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSlice {
    pub tensor: String,
    pub rows: Option<(u32, u32)>,
}

impl TensorSlice {
    pub fn whole(tensor: impl Into<String>) -> Self {
        Self { tensor: tensor.into(), rows: None }
    }
}

/// A weight: its name in the model, its type as stored, and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightDef {
    pub name: String,
    pub ty: TensorType,
    pub source: WeightSource,
    pub transform: Transform,
}

/// How a state grows and how it is rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateKind {
    /// Rows at positions (keys and values): truncated to a position.
    Append,
    /// One value, rewritten by each row (a delta-rule state): a snapshot, or a replay of factors.
    Recurrent,
    /// The last `n` rows (the inputs of a convolution, the history of n-grams).
    Tail(u32),
}

/// A typed state of a sequence.
///
/// For `Append`, `row` is what one position stores for each of keys and values: `[kv_heads,
/// head_dim]`, its element type the graph's f32; how it is stored is a choice of the configuration.
/// For `Recurrent` and `Tail`, `row` is the value, or one row of it.
#[derive(Clone, PartialEq, Debug)]
pub struct StateDef {
    pub name: String,
    pub kind: StateKind,
    pub row: TensorType,
    /// Positions that share one row of an `Append` state.
    pub every: u32,
    /// The first position that an `Append` state stores something of.
    pub first: u32,
    /// The state whose value this one begins drafting with.
    pub seed: Option<StateId>,
}

impl StateDef {
    /// A state with a row for each position, from position 0 on.
    pub fn new(name: impl Into<String>, kind: StateKind, row: TensorType) -> Self {
        Self { name: name.into(), kind, row, every: 1, first: 0, seed: None }
    }
}

/// One node, looked at.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub id: NodeId,
    pub op: &'a Op,
    pub operands: &'a [ValueId],
    pub device: DeviceId,
    pub name: &'a str,
    results: Rows,
}

impl Node<'_> {
    /// Ids of the results, in order.
    pub fn results(&self) -> impl Iterator<Item = ValueId> + use<> {
        self.results.range().map(ValueId::from_index)
    }

    /// The first result.
    pub fn result(&self) -> ValueId {
        ValueId::from_index(self.results.first as usize)
    }
}

/// What a model computes for one window of rows. Immutable; see [`GraphBuilder`].
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub model: String,
    pub window: Window,
    /// The stage of compilation that made it, for dumps.
    pub stage: String,
    ops: Table<NodeId, Op>,
    operands: Table<NodeId, Rows>,
    results: Table<NodeId, Rows>,
    devices: Table<NodeId, DeviceId>,
    names: Table<NodeId, String>,
    pool: Vec<ValueId>,
    values: Table<ValueId, ValueDef>,
    types: Table<ValueId, TensorType>,
    weights: Table<WeightId, WeightDef>,
    states: Table<StateId, StateDef>,
    /// What the window is computed for: the logits.
    outputs: Vec<ValueId>,
}

impl Graph {
    pub fn node_count(&self) -> usize {
        self.ops.len()
    }

    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    pub fn node(&self, id: NodeId) -> Node<'_> {
        Node {
            id,
            op: &self.ops[id],
            operands: &self.pool[self.operands[id].range()],
            device: self.devices[id],
            name: &self.names[id],
            results: self.results[id],
        }
    }

    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = Node<'_>> {
        self.ops.keys().map(|id| self.node(id))
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = ValueId> + use<> {
        self.values.keys()
    }

    pub fn value(&self, id: ValueId) -> ValueDef {
        self.values[id]
    }

    pub fn ty(&self, id: ValueId) -> TensorType {
        self.types[id]
    }

    pub fn weights(&self) -> &Table<WeightId, WeightDef> {
        &self.weights
    }

    pub fn states(&self) -> &Table<StateId, StateDef> {
        &self.states
    }

    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The node that makes `value`, if a node does.
    pub fn producer(&self, value: ValueId) -> Option<Node<'_>> {
        match self.values[value] {
            ValueDef::Result { node, .. } => Some(self.node(node)),
            ValueDef::Weight(_) | ValueDef::State(_) => None,
        }
    }

    /// The weight behind `value`, if it is one.
    pub fn weight_of(&self, value: ValueId) -> Option<WeightId> {
        match self.values[value] {
            ValueDef::Weight(weight) => Some(weight),
            ValueDef::Result { .. } | ValueDef::State(_) => None,
        }
    }

    /// The state of which `value` is a version. Follows versions back to the start: the states
    /// among the results of a node are those among its operands, in the same order.
    pub fn state_of(&self, value: ValueId) -> Option<StateId> {
        if self.types[value].dtype != DType::State {
            return None;
        }
        let mut at = value;
        loop {
            match self.values[at] {
                ValueDef::State(state) => return Some(state),
                ValueDef::Weight(_) => return None,
                ValueDef::Result { node, .. } => {
                    let node = self.node(node);
                    let is_state = |v: &ValueId| self.types[*v].dtype == DType::State;
                    let number = node.results().filter(is_state).position(|v| v == at)?;
                    at = *node.operands.iter().filter(|v| is_state(v)).nth(number)?;
                }
            }
        }
    }

    /// How often each value is read, outputs included.
    pub fn use_counts(&self) -> Table<ValueId, u32> {
        let mut counts: Table<ValueId, u32> = self.values.keys().map(|_| 0).collect();
        for &value in self.nodes().flat_map(|n| n.operands).chain(&self.outputs) {
            counts.set(value, counts[value] + 1);
        }
        counts
    }

    /// Types of a node's operands, in order.
    pub fn operand_types(&self, node: &Node<'_>) -> Vec<TensorType> {
        node.operands.iter().map(|&v| self.types[v]).collect()
    }

    /// Types of a node's results, in order.
    pub fn result_types(&self, node: &Node<'_>) -> Vec<TensorType> {
        node.results().map(|v| self.types[v]).collect()
    }
}

/// Makes a [`Graph`]: every push is checked, so a finished graph is well typed.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
    weight_values: Table<WeightId, ValueId>,
    state_values: Table<StateId, ValueId>,
}

impl GraphBuilder {
    pub fn new(model: impl Into<String>, window: Window, stage: impl Into<String>) -> Self {
        Self {
            graph: Graph {
                model: model.into(),
                window,
                stage: stage.into(),
                ops: Table::new(),
                operands: Table::new(),
                results: Table::new(),
                devices: Table::new(),
                names: Table::new(),
                pool: Vec::new(),
                values: Table::new(),
                types: Table::new(),
                weights: Table::new(),
                states: Table::new(),
                outputs: Vec::new(),
            },
            weight_values: Table::new(),
            state_values: Table::new(),
        }
    }

    /// Adds a weight and the value that stands for it.
    pub fn weight(&mut self, def: WeightDef) -> ValueId {
        let ty = def.ty;
        let id = self.graph.weights.push(def);
        let value = self.value(ValueDef::Weight(id), ty);
        self.weight_values.push(value);
        value
    }

    /// Adds a state and the value that stands for its version before the window.
    pub fn state(&mut self, def: StateDef) -> ValueId {
        let id = self.graph.states.push(def);
        let value = self.value(ValueDef::State(id), TensorType::state());
        self.state_values.push(value);
        value
    }

    /// The value that stands for a weight.
    pub fn weight_value(&self, weight: WeightId) -> ValueId {
        self.weight_values[weight]
    }

    /// The value that stands for a state before the window.
    pub fn state_value(&self, state: StateId) -> ValueId {
        self.state_values[state]
    }

    /// Appends a node on device 0 and returns its results.
    ///
    /// # Errors
    /// The operand that does not fit the op; the graph is then unchanged.
    ///
    /// # Panics
    /// If an operand is not a value of this graph.
    pub fn push(
        &mut self,
        op: Op,
        operands: &[ValueId],
        name: impl Into<String>,
    ) -> Result<Vec<ValueId>, ShapeError> {
        self.push_on(DeviceId::from_index(0), op, operands, name)
    }

    /// [`Self::push`] on a device.
    pub fn push_on(
        &mut self,
        device: DeviceId,
        op: Op,
        operands: &[ValueId],
        name: impl Into<String>,
    ) -> Result<Vec<ValueId>, ShapeError> {
        let graph = &mut self.graph;
        let types: Vec<TensorType> = operands.iter().map(|&v| graph.types[v]).collect();
        let window = graph.window;
        let results = result_types(&op, &types, window.rows, window.logit_rows)?;
        let node = graph.ops.push(op);
        let start = graph.pool.len();
        graph.pool.extend_from_slice(operands);
        graph.operands.push(Rows::of(start..graph.pool.len()));
        graph.devices.push(device);
        graph.names.push(name.into());
        let first = graph.values.len();
        let ids = (0u32..)
            .zip(results)
            .map(|(index, ty)| {
                graph.types.push(ty);
                graph.values.push(ValueDef::Result { node, index })
            })
            .collect();
        graph.results.push(Rows::of(first..graph.values.len()));
        Ok(ids)
    }

    /// [`Self::push`] of an op with one result.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_one(
        &mut self,
        op: Op,
        operands: &[ValueId],
        name: impl Into<String>,
    ) -> Result<ValueId, ShapeError> {
        Ok(self.push(op, operands, name)?[0])
    }

    pub fn output(&mut self, value: ValueId) {
        self.graph.outputs.push(value);
    }

    pub fn ty(&self, value: ValueId) -> TensorType {
        self.graph.types[value]
    }

    pub fn finish(self) -> Graph {
        self.graph
    }

    fn value(&mut self, def: ValueDef, ty: TensorType) -> ValueId {
        self.graph.types.push(ty);
        self.graph.values.push(def)
    }
}

/// Faults that no builder lets in, for tests of the verifier.
#[cfg(test)]
impl Graph {
    pub(crate) fn break_type(&mut self, value: ValueId, ty: TensorType) {
        self.types.set(value, ty);
    }

    pub(crate) fn break_operand(&mut self, node: NodeId, index: usize, value: ValueId) {
        let at = self.operands[node].range().start + index;
        self.pool[at] = value;
    }
}
