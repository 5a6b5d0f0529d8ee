use strata_graph::{DType, Graph, Node, NodeId, Op, Rebuilt, ValueId};
use strata_kernels::spec::Projections;

use super::{Fusion, Uses, fuse};

/// Products of one input, in f32 or in 8 bit, in one launch.
///
/// ```text
/// h8 = quantize(h)    q = matmul(h8, wq)    k = matmul(h8, wk)    i = matmul(h, wi)
/// ; becomes
/// h8 = quantize(h)    q, k, i = projections(h, h8, wq, wk, wi) floats=true quantised=true
/// ```
///
/// Products with a bias or a residual stay apart, and one whose result is needed before the inputs
/// of the others are there. More than eight become several nodes.
pub fn fuse_projections(graph: &Graph) -> (Graph, Rebuilt) {
    fuse(graph, "projections", find)
}

/// The f32 rows that `x` is the 8-bit form of, if they are there; else `x`.
fn source(graph: &Graph, x: ValueId) -> ValueId {
    let ty = graph.ty(x);
    let Some(node) = graph.producer(x).filter(|_| ty.dtype == DType::Q8) else { return x };
    if let Op::Quantize {} = node.op {
        return node.operands[0];
    }
    // An op that gives rows in both types gives them one behind the other, f32 first.
    let results: Vec<ValueId> = node.results().collect();
    let number = results.iter().position(|&result| result == x);
    let before = number.and_then(|number| number.checked_sub(1)).map(|number| results[number]);
    before.filter(|&wide| graph.ty(wide) == ty.with_dtype(DType::F32)).unwrap_or(x)
}

fn is_plain(graph: &Graph, node: &Node<'_>) -> bool {
    *node.op == Op::Matmul { bias: false, residual: false }
        && graph.weight_of(node.operands[1]).is_some()
}

fn find(uses: &Uses<'_>, node: Node<'_>) -> Option<Fusion> {
    let graph = uses.graph;
    if !is_plain(graph, &node) {
        return None;
    }
    let wide = source(graph, node.operands[0]);
    let of_input = |other: &Node<'_>| {
        let x = other.operands[0];
        other.device == node.device && is_plain(graph, other) && source(graph, x) == wide
    };
    let all: Vec<Node<'_>> = graph.nodes().filter(of_input).collect();
    let group = all
        .chunks(Projections::MOST)
        .find(|group| group.iter().any(|member| member.id == node.id))?;
    let (at, group) = together(uses, group.to_vec())?;
    if at != node.id {
        return None;
    }
    let is_float = |member: &&Node<'_>| graph.ty(member.operands[0]).dtype == DType::F32;
    let floats = group.iter().find(is_float).map(|member| member.operands[0]);
    let quantised = group.iter().find(|member| !is_float(member)).map(|member| member.operands[0]);
    let count = u16::try_from(group.len()).ok()?;
    let op = Op::Projections { count, floats: floats.is_some(), quantised: quantised.is_some() };
    let weights = group.iter().map(|member| member.operands[1]);
    Some(Fusion {
        op,
        operands: floats.into_iter().chain(quantised).chain(weights).collect(),
        results: group.iter().map(|member| member.id).collect(),
        dropped: group.iter().map(|member| member.id).filter(|&id| id != node.id).collect(),
    })
}

/// Those products of `group` that one node can stand for, and in whose place: that of the first
/// one behind all inputs. Nothing may read a result before.
fn together<'g>(uses: &Uses<'_>, mut group: Vec<Node<'g>>) -> Option<(NodeId, Vec<Node<'g>>)> {
    loop {
        let inputs = group.iter().filter_map(|member| uses.graph.producer(member.operands[0]));
        let last = inputs.map(|input| input.id).max();
        let at = group.iter().map(|m| m.id).find(|&id| last.is_none_or(|last| id > last))?;
        let count = group.len();
        group.retain(|member| uses.readers(member.result()).all(|reader| reader.id > at));
        if group.len() == count {
            return (count > 1).then_some((at, group));
        }
    }
}
