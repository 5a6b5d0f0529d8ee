//! Result types of the ops of hybrid models: streams, recurrent layers, block-sparse attention and
//! n-grams.
//!
//! How wide a state's rows are is not known here; [`crate::verify`] compares them.

use super::check::Check;
use super::{float_or_q8, grouped_heads, replace_last};
use crate::error::ShapeError;
use crate::op::Op;
use crate::types::{DType, TensorType};

fn times(width: u32, count: u16) -> u32 {
    width.saturating_mul(u32::from(count))
}

/// The width of one of `count` equal parts of the rows of `operand`.
fn part(
    check: &Check<'_>,
    operand: usize,
    name: &'static str,
    count: u16,
) -> Result<u32, ShapeError> {
    let width = check.types[operand].last_dim();
    check.attribute(name, count, "a divisor of the innermost dimension", |count| {
        count != 0 && width.is_multiple_of(count)
    })?;
    Ok(width / u32::from(count))
}

/// `operand` is f32 with the rows of `like` and `width` elements each.
fn rows_of(check: &Check<'_>, operand: usize, like: usize, width: u32) -> Result<(), ShapeError> {
    check.f32(operand)?;
    check.dims(operand, replace_last(check.types[like], DType::F32, width))
}

/// Ops whose rows do not know of each other.
pub(super) fn row_results(op: &Op, check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let x = check.types[0];
    check.activation(0)?;
    if !matches!(op, Op::StreamMatmul { .. } | Op::NgramEmbed {}) {
        check.f32(0)?;
    }
    Ok(vec![match *op {
        Op::StreamRepeat { streams } => replace_last(x, DType::F32, times(x.last_dim(), streams)),
        Op::StreamConcat { streams } => {
            rows_of(check, 1, 0, times(x.last_dim(), streams))?;
            replace_last(x, DType::F32, times(x.last_dim(), streams).saturating_mul(2))
        }
        Op::StreamMatmul { streams } => {
            let width = part(check, 0, "streams", streams)?;
            check.rank(1, 2)?;
            check.product_of(0, 1, width)?;
            replace_last(x, DType::F32, times(check.types[1].dims()[0], streams))
        }
        Op::GroupRmsNorm { groups, .. } => {
            part(check, 0, "groups", groups)?;
            check.vector(1, x.last_dim())?;
            x
        }
        Op::ScaledSilu { .. } => x,
        Op::HcRead { streams } => {
            rows_of(check, 1, 0, x.last_dim())?;
            replace_last(x, DType::F32, part(check, 0, "streams", streams)?)
        }
        Op::HcWrite { streams } => {
            rows_of(check, 1, 0, part(check, 0, "streams", streams)?)?;
            rows_of(check, 2, 0, streams.into())?;
            x
        }
        Op::GatedHeadNorm { heads, .. } => {
            let head_dim = check.heads(0, heads)?;
            check.vector(1, head_dim)?;
            rows_of(check, 2, 0, x.last_dim())?;
            x
        }
        Op::GatedAdd {} => {
            rows_of(check, 1, 0, x.last_dim())?;
            rows_of(check, 2, 0, 1)?;
            x
        }
        Op::NgramEmbed {} => {
            check.u32(0)?;
            check.rank(1, 2)?;
            let width = check.types[1].last_dim();
            replace_last(x, DType::F32, width.saturating_mul(x.last_dim()))
        }
        Op::NgramGate { streams } => {
            rows_of(check, 1, 0, x.last_dim())?;
            rows_of(check, 2, 0, part(check, 0, "streams", streams)?)?;
            x
        }
        _ => unreachable!("result_types sends only ops on rows here"),
    }])
}

/// Ops on rows that give 8 bit, and the f32 rows before them if they keep those.
pub(super) fn quantised_results(op: &Op, check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let (plain, keep) = match *op {
        Op::GroupRmsNormQuantize { eps, groups, keep } => (Op::GroupRmsNorm { eps, groups }, keep),
        Op::ScaledSiluQuantize { scale } => (Op::ScaledSilu { scale }, false),
        Op::HcReadQuantize { streams, keep } => (Op::HcRead { streams }, keep),
        Op::GatedHeadNormQuantize { eps, heads, act } => {
            (Op::GatedHeadNorm { eps, heads, act }, false)
        }
        _ => unreachable!("result_types sends only quantising ops here"),
    };
    let mut results = row_results(&plain, check)?;
    let quantised = results[0].with_dtype(DType::Q8);
    if !keep {
        results.clear();
    }
    results.push(quantised);
    Ok(results)
}

/// A write to the streams of a residual and the norm of what it gives.
pub(super) fn written_results(op: &Op, check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let Op::HcWriteNorm { streams, shared, quantize, .. } = *op else {
        unreachable!("result_types sends only writes with a norm here")
    };
    let x = check.types[0];
    row_results(&Op::HcWrite { streams }, check)?;
    check.vector(3, x.last_dim())?;
    if shared {
        rows_of(check, 4, 0, part(check, 0, "streams", streams)?)?;
        rows_of(check, 5, 0, 1)?;
    }
    let mut results = vec![x, x];
    results.extend(quantize.then(|| x.with_dtype(DType::Q8)));
    Ok(results)
}

/// Ops that pass something on from row to row.
pub(super) fn recurrent_results(
    op: &Op,
    check: &Check<'_>,
    rows: u32,
) -> Result<Vec<TensorType>, ShapeError> {
    check.state(0)?;
    let state = TensorType::state();
    match *op {
        Op::Conv1d { taps, dilation } => {
            check.f32(1)?;
            check.activation(1)?;
            check.attribute("taps", taps, "at least 2", |taps| taps > 1)?;
            check.attribute("dilation", dilation, "at least 1", |dilation| dilation > 0)?;
            check.rank(2, 2)?;
            let x = check.types[1];
            check.dims(2, TensorType::new(DType::F32, &[x.last_dim(), taps.into()]))?;
            Ok(vec![x, state])
        }
        Op::GatedDelta { key_heads, value_heads, head_dim, interleaved, .. } => {
            grouped(check, value_heads, key_heads)?;
            let width = |heads: u32| heads.saturating_mul(head_dim.into());
            let (key_heads, value_heads) = (u32::from(key_heads), u32::from(value_heads));
            check.f32(1)?;
            check.activation(1)?;
            check.last_dim(1, width(2 * key_heads + value_heads))?;
            let gates = if interleaved { 2 * value_heads } else { value_heads };
            for operand in [2, 3] {
                rows_of(check, operand, 1, gates)?;
            }
            check.vector(4, value_heads)?;
            check.vector(5, value_heads)?;
            Ok(vec![replace_last(check.types[1], DType::F32, width(value_heads)), state])
        }
        Op::NgramRows { ngram, heads } => {
            check.attribute("ngram", ngram, "at least 2", |ngram| ngram > 1)?;
            check.element(1, "u64", |dtype| dtype == DType::U64)?;
            check.last_dim(1, u32::from(ngram) + 2 * u32::from(heads) + 1)?;
            Ok(vec![TensorType::new(DType::U32, &[rows, heads.into()]), state])
        }
        Op::ShiftRows {} => {
            check.f32(1)?;
            check.activation(1)?;
            Ok(vec![check.types[1], state])
        }
        Op::ReadTail { width } => Ok(vec![TensorType::new(DType::F32, &[rows, width])]),
        _ => unreachable!("result_types sends only recurrent ops here"),
    }
}

fn grouped(check: &Check<'_>, heads: u16, key_heads: u16) -> Result<(), ShapeError> {
    check.attribute("key_heads", key_heads, "a divisor of value_heads", |key_heads| {
        key_heads != 0 && heads != 0 && u32::from(heads).is_multiple_of(key_heads)
    })
}

/// Ops on blocks of positions.
pub(super) fn sparse_results(op: &Op, check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let x = check.types[0];
    match *op {
        Op::BlockKeys { dims, .. } => {
            check.state(0)?;
            check.state(1)?;
            check.f32(2)?;
            check.activation(2)?;
            let width = check.types[2].last_dim();
            check.vector(3, width)?;
            check.rotated(dims, width)?;
            check.vector(4, u32::from(dims) / 2)?;
            Ok(vec![TensorType::state(); 2])
        }
        Op::BlockScores { heads, blocks, .. } => {
            check.f32(0)?;
            check.activation(0)?;
            check.heads(0, heads)?;
            check.state(1)?;
            Ok(vec![replace_last(x, DType::F32, blocks)])
        }
        Op::BlockTop { keep, .. } => {
            check.f32(0)?;
            check.activation(0)?;
            Ok(vec![replace_last(x, DType::U32, keep.saturating_add(2))])
        }
        Op::SparseAttention { heads, kv_heads, head_dim, quantize, .. } => {
            check.f32(0)?;
            check.activation(0)?;
            grouped_heads(check, heads, kv_heads)?;
            check.last_dim(0, u32::from(heads) * u32::from(head_dim))?;
            check.state(1)?;
            check.u32(2)?;
            check.activation(2)?;
            Ok(vec![x.with_dtype(float_or_q8(quantize))])
        }
        _ => unreachable!("result_types sends only sparse attention here"),
    }
}
