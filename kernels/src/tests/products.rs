use super::random::{Random, quantize_rows};
use crate::formats::packed_bytes;
use crate::reference::activations;
use crate::reference::matmul::{block_product, epilogue, float_product};
use crate::reference::quantize::q8_row_bytes;
use crate::reference::route;
use crate::run::{Buffer, Runnable};
use crate::spec::{
    Act, Epilogue, ExpertSum, GatedMatmul, Matmul, Repack, RowClass, ToF32, WeightFormat,
};
use crate::{KernelSpec, Target, compile};

/// The kernel for this machine.
pub fn runnable(spec: KernelSpec) -> Runnable {
    runnable_for(spec, Target::of_this_machine().unwrap())
}

/// The kernel for a target that this machine can run.
pub fn runnable_for(spec: KernelSpec, target: Target) -> Runnable {
    Runnable::new(&compile(&[spec], target).unwrap()[0]).unwrap()
}

/// Weights as matrix kernels read them.
pub fn packed(format: WeightFormat, n: usize, k: usize, native: &[u8]) -> Buffer {
    if format.is_float() {
        return Buffer::of(native);
    }
    let (n, k) = (n as u32, k as u32);
    let repack = runnable(KernelSpec::Repack(Repack { format, n, k }));
    let mut packed = Buffer::zeroed(packed_bytes(format, n, k) as usize);
    repack.run(&mut [&mut Buffer::step(1), &mut Buffer::of(native), &mut packed], 2);
    packed
}

/// Activations of a format: q8 rows or f32 rows.
pub struct Input {
    pub format: WeightFormat,
    pub k: usize,
    pub floats: Vec<f32>,
    pub bytes: Vec<u8>,
}

impl Input {
    pub fn new(format: WeightFormat, k: usize, floats: Vec<f32>) -> Self {
        let bytes = match format.is_float() {
            true => floats.iter().flat_map(|x| x.to_le_bytes()).collect(),
            false => quantize_rows(&floats, k),
        };
        Self { format, k, floats, bytes }
    }

    /// Product of row `row` with a native weight row.
    pub fn product(&self, row: usize, weight: &[u8]) -> f32 {
        let k = self.k;
        if self.format.is_float() {
            return float_product(self.format, weight, &self.floats[row * k..][..k]);
        }
        let bytes = q8_row_bytes(k);
        block_product(self.format, weight, &self.bytes[row * bytes..][..bytes], k)
    }
}

/// Row `row` of native weights.
pub fn native_row(format: WeightFormat, k: usize, native: &[u8], row: usize) -> &[u8] {
    let bytes = format.row_bytes(k as u32) as usize;
    &native[row * bytes..][..bytes]
}

fn assert_bits(found: &[f32], need: &[f32], what: &str) {
    for (i, (f, n)) in found.iter().zip(need).enumerate() {
        assert_eq!(f.to_bits(), n.to_bits(), "{what}: element {i} is {f}, need {n}");
    }
}

const MOST_ROWS: usize = 33;

fn matmul_equals_reference(format: WeightFormat, n: usize, k: usize, epi: Epilogue) {
    let mut random = Random::new((n * 31 + k) as u64);
    let native = random.weights(format, n, k);
    let input = Input::new(format, k, random.floats(MOST_ROWS * k));
    let (bias, residual) = (random.floats(n), random.floats(MOST_ROWS * n));
    let need: Vec<f32> = (0..MOST_ROWS * n)
        .map(|i| {
            let total = input.product(i / n, native_row(format, k, &native, i % n));
            let bias = epi.bias.then(|| bias[i % n]);
            epilogue(total, bias, epi.residual.then(|| residual[i]))
        })
        .collect();
    let (mut weight, mut x) = (packed(format, n, k, &native), Buffer::of(&input.bytes));
    let (mut bias, mut residual) = (Buffer::of(&bias), Buffer::of(&residual));
    let here = Target::of_this_machine().unwrap();
    let mut kinds = vec![(RowClass::Few, here)];
    if n == 40 {
        kinds.extend([(RowClass::Many, here), (RowClass::Few, Target::Avx512TilesInAvx2)]);
    }
    for (class, target) in kinds {
        let (n32, k32) = (n as u32, k as u32);
        let spec =
            Matmul { format, n: n32, k: k32, rows: class, epilogue: epi, logits: false, times: 1 };
        let kernel = runnable_for(KernelSpec::Matmul(spec), target);
        for rows in [1, 2, 3, 4, 6, 8, 32, MOST_ROWS] {
            let mut y = Buffer::zeroed(MOST_ROWS * n * 4);
            let mut step = Buffer::step(rows as u32);
            let mut operands = vec![&mut step, &mut x, &mut weight];
            operands.extend(epi.bias.then_some(&mut bias));
            operands.extend(epi.residual.then_some(&mut residual));
            operands.push(&mut y);
            kernel.run(&mut operands, 1 + rows as u64 % 3);
            let y = y.as_ref::<f32>();
            assert_bits(&y[..rows * n], &need[..rows * n], &format!("{spec:?}, {rows} rows"));
            assert!(y[rows * n..].iter().all(|&y| y == 0.0), "dead rows are left alone");
        }
    }
}

/// Shapes with a last group and a last span that are short, where the format allows it.
fn matmuls_of(format: WeightFormat) {
    let none = Epilogue::default();
    let both = Epilogue { bias: true, residual: true };
    let shapes: &[(usize, usize)] = match format.block().0 {
        256 => &[(16, 256), (40, 512)],
        _ => &[(16, 64), (40, 576), (23, 896)],
    };
    for &(n, k) in shapes {
        let epilogue = if n == 16 { none } else { both };
        matmul_equals_reference(format, n, k, epilogue);
    }
}

macro_rules! matmul_tests {
    ($($name:ident: $format:ident),* $(,)?) => { $(
        #[test]
        fn $name() {
            matmuls_of(WeightFormat::$format);
        }
    )* };
}

matmul_tests! {
    matmul_f32: F32,
    matmul_f16: F16,
    matmul_bf16: BF16,
    matmul_q8_0: Q8_0,
    matmul_q4_0: Q4_0,
    matmul_q4_1: Q4_1,
    matmul_q5_0: Q5_0,
    matmul_q5_1: Q5_1,
    matmul_q4_k: Q4_K,
    matmul_q5_k: Q5_K,
    matmul_q6_k: Q6_K,
    matmul_iq4_nl: IQ4_NL,
}

/// The largest quants with the largest activations stay exact: no i16 may saturate. The four
/// groups of 16 rows are of one byte each.
#[test]
fn extreme_quants_are_exact() {
    let (n, k) = (64, 256);
    let signs = |i: usize| if i.is_multiple_of(3) { -1.0 } else { 1.0 };
    let floats: Vec<f32> = (0..2 * k).map(|i| signs(i / k * i)).collect();
    for format in WeightFormat::ALL.into_iter().filter(|f| !f.is_float()) {
        let random = Random::new(1).weights(format, n, k);
        let mut native = random.clone();
        let group_bytes = native.len() / 4;
        for (group, byte) in native.chunks_mut(group_bytes).zip([0x00, 0x7f, 0x80, 0xff]) {
            group.fill(byte);
        }
        restore_scales(format, &mut native, &random);
        let input = Input::new(format, k, floats.clone());
        let spec = Matmul {
            format,
            n: n as u32,
            k: k as u32,
            rows: RowClass::Few,
            epilogue: Epilogue::default(),
            logits: true,
            times: 1,
        };
        let mut y = Buffer::zeroed(2 * n * 4);
        let mut weight = packed(format, n, k, &native);
        let mut x = Buffer::of(&input.bytes);
        runnable(KernelSpec::Matmul(spec))
            .run(&mut [&mut Buffer::step(2), &mut x, &mut weight, &mut y], 1);
        let need: Vec<f32> = (0..2 * n)
            .map(|i| input.product(i / n, native_row(format, k, &native, i % n)))
            .collect();
        assert_bits(y.as_ref(), &need, &format!("{format:?}"));
    }
}

/// A weight that streams share: the rows of a window times the streams.
#[test]
fn streams_may_share_a_weight() {
    let (n, k, times, rows) = (40, 96, 3, 2);
    for format in [WeightFormat::Q8_0, WeightFormat::F32] {
        let mut random = Random::new(13);
        let native = random.weights(format, n, k);
        let input = Input::new(format, k, random.floats(times * rows * k));
        let need: Vec<f32> = (0..times * rows * n)
            .map(|i| input.product(i / n, native_row(format, k, &native, i % n)))
            .collect();
        let (n32, k32, times) = (n as u32, k as u32, times as u32);
        let (rows_class, epilogue) = (RowClass::Few, Epilogue::default());
        let spec =
            Matmul { format, n: n32, k: k32, rows: rows_class, epilogue, logits: false, times };
        let mut y = Buffer::zeroed(need.len() * 4);
        let (mut x, mut weight) = (Buffer::of(&input.bytes), packed(format, n, k, &native));
        let mut step = Buffer::step(rows as u32);
        let kernel = runnable(KernelSpec::Matmul(spec));
        kernel.run(&mut [&mut step, &mut x, &mut weight, &mut y], 2);
        assert_bits(y.as_ref(), &need, &format!("{spec:?}"));
    }
}

/// Every kernel of this file is also made for the target that this machine may lack.
#[test]
fn all_formats_are_made_for_every_target() {
    let (n, k, rows, epilogue) = (40, 512, RowClass::Many, Epilogue::default());
    let specs: Vec<KernelSpec> = WeightFormat::ALL
        .into_iter()
        .flat_map(|format| {
            let matmul = Matmul { format, n, k, rows, epilogue, logits: false, times: 1 };
            let repack = KernelSpec::Repack(Repack { format, n, k });
            let repack = (!format.is_float()).then_some(repack);
            std::iter::once(KernelSpec::Matmul(matmul)).chain(repack)
        })
        .collect();
    for target in Target::ALL {
        compile(&specs, target).unwrap_or_else(|e| panic!("{target:?}: {e}"));
    }
}

/// Puts finite f16 scales back into blocks whose bytes were overwritten.
fn restore_scales(format: WeightFormat, native: &mut [u8], from: &[u8]) {
    let bytes = format.block().1 as usize;
    for (block, from) in native.chunks_mut(bytes).zip(from.chunks(bytes)) {
        let at = if format == WeightFormat::Q6_K { 208..210 } else { 0..2 };
        block[at.clone()].copy_from_slice(&from[at]);
        let has_min = matches!(
            format,
            WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4_K | WeightFormat::Q5_K
        );
        if has_min {
            block[2..4].copy_from_slice(&from[2..4]);
        }
    }
}

fn gated_equals_reference(format: WeightFormat, act: Act, quantize: bool) {
    let (n, k, most) = (if quantize { 288 } else { 48 }, 256, 9);
    let mut random = Random::new(7);
    let weights = [random.weights(format, n, k), random.weights(format, n, k)];
    let input = Input::new(format, k, random.floats(most * k));
    let need: Vec<f32> = (0..most * n)
        .map(|i| {
            let product = |w| input.product(i / n, native_row(format, k, w, i % n));
            activations::act(act, product(&weights[0])) * product(&weights[1])
        })
        .collect();
    let [mut gate, mut up] = weights.map(|w| packed(format, n, k, &w));
    for class in [RowClass::Few, RowClass::Many] {
        let spec = GatedMatmul { format, n: n as u32, k: k as u32, rows: class, act, quantize };
        let kernel = runnable(KernelSpec::GatedMatmul(spec));
        for rows in [1, 2, 3, 4, 7, 9] {
            let need = match quantize {
                true => Buffer::of(&quantize_rows(&need[..rows * n], n)),
                false => Buffer::of(&need[..rows * n]),
            };
            let mut y = Buffer::zeroed(need.as_ref::<u8>().len());
            let mut step = Buffer::step(rows as u32);
            let mut x = Buffer::of(&input.bytes);
            kernel.run(&mut [&mut step, &mut x, &mut gate, &mut up, &mut y], 3);
            assert_eq!(y.as_ref::<u32>(), need.as_ref::<u32>(), "{spec:?}, {rows} rows");
        }
    }
}

#[test]
fn gated_products_equal_the_reference() {
    gated_equals_reference(WeightFormat::Q4_K, Act::Silu, true);
    gated_equals_reference(WeightFormat::Q8_0, Act::GeluTanh, false);
    gated_equals_reference(WeightFormat::F16, Act::Silu, false);
    gated_equals_reference(WeightFormat::IQ4_NL, Act::Silu, true);
}

/// Against the products of every pair, summed by the reference; two rows share an expert.
#[test]
fn sums_of_experts_equal_the_reference() {
    let (experts, top_k, n, rows) = (5usize, 2usize, 48usize, 3usize);
    let ids = [4u32, 1, 0, 4, 2, 1];
    for (format, k) in
        [(WeightFormat::Q4_K, 512), (WeightFormat::IQ4_NL, 96), (WeightFormat::F16, 64)]
    {
        let mut random = Random::new(11);
        let banks: Vec<Vec<u8>> = (0..experts).map(|_| random.weights(format, n, k)).collect();
        let packed_banks: Vec<u8> =
            banks.iter().flat_map(|b| packed(format, n, k, b).as_ref::<u8>().to_vec()).collect();
        let input = Input::new(format, k, random.floats(rows * top_k * k));
        let (weights, residual) = (random.floats(rows * top_k), random.floats(rows * n));
        let down: Vec<f32> = (0..rows * top_k * n)
            .map(|i| {
                let bank = &banks[ids[i / n] as usize];
                input.product(i / n, native_row(format, k, bank, i % n))
            })
            .collect();
        for with in [false, true] {
            let mut need = vec![0.0; rows * n];
            for (row, y) in need.chunks_mut(n).enumerate() {
                let pairs = row * top_k..(row + 1) * top_k;
                let down = &down[pairs.start * n..pairs.end * n];
                let residual = with.then(|| &residual[row * n..][..n]);
                route::expert_combine(&weights[pairs], down, residual, y);
            }
            let [experts, top_k, n, k] = [experts, top_k, n, k].map(|x| x as u32);
            let s = ExpertSum { format, experts, top_k, n, k, residual: with };
            let mut operands = vec![
                Buffer::step(rows as u32),
                Buffer::of(&ids),
                Buffer::of(&weights),
                Buffer::of(&input.bytes),
                Buffer::of(&packed_banks),
            ];
            operands.extend(with.then(|| Buffer::of(&residual)));
            operands.push(Buffer::zeroed(need.len() * 4));
            runnable(KernelSpec::ExpertSum(s)).run(&mut operands.iter_mut().collect::<Vec<_>>(), 2);
            assert_bits(operands[operands.len() - 1].as_ref(), &need, &format!("{s:?}"));
        }
    }
}

#[test]
fn vectors_become_f32() {
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16] {
        for (n, add_one, neg_exp) in [
            (48, false, false),
            (48, true, false),
            (48, false, true),
            (38, false, true),
            (6, true, false),
        ] {
            let native = Random::new(3).weights(format, 1, 48);
            let need = crate::reference::matmul::decode_row(format, &native, 48);
            let kernel = runnable(KernelSpec::ToF32(ToF32 { format, n, add_one, neg_exp }));
            let mut y = Buffer::zeroed(n as usize * 4);
            kernel.run(&mut [&mut Buffer::step(1), &mut Buffer::of(&native), &mut y], 2);
            let one = |x: &f32| match (add_one, neg_exp) {
                (true, _) => x + 1.0,
                (_, true) => -crate::reference::math::exp(*x),
                _ => *x,
            };
            let need: Vec<f32> = need[..n as usize].iter().map(one).collect();
            assert_bits(y.as_ref(), &need, &format!("{format:?} {n}"));
        }
    }
}
