//! From the residual stream to logits.

use strata_graph::{Op, ValueId};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::hyper_connection::{self, Module};
use crate::schema::{Head, Residual};
use crate::weights::{Role, node_name};

/// Gathers the rows of which logits are wanted, norms them and multiplies them with the vocabulary.
/// A residual of several streams is read through `module`, which norms it.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, streams * hidden]` | f32 |
/// | head weight | `[vocab, hidden]` | as stored |
/// | result | `[logit_rows, vocab]` | f32 |
///
/// The rows are gathered first, so the norm and the product read `logit_rows` rows only.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn head(
    build: &mut Build<'_>,
    x: ValueId,
    module: Module,
) -> Result<ValueId, ModelError> {
    let x = build.push(Op::GatherRows {}, &[x], "logit_rows".into())?;
    let x = match build.def.residual {
        Residual::Plain => build.norm(Role::OutputNorm, 0, x)?,
        Residual::HyperConnections { .. } => hyper_connection::read(build, module, x)?.x,
    };
    let (vocab, hidden) = (build.def.vocab, build.def.hidden);
    match build.def.head {
        Head::Untied => build.linear(0, Linear::new(Role::Output, vocab), x),
        Head::Tied => {
            let table = build.weight(Role::TokenEmbd, 0, &[vocab, hidden]);
            let op = Op::Matmul { bias: false, residual: false };
            build.push(op, &[x, table], node_name(Role::Output, 0))
        }
    }
}
