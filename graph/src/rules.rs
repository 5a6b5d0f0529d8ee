//! The rules of each op: names of its operands and types of its results.

mod check;
mod hybrid;

use crate::error::ShapeError;
use crate::op::Op;
use crate::types::{DType, TensorType};
use check::Check;

/// Operands of `op`, in order. Flags of the op decide which optional ones are there.
pub fn operand_names(op: &Op) -> Vec<&'static str> {
    let with = |base: &[&'static str], flags: &[(bool, &[&'static str])]| {
        let mut names = base.to_vec();
        for (_, extra) in flags.iter().filter(|(on, _)| *on) {
            names.extend_from_slice(extra);
        }
        names
    };
    match *op {
        Op::Embed { .. } => vec!["table"],
        Op::StreamRepeat { .. } | Op::ScaledSilu { .. } | Op::ScaledSiluQuantize { .. } => {
            vec!["x"]
        }
        Op::StreamConcat { .. } => vec!["e", "h"],
        Op::StreamMatmul { .. } => vec!["x", "weight"],
        Op::GroupRmsNorm { .. } | Op::GroupRmsNormQuantize { .. } => vec!["x", "gain"],
        Op::HcRead { .. } | Op::HcReadQuantize { .. } => vec!["normed", "gates"],
        Op::HcWrite { .. } => vec!["residual", "y", "inject"],
        Op::HcWriteNorm { shared, .. } => {
            with(&["residual", "y", "inject", "gain"], &[(shared, &["shared", "logit"])])
        }
        Op::Conv1d { .. } => vec!["state", "x", "filter"],
        Op::GatedDelta { .. } => vec!["state", "qkv", "beta", "alpha", "rates", "dt_bias"],
        Op::GatedHeadNorm { .. } | Op::GatedHeadNormQuantize { .. } => vec!["x", "gain", "z"],
        Op::GatedAdd {} => vec!["a", "b", "logit"],
        Op::BlockKeys { .. } => vec!["tail", "keys", "x", "gain", "inverse_frequencies"],
        Op::BlockScores { .. } => vec!["queries", "keys"],
        Op::BlockTop { .. } => vec!["scores"],
        Op::SparseAttention { .. } => vec!["queries", "state", "selection"],
        Op::NgramRows { .. } => vec!["state", "hash"],
        Op::NgramEmbed {} => vec!["ids", "table"],
        Op::NgramGate { .. } => vec!["key", "query", "value"],
        Op::ShiftRows {} => vec!["state", "x"],
        Op::ReadTail { .. } => vec!["state"],
        Op::RopeAngles { .. } => vec!["inverse_frequencies"],
        Op::GatherRows {} | Op::Silu {} | Op::Gelu {} | Op::Quantize {} => vec!["x"],
        Op::RmsNorm { .. }
        | Op::HeadNorm { .. }
        | Op::RmsNormQuantize { .. }
        | Op::RmsNormBoth { .. } => vec!["x", "gain"],
        Op::RmsNormAdd { .. } => vec!["x", "gain", "residual"],
        Op::Rope { .. } => vec!["x", "angles"],
        Op::Matmul { bias, residual } => {
            with(&["x", "weight"], &[(bias, &["bias"]), (residual, &["residual"])])
        }
        Op::StateAppend {} => vec!["state", "keys", "values"],
        Op::Attention { .. } => vec!["queries", "state"],
        Op::Add {} | Op::Mul {} | Op::ActMul { .. } => vec!["a", "b"],
        Op::Route { .. } | Op::RouteDispatch { .. } => vec!["logits"],
        Op::ExpertMlp { .. } => vec!["x", "ids", "weights", "gate", "up", "down"],
        Op::GatedMatmul { .. } => vec!["x", "gate", "up"],
        Op::Projections { count, floats, quantised } => {
            let mut names = with(&[], &[(floats, &["x"]), (quantised, &["x8"])]);
            names.resize(names.len() + usize::from(count), "weight");
            names
        }
        Op::AttentionPrologue { norm, .. } => with(
            &["state", "queries", "keys", "values", "angles"],
            &[(norm, &["query_gain", "key_gain"])],
        ),
        Op::ExpertDispatch { .. } => vec!["ids"],
        Op::ExpertGated { .. } => vec!["x", "dispatch", "gate", "up"],
        Op::ExpertDown {} => vec!["x", "dispatch", "down"],
        Op::ExpertCombine { residual } => with(&["x", "weights"], &[(residual, &["residual"])]),
        Op::ExpertSum { residual } => {
            with(&["x", "ids", "weights", "down"], &[(residual, &["residual"])])
        }
    }
}

fn replace_last(ty: TensorType, dtype: DType, last: u32) -> TensorType {
    let mut dims = ty.dims().to_vec();
    if let Some(dim) = dims.last_mut() {
        *dim = last;
    }
    TensorType::new(dtype, &dims)
}

fn float_or_q8(quantize: bool) -> DType {
    if quantize { DType::Q8 } else { DType::F32 }
}

/// Types of the results of `op` over operands of `types`.
///
/// `rows` is the number of rows of the window and `logit_rows` how many of them may ask for logits.
///
/// # Errors
/// The first operand that does not fit, by name.
pub fn result_types(
    op: &Op,
    types: &[TensorType],
    rows: u32,
    logit_rows: u32,
) -> Result<Vec<TensorType>, ShapeError> {
    let names = operand_names(op);
    let name = op.name();
    if types.len() != names.len() {
        return Err(ShapeError::Arity { op: name, found: types.len(), need: names.len() });
    }
    let check = Check { op: name, names, types };
    match op {
        Op::Embed { .. }
        | Op::RopeAngles { .. }
        | Op::GatherRows {}
        | Op::Quantize {}
        | Op::Silu {}
        | Op::Gelu {}
        | Op::Add {}
        | Op::Mul {}
        | Op::ActMul { .. }
        | Op::RmsNorm { .. }
        | Op::RmsNormQuantize { .. }
        | Op::RmsNormBoth { .. }
        | Op::RmsNormAdd { .. } => row_results(op, &check, rows, logit_rows),
        Op::HeadNorm { .. }
        | Op::Rope { .. }
        | Op::StateAppend {}
        | Op::Attention { .. }
        | Op::AttentionPrologue { .. } => attention_results(op, &check),
        Op::StreamRepeat { .. }
        | Op::StreamConcat { .. }
        | Op::StreamMatmul { .. }
        | Op::GroupRmsNorm { .. }
        | Op::ScaledSilu { .. }
        | Op::HcRead { .. }
        | Op::HcWrite { .. }
        | Op::GatedHeadNorm { .. }
        | Op::GatedAdd {}
        | Op::NgramEmbed {}
        | Op::NgramGate { .. } => hybrid::row_results(op, &check),
        Op::GroupRmsNormQuantize { .. }
        | Op::ScaledSiluQuantize { .. }
        | Op::HcReadQuantize { .. }
        | Op::GatedHeadNormQuantize { .. } => hybrid::quantised_results(op, &check),
        Op::HcWriteNorm { .. } => hybrid::written_results(op, &check),
        Op::Projections { .. } => projections(op, &check),
        Op::Conv1d { .. }
        | Op::GatedDelta { .. }
        | Op::NgramRows { .. }
        | Op::ShiftRows {}
        | Op::ReadTail { .. } => hybrid::recurrent_results(op, &check, rows),
        Op::BlockKeys { .. }
        | Op::BlockScores { .. }
        | Op::BlockTop { .. }
        | Op::SparseAttention { .. } => hybrid::sparse_results(op, &check),
        Op::Matmul { .. }
        | Op::GatedMatmul { .. }
        | Op::Route { .. }
        | Op::RouteDispatch { .. }
        | Op::ExpertMlp { .. }
        | Op::ExpertDispatch { .. }
        | Op::ExpertGated { .. }
        | Op::ExpertDown {}
        | Op::ExpertCombine { .. }
        | Op::ExpertSum { .. } => product_results(op, &check),
    }
}

fn row_results(
    op: &Op,
    check: &Check<'_>,
    rows: u32,
    logit_rows: u32,
) -> Result<Vec<TensorType>, ShapeError> {
    let x = check.types[0];
    let quantised = x.with_dtype(DType::Q8);
    Ok(vec![match *op {
        Op::Embed { .. } => {
            check.rank(0, 2)?;
            TensorType::new(DType::F32, &[rows, x.last_dim()])
        }
        Op::RopeAngles { dims } => {
            check.rotated(dims, u32::from(dims))?;
            check.vector(0, u32::from(dims) / 2)?;
            TensorType::new(DType::F32, &[rows, u32::from(dims)])
        }
        Op::GatherRows {} => {
            check.f32(0)?;
            check.rank(0, 2)?;
            TensorType::new(DType::F32, &[logit_rows, x.last_dim()])
        }
        Op::Quantize {} => {
            check.f32(0)?;
            check.activation(0)?;
            quantised
        }
        Op::Add {} | Op::Mul {} | Op::ActMul { .. } => {
            check.f32(0)?;
            check.f32(1)?;
            check.dims(1, x)?;
            match *op {
                Op::ActMul { quantize, .. } => x.with_dtype(float_or_q8(quantize)),
                _ => x,
            }
        }
        Op::RmsNormBoth { .. } => {
            check.f32(0)?;
            check.vector(1, x.last_dim())?;
            return Ok(vec![x, quantised]);
        }
        Op::RmsNorm { .. } | Op::RmsNormQuantize { .. } | Op::RmsNormAdd { .. } => {
            check.f32(0)?;
            check.vector(1, x.last_dim())?;
            match op {
                Op::RmsNormQuantize { .. } => quantised,
                Op::RmsNormAdd { .. } => {
                    check.f32(2)?;
                    check.dims(2, x)?;
                    x
                }
                _ => x,
            }
        }
        _ => {
            check.f32(0)?;
            x
        }
    }])
}

fn attention_results(op: &Op, check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let x = check.types[0];
    match *op {
        Op::HeadNorm { heads, .. } => {
            check.f32(0)?;
            check.activation(0)?;
            let head_dim = check.heads(0, heads)?;
            check.vector(1, head_dim)?;
            Ok(vec![x])
        }
        Op::Rope { heads, dims, .. } => {
            check.f32(0)?;
            check.activation(0)?;
            let head_dim = check.heads(0, heads)?;
            check.rotated(dims, head_dim)?;
            check.f32(1)?;
            check.last_dim(1, u32::from(dims))?;
            Ok(vec![x])
        }
        Op::StateAppend {} => {
            check.state(0)?;
            check.f32(1)?;
            check.activation(1)?;
            check.f32(2)?;
            check.dims(2, check.types[1])?;
            Ok(vec![TensorType::state()])
        }
        Op::Attention { heads, kv_heads, head_dim, quantize, .. } => {
            check.f32(0)?;
            check.activation(0)?;
            grouped_heads(check, heads, kv_heads)?;
            check.last_dim(0, u32::from(heads) * u32::from(head_dim))?;
            check.state(1)?;
            Ok(vec![x.with_dtype(float_or_q8(quantize))])
        }
        Op::AttentionPrologue { heads, kv_heads, head_dim, dims, norm, .. } => {
            check.state(0)?;
            for operand in 1..5 {
                check.f32(operand)?;
            }
            check.activation(1)?;
            grouped_heads(check, heads, kv_heads)?;
            check.rotated(dims, u32::from(head_dim))?;
            check.last_dim(1, u32::from(heads) * u32::from(head_dim))?;
            check.last_dim(2, u32::from(kv_heads) * u32::from(head_dim))?;
            check.dims(3, check.types[2])?;
            check.last_dim(4, u32::from(dims))?;
            if norm {
                check.vector(5, u32::from(head_dim))?;
                check.vector(6, u32::from(head_dim))?;
            }
            Ok(vec![check.types[1], TensorType::state()])
        }
        _ => unreachable!("result_types sends only attention ops here"),
    }
}

/// Each key head serves the same number of query heads.
fn grouped_heads(check: &Check<'_>, heads: u16, kv_heads: u16) -> Result<(), ShapeError> {
    check.attribute("kv_heads", kv_heads, "a divisor of heads", |kv_heads| {
        kv_heads != 0 && heads != 0 && u32::from(heads).is_multiple_of(kv_heads)
    })
}

fn product_results(op: &Op, check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let x = check.types[0];
    match *op {
        Op::Matmul { bias, residual } => {
            check.product(0, 1)?;
            check.rank(1, 2)?;
            let out = check.types[1].dims()[0];
            let result = replace_last(x, DType::F32, out);
            if bias {
                check.vector(2, out)?;
            }
            if residual {
                check.f32(2 + usize::from(bias))?;
                check.dims(2 + usize::from(bias), result)?;
            }
            Ok(vec![result])
        }
        Op::GatedMatmul { quantize, .. } => {
            check.product(0, 1)?;
            check.product(0, 2)?;
            check.rank(1, 2)?;
            check.dims(2, check.types[1])?;
            Ok(vec![replace_last(x, float_or_q8(quantize), check.types[1].dims()[0])])
        }
        Op::Route { top_k, .. } => routed(check, top_k).map(Vec::from),
        Op::RouteDispatch { top_k, .. } => {
            let [ids, weights] = routed(check, top_k)?;
            Ok(vec![ids, weights, dispatch_list(ids, x.last_dim())])
        }
        Op::ExpertMlp { .. } => expert_mlp(check),
        Op::ExpertDispatch { experts } => {
            check.u32(0)?;
            check.rank(0, 2)?;
            Ok(vec![dispatch_list(x, experts.into())])
        }
        Op::ExpertGated { quantize, .. } => expert_gated(check, quantize),
        Op::ExpertDown {} => {
            check.rank(0, 2)?;
            check.u32(1)?;
            check.rank(1, 2)?;
            check.product(0, 2)?;
            check.rank(2, 3)?;
            Ok(vec![replace_last(x, DType::F32, check.types[2].dims()[1])])
        }
        Op::ExpertCombine { residual } => {
            check.f32(0)?;
            summed(check, 1, x.last_dim(), residual.then_some(2))
        }
        Op::ExpertSum { residual } => {
            check.u32(1)?;
            check.dims(1, check.types[2])?;
            check.product(0, 3)?;
            check.rank(3, 3)?;
            summed(check, 2, check.types[3].dims()[1], residual.then_some(4))
        }
        _ => unreachable!("result_types sends only products here"),
    }
}

/// One result for each weight; the input's forms agree but for their element type.
fn projections(op: &Op, check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let Op::Projections { count, floats, quantised } = *op else {
        unreachable!("result_types sends only projections here")
    };
    check.attribute("count", count, "2 to 8", |count| (2..=8).contains(&count))?;
    let inputs = usize::from(floats) + usize::from(quantised);
    let blocks = check.types[inputs..].iter().filter(|w| w.dtype.is_block_quantised()).count();
    let forms =
        [("floats", floats, blocks < usize::from(count)), ("quantised", quantised, blocks > 0)];
    for (name, found, need) in forms {
        let fits = |_| found == need;
        check.attribute(name, found.into(), "1 if a weight needs the input so, else 0", fits)?;
    }
    let x = check.types[0];
    if floats {
        check.f32(0)?;
    }
    if quantised {
        check.element(inputs - 1, "q8", |dtype| dtype == DType::Q8)?;
        check.dims(inputs - 1, x)?;
    }
    let mut results = Vec::with_capacity(usize::from(count));
    for weight in inputs..inputs + usize::from(count) {
        let input = if check.types[weight].dtype.is_block_quantised() { inputs - 1 } else { 0 };
        check.product(input, weight)?;
        check.rank(weight, 2)?;
        results.push(replace_last(x, DType::F32, check.types[weight].dims()[0]));
    }
    Ok(results)
}

/// Ids and weights of the experts of each row of logits.
fn routed(check: &Check<'_>, top_k: u16) -> Result<[TensorType; 2], ShapeError> {
    let logits = check.types[0];
    check.f32(0)?;
    check.rank(0, 2)?;
    check.attribute("top_k", top_k, "1 to the number of experts", |k| {
        k != 0 && k <= logits.last_dim()
    })?;
    let dims = [logits.dims()[0], u32::from(top_k)];
    Ok([TensorType::new(DType::U32, &dims), TensorType::new(DType::F32, &dims)])
}

fn dispatch_list(ids: TensorType, experts: u32) -> TensorType {
    // A count that does not fit is caught where the number of pairs is compared.
    let pairs = ids.dims()[0].saturating_mul(ids.last_dim());
    TensorType::new(DType::U32, &[pairs.saturating_add(experts.saturating_add(2)), 1])
}

/// One row of `width` for the pairs of each row of `weights`; operand 0 has a row for each pair.
fn summed(
    check: &Check<'_>,
    weights: usize,
    width: u32,
    residual: Option<usize>,
) -> Result<Vec<TensorType>, ShapeError> {
    check.f32(weights)?;
    check.rank(weights, 2)?;
    let [rows, top_k] = [check.types[weights].dims()[0], check.types[weights].last_dim()];
    let x = check.types[0];
    check.dims(0, TensorType::new(x.dtype, &[rows.saturating_mul(top_k), x.last_dim()]))?;
    let result = TensorType::new(DType::F32, &[rows, width]);
    if let Some(residual) = residual {
        check.f32(residual)?;
        check.dims(residual, result)?;
    }
    Ok(vec![result])
}

/// Gate and up `[experts, intermediate, hidden]`, down `[experts, hidden, intermediate]`.
fn expert_mlp(check: &Check<'_>) -> Result<Vec<TensorType>, ShapeError> {
    let x = check.types[0];
    check.u32(1)?;
    check.rank(1, 2)?;
    check.f32(2)?;
    check.dims(2, check.types[1])?;
    for bank in [3, 4] {
        check.product(0, bank)?;
        check.rank(bank, 3)?;
    }
    check.dims(4, check.types[3])?;
    let bank = check.types[3].dims();
    check.dims(5, TensorType::new(check.types[5].dtype, &[bank[0], x.last_dim(), bank[1]]))?;
    Ok(vec![x.with_dtype(DType::F32)])
}

/// One row for each pair of a window row and a chosen expert.
fn expert_gated(check: &Check<'_>, quantize: bool) -> Result<Vec<TensorType>, ShapeError> {
    check.u32(1)?;
    check.rank(1, 2)?;
    for bank in [2, 3] {
        check.product(0, bank)?;
        check.rank(bank, 3)?;
    }
    check.dims(3, check.types[2])?;
    let bank = check.types[2].dims();
    let pairs = check.types[1].dims()[0].saturating_sub(bank[0].saturating_add(2));
    Ok(vec![TensorType::new(float_or_q8(quantize), &[pairs, bank[1]])])
}
