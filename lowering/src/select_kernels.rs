//! Each node gets a kernel and the list of its arguments.

mod hybrid;
mod projections;

use strata_graph::{
    Activation, Graph, Node, NodeId, Op, Pairing, StateId, Table, ValueId, WeightId,
};
use strata_kernels::KernelSpec;
use strata_kernels::ops::kv::KvLayout;
use strata_kernels::spec::{
    Act, ActMul, Add, Attention, AttnPrologue, Dispatch, Embed, Epilogue, ExpertCombine,
    ExpertDown, ExpertGated, ExpertSum, F32, GatedMatmul, GatherRows, HeadRotate, Matmul, Mul,
    NormFold, Quantize, RmsNorm, RopeAngles, Route, RowClass, WeightFormat,
};

use crate::compute_lifetimes::window_name;
use crate::error::LowerError;
use crate::place_experts::Form;
use crate::report::PassReport;
use crate::states::{Paging, StateForm, StatePlaces};

/// Windows of at most this many rows are bound by reading weights.
pub(crate) const FEW_ROWS: u32 = 8;

/// An argument of a launch, before it has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The step block.
    Step,
    /// The step block from its count of logit rows on: for nodes behind `gather_rows`, whose live
    /// rows are the logit rows.
    StepOfLogits,
    Tokens,
    Positions,
    Slots,
    /// Numbers of the rows among those of their sequence.
    Offsets,
    CommitSlots,
    CommitRows,
    LogitRows,
    PageTable,
    Value(ValueId),
    Weight(WeightId, Form),
    State(StateId),
}

/// The launch that a node becomes.
#[derive(Clone, Debug)]
pub struct KernelChoice {
    pub spec: KernelSpec,
    /// In the order of the specification's operand table, operand 0 included.
    pub operands: Vec<Operand>,
    /// Parts at most, 0 for all.
    pub parts: u32,
}

/// Chooses a kernel for every node.
///
/// # Errors
/// The first node that no kernel fits, by name.
pub fn select_kernels(
    graph: &Graph,
    states: &StatePlaces,
    paging: &Paging,
) -> Result<(Table<NodeId, KernelChoice>, PassReport), LowerError> {
    let selector = Selector { graph, states, paging };
    let mut choices = Table::new();
    for node in graph.nodes() {
        choices.push(selector.choose(&node)?);
    }
    let mut specs: Vec<KernelSpec> = choices.values().map(|c: &KernelChoice| c.spec).collect();
    specs.sort_unstable();
    specs.dedup();
    let report = PassReport::new("select_kernels", window_name(graph))
        .count("launches_count", choices.len() as u64)
        .count("kernels_count", specs.len() as u64);
    Ok((choices, report))
}

struct Selector<'g> {
    graph: &'g Graph,
    states: &'g StatePlaces,
    paging: &'g Paging,
}

fn act_of(act: Activation) -> Act {
    match act {
        Activation::Silu => Act::Silu,
        Activation::Gelu => Act::GeluTanh,
        Activation::Sigmoid => Act::Sigmoid,
    }
}

impl Selector<'_> {
    fn choose(&self, node: &Node<'_>) -> Result<KernelChoice, LowerError> {
        match node.op {
            Op::Matmul { .. } | Op::GatedMatmul { .. } => Ok(self.product(node)),
            Op::Projections { .. } => Ok(self.projections(node)),
            Op::Attention { .. } | Op::AttentionPrologue { .. } | Op::RopeAngles { .. } => {
                Ok(self.attention(node))
            }
            Op::Route { .. }
            | Op::RouteDispatch { .. }
            | Op::ExpertDispatch { .. }
            | Op::ExpertGated { .. }
            | Op::ExpertDown {}
            | Op::ExpertCombine { .. }
            | Op::ExpertSum { .. } => self.experts(node),
            Op::HeadNorm { .. } | Op::Rope { .. } | Op::StateAppend {} => Ok(self.heads(node)),
            Op::Silu {} | Op::Gelu {} => {
                Err(self.no_kernel(node, "a mul as the only reader of its result"))
            }
            Op::ExpertMlp { .. } => Err(self.no_kernel(node, "split_experts before it")),
            Op::StreamRepeat { .. }
            | Op::StreamConcat { .. }
            | Op::StreamMatmul { .. }
            | Op::GroupRmsNorm { .. }
            | Op::ScaledSilu { .. }
            | Op::HcRead { .. }
            | Op::HcWrite { .. }
            | Op::HcWriteNorm { .. }
            | Op::GatedHeadNorm { .. }
            | Op::GroupRmsNormQuantize { .. }
            | Op::ScaledSiluQuantize { .. }
            | Op::HcReadQuantize { .. }
            | Op::GatedHeadNormQuantize { .. }
            | Op::GatedAdd {}
            | Op::NgramEmbed {}
            | Op::NgramGate { .. } => Ok(self.streams(node)),
            Op::Conv1d { .. }
            | Op::GatedDelta { .. }
            | Op::NgramRows { .. }
            | Op::ShiftRows {}
            | Op::ReadTail { .. } => Ok(self.recurrent(node)),
            Op::BlockKeys { .. }
            | Op::BlockScores { .. }
            | Op::BlockTop { .. }
            | Op::SparseAttention { .. } => Ok(self.sparse(node)),
            _ => Ok(self.rows(node)),
        }
    }

    fn no_kernel(&self, node: &Node<'_>, need: &'static str) -> LowerError {
        let types: Vec<String> =
            self.graph.operand_types(node).iter().map(ToString::to_string).collect();
        LowerError::NoKernel {
            node: node.name.to_owned(),
            op: node.op.name(),
            found: types.join(", "),
            need,
        }
    }

    fn width(&self, value: ValueId) -> u32 {
        self.graph.ty(value).last_dim()
    }

    /// The step block whose first word counts the live rows of `node`.
    fn step(&self, node: &Node<'_>) -> Operand {
        if self.is_behind_gather(node) { Operand::StepOfLogits } else { Operand::Step }
    }

    /// Whether the rows of `node` are the logit rows: they come from `gather_rows`.
    fn is_behind_gather(&self, node: &Node<'_>) -> bool {
        let mut at = node.operands.first().and_then(|&v| self.graph.producer(v));
        while let Some(producer) = at {
            if let Op::GatherRows {} = producer.op {
                return true;
            }
            if let Op::AttentionPrologue { .. } | Op::Attention { .. } | Op::Embed { .. } =
                producer.op
            {
                return false;
            }
            at = producer.operands.first().and_then(|&v| self.graph.producer(v));
        }
        false
    }

    fn weight(&self, value: ValueId, form: Form) -> Operand {
        let weight = self.graph.weight_of(value).expect("verify: weight operands are weights");
        Operand::Weight(weight, form)
    }

    fn vector(&self, value: ValueId) -> Operand {
        self.weight(value, Form::Vector)
    }

    /// A matrix operand and its format.
    fn matrix(&self, value: ValueId) -> (Operand, WeightFormat) {
        let dtype = self.graph.ty(value).dtype;
        let form = if dtype.is_block_quantised() { Form::Packed } else { Form::Native };
        (self.weight(value, form), format_of(dtype))
    }

    fn row_class(&self, node: &Node<'_>) -> RowClass {
        let window = self.graph.window;
        let rows = if self.is_behind_gather(node) { window.logit_rows } else { window.rows };
        if rows <= FEW_ROWS { RowClass::Few } else { RowClass::Many }
    }

    /// A choice over all parts: step, `operands`, then the node's first result.
    fn launch(&self, node: &Node<'_>, spec: KernelSpec, operands: &[Operand]) -> KernelChoice {
        let mut all = vec![self.step(node)];
        all.extend_from_slice(operands);
        all.push(Operand::Value(node.result()));
        KernelChoice { spec, operands: all, parts: 0 }
    }

    /// The same, then all results of the node.
    fn launch_all(&self, node: &Node<'_>, spec: KernelSpec, operands: &[Operand]) -> KernelChoice {
        let mut choice = self.launch(node, spec, operands);
        choice.operands.extend(node.results().skip(1).map(Operand::Value));
        choice
    }

    fn product(&self, node: &Node<'_>) -> KernelChoice {
        let x = node.operands[0];
        let (weight, format) = self.matrix(node.operands[1]);
        let (n, k) = (self.graph.ty(node.operands[1]).dims()[0], self.width(x));
        let rows = self.row_class(node);
        let mut operands = vec![Operand::Value(x), weight];
        let spec = match *node.op {
            Op::GatedMatmul { act, quantize } => {
                operands.push(self.matrix(node.operands[2]).0);
                let act = act_of(act);
                KernelSpec::GatedMatmul(GatedMatmul { format, n, k, rows, act, quantize })
            }
            Op::Matmul { bias, residual } => {
                if bias {
                    operands.push(self.vector(node.operands[2]));
                }
                if residual {
                    operands.push(Operand::Value(node.operands[2 + usize::from(bias)]));
                }
                let epilogue = Epilogue { bias, residual };
                // The step operand already counts the right rows.
                let logits = false;
                KernelSpec::Matmul(Matmul { format, n, k, rows, times: 1, epilogue, logits })
            }
            _ => unreachable!("choose sends only products here"),
        };
        self.launch(node, spec, &operands)
    }

    fn attention(&self, node: &Node<'_>) -> KernelChoice {
        let pages_per_slot = self.paging.pages_per_slot;
        match *node.op {
            Op::RopeAngles { dims } => {
                let spec = KernelSpec::RopeAngles(RopeAngles { dims: dims.into() });
                self.launch(node, spec, &[Operand::Positions, self.vector(node.operands[0])])
            }
            Op::Attention { heads, window, scale, quantize, .. } => {
                let (state, kv) = self.cache(node.operands[1]);
                let spec = KernelSpec::Attention(Attention {
                    heads: heads.into(),
                    kv,
                    pages_per_slot,
                    scale: F32::from(scale),
                    window,
                    quantize,
                    first: self.first(state),
                    selection: None,
                });
                let queries = Operand::Value(node.operands[0]);
                let sequence = [Operand::Positions, Operand::Slots, Operand::PageTable];
                let [positions, slots, table] = sequence;
                let pages = Operand::State(state);
                self.launch(node, spec, &[queries, positions, slots, table, pages])
            }
            Op::AttentionPrologue { heads, dims, eps, pairing, norm, .. } => {
                let (state, kv) = self.cache(node.operands[0]);
                let spec = KernelSpec::AttnPrologue(AttnPrologue {
                    heads: heads.into(),
                    kv,
                    pages_per_slot,
                    fused: false,
                    norm_eps: norm.then(|| F32::from(eps)),
                    rope_dims: dims.into(),
                    adjacent: pairing == Pairing::Adjacent,
                    first: self.first(state),
                });
                let mut operands: Vec<Operand> =
                    node.operands[1..5].iter().map(|&v| Operand::Value(v)).collect();
                operands.extend([Operand::Positions, Operand::Slots, Operand::PageTable]);
                operands.push(Operand::State(state));
                if norm {
                    operands.extend(node.operands[5..7].iter().map(|&v| self.vector(v)));
                }
                self.launch(node, spec, &operands)
            }
            _ => unreachable!("choose sends only attention here"),
        }
    }

    /// What a prologue does, one by one: where queries and keys do not belong together.
    fn heads(&self, node: &Node<'_>) -> KernelChoice {
        let value = |i: usize| Operand::Value(node.operands[i]);
        let of = |heads: u16, rope_dims: u16, pairing, norm_eps: Option<F32>| {
            KernelSpec::HeadRotate(HeadRotate {
                heads: heads.into(),
                head_dim: self.width(node.operands[0]) / u32::from(heads),
                norm_eps,
                rope_dims: rope_dims.into(),
                adjacent: pairing == Pairing::Adjacent,
            })
        };
        match *node.op {
            Op::HeadNorm { eps, heads } => {
                let spec = of(heads, 0, Pairing::Halves, Some(F32::from(eps)));
                self.launch(node, spec, &[value(0), self.vector(node.operands[1])])
            }
            Op::Rope { heads, dims, pairing } => {
                self.launch(node, of(heads, dims, pairing, None), &[value(0), value(1)])
            }
            Op::StateAppend {} => {
                let (state, kv) = self.cache(node.operands[0]);
                let spec = KernelSpec::AttnPrologue(AttnPrologue {
                    heads: 0,
                    kv,
                    pages_per_slot: self.paging.pages_per_slot,
                    fused: false,
                    norm_eps: None,
                    rope_dims: 0,
                    adjacent: false,
                    first: self.first(state),
                });
                // Queries in and out stand where they are never looked at.
                let (keys, values) = (value(1), value(2));
                let place = [Operand::Positions, Operand::Slots, Operand::PageTable];
                let [positions, slots, table] = place;
                let pages = Operand::State(state);
                let operands =
                    vec![Operand::Step, keys, keys, values, positions, slots, table, pages, keys];
                KernelChoice { spec, operands, parts: 0 }
            }
            _ => unreachable!("choose sends only ops on heads here"),
        }
    }

    /// The state behind a version of it, and the layout of its pages.
    fn cache(&self, version: ValueId) -> (StateId, KvLayout) {
        let state = self.graph.state_of(version).expect("verify: state operands are states");
        let StateForm::Pages(layout) = self.states.of_state[state].form else {
            unreachable!("verify: attention reads states that grow")
        };
        (state, layout)
    }

    /// The first position that the state stores.
    fn first(&self, state: StateId) -> u32 {
        self.graph.states()[state].first
    }

    fn experts(&self, node: &Node<'_>) -> Result<KernelChoice, LowerError> {
        let value = |i: usize| Operand::Value(node.operands[i]);
        Ok(match *node.op {
            Op::Route { top_k, norm } => self.route(node, top_k, norm, false),
            Op::RouteDispatch { top_k, norm } => self.route(node, top_k, norm, true),
            Op::ExpertDispatch { experts } => {
                let top_k = self.width(node.operands[0]);
                let spec = KernelSpec::Dispatch(Dispatch { experts: experts.into(), top_k });
                KernelChoice { parts: 1, ..self.launch(node, spec, &[value(0)]) }
            }
            Op::ExpertGated { act, quantize } => {
                let (experts, n, k) = self.bank(node.operands[2]);
                let top_k = self.top_k(node)?;
                let (gate, format) = self.matrix(node.operands[2]);
                let (up, up_format) = self.matrix(node.operands[3]);
                if format != up_format {
                    return Err(self.no_kernel(node, "a gate and an up bank of one element type"));
                }
                let act = act_of(act);
                let spec = KernelSpec::ExpertGated(ExpertGated {
                    format,
                    experts,
                    top_k,
                    n,
                    k,
                    act,
                    quantize,
                });
                self.launch(node, spec, &[value(1), value(0), gate, up])
            }
            Op::ExpertDown {} => {
                let (experts, n, k) = self.bank(node.operands[2]);
                let top_k = self.top_k(node)?;
                let (down, format) = self.matrix(node.operands[2]);
                let spec = KernelSpec::ExpertDown(ExpertDown { format, experts, top_k, n, k });
                self.launch(node, spec, &[value(1), value(0), down])
            }
            Op::ExpertCombine { residual } => {
                let top_k = self.width(node.operands[1]);
                let k = self.width(node.operands[0]);
                let spec = KernelSpec::ExpertCombine(ExpertCombine { top_k, k, residual });
                let mut operands = vec![value(1), value(0)];
                operands.extend(residual.then(|| value(2)));
                self.launch(node, spec, &operands)
            }
            Op::ExpertSum { residual } => {
                let (experts, n, k) = self.bank(node.operands[3]);
                let top_k = self.width(node.operands[1]);
                let (down, format) = self.matrix(node.operands[3]);
                let spec = ExpertSum { format, experts, top_k, n, k, residual };
                let mut operands = vec![value(1), value(2), value(0), down];
                operands.extend(residual.then(|| value(4)));
                self.launch(node, KernelSpec::ExpertSum(spec), &operands)
            }
            _ => unreachable!("choose sends only expert ops here"),
        })
    }

    fn route(&self, node: &Node<'_>, top_k: u16, norm: bool, dispatch: bool) -> KernelChoice {
        let experts = self.width(node.operands[0]);
        let spec = Route { experts, top_k: top_k.into(), renormalize: norm, dispatch };
        let logits = Operand::Value(node.operands[0]);
        let parts = u32::from(dispatch);
        KernelChoice { parts, ..self.launch_all(node, KernelSpec::Route(spec), &[logits]) }
    }

    fn bank(&self, value: ValueId) -> (u32, u32, u32) {
        let ty = self.graph.ty(value);
        (ty.dims()[0], ty.dims()[1], ty.last_dim())
    }

    /// Experts of a row, from the ids behind the dispatch list that `node` reads.
    fn top_k(&self, node: &Node<'_>) -> Result<u32, LowerError> {
        let dispatch = self.graph.producer(node.operands[1]);
        let ids = dispatch.and_then(|list| match list.op {
            Op::ExpertDispatch { .. } => Some(list.operands[0]),
            Op::RouteDispatch { .. } => Some(list.result()),
            _ => None,
        });
        ids.map(|ids| self.width(ids))
            .ok_or_else(|| self.no_kernel(node, "a list made by expert_dispatch"))
    }

    /// Ops on whole rows.
    fn rows(&self, node: &Node<'_>) -> KernelChoice {
        let k = self.width(node.result());
        let value = |i: usize| Operand::Value(node.operands[i]);
        let norm = |eps: f32, fold, quantize| {
            KernelSpec::RmsNorm(RmsNorm { k, eps: F32::from(eps), fold, quantize, keep: false })
        };
        let gain = || self.vector(node.operands[1]);
        match *node.op {
            Op::Embed { scale } => {
                let format = format_of(self.graph.ty(node.operands[0]).dtype);
                let spec = KernelSpec::Embed(Embed { format, k, scale: F32::from(scale) });
                let table = self.weight(node.operands[0], Form::Native);
                self.launch(node, spec, &[Operand::Tokens, table])
            }
            Op::GatherRows {} => {
                let spec = KernelSpec::GatherRows(GatherRows { k });
                self.launch(node, spec, &[value(0), Operand::LogitRows])
            }
            Op::Quantize {} => self.launch(node, KernelSpec::Quantize(Quantize { k }), &[value(0)]),
            Op::Add {} => self.launch(node, KernelSpec::Add(Add { k }), &[value(0), value(1)]),
            Op::Mul {} => self.launch(node, KernelSpec::Mul(Mul { k }), &[value(0), value(1)]),
            Op::ActMul { act, quantize } => {
                let spec = KernelSpec::ActMul(ActMul { act: act_of(act), k, quantize });
                self.launch(node, spec, &[value(0), value(1)])
            }
            Op::RmsNorm { eps } => {
                self.launch(node, norm(eps, NormFold::None, false), &[value(0), gain()])
            }
            Op::RmsNormQuantize { eps } => {
                self.launch(node, norm(eps, NormFold::None, true), &[value(0), gain()])
            }
            Op::RmsNormBoth { eps } => {
                let (eps, fold) = (F32::from(eps), NormFold::None);
                let spec = RmsNorm { k, eps, fold, quantize: true, keep: true };
                self.launch_all(node, KernelSpec::RmsNorm(spec), &[value(0), gain()])
            }
            Op::RmsNormAdd { eps } => {
                let spec = norm(eps, NormFold::AddAfter, false);
                self.launch(node, spec, &[value(0), gain(), value(2)])
            }
            _ => unreachable!("choose sends only ops on rows here"),
        }
    }
}

fn format_of(dtype: strata_graph::DType) -> WeightFormat {
    WeightFormat::of(dtype).expect("resolve_weights lets only formats with kernels pass")
}
