//! Products of one input with several weights.

use super::matmul::{Groups, Store};
use super::product::{self, Product};
use super::require;
use crate::builder::{Compare, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::formats::GROUP_ROWS;
use crate::spec::{KernelSpec, Projections, RowClass};

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
    let share = k.share(k.i64(bytes(&products)));
    let mut first = 0;
    // Neighbours of one block format take turns in one copy of the product.
    for run in products.chunk_by(|a, b| a.format == b.format && !a.format.is_float()) {
        let before = bytes(&products[..first]);
        let share = [share.0, share.1].map(|at| k.sub(at, k.i64(before)));
        let x = k.operand(if run[0].format.is_float() { 1 } else { inputs });
        let weights = 1 + inputs as usize + first;
        let run = Run { products: run, weights, results: weights + products.len() };
        run.build(k, s.rows, x, share);
        first += run.products.len();
    }
}

/// Bytes of all weights.
fn bytes(products: &[Product]) -> i64 {
    products.iter().map(|p| p.group_bytes() * i64::from(p.groups())).sum()
}

/// Products that differ in their number of results only.
struct Run<'p> {
    products: &'p [Product],
    /// Operands of the first weight and the first result.
    weights: usize,
    results: usize,
}

impl Run<'_> {
    /// Computes what lies in `share`, in bytes from the first weight on.
    fn build<'c>(&self, k: &KernelBuilder<'c>, rows: RowClass, x: Val<'c>, share: [Val<'c>; 2]) {
        let product = self.products[0];
        let whole = self.products.iter().all(|p| p.n.is_multiple_of(GROUP_ROWS));
        k.for_each(k.i64(self.products.len() as i64), |turn| {
            // What `of` says about the product whose turn it is.
            let pick = |of: &dyn Fn(usize) -> i64| {
                (1..self.products.len()).fold(k.i64(of(0)), |value, i| {
                    let is_turn = k.icmp(Compare::Eq, turn, k.i64(i as i64));
                    k.select(is_turn, k.i64(of(i)), value)
                })
            };
            let before = pick(&|i| bytes(&self.products[..i]));
            let groups = pick(&|i| self.products[i].groups().into());
            let [begin, end] = share.map(|at| {
                let begun = k.imax(k.sub(at, before), k.i64(0));
                let bytes = product.group_bytes();
                k.imin(k.udiv(k.add(begun, k.i64(bytes - 1)), k.i64(bytes)), groups)
            });
            let operand = |first: usize| k.operand_at(k.add(turn, k.i64(first as i64)));
            let n = pick(&|i| self.products[i].n.into());
            let y = operand(self.results);
            let store = Store { n, whole, bias: None, residual: None, y };
            let (w, live) = (operand(self.weights), k.step_word(StepWord::Rows));
            Groups { product, rows, x, w, store }.run(k, live, (begin, end));
        });
    }
}
