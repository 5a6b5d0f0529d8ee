//! Kernels of hybrid models: streams, recurrent layers, block-sparse attention and n-grams.

use strata_graph::{Node, Op, StateId, ValueId, WindowKind};
use strata_kernels::KernelSpec;
use strata_kernels::ops::slots::SlotLayout;
use strata_kernels::spec::{
    Attention, BlockKeys, BlockScores, BlockTop, Conv1d, Epilogue, F32, GatedAdd, GatedDelta,
    GatedHeadNorm, GroupRmsNorm, HcRead, HcWrite, HcWriteNorm, Matmul, NgramEmbed, NgramGate,
    NgramRows, ReadTail, RowClass, ScaledSilu, Selected, ShiftRows, StreamConcat, StreamRepeat,
};

use super::{FEW_ROWS, KernelChoice, Operand, Selector, act_of, format_of};
use crate::place_experts::Form;
use crate::states::StateForm;

impl Selector<'_> {
    /// Ops whose rows do not know of each other.
    pub(super) fn streams(&self, node: &Node<'_>) -> KernelChoice {
        let width = self.width(node.operands[0]);
        let value = |i: usize| Operand::Value(node.operands[i]);
        let all: Vec<Operand> = (0..node.operands.len()).map(value).collect();
        let of = |count: u16| width / u32::from(count);
        let (spec, operands) = match *node.op {
            Op::StreamRepeat { streams } => {
                let streams = streams.into();
                (KernelSpec::StreamRepeat(StreamRepeat { streams, k: width }), all)
            }
            Op::StreamConcat { streams } => {
                let spec = StreamConcat { streams: streams.into(), k: width, quantize: false };
                (KernelSpec::StreamConcat(spec), all)
            }
            Op::StreamMatmul { streams } => return self.stream_product(node, streams.into()),
            Op::GroupRmsNorm { .. }
            | Op::GroupRmsNormQuantize { .. }
            | Op::ScaledSilu { .. }
            | Op::ScaledSiluQuantize { .. }
            | Op::HcRead { .. }
            | Op::HcReadQuantize { .. }
            | Op::GatedHeadNorm { .. }
            | Op::GatedHeadNormQuantize { .. } => return self.maybe_quantised(node),
            Op::HcWrite { streams } => {
                let (streams, k) = (streams.into(), of(streams));
                (KernelSpec::HcWrite(HcWrite { streams, k }), all)
            }
            Op::HcWriteNorm { streams, eps, shared, quantize } => {
                let (streams, k, eps) = (streams.into(), of(streams), F32::from(eps));
                let spec = HcWriteNorm { streams, k, eps, shared, quantize };
                let mut operands = all;
                operands[3] = self.vector(node.operands[3]);
                return self.launch_all(node, KernelSpec::HcWriteNorm(spec), &operands);
            }
            Op::GatedAdd {} => (KernelSpec::GatedAdd(GatedAdd { k: width }), all),
            Op::NgramEmbed {} => {
                let table = self.graph.ty(node.operands[1]);
                let spec = NgramEmbed {
                    format: format_of(table.dtype),
                    heads: width,
                    width: table.last_dim(),
                };
                let operands = vec![value(0), self.weight(node.operands[1], Form::Native)];
                (KernelSpec::NgramEmbed(spec), operands)
            }
            Op::NgramGate { streams } => {
                let (streams, k) = (streams.into(), of(streams));
                (KernelSpec::NgramGate(NgramGate { streams, k }), all)
            }
            _ => unreachable!("choose sends only ops on streams here"),
        };
        self.launch(node, spec, &operands)
    }

    /// Ops on rows that can give their result in 8 bit, too.
    fn maybe_quantised(&self, node: &Node<'_>) -> KernelChoice {
        let width = self.width(node.operands[0]);
        let value = |i: usize| Operand::Value(node.operands[i]);
        let (of, gain) = (|count: u16| width / u32::from(count), || self.vector(node.operands[1]));
        let (quantize, keep) = match *node.op {
            Op::GroupRmsNormQuantize { keep, .. } | Op::HcReadQuantize { keep, .. } => (true, keep),
            Op::ScaledSiluQuantize { .. } | Op::GatedHeadNormQuantize { .. } => (true, false),
            _ => (false, false),
        };
        let (spec, operands) = match *node.op {
            Op::GroupRmsNorm { eps, groups } | Op::GroupRmsNormQuantize { eps, groups, .. } => {
                let (k, eps, groups) = (of(groups), F32::from(eps), groups.into());
                let spec = GroupRmsNorm { groups, k, eps, quantize, keep };
                (KernelSpec::GroupRmsNorm(spec), vec![value(0), gain()])
            }
            Op::ScaledSilu { scale } | Op::ScaledSiluQuantize { scale } => {
                let spec = ScaledSilu { k: width, scale: F32::from(scale), quantize };
                (KernelSpec::ScaledSilu(spec), vec![value(0)])
            }
            Op::HcRead { streams } | Op::HcReadQuantize { streams, .. } => {
                let spec = HcRead { streams: streams.into(), k: of(streams), quantize, keep };
                (KernelSpec::HcRead(spec), vec![value(0), value(1)])
            }
            Op::GatedHeadNorm { eps, heads, act }
            | Op::GatedHeadNormQuantize { eps, heads, act } => {
                let spec = GatedHeadNorm {
                    heads: heads.into(),
                    head_dim: of(heads),
                    eps: F32::from(eps),
                    act: act_of(act),
                    quantize,
                };
                (KernelSpec::GatedHeadNorm(spec), vec![value(0), gain(), value(2)])
            }
            _ => unreachable!("streams sends only ops that quantise here"),
        };
        self.launch_all(node, spec, &operands)
    }

    /// One weight for each of the streams of a row: they are rows of a product.
    fn stream_product(&self, node: &Node<'_>, streams: u32) -> KernelChoice {
        let (weight, format) = self.matrix(node.operands[1]);
        let ty = self.graph.ty(node.operands[1]);
        let few = self.graph.window.rows * streams <= FEW_ROWS;
        let spec = KernelSpec::Matmul(Matmul {
            format,
            n: ty.dims()[0],
            k: ty.last_dim(),
            rows: if few { RowClass::Few } else { RowClass::Many },
            times: streams,
            epilogue: Epilogue::default(),
            logits: false,
        });
        self.launch(node, spec, &[Operand::Value(node.operands[0]), weight])
    }

    /// Whether rows of this window may be rejected: then states keep their values.
    fn pending(&self) -> bool {
        self.graph.window.kind == WindowKind::Verify
    }

    /// The state behind a version of it, and the layout of its slots.
    fn slots(&self, version: ValueId) -> (StateId, SlotLayout) {
        let state = self.graph.state_of(version).expect("verify: state operands are states");
        let StateForm::Slots { layout, .. } = self.states.of_state[state].form else {
            unreachable!("verify: tails and recurrent states have slots")
        };
        (state, layout)
    }

    /// Ops that pass something on from row to row.
    pub(super) fn recurrent(&self, node: &Node<'_>) -> KernelChoice {
        let (state, layout) = self.slots(node.operands[0]);
        let pending = self.pending();
        let value = |i: usize| Operand::Value(node.operands[i]);
        let rows = [Operand::Slots, Operand::Offsets, Operand::State(state)];
        let (spec, mut operands) = match *node.op {
            Op::Conv1d { taps, dilation } => {
                let channels = self.width(node.operands[1]);
                let (taps, dilation) = (taps.into(), dilation.into());
                let spec = Conv1d { channels, taps, dilation, layout, pending };
                (KernelSpec::Conv1d(spec), vec![value(1), self.vector(node.operands[2])])
            }
            Op::GatedDelta { key_heads, value_heads, head_dim, tiled, interleaved } => {
                let spec = GatedDelta {
                    key_heads: key_heads.into(),
                    value_heads: value_heads.into(),
                    head_dim: head_dim.into(),
                    tiled,
                    interleaved,
                    layout,
                    pending,
                };
                let (rates, bias) = (self.vector(node.operands[4]), self.vector(node.operands[5]));
                (KernelSpec::GatedDelta(spec), vec![value(1), value(2), value(3), rates, bias])
            }
            Op::ShiftRows {} => {
                let k = self.width(node.operands[1]);
                (KernelSpec::ShiftRows(ShiftRows { k, layout, pending }), vec![value(1)])
            }
            Op::ReadTail { width } => {
                let spec = KernelSpec::ReadTail(ReadTail { k: width, layout });
                return self.launch(node, spec, &[Operand::Slots, Operand::State(state)]);
            }
            Op::NgramRows { ngram, heads } => {
                let ngram = u32::from(ngram);
                let heads_per_ngram = u32::from(heads) / (ngram - 1);
                let spec = NgramRows { ngram, heads_per_ngram, layout, pending };
                let [slots, offsets, tail] = rows;
                let hash = self.vector(node.operands[1]);
                let operands = [Operand::Tokens, slots, offsets, hash, tail];
                return self.launch(node, KernelSpec::NgramRows(spec), &operands);
            }
            _ => unreachable!("choose sends only recurrent ops here"),
        };
        operands.extend(rows);
        self.launch(node, spec, &operands)
    }

    /// Ops on blocks of positions.
    pub(super) fn sparse(&self, node: &Node<'_>) -> KernelChoice {
        let pages_per_slot = self.paging.pages_per_slot;
        let value = |i: usize| Operand::Value(node.operands[i]);
        match *node.op {
            Op::BlockKeys { dims, block, eps } => self.block_keys(node, (dims, block, eps)),
            Op::BlockScores { heads, block, blocks } => {
                let (state, keys) = self.cache(node.operands[1]);
                let spec = BlockScores {
                    heads: heads.into(),
                    dim: self.width(node.operands[0]) / u32::from(heads),
                    block: block.into(),
                    blocks,
                    first: self.first(state),
                    keys,
                    pages_per_slot,
                };
                let operands = [
                    value(0),
                    Operand::Positions,
                    Operand::Slots,
                    Operand::PageTable,
                    Operand::State(state),
                ];
                self.launch(node, KernelSpec::BlockScores(spec), &operands)
            }
            Op::BlockTop { block, keep } => {
                let blocks = self.width(node.operands[0]);
                let first = self.first_of_scores(node.operands[0]);
                let spec = BlockTop { block: block.into(), keep, blocks, first };
                let operands = [value(0), Operand::Positions];
                self.launch(node, KernelSpec::BlockTop(spec), &operands)
            }
            Op::SparseAttention { heads, block, scale, quantize, .. } => {
                let (state, kv) = self.cache(node.operands[1]);
                let keep = self.width(node.operands[2]) - 2;
                let spec = KernelSpec::Attention(Attention {
                    heads: heads.into(),
                    kv,
                    pages_per_slot,
                    scale: F32::from(scale),
                    window: 0,
                    quantize,
                    first: self.first(state),
                    selection: Some(Selected { block: block.into(), keep }),
                });
                let operands = [
                    value(0),
                    Operand::Positions,
                    Operand::Slots,
                    Operand::PageTable,
                    Operand::State(state),
                    value(2),
                ];
                self.launch(node, spec, &operands)
            }
            _ => unreachable!("choose sends only sparse attention here"),
        }
    }

    fn block_keys(&self, node: &Node<'_>, (dims, block, eps): (u16, u16, f32)) -> KernelChoice {
        let (tail, layout) = self.slots(node.operands[0]);
        let (state, keys) = self.cache(node.operands[1]);
        let spec = BlockKeys {
            dim: self.width(node.operands[2]),
            rope_dims: dims.into(),
            block: block.into(),
            eps: F32::from(eps),
            first: self.first(state),
            keys,
            pages_per_slot: self.paging.pages_per_slot,
            layout,
            pending: self.pending(),
        };
        let operands = vec![
            Operand::Step,
            Operand::Value(node.operands[2]),
            self.vector(node.operands[3]),
            self.vector(node.operands[4]),
            Operand::Positions,
            Operand::Slots,
            Operand::Offsets,
            Operand::PageTable,
            Operand::State(state),
            Operand::State(tail),
        ];
        // Its results are versions of states, which have no place of their own.
        KernelChoice { spec: KernelSpec::BlockKeys(spec), operands, parts: 0 }
    }

    /// The first position of the keys behind `scores`.
    fn first_of_scores(&self, scores: ValueId) -> u32 {
        let node = self.graph.producer(scores).filter(|n| matches!(n.op, Op::BlockScores { .. }));
        let keys = node.and_then(|node| self.graph.state_of(node.operands[1]));
        keys.map_or(0, |state| self.first(state))
    }
}
