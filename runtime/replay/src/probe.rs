//! What this machine can do at most: the roofs that speeds are compared with.
#![allow(unsafe_code, reason = "calls functions compiled for features that were looked for first")]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::ReplayError;
use crate::host::HugeMemory;

/// Bytes read by each thread in one round: far more than any cache holds.
const READ_BYTES: usize = 256 << 20;

/// GB/s of sequential reads from huge pages by `threads` threads together: the best of `rounds`.
///
/// # Errors
/// [`ReplayError`] if there is no memory to read.
pub fn read_bandwidth(threads: u32, rounds: u32) -> Result<f64, ReplayError> {
    let mut memory = HugeMemory::new(READ_BYTES * threads as usize)?;
    // Pages exist once they are written.
    memory.bytes_mut().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let parts: Vec<&[u64]> =
        memory.bytes().chunks_exact(READ_BYTES).map(bytemuck::cast_slice).collect();
    let seconds = best_of(rounds, || timed_together(&parts, |part| sum(part)));
    Ok((READ_BYTES * threads as usize) as f64 / seconds / 1e9)
}

fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 16];
    for chunk in words.chunks_exact(16) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Steps of the arithmetic loop; a step is 8 independent vector products.
const STEPS: u64 = 20_000_000;

/// Gop/s of 8-bit products, added up, by `threads` threads together; a multiply and an add count
/// two. The fastest form that the CPU has: `vpdpbusd` with AVX-512 VNNI, `vpmaddubsw` with 16-bit
/// sums with AVX2.
///
/// # Errors
/// [`ReplayError::Cpu`] if the CPU has neither.
pub fn int8_peak(threads: u32) -> Result<f64, ReplayError> {
    let kind = Int8::of_this_cpu()?;
    let parts = vec![kind; threads as usize];
    let seconds = best_of(3, || timed_together(&parts, |kind| kind.run()));
    let products = STEPS * 8 * kind.products() * u64::from(threads);
    Ok(2.0 * products as f64 / seconds / 1e9)
}

#[derive(Clone, Copy)]
enum Int8 {
    Avx2,
    Avx512Vnni,
}

impl Int8 {
    fn of_this_cpu() -> Result<Self, ReplayError> {
        if std::is_x86_feature_detected!("avx512vnni") && std::is_x86_feature_detected!("avx512bw") {
            Ok(Self::Avx512Vnni)
        } else if std::is_x86_feature_detected!("avx2") {
            Ok(Self::Avx2)
        } else {
            Err(ReplayError::Cpu { missing: "avx2".into() })
        }
    }

    /// Products of one vector instruction.
    fn products(self) -> u64 {
        match self {
            Self::Avx2 => 32,
            Self::Avx512Vnni => 64,
        }
    }

    fn run(self) -> u64 {
        match self {
            // SAFETY: `of_this_cpu` found AVX2.
            Self::Avx2 => unsafe { avx2_products() },
            // SAFETY: `of_this_cpu` found AVX-512 VNNI and BW.
            Self::Avx512Vnni => unsafe { avx512_products() },
        }
    }
}

#[target_feature(enable = "avx2")]
fn avx2_products() -> u64 {
    use std::arch::x86_64::{
        _mm256_add_epi16, _mm256_extract_epi64, _mm256_maddubs_epi16, _mm256_set1_epi8,
    };
    let weights = black_box(_mm256_set1_epi8(3));
    let values = black_box(_mm256_set1_epi8(-5));
    let mut sums = [_mm256_set1_epi8(0); 8];
    for _ in 0..STEPS {
        for sum in &mut sums {
            // The operand depends on nothing that changes; the barrier keeps it in the loop.
            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(weights, black_box_register(values)));
        }
    }
    sums.iter().map(|s| _mm256_extract_epi64::<0>(*s) as u64).fold(0, u64::wrapping_add)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn avx512_products() -> u64 {
    use std::arch::x86_64::{_mm512_dpbusd_epi32, _mm512_reduce_add_epi32, _mm512_set1_epi32};
    let weights = black_box(_mm512_set1_epi32(0x0303_0303));
    let values = black_box(_mm512_set1_epi32(0x0505_0505));
    let mut sums = [_mm512_set1_epi32(0); 8];
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, weights, values);
        }
    }
    sums.iter().map(|s| _mm512_reduce_add_epi32(*s) as u64).fold(0, u64::wrapping_add)
}

/// Hides where a register's value comes from without moving it to memory.
#[inline(always)]
fn black_box_register(
    mut value: std::arch::x86_64::__m256i,
) -> std::arch::x86_64::__m256i {
    // SAFETY: no instruction; the register is only named.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) value, options(pure, nomem, nostack, preserves_flags));
    }
    value
}

fn best_of(rounds: u32, mut seconds: impl FnMut() -> f64) -> f64 {
    (0..rounds.max(1)).map(|_| seconds()).fold(f64::INFINITY, f64::min)
}

/// Seconds from a common start until the last of `parts` is done, one thread each.
fn timed_together<T: Sync>(parts: &[T], work: impl Fn(&T) -> u64 + Sync) -> f64 {
    let start = Barrier::new(parts.len() + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .map(|part| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    black_box(work(part));
                    Instant::now()
                })
            })
            .collect();
        start.wait();
        let began = Instant::now();
        let ends = threads.into_iter().map(|t| t.join().expect("the work here does not panic"));
        ends.map(|end| (end - began).as_secs_f64()).fold(1e-9, f64::max)
    })
}
