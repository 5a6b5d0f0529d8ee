//! Hyper-connections: how blocks read from a residual of several streams, and write into it.

use strata_graph::{Op, ValueId};

use crate::builder::{Build, Linear};
use crate::error::ModelError;
use crate::schema::Residual;
use crate::weights::{HcPart, Role};

/// Where a hyper-connection stands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Module {
    /// Around the attention of a layer.
    Attn(u32),
    /// Around the feed-forward part of a layer.
    Ffn(u32),
    /// Before the product that gives logits. It is read only.
    Output,
    /// The same of the draft head, whose layer that is.
    Draft(u32),
}

impl Module {
    fn role(self, part: HcPart) -> (Role, u32) {
        match self {
            Module::Attn(layer) => (Role::HcAttn(part), layer),
            Module::Ffn(layer) => (Role::HcFfn(part), layer),
            Module::Output => (Role::HcOutput(part), 0),
            Module::Draft(layer) => (Role::HcDraft(part), layer),
        }
    }

    fn node(self, what: &str) -> String {
        match self {
            Module::Attn(layer) => format!("blk.{layer}.hc_attn_{what}"),
            Module::Ffn(layer) => format!("blk.{layer}.hc_ffn_{what}"),
            Module::Output => format!("output_hc_{what}"),
            Module::Draft(layer) => format!("blk.{layer}.nextn.hc_head_{what}"),
        }
    }
}

/// What a block reads, and the normed streams that it is read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// `[rows, hidden]`.
    pub x: ValueId,
    /// `[rows, streams * hidden]`.
    normed: ValueId,
}

fn sizes(build: &Build<'_>) -> (u16, u32) {
    match build.def.residual {
        Residual::Plain => (1, 1),
        Residual::HyperConnections { streams, low_rank } => (streams, low_rank),
    }
}

/// The mean over streams of the normed streams, each element with a gate of its own:
/// `sigmoid(up silu(down normed / streams))`.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `residual` | `[rows, streams * hidden]` | f32 |
/// | norm gain | `[streams * hidden]` | as stored |
/// | down weight | `[low_rank, streams * hidden]` | as stored |
/// | up weight | `[streams * hidden, low_rank]` | as stored |
/// | result | `[rows, hidden]` | f32 |
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn read(
    build: &mut Build<'_>,
    module: Module,
    residual: ValueId,
) -> Result<Read, ModelError> {
    let (streams, low_rank) = sizes(build);
    let (norm, layer) = module.role(HcPart::Norm);
    let normed = build.stream_norm(norm, layer, residual)?;
    let down = Linear::new(module.role(HcPart::Down).0, low_rank);
    let low = build.linear(layer, down, normed)?;
    let op = Op::ScaledSilu { scale: 1.0 / f32::from(streams) };
    let low = build.push(op, &[low], module.node("act"))?;
    let up = Linear::new(module.role(HcPart::Up).0, build.width(residual));
    let gates = build.linear(layer, up, low)?;
    let x = build.push(Op::HcRead { streams }, &[normed, gates], module.node("read"))?;
    Ok(Read { x, normed })
}

/// Adds the result of a block to each stream, with `2 sigmoid(inject normed / streams)`.
///
/// | value | shape | dtype |
/// |---|---|---|
/// | `residual` | `[rows, streams * hidden]` | f32 |
/// | `y` | `[rows, hidden]` | f32 |
/// | inject weight | `[streams, streams * hidden]` | as stored |
/// | result | `[rows, streams * hidden]` | f32 |
///
/// # Errors
/// [`ModelError::Node`] names the node that does not fit.
pub(crate) fn write(
    build: &mut Build<'_>,
    module: Module,
    (residual, read): (ValueId, Read),
    y: ValueId,
) -> Result<ValueId, ModelError> {
    let (streams, _) = sizes(build);
    let (inject, layer) = module.role(HcPart::Inject);
    let inject = build.linear(layer, Linear::new(inject, streams.into()), read.normed)?;
    build.push(Op::HcWrite { streams }, &[residual, y, inject], module.node("write"))
}
