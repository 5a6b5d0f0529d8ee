//! Sparse attention over blocks of positions that an indexer chooses.

use strata_graph::{DType, Op, StateDef, StateKind, TensorType, ValueId};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::schema::{Gqa, Indexer};
use crate::weights::{Role, Rows};

/// The blocks that each row attends to.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]`, normed | f32 |
/// | index query weight | `[index heads * index dim, hidden]` | as stored |
/// | index key weight | `[index dim, hidden]` | as stored |
/// | state `block_tail.N` | the last `block - 1` index keys, as they are projected | f32 |
/// | state `blocks.N` | `[1, index dim]` for each complete block | f32 |
/// | result | `[rows, budget / block + 2]` | u32 |
///
/// A block's key is the mean of its rows' keys, normed, and turned to the block's first position. Its
/// score is the sum over heads of `relu(q . key)`. See the op `block_top` for the result.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn select(
    build: &mut Build<'_>,
    layer: u32,
    (gqa, indexer): (&Gqa, &Indexer),
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let Indexer { heads, block, .. } = *indexer;
    let queries = build.linear(layer, query_rows(indexer), x)?;
    let queries = build.head_norm(Role::IndexerQNorm, layer, (heads, queries))?;
    let angles = build.angles(gqa)?;
    let rope = Op::Rope { heads, dims: dims(gqa), pairing: gqa.rope.pairing.into() };
    let node = |what: &str| format!("blk.{layer}.indexer.{what}");
    let queries = build.push(rope, &[queries, angles], node("q_rope"))?;
    let keys = keep(build, layer, (gqa, indexer), x)?;
    let blocks = build.def.context.div_ceil(block.into());
    let scores =
        build.push(Op::BlockScores { heads, block, blocks }, &[queries, keys], node("scores"))?;
    let keep = indexer.budget_tokens / u32::from(block);
    build.push(Op::BlockTop { block, keep }, &[scores], node("top"))
}

/// Stores the keys of the blocks that the window's rows complete; gives the state with them.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn keep(
    build: &mut Build<'_>,
    layer: u32,
    (gqa, indexer): (&Gqa, &Indexer),
    x: ValueId,
) -> Result<ValueId, ModelError> {
    let Indexer { block, head_dim, .. } = *indexer;
    let width = u32::from(head_dim);
    let keys = build.linear(layer, key_rows(indexer), x)?;
    let (tail_name, tail) = tail(build, layer, indexer);
    let (name, first) = build.state_name("blocks", layer);
    let row = TensorType::new(DType::F32, &[1, width]);
    let def = StateDef::new(name.clone(), StateKind::Append, row);
    let state = build.state(StateDef { every: block.into(), first, ..def });
    let gain = build.gain(Role::IndexerKNorm, layer, width);
    let frequencies = build.frequencies(gqa);
    let op = Op::BlockKeys { dims: dims(gqa), block, eps: build.def.norm.eps() };
    let operands = [tail, state, keys, gain, frequencies];
    let made = build.push_all(op, &operands, format!("blk.{layer}.indexer.block_keys"))?;
    build.update(&tail_name, made[0]);
    build.update(&name, made[1]);
    Ok(made[1])
}

/// The index keys of the block that is not complete yet. Drafting has its own, which begins as what
/// the layers' windows kept.
fn tail(build: &mut Build<'_>, layer: u32, indexer: &Indexer) -> (String, ValueId) {
    let kind = StateKind::Tail(u32::from(indexer.block) - 1);
    let row = TensorType::new(DType::F32, &[indexer.head_dim.into()]);
    let (name, _) = build.state_name("block_tail", layer);
    let kept = StateDef::new(name.clone(), kind, row);
    if !build.drafting {
        return (name, build.state(kept));
    }
    let name = "draft.block_tail".to_owned();
    let value = build.seeded(StateDef { name: name.clone(), ..kept.clone() }, kept);
    (name, value)
}

/// Attention over the selected blocks.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn attend(
    build: &mut Build<'_>,
    layer: u32,
    (gqa, indexer): (&Gqa, &Indexer),
    operands: [ValueId; 3],
) -> Result<ValueId, ModelError> {
    let op = Op::SparseAttention {
        heads: gqa.heads,
        kv_heads: gqa.kv_heads,
        head_dim: gqa.head_dim,
        block: indexer.block,
        scale: gqa.score_scale(),
        quantize: false,
    };
    build.push(op, &operands, format!("blk.{layer}.attention"))
}

fn dims(gqa: &Gqa) -> u16 {
    gqa.rope.dims.unwrap_or(gqa.head_dim)
}

/// Published files hold the rows of queries and of keys in one matrix.
fn query_rows(indexer: &Indexer) -> Linear {
    let rows = u32::from(indexer.heads) * u32::from(indexer.head_dim);
    Linear { rows: Rows::HfCut(vec![(0, rows)]), ..Linear::new(Role::IndexerQ, rows) }
}

fn key_rows(indexer: &Indexer) -> Linear {
    let width = u32::from(indexer.head_dim);
    let first = u32::from(indexer.heads) * width;
    let rows = Rows::HfCut(vec![(first, first + width)]);
    Linear { rows, ..Linear::new(Role::IndexerK, width) }
}
