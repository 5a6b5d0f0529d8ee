//! Loops that keep the 8-bit multipliers of a core busy and touch no memory.
#![allow(unsafe_code, reason = "calls code for a CPU feature after it was found")]

/// Runs the widest 8-bit dot product of this CPU for about `rounds` rounds and returns the
/// operations done: two for each product, one multiply and one add.
#[cfg(target_arch = "x86_64")]
pub(crate) fn int8_operations(rounds: u32) -> u64 {
    if std::is_x86_feature_detected!("avx512vnni") && std::is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU has what the function is compiled for.
        return unsafe { x86::vnni(rounds) };
    }
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { x86::avx2(rounds) };
    }
    scalar(rounds)
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn int8_operations(rounds: u32) -> u64 {
    scalar(rounds)
}

fn scalar(rounds: u32) -> u64 {
    let mut sum = 0i32;
    for round in 0..rounds {
        let [a, b, ..] = std::hint::black_box(round).to_le_bytes();
        sum = sum.wrapping_add(i32::from(a) * i32::from(b));
    }
    std::hint::black_box(sum);
    2 * u64::from(rounds)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Independent sums: enough to hide the latency of a multiply, few enough for registers.
    const SUMS: usize = 12;

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn vnni(rounds: u32) -> u64 {
        let weights = black_box(_mm512_set1_epi8(3));
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..rounds {
            let tokens = black_box(_mm512_set1_epi8(5));
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, weights, tokens);
            }
        }
        black_box(sums);
        u64::from(rounds) * SUMS as u64 * 128
    }

    /// Pairs of products summed in 16 bits, as quantised weights of few bits allow.
    #[target_feature(enable = "avx2")]
    pub fn avx2(rounds: u32) -> u64 {
        let weights = black_box(_mm256_set1_epi8(3));
        let mut sums = [_mm256_setzero_si256(); SUMS];
        for _ in 0..rounds {
            let tokens = black_box(_mm256_set1_epi8(5));
            for sum in &mut sums {
                // Opaque, or the product would be computed once for all sums.
                let products = _mm256_maddubs_epi16(weights, black_box_register(tokens));
                *sum = _mm256_add_epi16(*sum, products);
            }
        }
        black_box(sums);
        u64::from(rounds) * SUMS as u64 * 64
    }

    /// `value`, of which the compiler does not know that it is the same each time.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn black_box_register(mut value: __m256i) -> __m256i {
        // SAFETY: no instruction; the value stays where it is.
        unsafe {
            std::arch::asm!("/* {0} */", inout(ymm_reg) value, options(pure, nomem, nostack, preserves_flags));
        }
        value
    }
}
