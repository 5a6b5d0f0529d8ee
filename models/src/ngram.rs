//! Embeddings of n-grams, looked up by hash and added to the residual.

mod hash;

use strata_graph::{DType, Op, StateDef, StateKind, TensorType, ValueId, WeightSource};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::schema::Ngram;
use crate::weights::{Role, node_name};

pub use hash::hash_constants;
pub(crate) use hash::{GAMMA, splitmix64};

/// `residual + gated + convolution(norm(gated))`, where `gated` is the value of the n-grams'
/// embedding, for each stream with a gate from the normed key of the embedding and the normed
/// stream.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `residual` | `[rows, streams * hidden]` | f32 |
/// | table | `[table_rows, width]` | as stored |
/// | key weight | `[streams * hidden, heads * width]` | as stored |
/// | value weight | `[hidden, heads * width]` | as stored |
/// | filter | `[streams * hidden, taps]` | as stored |
/// | state `ngram.tokens` | the last `ngram_size - 1` tokens | u32 |
/// | state `ngram.conv.N` | the last `(taps - 1) * ngram_size` inputs of the convolution | f32 |
/// | result | `[rows, streams * hidden]` | f32 |
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn add(
    build: &mut Build<'_>,
    ngram: &Ngram,
    residual: ValueId,
) -> Result<ValueId, ModelError> {
    let layer = ngram.layer;
    let (hidden, width) = (build.def.hidden, build.width(residual));
    let embedding = embed(build, ngram)?;
    let key = build.linear(layer, Linear::new(Role::NgramKey, width), embedding)?;
    let key = build.stream_norm(Role::NgramNormKey, layer, key)?;
    let value = build.linear(layer, Linear::new(Role::NgramValue, hidden), embedding)?;
    let query = build.stream_norm(Role::NgramNormQuery, layer, residual)?;
    let streams = build.def.residual.streams();
    let operands = [key, query, value];
    let gated =
        build.push(Op::NgramGate { streams }, &operands, format!("blk.{layer}.ple_gate"))?;
    let x = build.stream_norm(Role::NgramNormConv, layer, gated)?;
    let convolved = convolve(build, ngram, x)?;
    let sum = [residual, gated];
    let sum = build.push(Op::Add {}, &sum, format!("blk.{layer}.ple_residual"))?;
    build.push(Op::Add {}, &[sum, convolved], format!("blk.{layer}.ple_conv_residual"))
}

/// The table's rows of the n-grams that end at each row, beside each other.
fn embed(build: &mut Build<'_>, ngram: &Ngram) -> Result<ValueId, ModelError> {
    let numbers = hash::hash_weight(ngram, build.def.vocab);
    let count = u32::try_from(numbers.len()).expect("a few numbers a head");
    let hash = build.constant(
        "ngram_hash",
        TensorType::new(DType::U64, &[count]),
        WeightSource::Integers(numbers),
    );
    let name = "ngram.tokens";
    let kind = StateKind::Tail(u32::from(ngram.ngram_size) - 1);
    let row = TensorType::new(DType::U32, &[1]);
    let state = build.state(StateDef::new(name, kind, row));
    let heads = u16::try_from(ngram.heads()).expect("limited before");
    let op = Op::NgramRows { ngram: ngram.ngram_size, heads };
    let made = build.push_all(op, &[state, hash], "ngram_rows".into())?;
    build.update(name, made[1]);
    let dims = [ngram.table_rows, ngram.width];
    let table = build.weight(Role::NgramTable, ngram.layer, &dims);
    let node = node_name(Role::NgramTable, ngram.layer);
    build.push(Op::NgramEmbed {}, &[made[0], table], node)
}

fn convolve(build: &mut Build<'_>, ngram: &Ngram, x: ValueId) -> Result<ValueId, ModelError> {
    let (layer, width) = (ngram.layer, build.width(x));
    let (taps, dilation) = (ngram.taps, ngram.ngram_size);
    let filter = build.weight(Role::NgramConv, layer, &[width, taps.into()]);
    let name = format!("ngram.conv.{layer}");
    let kind = StateKind::Tail((u32::from(taps) - 1) * u32::from(dilation));
    let row = TensorType::new(DType::F32, &[width]);
    let state = build.state(StateDef::new(name.clone(), kind, row));
    let op = Op::Conv1d { taps, dilation };
    let made = build.push_all(op, &[state, x, filter], node_name(Role::NgramConv, layer))?;
    build.update(&name, made[1]);
    Ok(made[0])
}
