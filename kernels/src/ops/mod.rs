//! One op a file: `check` refuses shapes that it cannot take, `build` writes its code.

mod add;
mod attention;
mod blocks;
pub mod dispatch;
mod dots;
mod elementwise;
mod embed;
mod expert;
mod gated;
pub mod kv;
mod matmul;
mod norm;
mod pages;
mod product;
mod prologue;
mod quantize;
mod repack;
mod route;
mod rows;
pub mod slots;
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
        KernelSpec::Attention(s) => attention::check(spec, s),
        KernelSpec::BlockKeys(s) => blocks::keys::check(spec, s),
        KernelSpec::BlockScores(s) => blocks::scores::check(spec, s),
        KernelSpec::BlockTop(s) => blocks::top::check(spec, s),
        KernelSpec::Route(s) => route::check(spec, s),
        KernelSpec::Dispatch(s) => dispatch::check(spec, s),
        KernelSpec::ExpertCombine(s) => route::check_combine(spec, s),
        KernelSpec::GatherRows(_) | KernelSpec::Mul(_) | KernelSpec::Scale(_) => Ok(()),
        _ => require(spec, "op", 0, false, "an op that has a builder"),
    }
}

/// Writes the body of a checked specification's kernel.
pub(crate) fn build(k: &KernelBuilder<'_>, spec: &KernelSpec) {
    match *spec {
        KernelSpec::Add(s) => add::build(k, s),
        KernelSpec::Matmul(s) => matmul::build(k, s),
        KernelSpec::GatedMatmul(s) => gated::build(k, s),
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
        KernelSpec::Attention(s) => attention::build(k, s),
        KernelSpec::BlockKeys(s) => blocks::keys::build(k, s),
        KernelSpec::BlockScores(s) => blocks::scores::build(k, s),
        KernelSpec::BlockTop(s) => blocks::top::build(k, s),
        KernelSpec::Route(s) => route::build(k, s),
        KernelSpec::Dispatch(s) => dispatch::build(k, s),
        KernelSpec::ExpertCombine(s) => route::combine(k, s),
        _ => unreachable!("refused by check"),
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
