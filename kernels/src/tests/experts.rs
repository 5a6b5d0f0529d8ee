use super::products::{Input, native_row, packed, runnable};
use super::random::{Random, quantize_rows};
use crate::KernelSpec;
use crate::ops::dispatch::DispatchLayout;
use crate::reference::activations;
use crate::run::Buffer;
use crate::spec::{Act, Dispatch, ExpertDown, ExpertGated, WeightFormat};

const EXPERTS: usize = 5;
const TOP_K: usize = 2;
const ROWS: usize = 7;
const N: usize = 64;
const K: usize = 256;

/// Expert ids of each pair; expert 3 has no row, expert 0 has most.
const IDS: [u32; ROWS * TOP_K] = [0, 1, 0, 4, 2, 0, 0, 1, 4, 2, 0, 2, 0, 1];

fn dispatch_list() -> Buffer {
    let layout = DispatchLayout { experts: EXPERTS as u32, top_k: TOP_K as u32 };
    let mut list = Buffer::zeroed(layout.bytes(ROWS as u32) as usize);
    let dispatch = Dispatch { experts: EXPERTS as u32, top_k: TOP_K as u32 };
    runnable(KernelSpec::Dispatch(dispatch))
        .run(&mut [&mut Buffer::step(ROWS as u32), &mut Buffer::of(&IDS), &mut list], 1);
    list
}

fn gated_equals_reference(format: WeightFormat, quantize: bool) {
    let mut random = Random::new(11);
    let banks = [(); 2].map(|()| random.weights(format, EXPERTS * N, K));
    let input = Input::new(format, K, random.floats(ROWS * K));
    let hidden: Vec<f32> = (0..IDS.len() * N)
        .map(|i| {
            let (pair, n) = (i / N, i % N);
            let row = IDS[pair] as usize * N + n;
            let product = |bank| input.product(pair / TOP_K, native_row(format, K, bank, row));
            activations::act(Act::Silu, product(&banks[0])) * product(&banks[1])
        })
        .collect();
    let need = match quantize {
        true => Buffer::of(&quantize_rows(&hidden, N)),
        false => Buffer::of(&hidden),
    };
    let [mut gate, mut up] = banks.map(|bank| packed(format, EXPERTS * N, K, &bank));
    let kernel = runnable(KernelSpec::ExpertGated(ExpertGated {
        format,
        experts: EXPERTS as u32,
        top_k: TOP_K as u32,
        n: N as u32,
        k: K as u32,
        act: Act::Silu,
        quantize,
    }));
    for parts in [1, 3] {
        let mut h = Buffer::zeroed(need.as_ref::<u8>().len());
        let (mut step, mut list) = (Buffer::step(ROWS as u32), dispatch_list());
        let mut x = Buffer::of(&input.bytes);
        kernel.run(&mut [&mut step, &mut list, &mut x, &mut gate, &mut up, &mut h], parts);
        assert_eq!(h.as_ref::<u32>(), need.as_ref::<u32>(), "{format:?}, {parts} parts");
    }
}

fn down_equals_reference(format: WeightFormat) {
    let mut random = Random::new(12);
    let native = random.weights(format, EXPERTS * N, K);
    let input = Input::new(format, K, random.floats(IDS.len() * K));
    let need: Vec<u32> = (0..IDS.len() * N)
        .map(|i| {
            let row = IDS[i / N] as usize * N + i % N;
            input.product(i / N, native_row(format, K, &native, row)).to_bits()
        })
        .collect();
    let mut bank = packed(format, EXPERTS * N, K, &native);
    let kernel = runnable(KernelSpec::ExpertDown(ExpertDown {
        format,
        experts: EXPERTS as u32,
        top_k: TOP_K as u32,
        n: N as u32,
        k: K as u32,
    }));
    for parts in [1, 4] {
        let mut d = Buffer::zeroed(need.len() * 4);
        let (mut step, mut list) = (Buffer::step(ROWS as u32), dispatch_list());
        let mut h = Buffer::of(&input.bytes);
        kernel.run(&mut [&mut step, &mut list, &mut h, &mut bank, &mut d], parts);
        assert_eq!(d.as_ref::<u32>(), need, "{format:?}, {parts} parts");
    }
}

#[test]
fn expert_gated_products_equal_the_reference() {
    gated_equals_reference(WeightFormat::Q4_K, true);
    gated_equals_reference(WeightFormat::Q6_K, false);
    gated_equals_reference(WeightFormat::BF16, false);
}

#[test]
fn expert_down_products_equal_the_reference() {
    down_equals_reference(WeightFormat::Q4_K);
    down_equals_reference(WeightFormat::Q8_0);
    down_equals_reference(WeightFormat::F16);
    down_equals_reference(WeightFormat::IQ4_NL);
}
