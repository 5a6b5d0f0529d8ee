//! A graph in the making and what its blocks share: weights and states by name, rope angles.

use std::collections::BTreeMap;

use strata_graph::{
    DType, Graph, GraphBuilder, Id, Op, StateDef, StateId, StateKind, TensorType, Transform,
    ValueId, WeightDef, WeightSource, Window,
};

use crate::error::ModelError;
use crate::rope::inverse_frequencies;
use crate::schema::{Attention, Block, Gqa, ModelDef};
use crate::weights::{Role, Rows, WeightKey, graph_name, node_name, source};

/// A product with a weight of the layer.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    pub role: Role,
    /// Width of the result.
    pub out: u32,
    pub bias: Option<Role>,
    pub rows: Rows,
}

impl Linear {
    pub fn new(role: Role, out: u32) -> Self {
        Self { role, out, bias: None, rows: Rows::All }
    }
}

/// Rope of some blocks: what its angles are made of, and the angles.
#[derive(Clone, Debug)]
struct Angles {
    frequencies: Vec<f32>,
    weight: ValueId,
    angles: Option<ValueId>,
}

pub(crate) struct Build<'m> {
    pub def: &'m ModelDef,
    /// The nodes of the draft head are made.
    pub drafting: bool,
    graph: GraphBuilder,
    weights: BTreeMap<String, ValueId>,
    /// The newest version of each state.
    states: BTreeMap<String, (StateId, ValueId)>,
    angles: Vec<Angles>,
    logits: Option<ValueId>,
    /// The experts that each layer chose.
    routes: Vec<ValueId>,
}

impl<'m> Build<'m> {
    pub fn new(def: &'m ModelDef, window: Window) -> Self {
        Self {
            def,
            drafting: false,
            graph: GraphBuilder::new(def.name.clone(), window, "model"),
            weights: BTreeMap::new(),
            states: BTreeMap::new(),
            angles: Vec::new(),
            logits: None,
            routes: Vec::new(),
        }
    }

    /// Declares all weights and states of `like`, in its order.
    pub fn declare(&mut self, like: Build<'_>) {
        let Build { graph, angles, .. } = like;
        let graph = graph.finish();
        for def in graph.weights().values() {
            self.add_weight(def.clone());
        }
        for def in graph.states().values() {
            self.add_state(def.clone());
        }
        for (index, Angles { frequencies, .. }) in angles.into_iter().enumerate() {
            let weight = self.weights[&frequencies_name(index)];
            self.angles.push(Angles { frequencies, weight, angles: None });
        }
    }

    /// The value that the graph is computed for.
    pub fn logits(&mut self, logits: ValueId) {
        self.logits = Some(logits);
    }

    /// A choice of experts, which stays readable behind the window.
    pub fn route(&mut self, experts: ValueId) {
        self.routes.push(experts);
    }

    /// The graph: the logits come first among its outputs.
    pub fn finish(mut self) -> Graph {
        for value in self.logits.into_iter().chain(self.routes) {
            self.graph.output(value);
        }
        self.graph.finish()
    }

    /// Appends a node with one result.
    pub fn push(
        &mut self,
        op: Op,
        operands: &[ValueId],
        name: String,
    ) -> Result<ValueId, ModelError> {
        Ok(self.push_all(op, operands, name)?[0])
    }

    /// Appends a node.
    pub fn push_all(
        &mut self,
        op: Op,
        operands: &[ValueId],
        name: String,
    ) -> Result<Vec<ValueId>, ModelError> {
        self.graph
            .push(op, operands, name.as_str())
            .map_err(|error| ModelError::Node { node: name, error })
    }

    /// The innermost dimension of a value.
    pub fn width(&self, value: ValueId) -> u32 {
        self.graph.ty(value).last_dim()
    }

    fn add_weight(&mut self, def: WeightDef) -> ValueId {
        let name = def.name.clone();
        let value = self.graph.weight(def);
        self.weights.insert(name, value);
        value
    }

    /// The value of a weight of shape `dims`, outermost first; the same role and layer give the
    /// same value.
    pub fn weight(&mut self, role: Role, layer: u32, dims: &[u32]) -> ValueId {
        let key = WeightKey { role, layer, dims, rows: &Rows::All };
        self.weight_of(key, Transform::None)
    }

    pub fn weight_of(&mut self, key: WeightKey<'_>, transform: Transform) -> ValueId {
        let name = graph_name(key.role, key.layer);
        if let Some(&value) = self.weights.get(&name) {
            return value;
        }
        self.add_weight(WeightDef {
            ty: TensorType::new(DType::Unresolved, key.dims),
            source: source(self.def, key),
            transform,
            name,
        })
    }

    /// A weight of known values.
    pub fn constant(&mut self, name: &str, ty: TensorType, source: WeightSource) -> ValueId {
        if let Some(&value) = self.weights.get(name) {
            return value;
        }
        self.add_weight(WeightDef { name: name.into(), ty, source, transform: Transform::None })
    }

    /// The gains of a norm over `width` elements.
    pub fn gain(&mut self, role: Role, layer: u32, width: u32) -> ValueId {
        let centred = self.def.norm.zero_centred();
        let transform = if centred { Transform::AddOne } else { Transform::None };
        let key = WeightKey { role, layer, dims: &[width], rows: &Rows::All };
        self.weight_of(key, transform)
    }

    /// RMS norm over the whole row.
    pub fn norm(&mut self, role: Role, layer: u32, x: ValueId) -> Result<ValueId, ModelError> {
        let gain = self.gain(role, layer, self.width(x));
        let op = Op::RmsNorm { eps: self.def.norm.eps() };
        self.push(op, &[x, gain], node_name(role, layer))
    }

    /// RMS norm of each stream by itself, each with gains of its own.
    pub fn stream_norm(
        &mut self,
        role: Role,
        layer: u32,
        x: ValueId,
    ) -> Result<ValueId, ModelError> {
        let gain = self.gain(role, layer, self.width(x));
        let op = Op::GroupRmsNorm { eps: self.def.norm.eps(), groups: self.def.residual.streams() };
        self.push(op, &[x, gain], node_name(role, layer))
    }

    /// RMS norm of each head by itself, all with the same gains.
    pub fn head_norm(
        &mut self,
        role: Role,
        layer: u32,
        (heads, x): (u16, ValueId),
    ) -> Result<ValueId, ModelError> {
        let head_dim = self.width(x) / u32::from(heads);
        let gain = self.gain(role, layer, head_dim);
        let op = Op::HeadNorm { eps: self.def.norm.eps(), heads };
        self.push(op, &[x, gain], node_name(role, layer))
    }

    /// `x w^T`, plus a bias if the product has one. The weight is `[out, width of x]`.
    pub fn linear(
        &mut self,
        layer: u32,
        linear: Linear,
        x: ValueId,
    ) -> Result<ValueId, ModelError> {
        let Linear { role, out, bias, rows } = linear;
        let dims = [out, self.width(x)];
        let key = WeightKey { role, layer, dims: &dims, rows: &rows };
        let mut operands = vec![x, self.weight_of(key, Transform::None)];
        if let Some(bias) = bias {
            operands.push(self.weight(bias, layer, &[out]));
        }
        let op = Op::Matmul { bias: bias.is_some(), residual: false };
        self.push(op, &operands, node_name(role, layer))
    }

    fn add_state(&mut self, def: StateDef) -> (StateId, ValueId) {
        let id = StateId::from_index(self.states.len());
        let name = def.name.clone();
        let entry = (id, self.graph.state(def));
        self.states.insert(name, entry);
        entry
    }

    /// The newest version of the state of that name.
    pub fn state(&mut self, def: StateDef) -> ValueId {
        match self.states.get(&def.name) {
            Some(&(_, value)) => value,
            None => self.add_state(def).1,
        }
    }

    /// A state that begins drafting with the value of `seed`.
    pub fn seeded(&mut self, def: StateDef, seed: StateDef) -> ValueId {
        self.state(seed.clone());
        let seed = self.states.get(&seed.name).map(|&(id, _)| id);
        self.state(StateDef { seed, ..def })
    }

    /// Makes `version` the newest one of a state.
    pub fn update(&mut self, state: &str, version: ValueId) {
        if let Some(entry) = self.states.get_mut(state) {
            entry.1 = version;
        }
    }

    /// The keys and values of a layer. Those of a draft head begin at position 1: its pairs of a
    /// residual and the next token begin there.
    pub fn kv(&mut self, layer: u32, gqa: &Gqa) -> (String, ValueId) {
        let row = TensorType::new(DType::F32, &[gqa.kv_heads.into(), gqa.head_dim.into()]);
        let (name, first) = self.state_name("kv", layer);
        let def = StateDef { first, ..StateDef::new(name.clone(), StateKind::Append, row) };
        let value = self.state(def);
        (name, value)
    }

    /// The name of a state of the layer and the first position that it stores.
    pub fn state_name(&self, kind: &str, layer: u32) -> (String, u32) {
        if layer < self.def.layers {
            (format!("{kind}.{layer}"), 0)
        } else {
            (format!("mtp.{kind}"), 1)
        }
    }

    /// The inverse frequencies of a rope, f32 `[dims / 2]`.
    pub fn frequencies(&mut self, gqa: &Gqa) -> ValueId {
        let index = self.angles_index(gqa);
        self.angles[index].weight
    }

    /// The angles of a rope, f32 `[rows, dims]`: one node for each distinct set of frequencies.
    pub fn angles(&mut self, gqa: &Gqa) -> Result<ValueId, ModelError> {
        let index = self.angles_index(gqa);
        let Angles { weight, angles, .. } = self.angles[index];
        if let Some(angles) = angles {
            return Ok(angles);
        }
        let dims = gqa.rope.dims.unwrap_or(gqa.head_dim);
        let made = self.push(Op::RopeAngles { dims }, &[weight], format!("rope_angles.{index}"))?;
        self.angles[index].angles = Some(made);
        Ok(made)
    }

    /// Makes the angles of a block, if it has some.
    pub fn angles_of(&mut self, block: &Block) -> Result<(), ModelError> {
        match &block.attention {
            Attention::Gqa(gqa) => self.angles(gqa).map(drop),
            Attention::GatedDelta(_) => Ok(()),
        }
    }

    fn angles_index(&mut self, gqa: &Gqa) -> usize {
        let frequencies = inverse_frequencies(&gqa.rope, gqa.head_dim);
        let known = self.angles.iter().position(|angles| angles.frequencies == frequencies);
        known.unwrap_or_else(|| {
            let index = self.angles.len();
            let pairs = u32::try_from(frequencies.len()).expect("half of a u16 of dimensions");
            let weight = self.constant(
                &frequencies_name(index),
                TensorType::new(DType::F32, &[pairs]),
                WeightSource::Constant(frequencies.clone()),
            );
            self.angles.push(Angles { frequencies, weight, angles: None });
            index
        })
    }
}

fn frequencies_name(index: usize) -> String {
    format!("rope_frequencies.{index}")
}
