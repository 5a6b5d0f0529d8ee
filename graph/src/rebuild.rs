//! Copying a graph with changes: what every rewriting pass shares.

use crate::graph::{Graph, GraphBuilder, Node, WeightDef};
use crate::op::Op;
use crate::table::{DeviceId, Id, Table, ValueId};

/// What a rewrite did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rebuilt {
    pub nodes_before: u32,
    pub nodes_after: u32,
    pub nodes_replaced: u32,
}

/// A graph in the making that maps the ids of an old one to its own.
///
/// Operands are given as ids of the old graph; a value that was dropped must not be used again.
#[derive(Debug)]
pub struct Rebuild<'g> {
    old: &'g Graph,
    next: GraphBuilder,
    map: Table<ValueId, Option<ValueId>>,
    replaced: u32,
    /// Old values that become outputs behind those of the old graph.
    outputs: Vec<ValueId>,
}

impl<'g> Rebuild<'g> {
    /// Starts with all weights and states of `old` and no nodes.
    pub fn of(old: &'g Graph, stage: &str) -> Self {
        Self::with_weights(old, stage, |_, def| def.clone())
    }

    /// The same, each weight passed through `change`.
    pub fn with_weights(
        old: &'g Graph,
        stage: &str,
        mut change: impl FnMut(usize, &WeightDef) -> WeightDef,
    ) -> Self {
        Self::with_some_weights(old, stage, |i, def| Some(change(i, def)))
    }

    /// Starts without the weights that no node reads and no output is: those that a pass replaced
    /// would otherwise be loaded for nothing.
    pub fn without_unread_weights(old: &'g Graph, stage: &str) -> Self {
        let counts = old.use_counts();
        let mut read = vec![false; old.weights().len()];
        for value in old.values().filter(|&value| counts[value] > 0) {
            if let Some(weight) = old.weight_of(value) {
                read[weight.index()] = true;
            }
        }
        Self::with_some_weights(old, stage, |i, def| read[i].then(|| def.clone()))
    }

    fn with_some_weights(
        old: &'g Graph,
        stage: &str,
        mut change: impl FnMut(usize, &WeightDef) -> Option<WeightDef>,
    ) -> Self {
        let mut next = GraphBuilder::new(old.model.clone(), old.window, stage);
        let mut map: Table<ValueId, Option<ValueId>> = old.values().map(|_| None).collect();
        let weights: Vec<Option<ValueId>> = old
            .weights()
            .values()
            .enumerate()
            .map(|(i, def)| change(i, def).map(|def| next.weight(def)))
            .collect();
        let states: Vec<ValueId> =
            old.states().values().map(|def| next.state(def.clone())).collect();
        for value in old.values() {
            use crate::graph::ValueDef::{Result, State, Weight};
            match old.value(value) {
                Weight(w) => map.set(value, weights[w.index()]),
                State(s) => map.set(value, Some(states[s.index()])),
                Result { .. } => {}
            }
        }
        Self { old, next, map, replaced: 0, outputs: Vec::new() }
    }

    /// The new id of an old value.
    ///
    /// # Panics
    /// If the value's node was dropped: the pass that dropped it left a reader behind.
    pub fn mapped(&self, old: ValueId) -> ValueId {
        self.map[old].unwrap_or_else(|| panic!("{old} was dropped and is still read"))
    }

    /// Adds a weight that the old graph does not have; the result is an id of the new graph.
    pub fn weight(&mut self, def: WeightDef) -> ValueId {
        self.next.weight(def)
    }

    /// Copies a node.
    pub fn keep(&mut self, node: Node<'_>) {
        self.keep_on(node, node.device);
    }

    /// Copies a node to a device.
    pub fn keep_on(&mut self, node: Node<'_>, device: DeviceId) {
        let operands: Vec<ValueId> = node.operands.iter().map(|&v| self.mapped(v)).collect();
        let results = self.push_mapped(device, *node.op, &operands, node.name);
        self.bind(node, &results);
    }

    /// Puts `op` over old `operands` in the place of `node`; results are matched by index.
    pub fn replace(&mut self, node: Node<'_>, op: Op, operands: &[ValueId]) {
        let operands: Vec<ValueId> = operands.iter().map(|&v| self.mapped(v)).collect();
        let results = self.push_mapped(node.device, op, &operands, node.name);
        self.bind(node, &results);
        self.replaced += 1;
    }

    /// Adds a node that has no old one, over ids of the new graph.
    pub fn insert(&mut self, near: Node<'_>, op: Op, operands: &[ValueId]) -> Vec<ValueId> {
        self.push_mapped(near.device, op, operands, near.name)
    }

    /// Lets the results of `node` be the new values `results`; the node itself is not copied.
    pub fn bind(&mut self, node: Node<'_>, results: &[ValueId]) {
        for (old, &new) in node.results().zip(results) {
            self.map.set(old, Some(new));
        }
    }

    /// Counts `node` as replaced; used with [`Self::insert`] and [`Self::bind`].
    pub fn count_replaced(&mut self) {
        self.replaced += 1;
    }

    /// Makes an old value an output, behind those that the old graph has.
    pub fn output(&mut self, old: ValueId) {
        self.outputs.push(old);
    }

    pub fn finish(mut self) -> (Graph, Rebuilt) {
        for &output in self.old.outputs().iter().chain(&self.outputs) {
            self.next.output(self.mapped(output));
        }
        let graph = self.next.finish();
        let count = |n: usize| u32::try_from(n).expect("nodes are numbered by u32");
        let report = Rebuilt {
            nodes_before: count(self.old.node_count()),
            nodes_after: count(graph.node_count()),
            nodes_replaced: self.replaced,
        };
        (graph, report)
    }

    fn push_mapped(
        &mut self,
        device: DeviceId,
        op: Op,
        operands: &[ValueId],
        name: &str,
    ) -> Vec<ValueId> {
        self.next
            .push_on(device, op, operands, name)
            .unwrap_or_else(|error| panic!("a pass made an ill-typed node at {name}: {error}"))
    }
}
