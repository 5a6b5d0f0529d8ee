//! Several products in one launch against the same products by themselves.

use super::products::{Input, native_row, packed, runnable, runnable_for};
use super::random::Random;
use crate::run::Buffer;
use crate::spec::{Projection, Projections, RowClass, WeightFormat};
use crate::{KernelError, KernelSpec, Target, compile};

const MOST_ROWS: usize = 33;

fn spec_of(k: usize, rows: RowClass, weights: &[(WeightFormat, usize)]) -> Projections {
    let mut all = [None; Projections::MOST];
    for (place, &(format, n)) in all.iter_mut().zip(weights) {
        *place = Some(Projection { format, n: n as u32 });
    }
    Projections { k: k as u32, rows, weights: all }
}

/// What each product gives for each row, by the reference.
struct Case {
    spec: Projections,
    inputs: Vec<Buffer>,
    weights: Vec<Buffer>,
    need: Vec<Vec<f32>>,
}

fn case(k: usize, class: RowClass, weights: &[(WeightFormat, usize)]) -> Case {
    let mut random = Random::new(k as u64 + weights.len() as u64);
    let floats = random.floats(MOST_ROWS * k);
    let input = |format| Input::new(format, k, floats.clone());
    let [wide, narrow] = [input(WeightFormat::F32), input(WeightFormat::Q8_0)];
    let reads = |float: bool| weights.iter().any(|(format, _)| format.is_float() == float);
    let inputs = [(reads(true), &wide), (reads(false), &narrow)];
    let inputs = inputs.iter().filter(|(reads, _)| *reads).map(|(_, x)| Buffer::of(&x.bytes));
    let (mut buffers, mut need) = (Vec::new(), Vec::new());
    for &(format, n) in weights {
        let native = random.weights(format, n, k);
        let x = input(format);
        let product = |i: usize| x.product(i / n, native_row(format, k, &native, i % n));
        need.push((0..MOST_ROWS * n).map(product).collect());
        buffers.push(packed(format, n, k, &native));
    }
    let spec = spec_of(k, class, weights);
    Case { spec, inputs: inputs.collect(), weights: buffers, need }
}

fn equals_reference(mut case: Case, target: Target) {
    let spec = case.spec;
    let kernel = runnable_for(KernelSpec::Projections(spec), target);
    for (rows, parts) in [(1, 1), (2, 3), (3, 2), (8, 16), (9, 7), (MOST_ROWS, 5)] {
        let mut results: Vec<Buffer> =
            case.need.iter().map(|need| Buffer::zeroed(4 * need.len())).collect();
        let mut step = Buffer::step(rows as u32);
        let mut operands = vec![&mut step];
        operands.extend(case.inputs.iter_mut());
        operands.extend(case.weights.iter_mut());
        operands.extend(results.iter_mut());
        kernel.run(&mut operands, parts);
        for (w, (y, need)) in spec.all().zip(results.iter().zip(&case.need)) {
            let live = rows * w.n as usize;
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let y = y.as_ref::<f32>();
            assert_eq!(bits(&y[..live]), bits(&need[..live]), "{w:?} of {spec:?}, {rows} rows");
            assert!(y[live..].iter().all(|&y| y == 0.0), "{w:?}: dead rows are left alone");
        }
    }
}

/// Weights that are less than a group, no whole groups, and wider than all others.
#[test]
fn products_of_both_forms_of_an_input_equal_the_reference() {
    use WeightFormat::{BF16, F16, F32, IQ4_NL, Q4_K, Q5_0, Q6_K, Q8_0};
    let here = Target::of_this_machine().unwrap();
    let mixed = [(Q8_0, 96), (F32, 5), (Q5_0, 40), (F16, 16), (Q8_0, 1), (BF16, 33)];
    equals_reference(case(96, RowClass::Few, &mixed), here);
    equals_reference(case(96, RowClass::Many, &mixed[..3]), here);
    let spans = [(Q6_K, 24), (Q4_K, 272), (IQ4_NL, 7)];
    equals_reference(case(512, RowClass::Few, &spans), here);
    equals_reference(case(512, RowClass::Many, &spans[..2]), here);
    equals_reference(case(512, RowClass::Few, &spans[..2]), Target::Avx512TilesInAvx2);
    equals_reference(case(272, RowClass::Few, &[(F32, 24), (F32, 1)]), here);
    // Neighbours of one format, which take turns.
    let turns = [(Q8_0, 96), (Q8_0, 8), (Q8_0, 40), (F16, 16), (F16, 3), (Q5_0, 9), (Q5_0, 33)];
    equals_reference(case(96, RowClass::Few, &turns), here);
    equals_reference(case(96, RowClass::Many, &turns[1..4]), here);
    equals_reference(case(512, RowClass::Few, &[(Q4_K, 32), (Q4_K, 272), (F32, 16)]), here);
    let most = [(Q8_0, 4); Projections::MOST];
    equals_reference(case(64, RowClass::Few, &most), here);
}

/// Each part reads about as many bytes, whatever the formats: a part of 1 / 4 takes one of four
/// weights of equal bytes, and no other.
#[test]
fn parts_share_bytes() {
    let (k, n) = (64usize, 32usize);
    let weights = [(WeightFormat::F32, n); 4];
    let mut case = case(k, RowClass::Few, &weights);
    let kernel = runnable(KernelSpec::Projections(case.spec));
    let mut results = [(); 4].map(|()| Buffer::zeroed(4 * n));
    let mut step = Buffer::step(1);
    let mut table = vec![step.address()];
    let operands = case.inputs.iter_mut().chain(&mut case.weights).chain(&mut results);
    table.extend(operands.map(Buffer::address));
    kernel.run_part(&table, 2, 4);
    for (i, (y, need)) in results.iter().zip(&case.need).enumerate() {
        let need = if i == 2 { &need[..n] } else { &[0.0; 32][..] };
        assert_eq!(y.as_ref::<f32>(), need, "weight {i}");
    }
}

#[test]
fn projections_are_made_for_every_target_and_bad_ones_refused() {
    let weights = [(WeightFormat::Q4_K, 40), (WeightFormat::F32, 3), (WeightFormat::Q8_0, 16)];
    let good = KernelSpec::Projections(spec_of(256, RowClass::Many, &weights));
    for target in Target::ALL {
        compile(&[good], target).unwrap_or_else(|e| panic!("{target:?}: {e}"));
    }
    let key: KernelSpec = ron::from_str(&good.key()).unwrap();
    assert_eq!(key, good, "the key is read back");
    let refused =
        [spec_of(256, RowClass::Few, &weights[..1]), spec_of(96, RowClass::Few, &weights)];
    for spec in refused.map(KernelSpec::Projections) {
        let error = compile(&[spec], Target::X86Avx2).unwrap_err();
        assert!(matches!(error, KernelError::Shape { .. }), "{error}");
    }
}
