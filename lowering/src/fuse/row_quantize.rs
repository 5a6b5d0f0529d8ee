use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// Rows are quantised by the op that makes them, while they are in cache.
///
/// ```text
/// n = group_rms_norm(x, g)    n8 = quantize(n)    y = hc_read(n, gates)
/// ; becomes
/// n, n8 = group_rms_norm_quantize(x, g) keep=true    y = hc_read(n, gates)
/// ```
///
/// What nothing else reads in f32 is not kept. Heads that are quantised by themselves have whole
/// blocks of 32.
pub fn fuse_row_quantize(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "rows + quantize", find)
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let width = uses.graph.ty(*node.operands.first()?).last_dim();
    let whole = |parts: u16| (width / u32::from(parts)).is_multiple_of(32);
    let (fits, can_keep) = match *node.op {
        Op::GroupRmsNorm { groups, .. } => (whole(groups), true),
        Op::HcRead { streams } => (whole(streams), true),
        Op::GatedHeadNorm { heads, .. } => (whole(heads), false),
        Op::ScaledSilu { .. } | Op::ActMul { quantize: false, .. } => (whole(1), false),
        _ => return None,
    };
    let mut readers = uses.readers(node.result());
    let quantize = readers.find(|reader| matches!(reader.op, Op::Quantize {}))?;
    let keep = uses.counts[node.result()] > 1;
    if !fits || (keep && !can_keep) {
        return None;
    }
    let op = match *node.op {
        Op::GroupRmsNorm { eps, groups } => Op::GroupRmsNormQuantize { eps, groups, keep },
        Op::HcRead { streams } => Op::HcReadQuantize { streams, keep },
        Op::GatedHeadNorm { eps, heads, act } => Op::GatedHeadNormQuantize { eps, heads, act },
        Op::ScaledSilu { scale } => Op::ScaledSiluQuantize { scale },
        Op::ActMul { act, .. } => Op::ActMul { act, quantize: true },
        _ => return None,
    };
    Some(Fusion {
        op,
        operands: node.operands.to_vec(),
        results: if keep { vec![node.id, quantize.id] } else { vec![quantize.id] },
        dropped: vec![quantize.id],
    })
}
