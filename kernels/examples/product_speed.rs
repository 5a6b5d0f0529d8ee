//! Measures matrix kernels on this machine: read rate with few rows, operations with many.
//!
//! `cargo run --release -p strata-kernels --example product_speed [FORMAT ...]`
//!
//! Weights are rotated over more memory than caches hold. Each thread times every call; with few
//! rows its figure is the fastest tenth's slowest call, with many the mean processor time, so that
//! other programs' turns do not count; threads are added up.

use std::time::{Duration, Instant};
use strata_kernels::formats::packed_bytes;
use strata_kernels::reference::quantize::{q8_row_bytes, quantize_row};
use strata_kernels::run::{Buffer, Runnable};
use strata_kernels::spec::{Epilogue, Matmul, RowClass, WeightFormat};
use strata_kernels::{KernelSpec, Target, compile};

const MEMORY_BYTES: usize = 512 << 20;
const ROUNDS: usize = 2;
/// Calls with many rows.
const CALLS: usize = 20;
const MANY_ROWS: u32 = 128;

/// Shapes `(format, n, k)` of matrices that real models have.
const SHAPES: [(WeightFormat, u32, u32); 13] = [
    (WeightFormat::Q4_K, 1536, 1536),
    (WeightFormat::Q4_K, 8960, 1536),
    (WeightFormat::Q4_K, 1536, 8960),
    (WeightFormat::Q6_K, 8960, 1536),
    (WeightFormat::Q6_K, 1536, 8960),
    (WeightFormat::Q4_1, 1536, 576),
    (WeightFormat::Q4_0, 8960, 1536),
    (WeightFormat::IQ4_NL, 8960, 1536),
    (WeightFormat::Q5_0, 8960, 1536),
    (WeightFormat::Q5_K, 8960, 1536),
    (WeightFormat::Q8_0, 8960, 1536),
    (WeightFormat::F16, 8960, 1536),
    (WeightFormat::F32, 8960, 1536),
];

#[allow(clippy::print_stdout, reason = "a tool that prints what it measures")]
fn main() {
    let target = Target::of_this_machine().expect("a machine with AVX2");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut memory = Buffer::zeroed(MEMORY_BYTES);
    fill(memory.as_mut::<u64>());
    let read = [1, 2].map(|threads| read_rate(memory.as_ref(), threads));
    println!("{target:?}: streaming read {:.1} GB/s, 2 threads {:.1} GB/s", read[0], read[1]);
    println!(
        "format       n     k  compile | GB/s, threads x rows: 1x1  2x1  2x2  2x4  2x8 | GOP/s 1, 2 threads"
    );
    for (format, n, k) in SHAPES {
        if !wanted.is_empty() && !wanted.contains(&format!("{format:?}")) {
            continue;
        }
        let few = Bench::new(target, (format, n, k), RowClass::Few);
        let many = Bench::new(target, (format, n, k), RowClass::Many);
        let mut line = format!("{format:<6?} {n:>7} {k:>5} {:>5} ms |", few.compile.as_millis());
        for (threads, rows) in [(1, 1), (2, 1), (2, 2), (2, 4), (2, 8)] {
            let rate = few.rate(&mut memory, rows, threads);
            line += &format!(" {:>5.1}", few.bytes as f64 * rate * 1e-9);
        }
        line += " |";
        for threads in [1, 2] {
            let rate = many.rate(&mut memory, MANY_ROWS, threads);
            let operations = 2.0 * f64::from(n) * f64::from(k) * f64::from(MANY_ROWS);
            line += &format!(" {:>5.0}", operations * rate * 1e-9);
        }
        println!("{line}");
    }
}

/// One kernel and its shape.
struct Bench {
    kernel: Runnable,
    bytes: usize,
    row_bytes: usize,
    format: WeightFormat,
    n: usize,
    k: usize,
    compile: Duration,
}

impl Bench {
    fn new(target: Target, (format, n, k): (WeightFormat, u32, u32), rows: RowClass) -> Self {
        let epilogue = Epilogue::default();
        let spec =
            KernelSpec::Matmul(Matmul { format, n, k, rows, epilogue, logits: false, times: 1 });
        let start = Instant::now();
        let compiled = compile(&[spec], target).expect("the shapes are good");
        let compile = start.elapsed();
        let kernel = Runnable::new(&compiled[0]).expect("executable memory");
        let row_bytes = if format.is_float() { 4 * k as usize } else { q8_row_bytes(k as usize) };
        let bytes = packed_bytes(format, n, k) as usize;
        Self { kernel, bytes, row_bytes, format, n: n as usize, k: k as usize, compile }
    }

    /// Activations between -1 and 1.
    fn fill_rows(&self, x: &mut Buffer) {
        let value = |i: usize| (i * 7919 % 2003) as f32 / 1001.5 - 1.0;
        let row: Vec<f32> = (0..self.k).map(value).collect();
        for to in x.as_mut::<u8>().chunks_mut(self.row_bytes) {
            match self.format.is_float() {
                true => to.copy_from_slice(Buffer::of(&row).as_ref()),
                false => quantize_row(&row, to),
            }
        }
    }

    /// Products a second: each thread runs its part over all copies of the weight.
    fn rate(&self, memory: &mut Buffer, rows: u32, threads: u64) -> f64 {
        let mut step = Buffer::step(rows);
        let mut x = Buffer::zeroed(self.row_bytes * rows as usize);
        self.fill_rows(&mut x);
        let mut y = Buffer::zeroed(self.n * 4 * rows as usize);
        let copies = if rows > 8 { 3 } else { MEMORY_BYTES / self.bytes };
        let tables: Vec<[u64; 4]> = (0..copies)
            .map(|i| {
                let weight = memory.address() + (i * self.bytes) as u64;
                [step.address(), x.address(), weight, y.address()]
            })
            .collect();
        let run = |part, call: usize| {
            self.kernel.run_part(&tables[call % tables.len()], part, threads);
        };
        match rows {
            0..=8 => rate(threads, tables.len() * ROUNDS, run),
            _ => long_rate(threads, run),
        }
    }
}

/// GB/s of adding up memory in pieces of a megabyte.
fn read_rate(words: &[u64], threads: u64) -> f64 {
    const PIECE: usize = 1 << 17;
    let pieces: Vec<_> = words.chunks_exact(PIECE).collect();
    let calls = pieces.len() / threads as usize;
    let pieces_a_second = rate(threads, calls * ROUNDS, |part, call| {
        std::hint::black_box(sum(pieces[part as usize * calls + call % calls]));
    });
    pieces_a_second * threads as f64 * 8.0 * PIECE as f64 * 1e-9
}

/// Calls a second when each of some threads does its part of every call.
fn rate(threads: u64, calls: usize, work: impl Fn(u64, usize) + Sync) -> f64 {
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |part| {
            scope.spawn(move || {
                let mut seconds: Vec<f64> = (0..calls)
                    .map(|call| {
                        let start = Instant::now();
                        work(part, call);
                        start.elapsed().as_secs_f64()
                    })
                    .collect();
                seconds.sort_by(f64::total_cmp);
                1.0 / seconds[calls / 10]
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let rates = running.into_iter().map(|t| t.join().expect("kernels do not panic"));
        rates.sum::<f64>() / threads as f64
    })
}

/// [`rate`] for calls that are long enough to be interrupted.
fn long_rate(threads: u64, work: impl Fn(u64, usize) + Sync) -> f64 {
    std::thread::scope(|scope| {
        let work = &work;
        let spawn = |part| {
            scope.spawn(move || {
                let start = processor_seconds();
                (0..CALLS).for_each(|call| work(part, call));
                CALLS as f64 / (processor_seconds() - start)
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let rates = running.into_iter().map(|t| t.join().expect("kernels do not panic"));
        rates.sum::<f64>() / threads as f64
    })
}

/// Seconds that this thread has run, as Linux counts them.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    nanoseconds.expect("the first number is the time on the processor") * 1e-9
}

fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in words.as_chunks::<16>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Bytes of a fixed sequence. As floats of 16 or 32 bits all are small and none is subnormal,
/// which would cost time that real weights do not.
fn fill(words: &mut [u64]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for word in words {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state & 0x23ff_23ff_23ff_23ff | 0x2000_2000_2000_2000;
    }
}
