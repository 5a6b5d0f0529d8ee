//! Vectors of f32, f16 or bf16 (gains, biases, rates) to f32.

use super::rows::store_f32;
use super::{product, require};
use crate::builder::{Compare, KernelBuilder, Val};
use crate::error::KernelError;
use crate::math;
use crate::spec::{KernelSpec, ToF32};

/// Elements that are converted together.
const GROUP: u32 = 16;

pub(super) fn check(spec: &KernelSpec, s: &ToF32) -> Result<(), KernelError> {
    let bytes = u64::from(s.format.block().1);
    require(spec, "bytes of a block", bytes, s.format.is_float(), "f32, f16 or bf16")?;
    let one = !(s.add_one && s.neg_exp);
    require(spec, "neg_exp", s.neg_exp.into(), one, "add_one or neg_exp, not both")?;
    require(spec, "n", s.n.into(), s.n > 0, "at least 1")
}

/// See [`ToF32`].
pub(super) fn build(k: &KernelBuilder<'_>, s: ToF32) {
    let (begin, end) = k.share(k.i64((s.n / GROUP).into()));
    k.for_between(begin, end, |group| convert(k, s, k.mul(group, k.i64(GROUP.into())), GROUP));
    let mut at = s.n / GROUP * GROUP;
    if at == s.n {
        return;
    }
    k.when(k.icmp(Compare::Eq, k.part(), k.i64(0)), || {
        for lanes in [8, 4, 2, 1] {
            if s.n - at >= lanes {
                convert(k, s, k.i64(at.into()), lanes);
                at += lanes;
            }
        }
    });
}

fn convert<'c>(k: &KernelBuilder<'c>, s: ToF32, at: Val<'c>, lanes: u32) {
    let from = k.element(k.operand(1), at, s.format.block().1.into());
    let value = product::load_floats(k, s.format, from, lanes);
    let value = match (s.add_one, s.neg_exp) {
        (true, _) => k.fadd(value, k.f32(1.0)),
        (_, true) => k.fneg(math::exp(k, value)),
        _ => value,
    };
    store_f32(k, k.operand(2), at, value);
}
