//! One op a file: `check` refuses shapes that it cannot take, `build` writes its code.

mod add;
mod attention;
mod blocks;
mod conv;
mod delta;
pub mod dispatch;
mod dots;
mod elementwise;
mod embed;
mod expert;
mod gated;
mod group_norm;
mod hc_write_norm;
pub mod kv;
mod matmul;
mod ngram;
mod ngram_embed;
mod norm;
mod pages;
mod product;
mod projections;
mod prologue;
mod quantize;
mod read_tail;
mod repack;
mod results;
mod route;
mod rows;
mod slot_values;
pub mod slots;
mod streams;
mod tails;
mod tiles;
mod to_f32;

use crate::builder::KernelBuilder;
use crate::error::KernelError;
use crate::spec::KernelSpec;

/// Refuses a specification whose shapes its op cannot take.
pub(crate) fn check(spec: &KernelSpec) -> Result<(), KernelError> {
    match spec {
        KernelSpec::Add(s) => require(spec, "k", s.k.into(), s.k % 16 == 0, "a multiple of 16"),
        KernelSpec::Matmul(s) => matmul::check(spec, s),
        KernelSpec::GatedMatmul(s) => gated::check(spec, s),
        KernelSpec::Projections(s) => projections::check(spec, s),
        KernelSpec::ExpertGated(s) => expert::check_gated(spec, s),
        KernelSpec::ExpertDown(s) => expert::check_down(spec, s),
        KernelSpec::ExpertSum(s) => expert::check_sum(spec, s),
        KernelSpec::Repack(s) => repack::check(spec, s),
        KernelSpec::ToF32(s) => to_f32::check(spec, s),
        KernelSpec::Quantize(s) => quantize::check(spec, s),
        KernelSpec::RmsNorm(s) => norm::check(spec, s),
        KernelSpec::RopeAngles(s) => elementwise::check_rope_angles(spec, s),
        KernelSpec::ActMul(s) => elementwise::check_act_mul(spec, s),
        KernelSpec::Embed(s) => embed::check(spec, s),
        KernelSpec::AttnPrologue(s) => prologue::check(spec, s),
        KernelSpec::HeadRotate(s) => prologue::check_rotate(spec, s),
        KernelSpec::Attention(s) => attention::check(spec, s),
        KernelSpec::Route(s) => route::check(spec, s),
        KernelSpec::Dispatch(s) => dispatch::check(spec, s),
        KernelSpec::ExpertCombine(s) => route::check_combine(spec, s),
        KernelSpec::ReadTail(s) => read_tail::check(spec, s),
        KernelSpec::BlockKeys(s) => blocks::keys::check(spec, s),
        KernelSpec::BlockScores(s) => blocks::scores::check(spec, s),
        KernelSpec::BlockTop(s) => blocks::top::check(spec, s),
        KernelSpec::GatedDelta(s) => delta::check(spec, s),
        KernelSpec::DeltaCommit(s) => delta::check_commit(spec, s),
        KernelSpec::GatherRows(_) | KernelSpec::Mul(_) | KernelSpec::Scale(_) => Ok(()),
        KernelSpec::StreamRepeat(s) => streams::check_repeat(spec, s),
        KernelSpec::GroupRmsNorm(s) => group_norm::check(spec, s),
        KernelSpec::ScaledSilu(s) => elementwise::check_scaled_silu(spec, s),
        KernelSpec::HcRead(s) => streams::check_read(spec, s),
        KernelSpec::HcWrite(s) => streams::check_write(spec, s),
        KernelSpec::HcWriteNorm(s) => hc_write_norm::check(spec, s),
        KernelSpec::GatedHeadNorm(s) => group_norm::check_gated(spec, s),
        KernelSpec::GatedAdd(s) => elementwise::check_gated_add(spec, s),
        KernelSpec::StreamConcat(s) => streams::check_concat(spec, s),
        KernelSpec::Conv1d(s) => conv::check(spec, s),
        KernelSpec::ShiftRows(s) => tails::check_shift(spec, s),
        KernelSpec::TailCommit(s) => tails::check_commit(spec, s),
        KernelSpec::NgramRows(s) => ngram::check_rows(spec, s),
        KernelSpec::NgramEmbed(s) => ngram_embed::check(spec, s),
        KernelSpec::NgramGate(s) => ngram::check_gate(spec, s),
    }
}

/// Writes the body of a checked specification's kernel.
pub(crate) fn build(k: &KernelBuilder<'_>, spec: &KernelSpec) {
    match *spec {
        KernelSpec::Add(s) => add::build(k, s),
        KernelSpec::Matmul(s) => matmul::build(k, s),
        KernelSpec::GatedMatmul(s) => gated::build(k, s),
        KernelSpec::Projections(s) => projections::build(k, s),
        KernelSpec::ExpertGated(s) => expert::build_gated(k, s),
        KernelSpec::ExpertDown(s) => expert::build_down(k, s),
        KernelSpec::ExpertSum(s) => expert::build_sum(k, s),
        KernelSpec::Repack(s) => repack::build(k, s),
        KernelSpec::ToF32(s) => to_f32::build(k, s),
        KernelSpec::Quantize(s) => quantize::build(k, s),
        KernelSpec::RmsNorm(s) => norm::build(k, s),
        KernelSpec::RopeAngles(s) => elementwise::rope_angles(k, s),
        KernelSpec::GatherRows(s) => elementwise::gather_rows(k, s),
        KernelSpec::Mul(s) => elementwise::mul(k, s),
        KernelSpec::Scale(s) => elementwise::scale(k, s),
        KernelSpec::ActMul(s) => elementwise::act_mul(k, s),
        KernelSpec::Embed(s) => embed::build(k, s),
        KernelSpec::AttnPrologue(s) => prologue::build(k, s),
        KernelSpec::HeadRotate(s) => prologue::rotate(k, s),
        KernelSpec::Attention(s) => attention::build(k, s),
        KernelSpec::Route(s) => route::build(k, s),
        KernelSpec::Dispatch(s) => dispatch::build(k, s),
        KernelSpec::ExpertCombine(s) => route::combine(k, s),
        KernelSpec::StreamRepeat(s) => streams::repeat(k, s),
        KernelSpec::GroupRmsNorm(s) => group_norm::build(k, s),
        KernelSpec::ScaledSilu(s) => elementwise::scaled_silu(k, s),
        KernelSpec::HcRead(s) => streams::read(k, s),
        KernelSpec::HcWrite(s) => streams::write(k, s),
        KernelSpec::HcWriteNorm(s) => hc_write_norm::build(k, s),
        KernelSpec::GatedHeadNorm(s) => group_norm::build_gated(k, s),
        KernelSpec::GatedAdd(s) => elementwise::gated_add(k, s),
        KernelSpec::StreamConcat(s) => streams::concat(k, s),
        KernelSpec::Conv1d(s) => conv::build(k, s),
        KernelSpec::ShiftRows(s) => tails::shift(k, s),
        KernelSpec::TailCommit(s) => tails::commit(k, s),
        KernelSpec::NgramRows(s) => ngram::rows(k, s),
        KernelSpec::NgramEmbed(s) => ngram_embed::build(k, s),
        KernelSpec::NgramGate(s) => ngram::gate(k, s),
        KernelSpec::ReadTail(s) => read_tail::build(k, s),
        KernelSpec::BlockKeys(s) => blocks::keys::build(k, s),
        KernelSpec::BlockScores(s) => blocks::scores::build(k, s),
        KernelSpec::BlockTop(s) => blocks::top::build(k, s),
        KernelSpec::GatedDelta(s) => delta::build(k, s),
        KernelSpec::DeltaCommit(s) => delta::commit(k, s),
    }
}

/// An error that names the kernel unless `holds`.
pub(crate) fn require(
    spec: &KernelSpec,
    what: &'static str,
    found: u64,
    holds: bool,
    need: &'static str,
) -> Result<(), KernelError> {
    if holds {
        return Ok(());
    }
    Err(KernelError::Shape { kernel: spec.key(), what, found, need })
}
