//! From the residual stream to logits.

use strata_graph::{Op, ValueId};

use crate::error::ModelError;
use crate::graph::{Build, Linear};
use crate::schema::Head;
use crate::weights::{Role, node_name};

/// Gathers the rows of which logits are wanted, norms them and multiplies them with the vocabulary.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]` | f32 |
/// | head weight | `[vocab, hidden]` | as stored |
/// | result | `[logit_rows, vocab]` | f32 |
///
/// The rows are gathered first, so the norm and the product read `logit_rows` rows only.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn head(build: &mut Build<'_>, x: ValueId) -> Result<ValueId, ModelError> {
    let x = build.push(Op::GatherRows {}, &[x], "logit_rows".into())?;
    let x = build.norm(Role::OutputNorm, 0, x)?;
    let (vocab, hidden) = (build.def.vocab, build.def.hidden);
    match build.def.head {
        Head::Untied => build.linear(0, Linear { role: Role::Output, out: vocab, bias: None }, x),
        Head::Tied => {
            let table = build.weight(Role::TokenEmbd, 0, &[vocab, hidden]);
            let op = Op::Matmul { bias: false, residual: false };
            build.push(op, &[x, table], node_name(Role::Output, 0))
        }
    }
}
