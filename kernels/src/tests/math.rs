use super::rows::bytes_of;
use crate::builder::{Elem, KernelBuilder, Output, StepWord, Val, Workspace};
use crate::codegen::CompiledKernel;
use crate::flatten::flatten;
use crate::reference::math as scalar;
use crate::run::{Buffer, Runnable};
use crate::spec::Scale;
use crate::{KernelSpec, Target, math};

type Vector = for<'c> fn(&KernelBuilder<'c>, Val<'c>) -> Val<'c>;
type Scalar = fn(f32) -> f32;

const FUNCTIONS: [(&str, Vector, Scalar); 9] = [
    ("exp", math::exp, scalar::exp),
    ("sigmoid", math::sigmoid, scalar::sigmoid),
    ("silu", math::silu, scalar::silu),
    ("gelu_tanh", math::gelu_tanh, scalar::gelu_tanh),
    ("softplus", math::softplus, scalar::softplus),
    ("log1p of a square", log1p_of_square, |x| scalar::log1p(x * x)),
    ("sin", |b, x| math::sin_cos(b, x).0, scalar::sin),
    ("cos", |b, x| math::sin_cos(b, x).1, scalar::cos),
    ("exp below 0", exp_below_zero, |x| scalar::exp(-x.abs())),
];

fn log1p_of_square<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    math::log1p(b, b.fmul(x, x))
}

fn exp_below_zero<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    math::exp_of_ordered(b, b.fneg(b.fabs(x)))
}

/// Applies all functions to rows of 16: result `f` of row `r` is at `(r * functions + f) * 16`.
fn all_functions(b: &KernelBuilder<'_>) {
    let (x, y) = (b.operand(1), b.operand(2));
    b.for_each(b.step_word(StepWord::Rows), |row| {
        let x = b.load(Elem::F32.x(16), b.element(x, row, 64));
        let y = b.element(y, row, 64 * FUNCTIONS.len() as i64);
        for (f, (_, vector, _)) in (0..).zip(FUNCTIONS) {
            b.store(b.offset(y, 64 * f), vector(b, x));
        }
    });
    b.finish();
}

#[test]
fn elementary_functions_equal_their_scalar_forms_bit_for_bit() {
    let spec = KernelSpec::Scale(Scale { k: 16, factor: 1.0.into() });
    let workspace = Workspace::new();
    let builder = KernelBuilder::new(&workspace, Target::of_this_machine().unwrap());
    all_functions(&builder);
    let object = builder.emit(Output::Object).unwrap();
    let (bytes, entry_bytes) = flatten(&object, &spec).unwrap();
    let kernel = Runnable::new(&CompiledKernel { spec, bytes, entry_bytes }).unwrap();

    let mut x: Vec<f32> = (0..2048).map(|i| (i as f32 - 1024.0) * 0.1).collect();
    x.extend((0..1024).map(|i| (i as f32 - 512.0) * 1e-3));
    x.extend((0..1024).map(|i| (i as f32 - 512.0) * 511.7));
    x.extend([0.0, -0.0, f32::INFINITY, -f32::INFINITY, 1e-38, -1e-45, 3e38, -87.33654]);
    x.extend([88.72283, 88.7229, -87.4, 20.0, 20.000002, 1.0, -1.0, 0.5]);
    assert_eq!(x.len() % 16, 0);
    let rows = x.len() / 16;
    let mut y = Buffer::zeroed(x.len() * 4 * FUNCTIONS.len());
    kernel.run(&mut [&mut Buffer::step(rows as u32), &mut Buffer::of(&x), &mut y], 1);
    for (f, (name, _, scalar)) in FUNCTIONS.iter().enumerate() {
        for (i, &x) in x.iter().enumerate() {
            let got = y.as_ref::<f32>()[(i / 16 * FUNCTIONS.len() + f) * 16 + i % 16];
            let want = scalar(x);
            // The payload of a NaN is not part of the contract.
            if !(got.is_nan() && want.is_nan()) {
                assert_eq!(bytes_of(&[got]), bytes_of(&[want]), "{name}({x}): {got} {want}");
            }
        }
    }
}
