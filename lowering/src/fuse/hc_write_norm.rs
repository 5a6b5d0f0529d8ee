use strata_graph::{Graph, Node, Op, Rebuilt};

use super::{Fusion, Uses, fuse};

/// A write to the streams of a residual takes the norm behind it along, and the weighted sum of the
/// shared expert before it.
///
/// ```text
/// y = gated_add(a, b, g)    r1 = hc_write(r, y, inject)
/// n, n8 = group_rms_norm_quantize(r1, gain) keep=true
/// ; becomes
/// r1, n, n8 = hc_write_norm(r, a, inject, gain, b, g) shared=true quantize=true
/// ```
///
/// The norm has a group for each stream and gives f32 rows. Other readers of the residual read the
/// first result.
pub fn fuse_hc_write_norm(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "streams + norm", find)
}

/// The epsilon of a norm of each of `streams` streams that gives f32 rows, and whether it gives
/// them in 8 bit too.
fn norm_of(node: &Node<'_>, streams: u16) -> Option<(f32, bool)> {
    match *node.op {
        Op::GroupRmsNorm { eps, groups } if groups == streams => Some((eps, false)),
        Op::GroupRmsNormQuantize { eps, groups, keep: true } if groups == streams => {
            Some((eps, true))
        }
        _ => None,
    }
}

fn find(uses: &Uses<'_>, write: Node<'_>) -> Option<Fusion> {
    let Op::HcWrite { streams } = *write.op else { return None };
    let [residual, y, inject] = *write.operands else { return None };
    let is_norm = |reader: &Node<'_>| norm_of(reader, streams).is_some();
    let norm = uses.readers(write.result()).find(is_norm)?;
    let (eps, quantize) = norm_of(&norm, streams)?;
    let sum = uses.sole_producer(y).filter(|sum| matches!(sum.op, Op::GatedAdd {}));
    let mut dropped = vec![norm.id];
    let mut operands = vec![residual, y, inject, norm.operands[1]];
    if let Some(sum) = sum {
        operands[1] = sum.operands[0];
        operands.extend(&sum.operands[1..]);
        dropped.push(sum.id);
    }
    Some(Fusion {
        op: Op::HcWriteNorm { streams, eps, shared: sum.is_some(), quantize },
        operands,
        results: vec![write.id, norm.id],
        dropped,
    })
}
