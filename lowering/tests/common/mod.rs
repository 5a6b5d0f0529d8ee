//! A small model for tests, in base ops: grouped-query attention, a gated feed-forward block or
//! experts.

#![allow(dead_code, reason = "each test program uses a part of it")]

use strata_graph::{
    Activation, DType, Graph, GraphBuilder, Op, Pairing, StateDef, StateKind, TensorSlice,
    TensorType, ValueId, WeightDef, WeightSource, Window,
};
use strata_lowering::{FileEntry, ModelFacts, TensorEntry, TensorFormat};

pub const HIDDEN: u32 = 256;
pub const HEADS: u16 = 4;
pub const KV_HEADS: u16 = 2;
pub const HEAD_DIM: u16 = 64;
pub const WIDE: u32 = 512;
pub const VOCAB: u32 = 320;
pub const EXPERTS: u32 = 4;

/// Which feed-forward block the layers have, and which element types the file.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: u32,
    pub experts: bool,
    pub matrices: DType,
}

pub const DENSE: Shape = Shape { layers: 2, experts: false, matrices: DType::Q4K };
pub const MOE: Shape = Shape { layers: 2, experts: true, matrices: DType::Q8_0 };
pub const FLOAT: Shape = Shape { layers: 2, experts: false, matrices: DType::F32 };

struct Build {
    graph: GraphBuilder,
}

impl Build {
    fn weight(&mut self, name: &str, dims: &[u32]) -> ValueId {
        self.graph.weight(WeightDef {
            name: name.into(),
            ty: TensorType::new(DType::Unresolved, dims),
            source: WeightSource::Named(vec![TensorSlice::whole(name)]),
            transform: strata_graph::Transform::None,
        })
    }

    fn push(&mut self, op: Op, operands: &[ValueId], name: &str) -> ValueId {
        self.graph.push_one(op, operands, name).expect("a well-typed node")
    }

    fn linear(&mut self, name: &str, x: ValueId, out: u32) -> ValueId {
        let k = self.graph.ty(x).last_dim();
        let weight = self.weight(name, &[out, k]);
        self.push(Op::Matmul { bias: false, residual: false }, &[x, weight], name)
    }

    fn norm(&mut self, name: &str, x: ValueId) -> ValueId {
        let gain = self.weight(name, &[HIDDEN]);
        self.push(Op::RmsNorm { eps: 1e-6 }, &[x, gain], name)
    }

    fn attention(&mut self, layer: u32, x: ValueId, angles: ValueId) -> ValueId {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (q_width, kv_width) = (u32::from(HEADS * HEAD_DIM), u32::from(KV_HEADS * HEAD_DIM));
        let q = self.linear(&name("attn_q"), x, q_width);
        let k = self.linear(&name("attn_k"), x, kv_width);
        let v = self.linear(&name("attn_v"), x, kv_width);
        let rope = |heads| Op::Rope { heads, dims: HEAD_DIM, pairing: Pairing::Halves };
        let q = self.push(rope(HEADS), &[q, angles], &name("q_rope"));
        let k = self.push(rope(KV_HEADS), &[k, angles], &name("k_rope"));
        let row = TensorType::new(DType::F32, &[KV_HEADS.into(), HEAD_DIM.into()]);
        let kind = StateKind::Append;
        let state = self.graph.state(StateDef::new(format!("kv.{layer}"), kind, row));
        let state = self.push(Op::StateAppend {}, &[state, k, v], &name("append"));
        let op = Op::Attention {
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            window: 0,
            scale: 0.125,
            quantize: false,
        };
        let y = self.push(op, &[q, state], &name("attention"));
        self.linear(&name("attn_output"), y, HIDDEN)
    }

    fn gated(&mut self, layer: u32, x: ValueId) -> ValueId {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let gate = self.linear(&name("ffn_gate"), x, WIDE);
        let up = self.linear(&name("ffn_up"), x, WIDE);
        let gate = self.push(Op::Silu {}, &[gate], &name("ffn_act"));
        let y = self.push(Op::Mul {}, &[gate, up], &name("ffn_gated"));
        self.linear(&name("ffn_down"), y, HIDDEN)
    }

    fn experts(&mut self, layer: u32, x: ValueId) -> ValueId {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let logits = self.linear(&name("router"), x, EXPERTS);
        let route = Op::Route { top_k: 2, norm: true };
        let routed = self.graph.push(route, &[logits], name("route")).expect("a well-typed node");
        let gate = self.weight(&name("gate_exps"), &[EXPERTS, WIDE, HIDDEN]);
        let up = self.weight(&name("up_exps"), &[EXPERTS, WIDE, HIDDEN]);
        let down = self.weight(&name("down_exps"), &[EXPERTS, HIDDEN, WIDE]);
        let op = Op::ExpertMlp { act: Activation::Silu };
        self.push(op, &[x, routed[0], routed[1], gate, up, down], &name("experts"))
    }
}

/// The base graph of `shape` for `window`, with a tied table of embeddings.
pub fn base_graph(shape: Shape, window: Window) -> Graph {
    let mut b = Build { graph: GraphBuilder::new("tiny", window, "base") };
    let table = b.weight("token_embd", &[VOCAB, HIDDEN]);
    let half = usize::from(HEAD_DIM / 2);
    let frequencies = b.graph.weight(WeightDef {
        name: "inverse_frequencies".into(),
        ty: TensorType::new(DType::F32, &[half as u32]),
        source: WeightSource::Constant((0..half).map(|i| 0.5f32.powi(i as i32)).collect()),
        transform: strata_graph::Transform::None,
    });
    let mut x = b.push(Op::Embed { scale: 1.0 }, &[table], "token_embd");
    let angles = b.push(Op::RopeAngles { dims: HEAD_DIM }, &[frequencies], "angles");
    for layer in 0..shape.layers {
        let h = b.norm(&format!("blk.{layer}.attn_norm"), x);
        let y = b.attention(layer, h, angles);
        x = b.push(Op::Add {}, &[x, y], &format!("blk.{layer}.attn_residual"));
        let h = b.norm(&format!("blk.{layer}.ffn_norm"), x);
        let y = if shape.experts { b.experts(layer, h) } else { b.gated(layer, h) };
        x = b.push(Op::Add {}, &[x, y], &format!("blk.{layer}.ffn_residual"));
    }
    let x = b.push(Op::GatherRows {}, &[x], "gather");
    let x = b.norm("output_norm", x);
    let op = Op::Matmul { bias: false, residual: false };
    let logits = b.push(op, &[x, table], "output");
    b.graph.output(logits);
    b.graph.finish()
}

/// Tensors for every named weight of `graph`, one behind another in one file.
pub fn tensors(graph: &Graph, matrices: DType) -> (Vec<TensorEntry>, Vec<FileEntry>) {
    let mut offset = 4096;
    let mut entries = Vec::new();
    for def in graph.weights().values() {
        let WeightSource::Named(_) = def.source else { continue };
        let matrix = def.ty.dims().len() > 1 && !def.name.contains("router");
        let ty = def.ty.with_dtype(if matrix { matrices } else { DType::F32 });
        entries.push(TensorEntry {
            name: def.name.clone(),
            format: TensorFormat::Known(ty.dtype),
            dims: ty.dims().iter().map(|&d| u64::from(d)).collect(),
            file: 0,
            offset,
            bytes: ty.bytes(),
        });
        offset += ty.bytes().next_multiple_of(32);
    }
    let files = vec![FileEntry { path: "tiny.gguf".into(), bytes: offset, header_hash: 7 }];
    (entries, files)
}

pub fn facts() -> ModelFacts {
    ModelFacts {
        name: "tiny".into(),
        vocab: VOCAB,
        hidden: HIDDEN,
        layers: 2,
        context_tokens: 1024,
        bos: Some(1),
        add_bos: true,
        stop_tokens: vec![2],
        tokenizer_file: 0,
        chat_template: None,
        definition: "(name: \"tiny\")".into(),
    }
}
