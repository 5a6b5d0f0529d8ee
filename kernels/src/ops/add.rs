//! Sum of two rows.

use crate::builder::{Elem, KernelBuilder, StepWord};
use crate::spec::Add;

/// See [`Add`].
pub(super) fn build(k: &KernelBuilder<'_>, shape: Add) {
    let (a, b, y) = (k.operand(1), k.operand(2), k.operand(3));
    let row_bytes = i64::from(shape.k) * 4;
    let (begin, end) = k.share(k.step_word(StepWord::Rows));
    k.for_between(begin, end, |row| {
        let (a, b) = (k.element(a, row, row_bytes), k.element(b, row, row_bytes));
        let y = k.element(y, row, row_bytes);
        k.for_each(k.i64(i64::from(shape.k) / 16), |i| {
            let load = |p| k.load(Elem::F32.x(16), k.element(p, i, 64));
            k.store(k.element(y, i, 64), k.fadd(load(a), load(b)));
        });
    });
}
