//! Where the elements of result rows go: f32, q8, or both.

use super::quantize::{q8_row, store_q8_block, zero_q8_tail};
use super::require;
use super::rows::{LANES, f32_row, store_f32};
use crate::builder::{Compare, KernelBuilder, Val};
use crate::error::KernelError;
use crate::reference::SPAN;
use crate::spec::KernelSpec;

/// Rows of `k` elements.
pub(super) struct Results<'c> {
    k: u32,
    floats: Option<Val<'c>>,
    q8: Option<Val<'c>>,
}

/// Refuses parts of rows that [`Results`] cannot store.
pub(super) fn check(
    spec: &KernelSpec,
    what: &'static str,
    k: u32,
    quantize: bool,
) -> Result<(), KernelError> {
    let (step, need) = match quantize {
        true => (32, "a multiple of 32 above 0 to quantise"),
        false => (16, "a multiple of 16 above 0"),
    };
    require(spec, what, k.into(), k > 0 && k.is_multiple_of(step), need)
}

impl<'c> Results<'c> {
    /// From operand `first` on: f32 rows unless only q8 rows are wanted, then q8 rows.
    pub fn new(b: &KernelBuilder<'c>, k: u32, first: u32, (quantize, keep): (bool, bool)) -> Self {
        let with_floats = keep || !quantize;
        let floats = with_floats.then(|| b.operand(first));
        let q8 = quantize.then(|| b.operand(first + u32::from(with_floats)));
        Self { k, floats, q8 }
    }

    /// Stores elements `begin .. end` of `row`, which `element` gives 16 at a time from an index
    /// on. Bounds are multiples of 16, of 32 where the row is quantised.
    pub fn store(
        &self,
        b: &KernelBuilder<'c>,
        row: Val<'c>,
        (begin, end): (Val<'c>, Val<'c>),
        element: impl Fn(Val<'c>) -> Val<'c>,
    ) {
        let floats = self.floats.map(|base| f32_row(b, base, row, self.k));
        let kept = |at: Val<'c>| {
            let value = element(at);
            if let Some(floats) = floats {
                store_f32(b, floats, at, value);
            }
            value
        };
        let Some(q8) = self.q8.map(|base| q8_row(b, base, row, self.k)) else {
            b.for_range((begin, end), LANES.into(), &[], |at, _| {
                kept(at);
                Vec::new()
            });
            return;
        };
        b.for_range((begin, end), 32, &[], |at, _| {
            let values = [kept(at), kept(b.add(at, b.i64(16)))];
            store_q8_block(b, values, q8, b.shr(at, b.i64(5)));
            Vec::new()
        });
        if !(self.k as usize).is_multiple_of(SPAN) {
            let is_last = b.icmp(Compare::Eq, end, b.i64(self.k.into()));
            b.when(is_last, || zero_q8_tail(b, self.k, q8));
        }
    }
}
