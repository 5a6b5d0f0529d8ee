//! From a definition to a graph: embedding, layers, head.

use std::collections::BTreeMap;

use strata_graph::{
    DType, Graph, GraphBuilder, Op, StateDef, StateKind, TensorType, Transform, ValueId,
    WeightDef, WeightSource, Window,
};

use crate::error::ModelError;
use crate::limits;
use crate::rope::inverse_frequencies;
use crate::schema::{Attention, Block, Mlp, ModelDef};
use crate::weights::{Role, WeightKey, graph_name, node_name, source};
use crate::{attention, head, mlp, moe};

/// The graph that `def` computes for one window, in base ops; passes fuse later.
///
/// Weights are [`WeightSource::Named`] and [`DType::Unresolved`]; inverse frequencies are constants.
/// The output is the logits, f32 `[logit_rows, vocab]`.
///
/// # Errors
/// [`ModelError::Field`] or [`ModelError::Window`] for sizes that do not fit.
pub fn build(def: &ModelDef, window: Window) -> Result<Graph, ModelError> {
    limits::check(def)?;
    let Window { rows, logit_rows, .. } = window;
    if rows == 0 || logit_rows == 0 || logit_rows > rows {
        return Err(ModelError::Window { rows, logit_rows });
    }
    let mut build = Build::new(def, window);
    build.rope_angles()?;
    let table = build.weight(Role::TokenEmbd, 0, &[def.vocab, def.hidden]);
    let embed = Op::Embed { scale: def.embed_scale };
    let mut x = build.push(embed, &[table], node_name(Role::TokenEmbd, 0))?;
    for layer in 0..def.layers {
        x = block(&mut build, layer, x)?;
    }
    let logits = head::head(&mut build, x)?;
    build.graph.output(logits);
    Ok(build.graph.finish())
}

/// `x += attention(norm(x)); x += mlp(norm(x))`, with the results normed first if the block says so.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]` | f32 |
/// | result | `[rows, hidden]` | f32 |
fn block(build: &mut Build<'_>, layer: u32, x: ValueId) -> Result<ValueId, ModelError> {
    let Block { attention, post_norms, mlp, .. } = build.def.block(layer);
    let normed = build.norm(Role::AttnNorm, layer, x)?;
    let Attention::Gqa(gqa) = attention;
    let mut y = attention::gqa(build, layer, gqa, normed)?;
    if *post_norms {
        y = build.norm(Role::PostAttnNorm, layer, y)?;
    }
    let x = build.push(Op::Add {}, &[x, y], format!("blk.{layer}.attn_residual"))?;
    let before = if *post_norms { Role::FfnNormBetween } else { Role::FfnNorm };
    let normed = build.norm(before, layer, x)?;
    let mut y = match mlp {
        Mlp::Gated(gated) => mlp::gated_mlp(build, layer, gated, normed)?,
        Mlp::Moe(moe) => moe::moe(build, layer, moe, normed)?,
    };
    if *post_norms {
        y = build.norm(Role::PostFfnNorm, layer, y)?;
    }
    build.push(Op::Add {}, &[x, y], format!("blk.{layer}.ffn_residual"))
}

/// A product with a weight of the layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub role: Role,
    /// Width of the result.
    pub out: u32,
    pub bias: Option<Role>,
}

/// A graph in the making and what the blocks share: weights by name, rope angles by block.
pub(crate) struct Build<'m> {
    pub def: &'m ModelDef,
    graph: GraphBuilder,
    weights: BTreeMap<String, ValueId>,
    /// One entry for each run of `def.blocks`.
    angles: Vec<ValueId>,
}

impl<'m> Build<'m> {
    fn new(def: &'m ModelDef, window: Window) -> Self {
        Self {
            def,
            graph: GraphBuilder::new(def.name.clone(), window, "model"),
            weights: BTreeMap::new(),
            angles: Vec::new(),
        }
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

    /// The value of a weight of shape `dims`, outermost first; the same role and layer give the
    /// same value.
    pub fn weight(&mut self, role: Role, layer: u32, dims: &[u32]) -> ValueId {
        self.weight_with(role, layer, dims, Transform::None)
    }

    fn weight_with(
        &mut self,
        role: Role,
        layer: u32,
        dims: &[u32],
        transform: Transform,
    ) -> ValueId {
        let name = graph_name(role, layer);
        if let Some(&value) = self.weights.get(&name) {
            return value;
        }
        let value = self.graph.weight(WeightDef {
            name: name.clone(),
            ty: TensorType::new(DType::Unresolved, dims),
            source: source(&self.def.weights, WeightKey { role, layer, dims }),
            transform,
        });
        self.weights.insert(name, value);
        value
    }

    /// The gains of a norm over `width` elements.
    pub fn gain(&mut self, role: Role, layer: u32, width: u32) -> ValueId {
        let zero_centred = self.def.norm.zero_centred();
        let transform = if zero_centred { Transform::AddOne } else { Transform::None };
        self.weight_with(role, layer, &[width], transform)
    }

    /// RMS norm over the hidden dimension.
    pub fn norm(&mut self, role: Role, layer: u32, x: ValueId) -> Result<ValueId, ModelError> {
        let gain = self.gain(role, layer, self.def.hidden);
        let op = Op::RmsNorm { eps: self.def.norm.eps() };
        self.push(op, &[x, gain], node_name(role, layer))
    }

    /// `x w^T`, plus a bias if the product has one. The weight is `[out, width of x]`.
    pub fn linear(
        &mut self,
        layer: u32,
        linear: Linear,
        x: ValueId,
    ) -> Result<ValueId, ModelError> {
        let width = self.graph.ty(x).last_dim();
        let weight = self.weight(linear.role, layer, &[linear.out, width]);
        let mut operands = vec![x, weight];
        if let Some(bias) = linear.bias {
            operands.push(self.weight(bias, layer, &[linear.out]));
        }
        let op = Op::Matmul { bias: linear.bias.is_some(), residual: false };
        self.push(op, &operands, node_name(linear.role, layer))
    }

    /// The keys and values of a layer, as the window begins with them.
    pub fn kv(&mut self, layer: u32, kv_heads: u16, head_dim: u16) -> ValueId {
        let row = TensorType::new(DType::F32, &[kv_heads.into(), head_dim.into()]);
        self.graph.state(StateDef::new(format!("kv.{layer}"), StateKind::Append, row))
    }

    /// The rope angles of the layer's block, f32 `[rows, dims]`.
    pub fn angles(&self, layer: u32) -> ValueId {
        self.angles[self.def.block_index(layer)]
    }

    /// One node for each distinct set of frequencies.
    fn rope_angles(&mut self) -> Result<(), ModelError> {
        let mut made: Vec<(Vec<f32>, ValueId)> = Vec::new();
        for block in &self.def.blocks {
            let Attention::Gqa(gqa) = &block.attention;
            let frequencies = inverse_frequencies(&gqa.rope, gqa.head_dim);
            let known = made.iter().find(|(set, _)| *set == frequencies).map(|&(_, value)| value);
            let value = match known {
                Some(value) => value,
                None => {
                    let value = self.angles_of(made.len(), &frequencies)?;
                    made.push((frequencies, value));
                    value
                }
            };
            self.angles.push(value);
        }
        Ok(())
    }

    fn angles_of(&mut self, index: usize, frequencies: &[f32]) -> Result<ValueId, ModelError> {
        let pairs = u16::try_from(frequencies.len()).expect("half of a u16 of dimensions");
        let weight = self.graph.weight(WeightDef {
            name: format!("rope_frequencies.{index}"),
            ty: TensorType::new(DType::F32, &[pairs.into()]),
            source: WeightSource::Constant(frequencies.to_vec()),
            transform: Transform::None,
        });
        self.push(Op::RopeAngles { dims: 2 * pairs }, &[weight], format!("rope_angles.{index}"))
    }
}
