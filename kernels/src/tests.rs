mod blocks;
mod delta;
mod experts;
mod math;
mod products;
mod projections;
pub mod random;
mod rows;
mod sequence;
mod states;
mod streams;

use crate::run::{Buffer, Runnable};
use crate::spec::Add;
use crate::{KernelError, KernelSpec, Target, compile};

#[test]
fn add_runs_and_skips_dead_rows() {
    let spec = KernelSpec::Add(Add { k: 48 });
    let target = Target::of_this_machine().unwrap();
    let kernel = Runnable::new(&compile(&[spec], target).unwrap()[0]).unwrap();
    let a: Vec<f32> = (0..48 * 4).map(|i| i as f32).collect();
    let b: Vec<f32> = a.iter().map(|x| x * 0.5).collect();
    let mut y = Buffer::zeroed(48 * 4 * 4);
    kernel.run(&mut [&mut Buffer::step(3), &mut Buffer::of(&a), &mut Buffer::of(&b), &mut y], 2);
    for (i, &y) in y.as_ref::<f32>().iter().enumerate() {
        assert_eq!(y, if i < 48 * 3 { a[i] + b[i] } else { 0.0 });
    }
}

#[test]
fn a_bad_shape_is_refused_by_name() {
    let error = compile(&[KernelSpec::Add(Add { k: 40 })], Target::X86Avx2).unwrap_err();
    assert!(matches!(error, KernelError::Shape { found: 40, .. }), "{error}");
}

#[test]
fn keys_are_text() {
    assert_eq!(KernelSpec::Add(Add { k: 48 }).key(), "Add((k:48))");
}
