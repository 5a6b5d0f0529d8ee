use super::products::runnable;
use super::random::{Random, quantize_rows};
use crate::KernelSpec;
use crate::ops::dispatch::DispatchLayout;
use crate::reference::quantize::q8_row_bytes;
use crate::reference::{activations, norm, rope, route};
use crate::run::Buffer;
use crate::spec::{
    Act, ActMul, Dispatch, ExpertCombine, F32, GatherRows, Mul, NormFold, Quantize, RmsNorm,
    RopeAngles, Route, Scale,
};

const ROWS: usize = 3;
const EPS: f32 = 1e-6;

/// Runs a kernel for [`ROWS`] rows in 1 and in 2 parts; the last operand is the result, `bytes`
/// long with one more row that must stay as it was. Returns the live rows.
pub fn result(spec: KernelSpec, operands: &[Buffer], row_bytes: usize) -> Vec<u8> {
    let kernel = runnable(spec);
    let mut results = [1u64, 2].map(|parts| {
        let mut y = Buffer::of(&vec![0xccu8; row_bytes * (ROWS + 1)]);
        let mut step = Buffer::step(ROWS as u32);
        let mut copies: Vec<Buffer> =
            operands.iter().map(|b| Buffer::of(b.as_ref::<u8>())).collect();
        let mut all: Vec<&mut Buffer> = vec![&mut step];
        all.extend(copies.iter_mut());
        all.push(&mut y);
        kernel.run(&mut all, parts);
        y.as_ref::<u8>().to_vec()
    });
    assert_eq!(results[0], results[1], "{spec:?}: parts change nothing");
    let dead = results[0].split_off(row_bytes * ROWS);
    assert!(dead.iter().all(|&b| b == 0xcc), "{spec:?}: a dead row was written");
    std::mem::take(&mut results[0])
}

/// Bytes of floats, so that results are compared bit for bit.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn first_difference(got: &[u8], want: &[u8]) -> Option<usize> {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).position(|(a, b)| a != b)
}

pub fn assert_same(spec: KernelSpec, got: &[u8], want: &[u8]) {
    assert_eq!(first_difference(got, want), None, "{spec:?}: first differing byte");
}

/// Rows with very large, very small, special and ordinary values.
fn hostile(random: &mut Random, k: usize) -> Vec<f32> {
    let mut x = random.floats(ROWS * k);
    for (i, v) in x.iter_mut().enumerate() {
        *v *= [1.0, 1e-4, 3e3, 40.0][i / 32 % 4];
    }
    x[k] = 0.0;
    x[k + 1] = -0.0;
    x
}

#[test]
fn quantize_equals_the_reference_also_for_special_values() {
    let mut random = Random::new(1);
    for k in [32, 96, 256, 288, 768] {
        let mut x = hostile(&mut random, k);
        x[..4].copy_from_slice(&[f32::NAN, f32::INFINITY, 3e38, -f32::INFINITY]);
        x[k..k + 32].fill(1e-31);
        x[2 * k..2 * k + 32].copy_from_slice(&std::array::from_fn::<_, 32, _>(|i| i as f32 - 0.5));
        let spec = KernelSpec::Quantize(Quantize { k: k as u32 });
        let got = result(spec, &[Buffer::of(&x)], q8_row_bytes(k));
        assert_same(spec, &got, &quantize_rows(&x, k));
    }
}

#[test]
fn norms_equal_the_reference_in_every_fold() {
    let mut random = Random::new(2);
    for k in [16, 64, 272, 768, 1376] {
        let (x, other) = (hostile(&mut random, k), hostile(&mut random, k));
        let gain = random.floats(k);
        for quantize in [false, true] {
            if quantize && k % 32 != 0 {
                continue;
            }
            for fold in [NormFold::None, NormFold::AddBefore, NormFold::AddAfter] {
                let s = RmsNorm { k: k as u32, eps: F32::from(EPS), fold, quantize, keep: false };
                let spec = KernelSpec::RmsNorm(s);
                let (want, operands) = norm_case(&x, &other, &gain, fold);
                let want = if quantize { quantize_rows(&want, k) } else { bytes_of(&want) };
                let row_bytes = if quantize { q8_row_bytes(k) } else { 4 * k };
                assert_same(spec, &result(spec, &operands, row_bytes), &want);
            }
        }
    }
}

fn norm_case(x: &[f32], other: &[f32], gain: &[f32], fold: NormFold) -> (Vec<f32>, Vec<Buffer>) {
    let k = gain.len();
    let mut y = vec![0.0; x.len()];
    for ((x, other), y) in x.chunks(k).zip(other.chunks(k)).zip(y.chunks_mut(k)) {
        match fold {
            NormFold::None => norm::rms_norm(x, gain, EPS, y),
            NormFold::AddBefore => {
                norm::add_rms_norm(x, other, gain, EPS, (&mut vec![0.0; k], y));
            }
            NormFold::AddAfter => norm::rms_norm_add(x, gain, other, EPS, y),
        }
    }
    let [x, other, gain] = [x, other, gain].map(Buffer::of);
    let operands = match fold {
        NormFold::None => vec![x, gain],
        NormFold::AddBefore => {
            let h = Buffer::zeroed(x.as_ref::<u8>().len());
            vec![x, other, gain, h]
        }
        NormFold::AddAfter => vec![x, gain, other],
    };
    (y, operands)
}

#[test]
fn a_norm_keeps_the_rows_that_it_quantises() {
    let (k, mut random) = (288usize, Random::new(10));
    let (x, gain) = (hostile(&mut random, k), random.floats(k));
    let (want, mut operands) = norm_case(&x, &x, &gain, NormFold::None);
    let s = RmsNorm {
        k: k as u32,
        eps: F32::from(EPS),
        fold: NormFold::None,
        quantize: true,
        keep: true,
    };
    let [x, gain] = &mut operands[..] else { panic!("x and gain") };
    let (mut kept, mut y) = (Buffer::zeroed(4 * ROWS * k), Buffer::zeroed(ROWS * q8_row_bytes(k)));
    let mut step = Buffer::step(ROWS as u32);
    runnable(KernelSpec::RmsNorm(s)).run(&mut [&mut step, x, gain, &mut kept, &mut y], 2);
    assert_eq!(bytes_of(kept.as_ref()), bytes_of(&want));
    assert_eq!(y.as_ref::<u8>(), quantize_rows(&want, k));
}

#[test]
fn the_sum_before_a_norm_is_written_back_in_place() {
    let (k, mut random) = (64usize, Random::new(3));
    let (a, b) = (random.floats(k), random.floats(k));
    let fold = NormFold::AddBefore;
    let s = RmsNorm { k: k as u32, eps: F32::from(EPS), fold, quantize: false, keep: false };
    let kernel = runnable(KernelSpec::RmsNorm(s));
    let (mut h, mut b_buffer) = (Buffer::of(&a), Buffer::of(&b));
    let (mut gain, mut y) = (Buffer::of(&vec![1.0f32; k]), Buffer::zeroed(4 * k));
    let mut step = Buffer::step(1);
    let (step, h_at) = (step.address(), h.address());
    let table = [step, h_at, b_buffer.address(), gain.address(), h_at, y.address()];
    kernel.run_part(&table, 0, 1);
    let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_eq!(bytes_of(h.as_ref()), bytes_of(&sums));
}

#[test]
fn elementwise_ops_equal_the_reference_for_odd_lengths() {
    let mut random = Random::new(4);
    for k in [1, 7, 31, 64, 100] {
        let (a, b) = (random.floats(ROWS * k), random.floats(ROWS * k));
        let a: Vec<f32> = a.iter().map(|a| a * 30.0).collect();
        let run = |spec, two: bool| {
            let mut operands = vec![Buffer::of(&a)];
            operands.extend(two.then(|| Buffer::of(&b)));
            result(spec, &operands, 4 * k)
        };
        let pairs = || a.iter().zip(&b);
        let k = k as u32;
        let spec = KernelSpec::Mul(Mul { k });
        assert_same(
            spec,
            &run(spec, true),
            &bytes_of(&pairs().map(|(a, b)| a * b).collect::<Vec<_>>()),
        );
        let spec = KernelSpec::Scale(Scale { k, factor: F32::from(0.3) });
        assert_same(
            spec,
            &run(spec, false),
            &bytes_of(&a.iter().map(|a| a * 0.3).collect::<Vec<_>>()),
        );
        for act in [Act::Silu, Act::GeluTanh, Act::Sigmoid] {
            let spec = KernelSpec::ActMul(ActMul { act, k, quantize: false });
            let mut want = vec![0.0; a.len()];
            activations::act_mul(act, &a, &b, &mut want);
            assert_same(spec, &run(spec, true), &bytes_of(&want));
        }
    }
}

#[test]
fn gates_can_be_quantised() {
    let (k, mut random) = (288usize, Random::new(5));
    let (a, b) = (random.floats(ROWS * k), random.floats(ROWS * k));
    let mut want = vec![0.0; a.len()];
    activations::act_mul(Act::Silu, &a, &b, &mut want);
    let spec = KernelSpec::ActMul(ActMul { act: Act::Silu, k: k as u32, quantize: true });
    let got = result(spec, &[Buffer::of(&a), Buffer::of(&b)], q8_row_bytes(k));
    assert_same(spec, &got, &quantize_rows(&want, k));
}

#[test]
fn gathered_rows_are_copies() {
    let (k, mut random) = (40usize, Random::new(6));
    let x = random.floats(9 * k);
    let indices = [8u32, 0, 5];
    let spec = KernelSpec::GatherRows(GatherRows { k: k as u32 });
    let got = result(spec, &[Buffer::of(&x), Buffer::of(&indices)], 4 * k);
    let want = indices.map(|i| bytes_of(&x[i as usize * k..][..k])).concat();
    assert_same(spec, &got, &want);
}

#[test]
fn rope_angles_equal_the_reference_up_to_long_positions() {
    for dims in [2usize, 24, 64, 128] {
        let inv_freq: Vec<f32> =
            (0..dims / 2).map(|i| 1e6f32.powf(-2.0 * i as f32 / dims as f32)).collect();
        let positions = [0u32, 5003, 262_143];
        let spec = KernelSpec::RopeAngles(RopeAngles { dims: dims as u32 });
        let got = result(spec, &[Buffer::of(&positions), Buffer::of(&inv_freq)], 4 * dims);
        let mut want = vec![0.0; ROWS * dims];
        for (p, row) in positions.iter().zip(want.chunks_mut(dims)) {
            rope::rope_angles(*p, &inv_freq, row);
        }
        assert_same(spec, &got, &bytes_of(&want));
    }
}

#[test]
fn routing_equals_the_reference_with_ties() {
    let mut random = Random::new(7);
    for (experts, top_k) in [(4, 4), (12, 3), (60, 4), (128, 8), (512, 10)] {
        let mut logits: Vec<f32> = random.floats(ROWS * experts).iter().map(|x| x * 4.0).collect();
        for (i, x) in logits.iter_mut().enumerate() {
            if i % 3 == 0 {
                *x = (*x * 2.0).round();
            }
        }
        logits[experts..2 * experts].fill(0.5);
        for (renormalize, dispatch) in [(false, false), (true, false), (true, true)] {
            let s = Route { experts: experts as u32, top_k: top_k as u32, renormalize, dispatch };
            let kernel = runnable(KernelSpec::Route(s));
            let (mut ids, mut weights) = (vec![0; ROWS * top_k], vec![0.0; ROWS * top_k]);
            for row in 0..ROWS {
                let out = row * top_k..(row + 1) * top_k;
                let logits = &logits[row * experts..][..experts];
                route::route(logits, renormalize, &mut ids[out.clone()], &mut weights[out]);
            }
            let mut found = [Buffer::zeroed(4 * ids.len()), Buffer::zeroed(4 * ids.len())];
            let [found_ids, found_weights] = &mut found;
            let mut step = Buffer::step(ROWS as u32);
            let mut logits = Buffer::of(&logits);
            let layout = DispatchLayout { experts: s.experts, top_k: s.top_k };
            let mut list = Buffer::zeroed(layout.bytes(ROWS as u32) as usize);
            kernel.run(&mut [&mut step, &mut logits, found_ids, found_weights, &mut list], 2);
            assert_eq!(found[0].as_ref::<u32>(), ids, "{s:?}");
            assert_eq!(bytes_of(found[1].as_ref()), bytes_of(&weights), "{s:?}");
            if dispatch {
                assert_dispatched(&list, layout, &ids);
            }
        }
    }
}

#[test]
fn dispatch_sorts_pairs_by_expert() {
    let (experts, top_k, mut random) = (37u32, 3u32, Random::new(8));
    let layout = DispatchLayout { experts, top_k };
    for rows in [0u32, 1, 5, 50] {
        let first: Vec<u32> = (0..rows).map(|_| (random.word() % 12) as u32).collect();
        let ids: Vec<u32> = first.iter().flat_map(|e| [*e, e + 12, e + 24]).collect();
        let kernel = runnable(KernelSpec::Dispatch(Dispatch { experts, top_k }));
        let mut list = Buffer::zeroed(layout.bytes(rows) as usize);
        kernel.run(&mut [&mut Buffer::step(rows), &mut Buffer::of(&ids), &mut list], 2);
        assert_dispatched(&list, layout, &ids);
    }
}

fn assert_dispatched(list: &Buffer, layout: DispatchLayout, ids: &[u32]) {
    let want = route::dispatch(ids, layout.experts as usize);
    let words = list.as_ref::<u32>();
    let field = |at: u64, count: usize| &words[at as usize / 4..][..count];
    assert_eq!(field(layout.active(), 1)[0] as usize, want.active.len());
    assert_eq!(field(layout.offsets(), want.offsets.len()), want.offsets);
    assert_eq!(field(layout.active_ids(), want.active.len()), want.active);
    assert_eq!(field(layout.pairs(), want.pairs.len()), want.pairs);
}

#[test]
fn expert_sums_keep_the_order_of_slots() {
    let mut random = Random::new(9);
    for (k, top_k) in [(32usize, 1usize), (72, 8)] {
        let weights = random.floats(ROWS * top_k);
        let down = random.floats(ROWS * top_k * k);
        let residual = random.floats(ROWS * k);
        for with in [false, true] {
            let s = ExpertCombine { top_k: top_k as u32, k: k as u32, residual: with };
            let mut operands = vec![Buffer::of(&weights), Buffer::of(&down)];
            operands.extend(with.then(|| Buffer::of(&residual)));
            let mut want = vec![0.0; ROWS * k];
            for (row, y) in want.chunks_mut(k).enumerate() {
                let weights = &weights[row * top_k..][..top_k];
                let down = &down[row * top_k * k..][..top_k * k];
                let residual = with.then(|| &residual[row * k..][..k]);
                route::expert_combine(weights, down, residual, y);
            }
            let spec = KernelSpec::ExpertCombine(s);
            assert_same(spec, &result(spec, &operands, 4 * k), &bytes_of(&want));
        }
    }
}
