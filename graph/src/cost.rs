//! What each op moves and computes.

use crate::op::Op;
use crate::types::TensorType;

/// What one execution of a node moves and computes, weights included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    pub bytes: u64,
    pub flops: u64,
}

/// Bytes and operations of one execution with all rows live.
///
/// A bank of experts counts the experts that the rows can reach at most; the cache it reads and the
/// positions attended are not known here and do not count.
pub fn cost(op: &Op, operands: &[TensorType], results: &[TensorType]) -> Cost {
    let bytes_of =
        |types: &[TensorType]| types.iter().fold(0, |sum: u64, ty| sum.saturating_add(ty.bytes()));
    let elements: u64 = results.iter().map(TensorType::elements).sum();
    let all = bytes_of(operands) + bytes_of(results);
    let product = |x: &TensorType, weight: &TensorType| {
        let columns = weight.dims().iter().rev().nth(1).copied().unwrap_or(1);
        x.elements().saturating_mul(2 * u64::from(columns))
    };
    let reached = |bank: &TensorType, pairs: u64| {
        let experts = u64::from(bank.dims()[0]);
        bank.bytes() / experts.max(1) * experts.min(pairs)
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
        Op::Projections { count, .. } => {
            let weights = operands.iter().rev().take(usize::from(*count));
            Cost { bytes: all, flops: weights.map(|w| product(&operands[0], w)).sum() }
        }
        Op::ExpertMlp { .. } => {
            let pairs = operands[1].elements();
            let weights = (3..6).map(|i| reached(&operands[i], pairs)).sum::<u64>();
            let flops = (3..6).map(|i| 2 * operands[i].elements()).sum::<u64>();
            Cost {
                bytes: bytes_of(&operands[..3]) + weights + bytes_of(results),
                flops: flops / u64::from(operands[3].dims()[0].max(1)) * pairs,
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
        Op::ExpertSum { .. } => {
            let (x, down) = (&operands[0], &operands[3]);
            let others = bytes_of(operands) - down.bytes() + bytes_of(results);
            let terms = 2 * x.row_count() * u64::from(down.dims()[1]);
            Cost {
                bytes: others + reached(down, x.row_count()),
                flops: terms * (u64::from(down.last_dim()) + 1),
            }
        }
        // Rows that are appended are read once and written once.
        Op::StateAppend {} => Cost { bytes: 2 * all, flops: 0 },
        Op::AttentionPrologue { .. } => {
            let appended = bytes_of(&operands[2..4]);
            let turned = operands[1].elements() + operands[2].elements();
            Cost { bytes: all + appended, flops: 6 * turned }
        }
        Op::ExpertCombine { .. } => Cost { bytes: all, flops: 2 * operands[0].elements() },
        Op::RmsNorm { .. }
        | Op::RmsNormQuantize { .. }
        | Op::RmsNormBoth { .. }
        | Op::RmsNormAdd { .. }
        | Op::HeadNorm { .. } => Cost { bytes: all, flops: 4 * operands[0].elements() },
        _ => Cost { bytes: all, flops: elements },
    }
}
