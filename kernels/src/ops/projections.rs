//! Products of one input with several weights.

use super::matmul::{Groups, Store};
use super::product::{self, Product};
use super::require;
use crate::builder::{KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::spec::{KernelSpec, Projections};

fn products(s: &Projections) -> Vec<Product> {
    s.all().map(|w| Product { format: w.format, n: w.n, k: s.k }).collect()
}

pub(super) fn check(spec: &KernelSpec, s: &Projections) -> Result<(), KernelError> {
    let products = products(s);
    let count = products.len();
    require(spec, "weights", count as u64, count > 1, "at least 2")?;
    products.iter().try_for_each(|&p| product::check(spec, p))
}

/// See [`Projections`].
pub(super) fn build(k: &KernelBuilder<'_>, s: Projections) {
    let products = products(&s);
    let reads = |floats: bool| products.iter().any(|p| p.format.is_float() == floats);
    let inputs = u32::from(reads(true)) + u32::from(reads(false));
    let live = k.step_word(StepWord::Rows);
    let bytes = |products: &[Product]| -> i64 {
        products.iter().map(|p| p.group_bytes() * i64::from(p.groups())).sum()
    };
    let share = k.share(k.i64(bytes(&products)));
    let first_result = 1 + inputs + products.len() as u32;
    for (i, &product) in (0..).zip(&products) {
        let before = k.i64(bytes(&products[..i as usize]));
        let [begin, end] =
            [share.0, share.1].map(|at| groups_before(k, product, k.sub(at, before)));
        let y = k.operand(first_result + i);
        let store = Store { n: product.n, bias: None, residual: None, y };
        let x = k.operand(if product.format.is_float() { 1 } else { inputs });
        let w = k.operand(1 + inputs + i);
        Groups { product, rows: s.rows, x, w, store }.run(k, live, (begin, end));
    }
}

/// Groups of a weight that begin before its byte `at`, which may lie before or behind it.
fn groups_before<'c>(k: &KernelBuilder<'c>, p: Product, at: Val<'c>) -> Val<'c> {
    let bytes = p.group_bytes();
    let begun = k.add(k.imax(at, k.i64(0)), k.i64(bytes - 1));
    k.imin(k.udiv(begun, k.i64(bytes)), k.i64(p.groups().into()))
}
