//! Measures the gated delta rule on one thread of this machine.
//!
//! `cargo run --release -p strata-kernels --example delta_speed`
//!
//! Each figure is the best of some rounds. States are taken in turn from more memory than a cache
//! holds, so the rate of a few rows is to be held against the streaming read of the same bytes.

#![allow(clippy::print_stdout, reason = "a tool that prints what it measures")]

use std::hint::black_box;
use std::time::Instant;
use strata_kernels::ops::slots::SlotLayout;
use strata_kernels::run::{Buffer, Runnable};
use strata_kernels::spec::{DeltaCommit, DeltaFactors, GatedDelta};
use strata_kernels::{KernelSpec, Target, compile};

const ROUNDS: usize = 40;
const MEMORY_BYTES: u64 = 256 << 20;
const MANY_ROWS: usize = 512;
/// Key heads, value heads, dimensions of a head.
const SHAPES: [(u32, u32, u32); 3] = [(16, 48, 128), (16, 32, 128), (2, 6, 32)];

fn main() {
    println!(
        "keys values dims | GB/s of states: read, verify 1 row, 4 rows, in place 1 row (read and written), commit 1, 4 | rows/s, GFLOP/s of {MANY_ROWS} rows"
    );
    for shape in SHAPES {
        Bench::new(shape).report();
    }
}

struct Bench {
    s: GatedDelta,
    slots: usize,
    /// The step block, then the operands of [`GatedDelta`].
    buffers: Vec<Buffer>,
}

impl Bench {
    fn new((key_heads, value_heads, head_dim): (u32, u32, u32)) -> Self {
        let value = 4 * u64::from(value_heads * head_dim * head_dim);
        let factors = DeltaFactors::new(key_heads, value_heads, head_dim).bytes();
        let layout = SlotLayout::new(value, factors, 8);
        let (tiled, interleaved, pending) = (true, false, false);
        let s =
            GatedDelta { key_heads, value_heads, head_dim, tiled, interleaved, layout, pending };
        let slots = (MEMORY_BYTES / layout.stride_bytes) as usize;
        let width = ((2 * key_heads + value_heads) * head_dim) as usize;
        let gates = vec![0.5f32; MANY_ROWS * value_heads as usize];
        let mut states = Buffer::zeroed(slots * layout.stride_bytes as usize);
        states.as_mut::<f32>().fill(0.01);
        let qkv: Vec<f32> = (0..MANY_ROWS * width).map(|i| (i as f32 * 0.37).sin()).collect();
        let buffers = vec![
            Buffer::step(1),
            Buffer::of(&qkv),
            Buffer::of(&gates),
            Buffer::of(&gates),
            Buffer::of(&vec![-0.1f32; value_heads as usize]),
            Buffer::of(&vec![0.1f32; value_heads as usize]),
            Buffer::of(&[0u32; MANY_ROWS]),
            Buffer::of(&(0..MANY_ROWS as u32).collect::<Vec<_>>()),
            states,
            Buffer::zeroed(MANY_ROWS * (value_heads * head_dim) as usize * 4),
        ];
        Self { s, slots, buffers }
    }

    fn report(&mut self) {
        let s = self.s;
        let value = 4.0 * f64::from(s.value_heads * s.head_dim * s.head_dim);
        let verify = kernel(KernelSpec::GatedDelta(GatedDelta { pending: true, ..s }));
        let in_place = kernel(KernelSpec::GatedDelta(s));
        let mut line =
            format!("{:>4} {:>6} {:>4} | {:>5.1}", s.key_heads, s.value_heads, s.head_dim, {
                self.read_rate(value)
            });
        let seconds = [
            self.window(&verify, 1),
            self.window(&verify, 4),
            self.window(&in_place, 1) / 2.0,
            self.commit(1) / 2.0,
            self.commit(4) / 2.0,
        ];
        for seconds in seconds {
            line += &format!(" {:>5.1}", value / seconds * 1e-9);
        }
        let seconds = self.window(&in_place, MANY_ROWS) / MANY_ROWS as f64;
        // Two products with a matrix, a change of rank 1 and the decay.
        let operations = 7.0 * value / 4.0;
        println!("{line} | {:>7.0} {:>5.1}", 1.0 / seconds, operations / seconds * 1e-9);
    }

    /// Seconds of a window of `rows` rows of one sequence.
    fn window(&mut self, kernel: &Runnable, rows: usize) -> f64 {
        self.buffers[0].as_mut::<u32>()[0] = rows as u32;
        let table: Vec<u64> = self.buffers.iter_mut().map(Buffer::address).collect();
        self.in_turn(kernel, (table, 8))
    }

    /// Seconds of a commit of `rows` rows of one sequence.
    fn commit(&mut self, rows: u32) -> f64 {
        let GatedDelta { key_heads, value_heads, head_dim, tiled, layout, .. } = self.s;
        let spec = DeltaCommit { key_heads, value_heads, head_dim, tiled, layout };
        let kernel = kernel(KernelSpec::DeltaCommit(spec));
        let mut lists = [Buffer::of(&[0u32, 0, 1, 0]), Buffer::of(&[0u32]), Buffer::of(&[rows])];
        let mut table: Vec<u64> = lists.iter_mut().map(Buffer::address).collect();
        table.push(self.buffers[8].address());
        self.in_turn(&kernel, (table, 3))
    }

    /// Best of some rounds, each on the next slot; the states are operand `at`.
    fn in_turn(&self, kernel: &Runnable, (mut table, at): (Vec<u64>, usize)) -> f64 {
        let first = table[at];
        let mut turn = 0;
        best(|| {
            table[at] = first + turn % self.slots as u64 * self.s.layout.stride_bytes;
            turn += 1;
            kernel.run_part(&table, 0, 1);
        })
    }

    /// GB/s of adding up values.
    fn read_rate(&self, value: f64) -> f64 {
        let words = self.buffers[8].as_ref::<u64>();
        let mut turn = 0;
        let seconds = best(|| {
            let slot = turn % self.slots * self.s.layout.stride_bytes as usize / 8;
            turn += 1;
            let words = &words[slot..][..value as usize / 8];
            black_box(words.iter().fold(0u64, |sum, w| sum.wrapping_add(*w)));
        });
        value / seconds * 1e-9
    }
}

fn kernel(spec: KernelSpec) -> Runnable {
    let target = Target::of_this_machine().expect("a machine with AVX2");
    let compiled = compile(&[spec], target).expect("the shapes are good");
    Runnable::new(&compiled[0]).expect("executable memory")
}

fn best(mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(once).fold(f64::INFINITY, f64::min)
}
