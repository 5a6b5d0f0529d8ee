use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// Attention writes its heads in 8 bit when only products read them.
///
/// ```text
/// o = attention(q, s)    o8 = quantize(o)
/// ; becomes
/// o8 = attention(q, s) quantize=true
/// ```
///
/// Needs a head_dim of whole 32-blocks, so that a head quantises by itself.
pub fn fuse_attention_quantize(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "attention + quantize", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::Quantize {} = node.op else { return None };
    let attention = uses.sole_producer(node.operands[0])?;
    let Op::Attention { heads, kv_heads, head_dim, window, scale, quantize: false } = *attention.op
    else {
        return None;
    };
    // The fused node may stand later: a newer version of the state must not come before it.
    let state = attention.operands[1];
    let appended = uses.graph.nodes().any(|n| {
        n.id > attention.id && n.id < node.id && n.operands.contains(&state) && makes_state(&n)
    });
    (head_dim % 32 == 0 && !appended).then(|| Fusion {
        op: Op::Attention { heads, kv_heads, head_dim, window, scale, quantize: true },
        operands: attention.operands.to_vec(),
        results: vec![node.id],
        dropped: vec![attention.id],
    })
}

fn makes_state(node: &Node<'_>) -> bool {
    matches!(node.op, Op::StateAppend {} | Op::AttentionPrologue { .. })
}
