//! Measures attention and row kernels on one thread of this machine.
//!
//! `cargo run --release -p strata-kernels --example row_speed`
//!
//! Each figure is the best of some rounds. Attention with one row reads its pages from memory, so
//! its rate is to be held against the streaming read of the same bytes.

#![allow(clippy::print_stdout, reason = "a tool that prints what it measures")]

use std::hint::black_box;
use std::time::{Duration, Instant};
use strata_kernels::ops::kv::{KvKind, KvLayout};
use strata_kernels::reference::quantize::q8_row_bytes;
use strata_kernels::run::{Buffer, Runnable};
use strata_kernels::spec::{Attention, F32, NormFold, Quantize, RmsNorm};
use strata_kernels::{KernelSpec, Target, compile};

const ROUNDS: usize = 30;

fn main() {
    println!(
        "kind  heads kv dims | compile | 1 row at 8191: us, GB/s, read GB/s | 64 rows to 575: us, GFLOP/s"
    );
    for kind in [KvKind::F16, KvKind::Int8] {
        for shape in [(32, 8, 128), (12, 2, 128), (9, 3, 64), (4, 1, 256), (16, 8, 128)] {
            attention(kind, shape);
        }
    }
    for k in [1536u32, 4096] {
        let (eps, fold) = (F32::from(1e-6), NormFold::None);
        let norm = RmsNorm { k, eps, fold, quantize: false, keep: false };
        row_op("norm", KernelSpec::RmsNorm(norm), k, 3);
        row_op("norm+q8", KernelSpec::RmsNorm(RmsNorm { quantize: true, ..norm }), k, 3);
        row_op("quantize", KernelSpec::Quantize(Quantize { k }), k, 2);
    }
}

fn kernel(spec: KernelSpec) -> (Runnable, Duration) {
    let target = Target::of_this_machine().expect("a machine with AVX2");
    let start = Instant::now();
    let compiled = compile(&[spec], target).expect("the shapes are good");
    let compile = start.elapsed();
    (Runnable::new(&compiled[0]).expect("executable memory"), compile)
}

fn best(mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(once).fold(f64::INFINITY, f64::min)
}

fn attention(kind: KvKind, (heads, kv_heads, head_dim): (u32, usize, usize)) {
    const POSITIONS: usize = 8192;
    let kv = KvLayout::new(kind, kv_heads, head_dim, 64);
    let pages_per_slot = (POSITIONS / 64) as u32;
    let scale = F32::from(0.1);
    let s = Attention {
        heads,
        kv,
        pages_per_slot,
        scale,
        window: 0,
        quantize: false,
        first: 0,
        selection: None,
    };
    let (kernel, compile) = kernel(KernelSpec::Attention(s));
    let row = heads as usize * head_dim;
    let bytes = kv.page_bytes() * POSITIONS / 64;
    // Several copies, taken in turn, so that no cache holds them.
    let copies = (256usize << 20).div_ceil(bytes);
    let mut pages = Buffer::zeroed(bytes * copies);
    pages.as_mut::<u32>().fill(0x2c00_2c00);
    let mut buffers = [
        Buffer::step(1),
        Buffer::of(&vec![0.01f32; 64 * row]),
        Buffer::of(&[POSITIONS as u32 - 1; 64]),
        Buffer::of(&[0u32; 64]),
        Buffer::of(&(0..pages_per_slot).collect::<Vec<_>>()),
        pages,
        Buffer::zeroed(64 * row * 4),
    ];
    let mut table: Vec<u64> = buffers.iter_mut().map(Buffer::address).collect();
    let first = table[5];
    let mut turn = 0;
    let decode = best(|| {
        table[5] = first + ((turn % copies) * bytes) as u64;
        turn += 1;
        kernel.run_part(&table, 0, 1);
    });
    let read = best(|| {
        let words = buffers[5].as_ref::<u64>();
        let words = &words[(turn % copies) * bytes / 8..][..bytes / 8];
        turn += 1;
        black_box(words.iter().fold(0u64, |sum, w| sum.wrapping_add(*w)));
    });
    buffers[0].as_mut::<u32>()[0] = 64;
    for (i, position) in buffers[2].as_mut::<u32>().iter_mut().enumerate() {
        *position = 512 + i as u32;
    }
    let prefill = best(|| kernel.run_part(&table, 0, 1));
    let positions: f64 = (0..64).map(|i| 513.0 + f64::from(i)).sum();
    let operations = 4.0 * positions * row as f64;
    println!(
        "{kind:<5?} {heads:>4} {kv_heads:>3} {head_dim:>4} | {:>4} ms | {:>8.0} {:>5.1} {:>5.1} | {:>8.0} {:>6.1}",
        compile.as_millis(),
        decode * 1e6,
        bytes as f64 / decode * 1e-9,
        bytes as f64 / read * 1e-9,
        prefill * 1e6,
        operations / prefill * 1e-9,
    );
}

fn row_op(name: &str, spec: KernelSpec, k: u32, operands: usize) {
    const ROWS: usize = 64;
    let (kernel, compile) = kernel(spec);
    let row_bytes = (4 * k as usize).max(q8_row_bytes(k as usize));
    let mut buffers = vec![Buffer::step(ROWS as u32)];
    buffers.extend((0..operands).map(|_| Buffer::of(&vec![0.5f32; ROWS * row_bytes / 4])));
    let table: Vec<u64> = buffers.iter_mut().map(Buffer::address).collect();
    let seconds = best(|| kernel.run_part(&table, 0, 1)) / ROWS as f64;
    println!(
        "{name:<9} k {k:>5} | {:>3} ms | {:>7.0} ns a row, {:.2} ns an element",
        compile.as_millis(),
        seconds * 1e9,
        seconds * 1e9 / f64::from(k)
    );
}
