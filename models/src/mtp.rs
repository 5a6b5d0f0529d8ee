//! The draft head: one more layer behind the last, fed with the residual of a row and the token
//! after it.
//!
//! Windows of the layers keep the head's caches as if the head had seen every pair of a residual and
//! the token after it: the pair (residual of the row before, token of the row) belongs to the row. A
//! draft window has one row a sequence and runs the head; its rows' residuals are the head's own.

use strata_graph::{DType, Op, StateDef, StateKind, TensorType, ValueId};

use crate::attention;
use crate::builder::Build;
use crate::error::ModelError;
use crate::graph::{embed, layer};
use crate::head;
use crate::hyper_connection::{self, Module};
use crate::qsa;
use crate::schema::{Attention, HiddenNorm, Mtp};
use crate::weights::{Role, node_name};

/// The residual behind the last layer, of the last row.
const HIDDEN: &str = "mtp.hidden";
/// The head's own residual, of the last drafted row.
const DRAFTED: &str = "draft.hidden";

fn hidden_state(build: &Build<'_>, name: &str) -> StateDef {
    let width = u32::from(build.def.residual.streams()) * build.def.hidden;
    StateDef::new(name, StateKind::Tail(1), TensorType::new(DType::F32, &[width]))
}

/// Appends what the window's rows give to the head's keys and values: `embedded` are the tokens,
/// `[rows, hidden]`, `residual` the residual behind the last layer, `[rows, streams * hidden]`.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn keep(
    build: &mut Build<'_>,
    head: &Mtp,
    (embedded, residual): (ValueId, ValueId),
) -> Result<(), ModelError> {
    let at = build.def.layers;
    let state = build.state(hidden_state(build, HIDDEN));
    let made = build.push_all(Op::ShiftRows {}, &[state, residual], HIDDEN.into())?;
    build.update(HIDDEN, made[1]);
    let x = join(build, head, embedded, made[0])?;
    let read = hyper_connection::read(build, Module::Attn(at), x)?;
    if let Attention::Gqa(gqa) = &head.block.attention {
        attention::append(build, at, gqa, read.x)?;
        if let Some(indexer) = &gqa.indexer {
            qsa::keep(build, at, (gqa, indexer), read.x)?;
        }
    }
    Ok(())
}

/// Runs the head on one row a sequence: its logits are those of the token after the row's.
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn draft(build: &mut Build<'_>, head: &Mtp) -> Result<(), ModelError> {
    let at = build.def.layers;
    build.drafting = true;
    build.angles_of(&head.block)?;
    let embedded = embed(build)?;
    let (drafted, kept) = (hidden_state(build, DRAFTED), hidden_state(build, HIDDEN));
    let state = build.seeded(drafted, kept);
    let width = u32::from(build.def.residual.streams()) * build.def.hidden;
    let previous = build.push(Op::ReadTail { width }, &[state], "draft.previous".into())?;
    let x = join(build, head, embedded, previous)?;
    let x = layer(build, at, x)?;
    let made = build.push_all(Op::ShiftRows {}, &[state, x], DRAFTED.into())?;
    build.update(DRAFTED, made[1]);
    let logits = head::head(build, x, Module::Draft(at))?;
    build.logits(logits);
    Ok(())
}

/// The head's residual: for each stream a product with the normed token and the normed stream.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `embedded` | `[rows, hidden]` | f32 |
/// | `residual` | `[rows, streams * hidden]` | f32 |
/// | join weight | `[hidden, 2 hidden]` | as stored |
/// | result | `[rows, streams * hidden]` | f32 |
fn join(
    build: &mut Build<'_>,
    head: &Mtp,
    embedded: ValueId,
    residual: ValueId,
) -> Result<ValueId, ModelError> {
    let (at, hidden, streams) = (build.def.layers, build.def.hidden, build.def.residual.streams());
    let normed = match head.hidden_norm {
        HiddenNorm::Full => build.norm(Role::DraftNormHidden, at, residual)?,
        HiddenNorm::Grouped => build.stream_norm(Role::DraftNormHidden, at, residual)?,
    };
    let token = build.norm(Role::DraftNormEmbedding, at, embedded)?;
    let node = format!("blk.{at}.nextn.concat");
    let both = build.push(Op::StreamConcat { streams }, &[token, normed], node)?;
    let weight = build.weight(Role::DraftJoin, at, &[hidden, 2 * hidden]);
    let node = node_name(Role::DraftJoin, at);
    build.push(Op::StreamMatmul { streams }, &[both, weight], node)
}
