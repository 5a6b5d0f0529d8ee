//! What a machine can do at most, measured on the pool that windows run on.

use std::hint::black_box;
use std::time::Instant;

use crate::error::ReplayError;
use crate::host::{Filling, HugeMemory, Pool, Worker, int8_operations};

/// Read by each thread in one pass: more than its share of any cache.
const BYTES_PER_THREAD: usize = 64 << 20;
const LEAST_BYTES: usize = 256 << 20;
/// Passes of one round; the fastest counts.
const PASSES: u32 = 4;
const INT8_ROUNDS: u32 = 2_000_000;

/// Sequential reads from huge pages by `threads` threads together, in GB/s: the best of `rounds`
/// rounds.
///
/// # Errors
/// Memory or threads are refused.
pub fn read_bandwidth(threads: u32, rounds: u32) -> Result<f64, ReplayError> {
    let mut pool = pool(threads)?;
    let bytes = LEAST_BYTES.max(BYTES_PER_THREAD * pool.parts() as usize);
    let mut memory = HugeMemory::new(bytes)
        .map_err(|error| ReplayError::System { doing: "reserving memory to read", error })?;
    let share = bytes / pool.parts() as usize / 4096 * 4096;
    let filling = Filling::new(memory.bytes_mut());
    let fill = |worker: Worker<'_>| {
        let page = [worker.part as u8 + 1; 4096];
        let start = worker.part as usize * share;
        for offset in (start..start + share).step_by(page.len()) {
            filling.copy(&page, offset);
        }
    };
    pool.run(fill, &fill);
    let words: &[u64] = bytemuck::cast_slice(memory.bytes());
    let read = |worker: Worker<'_>| {
        let start = worker.part as usize * share / 8;
        black_box(sum(&words[start..start + share / 8]));
    };
    let read_bytes = share as f64 * f64::from(pool.parts());
    let seconds = best_seconds(&mut pool, rounds.max(1) * PASSES, &read);
    Ok(read_bytes / seconds / 1e9)
}

/// 8-bit multiplies and adds by `threads` threads together, in Gop/s; a product is two.
///
/// # Errors
/// Threads are refused.
pub fn int8_peak(threads: u32) -> Result<f64, ReplayError> {
    let mut pool = pool(threads)?;
    let operations = int8_operations(1) as f64 * f64::from(INT8_ROUNDS) * f64::from(pool.parts());
    let work = |_: Worker<'_>| {
        black_box(int8_operations(INT8_ROUNDS));
    };
    Ok(operations / best_seconds(&mut pool, PASSES, &work) / 1e9)
}

fn pool(threads: u32) -> Result<Pool, ReplayError> {
    Pool::new(Some(threads))
        .map_err(|error| ReplayError::System { doing: "starting the threads of the pool", error })
}

fn best_seconds(pool: &mut Pool, passes: u32, job: &(dyn Fn(Worker<'_>) + Sync)) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..passes {
        let began = Instant::now();
        pool.run(job, job);
        best = best.min(began.elapsed().as_secs_f64());
    }
    best
}

/// In eight sums, so that the reads do not wait for the additions.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for chunk in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum ^= word;
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_does_some_work() {
        let gops = int8_peak(1).unwrap();
        assert!((0.1..20_000.0).contains(&gops), "{gops} Gop/s");
    }
}
