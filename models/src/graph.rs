//! From a definition to a graph: embedding, layers, head.

use strata_graph::{Graph, Op, ValueId, Window, WindowKind};

use crate::builder::Build;
use crate::error::ModelError;
use crate::hyper_connection::{self, Module};
use crate::limits;
use crate::schema::{Attention, Block, Draft, Mlp, ModelDef, Residual};
use crate::weights::{Role, node_name};
use crate::{attention, gated_delta, head, mlp, moe, mtp, ngram};

/// The graph that `def` computes for one window, in base ops; passes fuse later.
///
/// Weights are [`strata_graph::WeightSource::Named`] and [`strata_graph::DType::Unresolved`], but
/// for inverse frequencies and the numbers of an n-gram hash, which are constants. All windows of a
/// definition declare the same weights and states in the same order, whether they use them or not.
///
/// The first output is the logits, f32 `[logit_rows, vocab]`; then come the experts that each layer
/// chose, u32 `[rows, top_k]`. A draft window computes the draft head: its logits are those of the
/// token after the row's.
///
/// # Errors
/// [`ModelError::Field`] or [`ModelError::Window`] for sizes that do not fit, and
/// [`ModelError::NoDraft`] for a draft window of a model without a draft head.
pub fn build(def: &ModelDef, window: Window) -> Result<Graph, ModelError> {
    limits::check(def)?;
    let Window { kind, rows, logit_rows } = window;
    if rows == 0 || logit_rows == 0 || logit_rows > rows {
        return Err(ModelError::Window { rows, logit_rows });
    }
    let mut build = Build::new(def, window);
    match (&def.draft, kind) {
        (None, WindowKind::Draft) => return Err(ModelError::NoDraft { model: def.name.clone() }),
        (None, _) => trunk(&mut build)?,
        (Some(Draft::Mtp(head)), _) => {
            // What is declared, and in which order, follows from what both kinds of window use.
            let one = Window { kind: WindowKind::Verify, rows: 1, logit_rows: 1 };
            let mut both = Build::new(def, one);
            trunk(&mut both)?;
            mtp::draft(&mut both, head)?;
            build.declare(both);
            match kind {
                WindowKind::Draft => mtp::draft(&mut build, head)?,
                _ => trunk(&mut build)?,
            }
        }
    }
    Ok(build.finish())
}

/// All layers and the head; then what a draft head keeps of the window's rows.
fn trunk(build: &mut Build<'_>) -> Result<(), ModelError> {
    let def = build.def;
    for block in &def.blocks {
        build.angles_of(block)?;
    }
    let embedded = embed(build)?;
    let mut x = embedded;
    if let Residual::HyperConnections { streams, .. } = def.residual {
        x = build.push(Op::StreamRepeat { streams }, &[x], "residual".into())?;
    }
    for layer in 0..def.layers {
        x = self::layer(build, layer, x)?;
    }
    if let Some(Draft::Mtp(head)) = &def.draft {
        mtp::keep(build, head, (embedded, x))?;
    }
    let logits = head::head(build, x, Module::Output)?;
    build.logits(logits);
    Ok(())
}

/// The window's tokens, `[rows, hidden]`.
pub(crate) fn embed(build: &mut Build<'_>) -> Result<ValueId, ModelError> {
    let table = build.weight(Role::TokenEmbd, 0, &[build.def.vocab, build.def.hidden]);
    let op = Op::Embed { scale: build.def.embed_scale };
    build.push(op, &[table], node_name(Role::TokenEmbd, 0))
}

/// One layer on the residual, `[rows, streams * hidden]`.
pub(crate) fn layer(build: &mut Build<'_>, layer: u32, x: ValueId) -> Result<ValueId, ModelError> {
    let def = build.def;
    let x = match &def.ngram {
        Some(ngram) if ngram.layer == layer => ngram::add(build, ngram, x)?,
        _ => x,
    };
    match def.residual {
        Residual::Plain => plain(build, layer, x),
        Residual::HyperConnections { .. } => connected(build, layer, x),
    }
}

/// `x += attention(norm(x)); x += mlp(norm(x))`, with the results normed first if the block says so.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, hidden]` | f32 |
/// | result | `[rows, hidden]` | f32 |
fn plain(build: &mut Build<'_>, layer: u32, x: ValueId) -> Result<ValueId, ModelError> {
    let Block { attention, post_norms, mlp, .. } = build.def.block(layer);
    let normed = build.norm(Role::AttnNorm, layer, x)?;
    let mut y = attend(build, layer, attention, normed)?;
    if *post_norms {
        y = build.norm(Role::PostAttnNorm, layer, y)?;
    }
    let x = build.push(Op::Add {}, &[x, y], format!("blk.{layer}.attn_residual"))?;
    let before = if *post_norms { Role::FfnNormBetween } else { Role::FfnNorm };
    let normed = build.norm(before, layer, x)?;
    let mut y = feed_forward(build, layer, mlp, normed)?;
    if *post_norms {
        y = build.norm(Role::PostFfnNorm, layer, y)?;
    }
    build.push(Op::Add {}, &[x, y], format!("blk.{layer}.ffn_residual"))
}

/// The same with a hyper-connection around each of the two.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `x` | `[rows, streams * hidden]` | f32 |
/// | result | `[rows, streams * hidden]` | f32 |
fn connected(build: &mut Build<'_>, layer: u32, x: ValueId) -> Result<ValueId, ModelError> {
    let Block { attention, mlp, .. } = build.def.block(layer);
    let read = hyper_connection::read(build, Module::Attn(layer), x)?;
    let y = attend(build, layer, attention, read.x)?;
    let x = hyper_connection::write(build, Module::Attn(layer), (x, read), y)?;
    let read = hyper_connection::read(build, Module::Ffn(layer), x)?;
    let y = feed_forward(build, layer, mlp, read.x)?;
    hyper_connection::write(build, Module::Ffn(layer), (x, read), y)
}

fn attend(
    build: &mut Build<'_>,
    layer: u32,
    attention: &Attention,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    match attention {
        Attention::Gqa(gqa) => attention::gqa(build, layer, gqa, x),
        Attention::GatedDelta(delta) => gated_delta::gated_delta(build, layer, delta, x),
    }
}

fn feed_forward(
    build: &mut Build<'_>,
    layer: u32,
    mlp: &Mlp,
    x: ValueId,
) -> Result<ValueId, ModelError> {
    match mlp {
        Mlp::Gated(gated) => mlp::gated_mlp(build, layer, gated, x),
        Mlp::Moe(moe) => moe::moe(build, layer, moe, x),
    }
}
