//! Vectors of f32, f16 or bf16 (gains, biases) to f32.

use super::{product, require};
use crate::builder::{Elem, KernelBuilder};
use crate::error::KernelError;
use crate::spec::{KernelSpec, ToF32};

pub(super) fn check(spec: &KernelSpec, s: &ToF32) -> Result<(), KernelError> {
    let bytes = u64::from(s.format.block().1);
    require(spec, "bytes of a block", bytes, s.format.is_float(), "f32, f16 or bf16")?;
    require(spec, "n", s.n.into(), s.n > 0 && s.n.is_multiple_of(16), "a multiple of 16 above 0")
}

/// See [`ToF32`].
pub(super) fn build(k: &KernelBuilder<'_>, s: ToF32) {
    let (w, y) = (k.operand(1), k.operand(2));
    let step_bytes = 16 * i64::from(s.format.block().1);
    let (begin, end) = k.share(k.i64((s.n / 16).into()));
    k.for_between(begin, end, |i| {
        let value = product::load_floats(k, s.format, k.element(w, i, step_bytes), 16);
        let value = if s.add_one { k.fadd(value, k.f32(1.0)) } else { value };
        debug_assert_eq!(value.ty(), Elem::F32.x(16));
        k.store(k.element(y, i, 64), value);
    });
}
