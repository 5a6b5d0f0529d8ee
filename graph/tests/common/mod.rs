//! A decoder small enough to read, with all kinds of declarations and most ops.
#![allow(dead_code, reason = "each test file uses a part of it")]

use strata_graph::{
    Activation, DType, Graph, GraphBuilder, Op, Pairing, Part, ShapeError, StateDef, StateKind,
    TensorSlice, TensorType, Transform, ValueId, WeightDef, WeightSource, Window, WindowKind,
};

pub const HIDDEN: u32 = 64;
pub const HEADS: u16 = 4;
pub const KV_HEADS: u16 = 2;
pub const HEAD_DIM: u16 = 16;
pub const WINDOW: Window = Window { kind: WindowKind::Verify, rows: 4, logit_rows: 2 };

pub fn named(graph: &mut GraphBuilder, name: &str, dtype: DType, dims: &[u32]) -> ValueId {
    graph.weight(WeightDef {
        name: name.into(),
        ty: TensorType::new(dtype, dims),
        source: WeightSource::Named(vec![TensorSlice::whole(format!("{name}.weight"))]),
        transform: if name.ends_with("norm") { Transform::AddOne } else { Transform::None },
    })
}

/// Layer 0 has a gated feed-forward block, layer 1 has experts. Weights are declared where they are
/// first read, so that declarations and results take turns.
pub fn two_layers() -> Graph {
    let mut graph = GraphBuilder::new("two-layers", WINDOW, "built");
    let table = named(&mut graph, "token_embd", DType::Q8_0, &[96, HIDDEN]);
    let frequencies = graph.weight(WeightDef {
        name: "rope.frequencies".into(),
        ty: TensorType::new(DType::F32, &[8]),
        source: WeightSource::Constant(vec![1.0, 0.5, 0.25, 0.125, 0.0625, 1e-3, 1e-4, 3.3e-5]),
        transform: Transform::None,
    });
    let build = |graph: &mut GraphBuilder| -> Result<(), ShapeError> {
        let angles = graph.push_one(Op::RopeAngles { dims: 16 }, &[frequencies], "rope.angles")?;
        let mut x = graph.push_one(Op::Embed { scale: 1.0 }, &[table], "token_embd")?;
        for layer in 0..2 {
            let name = |part: &str| format!("blk.{layer}.{part}");
            x = attention(graph, &name, x, angles)?;
            let gain = named(graph, &name("ffn_norm"), DType::F32, &[HIDDEN]);
            let h = graph.push_one(Op::RmsNorm { eps: 1e-6 }, &[x, gain], name("ffn_norm"))?;
            let y = if layer == 0 { gated(graph, &name, h)? } else { experts(graph, &name, h)? };
            x = graph.push_one(Op::Add {}, &[x, y], name("ffn_add"))?;
        }
        let x = graph.push_one(Op::GatherRows {}, &[x], "output_rows")?;
        let gain = named(graph, "output_norm", DType::F32, &[HIDDEN]);
        let x = graph.push_one(Op::RmsNorm { eps: 1e-6 }, &[x, gain], "output_norm")?;
        let product = Op::Matmul { bias: false, residual: false };
        let logits = graph.push_one(product, &[x, table], "output")?;
        graph.output(logits);
        Ok(())
    };
    build(&mut graph).expect("the model is well typed");
    graph.finish()
}

fn attention(
    graph: &mut GraphBuilder,
    name: &dyn Fn(&str) -> String,
    x: ValueId,
    angles: ValueId,
) -> Result<ValueId, ShapeError> {
    let kv_width = u32::from(KV_HEADS * HEAD_DIM);
    let gain = named(graph, &name("attn_norm"), DType::F32, &[HIDDEN]);
    let qkv = graph.weight(WeightDef {
        name: name("attn_q"),
        ty: TensorType::new(DType::F32, &[HIDDEN, HIDDEN]),
        source: WeightSource::Named(vec![TensorSlice {
            tensor: name("attn_qkv.weight"),
            rows: Some((0, HIDDEN)),
        }]),
        transform: Transform::None,
    });
    let bias = named(graph, &name("attn_q.bias"), DType::F32, &[HIDDEN]);
    let k = named(graph, &name("attn_k"), DType::Q4_0, &[kv_width, HIDDEN]);
    let v = graph.weight(WeightDef {
        name: name("attn_v"),
        ty: TensorType::new(DType::F16, &[kv_width, HIDDEN]),
        source: WeightSource::Parts(vec![
            Part { file: 0, offset: 4096, bytes: 2048 },
            Part { file: 1, offset: 0, bytes: 2048 },
        ]),
        transform: Transform::None,
    });
    let row = TensorType::new(DType::F32, &[u32::from(KV_HEADS), u32::from(HEAD_DIM)]);
    let state = graph.state(StateDef::new(name("kv"), StateKind::Append, row));
    let product = |bias, residual| Op::Matmul { bias, residual };
    let rope = |heads| Op::Rope { heads, dims: HEAD_DIM, pairing: Pairing::Halves };
    let h = graph.push_one(Op::RmsNorm { eps: 1e-6 }, &[x, gain], name("attn_norm"))?;
    let q = graph.push_one(product(true, false), &[h, qkv, bias], name("attn_q"))?;
    let k = graph.push_one(product(false, false), &[h, k], name("attn_k"))?;
    let v = graph.push_one(product(false, false), &[h, v], name("attn_v"))?;
    let q = graph.push_one(rope(HEADS), &[q, angles], name("attn_q.rope"))?;
    let k = graph.push_one(rope(KV_HEADS), &[k, angles], name("attn_k.rope"))?;
    let state = graph.push_one(Op::StateAppend {}, &[state, k, v], name("kv"))?;
    let attend = Op::Attention {
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        window: 0,
        scale: 0.25,
        quantize: false,
    };
    let h = graph.push_one(attend, &[q, state], name("attn"))?;
    let out = named(graph, &name("attn_output"), DType::BF16, &[HIDDEN, HIDDEN]);
    graph.push_one(product(false, true), &[h, out, x], name("attn_output"))
}

fn gated(
    graph: &mut GraphBuilder,
    name: &dyn Fn(&str) -> String,
    x: ValueId,
) -> Result<ValueId, ShapeError> {
    let gate = named(graph, &name("ffn_gate"), DType::Q8_0, &[128, HIDDEN]);
    let up = named(graph, &name("ffn_up"), DType::Q8_0, &[128, HIDDEN]);
    let down = named(graph, &name("ffn_down"), DType::Unresolved, &[HIDDEN, 128]);
    let gated = Op::GatedMatmul { act: Activation::Silu, quantize: false };
    let h = graph.push_one(gated, &[x, gate, up], name("ffn_gate"))?;
    graph.push_one(Op::Matmul { bias: false, residual: false }, &[h, down], name("ffn_down"))
}

fn experts(
    graph: &mut GraphBuilder,
    name: &dyn Fn(&str) -> String,
    x: ValueId,
) -> Result<ValueId, ShapeError> {
    let router = named(graph, &name("ffn_router"), DType::F32, &[8, HIDDEN]);
    let gate = named(graph, &name("ffn_gate_exps"), DType::Q8_0, &[8, 32, HIDDEN]);
    let up = named(graph, &name("ffn_up_exps"), DType::Q8_0, &[8, 32, HIDDEN]);
    let down = named(graph, &name("ffn_down_exps"), DType::Q8_0, &[8, HIDDEN, 32]);
    let product = Op::Matmul { bias: false, residual: false };
    let logits = graph.push_one(product, &[x, router], name("ffn_router"))?;
    let route = Op::Route { top_k: 2, norm: true };
    let [ids, weights] = graph.push(route, &[logits], name("ffn_route"))?[..] else {
        unreachable!("route gives ids and weights")
    };
    let dispatch =
        graph.push_one(Op::ExpertDispatch { experts: 8 }, &[ids], name("ffn_dispatch"))?;
    let gated = Op::ExpertGated { act: Activation::Gelu, quantize: false };
    let h = graph.push_one(gated, &[x, dispatch, gate, up], name("ffn_gate_exps"))?;
    let h = graph.push_one(Op::ExpertDown {}, &[h, dispatch, down], name("ffn_down_exps"))?;
    graph.push_one(Op::ExpertCombine { residual: false }, &[h, weights], name("ffn_combine"))
}
