//! The numeric contract in plain scalar Rust: what every kernel must equal, bit for bit.
//!
//! Nothing here is fast and nothing here is used at run time. Each function states one order of
//! f32 steps; kernels for all targets reproduce exactly these steps, so that a row's result does
//! not depend on the vector width, the number of threads or the rows that share its window.
//!
//! Sums over f32 run in spans of [`SPAN`] elements: 16 partials by index mod 16, then the fixed
//! tree of [`tree`], then the spans in order.

pub mod activations;
pub mod attention;
pub mod blocks;
pub mod delta;
pub mod delta_chunked;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod quantize;
pub mod rope;
pub mod route;
pub mod states;
pub mod streams;

#[cfg(test)]
mod tests;

/// Elements of a span: the unit in which partial sums are formed and then added in order.
pub const SPAN: usize = 256;

/// Partial sums inside a span.
pub const PARTIALS: usize = 16;

/// Adds 16 partials in the contract's tree: halves (i, i + 8), then (i, i + 4), (i, i + 2), (0, 1).
pub fn tree(mut partials: [f32; PARTIALS]) -> f32 {
    let mut half = PARTIALS / 2;
    while half > 0 {
        for i in 0..half {
            partials[i] += partials[i + half];
        }
        half /= 2;
    }
    partials[0]
}

/// Sum of `terms` by spans: plain adds into 16 partials, tree, spans in order.
pub fn sum(terms: &[f32]) -> f32 {
    reduce(terms, |partial, term| partial + term)
}

/// Sum of squares by spans, each square joined by fma.
pub fn sum_of_squares(terms: &[f32]) -> f32 {
    reduce(terms, |partial, term| term.mul_add(term, partial))
}

/// Dot product by spans, each product joined by fma.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let spans = a.chunks(SPAN).zip(b.chunks(SPAN));
    spans.fold(0.0, |total, (a, b)| total + dot_unspanned(a, b))
}

/// Dot product over one span-free vector: 16 partials by index mod 16 (fma), then the tree.
///
/// Attention heads use this: a head is not divided into spans.
pub fn dot_unspanned(a: &[f32], b: &[f32]) -> f32 {
    let mut partials = [0.0f32; PARTIALS];
    for (i, (&x, &y)) in a.iter().zip(b).enumerate() {
        let p = &mut partials[i % PARTIALS];
        *p = x.mul_add(y, *p);
    }
    tree(partials)
}

fn reduce(terms: &[f32], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut total = 0.0f32;
    for span in terms.chunks(SPAN) {
        let mut partials = [0.0f32; PARTIALS];
        for (i, &term) in span.iter().enumerate() {
            let p = &mut partials[i % PARTIALS];
            *p = join(*p, term);
        }
        total += tree(partials);
    }
    total
}
