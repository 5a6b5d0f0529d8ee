//! The rules of each op: names of its operands, types of its results, and what it costs.

use crate::error::ShapeError;
use crate::op::Op;
use crate::types::{DType, TensorType};

/// What one execution of a node moves and computes, weights included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    pub bytes: u64,
    pub flops: u64,
}

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
        Op::RopeAngles { .. } => vec!["inverse_frequencies"],
        Op::GatherRows {} | Op::Silu {} | Op::Gelu {} | Op::Quantize {} => vec!["x"],
        Op::RmsNorm { .. } | Op::HeadNorm { .. } | Op::RmsNormQuantize { .. } => vec!["x", "gain"],
        Op::RmsNormAdd { .. } => vec!["x", "gain", "residual"],
        Op::Rope { .. } => vec!["x", "angles"],
        Op::Matmul { bias, residual } => {
            with(&["x", "weight"], &[(bias, &["bias"]), (residual, &["residual"])])
        }
        Op::StateAppend {} => vec!["state", "keys", "values"],
        Op::Attention { .. } => vec!["queries", "state"],
        Op::Add {} | Op::Mul {} => vec!["a", "b"],
        Op::Route { .. } => vec!["logits"],
        Op::ExpertMlp { .. } => vec!["x", "ids", "weights", "gate", "up", "down"],
        Op::GatedMatmul { .. } => vec!["x", "gate", "up"],
        Op::AttentionPrologue { norm, .. } => with(
            &["state", "queries", "keys", "values", "angles"],
            &[(norm, &["query_gain", "key_gain"])],
        ),
        Op::ExpertDispatch { .. } => vec!["ids"],
        Op::ExpertGated { .. } => vec!["x", "dispatch", "gate", "up"],
        Op::ExpertDown {} => vec!["x", "dispatch", "down"],
        Op::ExpertCombine { residual } => with(&["x", "weights"], &[(residual, &["residual"])]),
    }
}

/// Checks of one node's operands; each names the op and the operand.
struct Check<'a> {
    op: &'static str,
    names: Vec<&'static str>,
    types: &'a [TensorType],
}

impl Check<'_> {
    fn last_dim(&self, operand: usize, need: u32) -> Result<(), ShapeError> {
        let found = self.types[operand].last_dim();
        let (op, operand) = (self.op, self.names[operand]);
        if found == need { Ok(()) } else { Err(ShapeError::LastDim { op, operand, found, need }) }
    }

    fn rank(&self, operand: usize, need: usize) -> Result<(), ShapeError> {
        let found = self.types[operand].dims().len();
        let (op, operand) = (self.op, self.names[operand]);
        if found == need { Ok(()) } else { Err(ShapeError::Rank { op, operand, found, need }) }
    }

    fn dims(&self, operand: usize, need: TensorType) -> Result<(), ShapeError> {
        let found = self.types[operand];
        let (op, operand) = (self.op, self.names[operand]);
        if found.dims() == need.dims() {
            Ok(())
        } else {
            Err(ShapeError::Dims { op, operand, found, need })
        }
    }

    fn element(
        &self,
        operand: usize,
        need: &'static str,
        ok: impl Fn(DType) -> bool,
    ) -> Result<(), ShapeError> {
        let found = self.types[operand].dtype;
        let (op, operand) = (self.op, self.names[operand]);
        if ok(found) { Ok(()) } else { Err(ShapeError::Element { op, operand, found, need }) }
    }

    fn f32(&self, operand: usize) -> Result<(), ShapeError> {
        self.element(operand, "f32", |d| d == DType::F32)
    }

    fn state(&self, operand: usize) -> Result<(), ShapeError> {
        self.element(operand, "a state", |d| d == DType::State)
    }

    /// A vector of per-element gains or biases; its own element type is settled on loading.
    fn vector(&self, operand: usize, need: u32) -> Result<(), ShapeError> {
        self.rank(operand, 1)?;
        self.last_dim(operand, need)
    }

    /// `x` fits `weight`: f32 with a float weight, q8 with a quantised one. Before weights are
    /// resolved and activations quantised either may be f32.
    fn product(&self, x: usize, weight: usize) -> Result<(), ShapeError> {
        self.element(x, "f32 or q8", |d| matches!(d, DType::F32 | DType::Q8))?;
        if self.types[x].dtype == DType::Q8 {
            self.element(weight, "a quantised format", DType::is_block_quantised)?;
        }
        self.last_dim(weight, self.types[x].last_dim())
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
        | Op::RmsNorm { .. }
        | Op::RmsNormQuantize { .. }
        | Op::RmsNormAdd { .. } => row_results(op, &check, rows, logit_rows),
        Op::HeadNorm { .. }
        | Op::Rope { .. }
        | Op::StateAppend {}
        | Op::Attention { .. }
        | Op::AttentionPrologue { .. } => attention_results(op, &check),
        Op::Matmul { .. }
        | Op::GatedMatmul { .. }
        | Op::Route { .. }
        | Op::ExpertMlp { .. }
        | Op::ExpertDispatch { .. }
        | Op::ExpertGated { .. }
        | Op::ExpertDown {}
        | Op::ExpertCombine { .. } => product_results(op, &check),
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
            check.vector(0, u32::from(dims) / 2)?;
            TensorType::new(DType::F32, &[rows, u32::from(dims)])
        }
        Op::GatherRows {} => {
            check.f32(0)?;
            TensorType::new(DType::F32, &[logit_rows, x.last_dim()])
        }
        Op::Quantize {} => {
            check.f32(0)?;
            quantised
        }
        Op::Add {} | Op::Mul {} => {
            check.f32(0)?;
            check.f32(1)?;
            check.dims(1, x)?;
            x
        }
        Op::RmsNorm { .. } | Op::RmsNormQuantize { .. } | Op::RmsNormAdd { .. } => {
            check.f32(0)?;
            check.vector(1, x.last_dim())?;
            match op {
                Op::RmsNormQuantize { .. } => quantised,
                Op::RmsNormAdd { .. } => {
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
            let heads = u32::from(heads);
            if heads == 0 || !x.last_dim().is_multiple_of(heads) {
                return Err(ShapeError::Attribute {
                    op: check.op,
                    name: "heads",
                    found: heads,
                    need: "a divisor of the innermost dimension",
                });
            }
            check.vector(1, x.last_dim() / heads)?;
            Ok(vec![x])
        }
        Op::Rope { dims, .. } => {
            check.f32(0)?;
            check.last_dim(1, u32::from(dims))?;
            Ok(vec![x])
        }
        Op::StateAppend {} => {
            check.state(0)?;
            check.f32(1)?;
            check.dims(2, check.types[1])?;
            Ok(vec![TensorType::state()])
        }
        Op::Attention { heads, head_dim, quantize, .. } => {
            check.f32(0)?;
            check.last_dim(0, u32::from(heads) * u32::from(head_dim))?;
            check.state(1)?;
            Ok(vec![x.with_dtype(float_or_q8(quantize))])
        }
        Op::AttentionPrologue { heads, kv_heads, head_dim, dims, norm, .. } => {
            check.state(0)?;
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
                check.dims(2 + usize::from(bias), result)?;
            }
            Ok(vec![result])
        }
        Op::GatedMatmul { quantize, .. } => {
            check.product(0, 1)?;
            check.dims(2, check.types[1])?;
            Ok(vec![replace_last(x, float_or_q8(quantize), check.types[1].dims()[0])])
        }
        Op::Route { top_k, .. } => {
            check.f32(0)?;
            let dims = [x.dims()[0], u32::from(top_k)];
            Ok(vec![TensorType::new(DType::U32, &dims), TensorType::new(DType::F32, &dims)])
        }
        Op::ExpertMlp { .. } => {
            check.rank(3, 3)?;
            check.last_dim(3, x.last_dim())?;
            check.dims(4, check.types[3])?;
            check.last_dim(5, check.types[3].dims()[1])?;
            Ok(vec![x.with_dtype(DType::F32)])
        }
        Op::ExpertDispatch { experts } => {
            let pairs = x.dims()[0] * x.last_dim();
            let words = 2 + u32::from(experts) + pairs;
            Ok(vec![TensorType::new(DType::U32, &[words, 1])])
        }
        Op::ExpertGated { quantize, .. } => expert_gated(check, quantize),
        Op::ExpertDown {} => {
            check.product(0, 2)?;
            check.rank(2, 3)?;
            Ok(vec![replace_last(x, DType::F32, check.types[2].dims()[1])])
        }
        Op::ExpertCombine { residual } => {
            check.f32(0)?;
            let result = TensorType::new(DType::F32, &[check.types[1].dims()[0], x.last_dim()]);
            if residual {
                check.dims(2, result)?;
            }
            Ok(vec![result])
        }
        _ => unreachable!("result_types sends only products here"),
    }
}

/// One row for each pair of a window row and a chosen expert.
fn expert_gated(check: &Check<'_>, quantize: bool) -> Result<Vec<TensorType>, ShapeError> {
    check.product(0, 2)?;
    check.rank(2, 3)?;
    check.dims(3, check.types[2])?;
    let bank = check.types[2].dims();
    let pairs = check.types[1].dims()[0].saturating_sub(2 + bank[0]);
    Ok(vec![TensorType::new(float_or_q8(quantize), &[pairs, bank[1]])])
}

/// Bytes and operations of one execution with all rows live.
///
/// A bank of experts counts the experts that the rows can reach at most; the cache it reads and the
/// positions attended are not known here and do not count.
pub fn cost(op: &Op, operands: &[TensorType], results: &[TensorType]) -> Cost {
    let bytes_of = |types: &[TensorType]| types.iter().map(TensorType::bytes).sum::<u64>();
    let elements: u64 = results.iter().map(TensorType::elements).sum();
    let all = bytes_of(operands) + bytes_of(results);
    let product = |x: &TensorType, weight: &TensorType| {
        2 * x.row_count()
            * u64::from(x.last_dim())
            * u64::from(weight.dims()[weight.dims().len() - 2])
    };
    let reached = |bank: &TensorType, pairs: u64| {
        let experts = u64::from(bank.dims()[0]);
        bank.bytes() / experts * experts.min(pairs)
    };
    match op {
        Op::Embed { .. } => Cost {
            bytes: operands[0].row_bytes() * results[0].row_count() + results[0].bytes(),
            flops: elements,
        },
        Op::Matmul { .. } => Cost { bytes: all, flops: product(&operands[0], &operands[1]) },
        Op::GatedMatmul { .. } => {
            Cost { bytes: all, flops: 2 * product(&operands[0], &operands[1]) }
        }
        Op::ExpertMlp { .. } => {
            let pairs = operands[1].elements();
            let weights = (3..6).map(|i| reached(&operands[i], pairs)).sum::<u64>();
            let flops = (3..6).map(|i| 2 * operands[i].elements()).sum::<u64>();
            Cost {
                bytes: bytes_of(&operands[..3]) + weights + bytes_of(results),
                flops: flops / u64::from(operands[3].dims()[0]) * pairs,
            }
        }
        Op::ExpertGated { .. } | Op::ExpertDown {} => {
            let pairs = results[0].row_count();
            let weights = operands[2..].iter().map(|bank| reached(bank, pairs)).sum::<u64>();
            let width = u64::from(operands[2].last_dim());
            let banks = operands[2..].len() as u64;
            Cost {
                bytes: bytes_of(&operands[..2]) + weights + bytes_of(results),
                flops: 2 * banks * width * results[0].elements(),
            }
        }
        Op::RmsNorm { .. }
        | Op::RmsNormQuantize { .. }
        | Op::RmsNormAdd { .. }
        | Op::HeadNorm { .. } => Cost { bytes: all, flops: 4 * elements },
        _ => Cost { bytes: all, flops: elements },
    }
}
