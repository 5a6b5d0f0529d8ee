use strata_graph::{Graph, Node, NodeId, Op, Pairing, Rebuilt, ValueId};

use super::{Fusion, Uses, fuse};

/// All that lies between the projections and attention in one launch.
///
/// ```text
/// q1 = head_norm(q, gq)    q2 = rope(q1, angles)
/// k1 = head_norm(k, gk)    k2 = rope(k1, angles)
/// s1 = state_append(s0, k2, v)
/// o = attention(q2, s1)
/// ; becomes
/// q2, s1 = attention_prologue(s0, q, k, v, angles, gq, gk)
/// o = attention(q2, s1)
/// ```
///
/// Head norms are optional, for queries and keys together and with one epsilon. Queries and keys
/// must turn by the same angles; every value between must have one reader.
pub fn fuse_attention_prologue(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "attention prologue", find)
}

/// A rotated projection and the nodes that made it so.
struct Rotated {
    rope: NodeId,
    source: ValueId,
    angles: ValueId,
    heads: u16,
    dims: u16,
    pairing: Pairing,
    norm: Option<Norm>,
}

struct Norm {
    node: NodeId,
    eps: f32,
    gain: ValueId,
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let Op::StateAppend {} = node.op else { return None };
    let [state, keys, values] = *node.operands else { return None };
    let attention = sole_attention(uses.graph, node.result())?;
    let (heads, kv_heads, head_dim) = match *attention.op {
        Op::Attention { heads, kv_heads, head_dim, .. }
        | Op::SparseAttention { heads, kv_heads, head_dim, .. } => (heads, kv_heads, head_dim),
        _ => return None,
    };
    let q = rotated(uses, attention.operands[0])?;
    let k = rotated(uses, keys)?;
    let same = q.angles == k.angles && q.dims == k.dims && q.pairing == k.pairing;
    let (eps, gains) = match (&q.norm, &k.norm) {
        (None, None) => (0.0, vec![]),
        (Some(q), Some(k)) if q.eps == k.eps => (q.eps, vec![q.gain, k.gain]),
        _ => return None,
    };
    // The queries are ready at the append: their rope is before it or only its readers are after.
    let ordered = uses.graph.producer(q.source).is_none_or(|p| p.id < node.id);
    if !same || !ordered || q.heads != heads || k.heads != kv_heads {
        return None;
    }
    let mut operands = vec![state, q.source, k.source, values, q.angles];
    operands.extend(&gains);
    let norms = [&q.norm, &k.norm].into_iter().flatten().map(|norm| norm.node);
    Some(Fusion {
        op: Op::AttentionPrologue {
            heads,
            kv_heads,
            head_dim,
            dims: q.dims,
            eps,
            pairing: q.pairing,
            norm: !gains.is_empty(),
        },
        operands,
        results: vec![q.rope, node.id],
        dropped: [q.rope, k.rope].into_iter().chain(norms).collect(),
    })
}

/// The attention that reads this version of a state, if nothing else does.
fn sole_attention(graph: &Graph, state: ValueId) -> Option<Node<'_>> {
    let mut readers = graph.nodes().filter(|n| n.operands.contains(&state));
    let first = readers.next()?;
    let attends = matches!(first.op, Op::Attention { .. } | Op::SparseAttention { .. });
    (readers.next().is_none() && attends).then_some(first)
}

fn rotated(uses: &Uses<'_>, value: ValueId) -> Option<Rotated> {
    let rope = uses.sole_producer(value)?;
    let Op::Rope { heads, dims, pairing } = *rope.op else { return None };
    let [source, angles] = *rope.operands else { return None };
    let head_norm = uses.sole_producer(source).and_then(|node| match *node.op {
        Op::HeadNorm { eps, heads: normed } if normed == heads => Some((node, eps)),
        _ => None,
    });
    let (source, norm) = match head_norm {
        Some((node, eps)) => {
            (node.operands[0], Some(Norm { node: node.id, eps, gain: node.operands[1] }))
        }
        None => (source, None),
    };
    Some(Rotated { rope: rope.id, source, angles, heads, dims, pairing, norm })
}
