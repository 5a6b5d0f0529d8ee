//! What this CPU can do, and which of its cores may be used.
#![allow(unsafe_code, reason = "reads the affinity of threads")]

use std::num::NonZero;
use std::sync::OnceLock;

use strata_plan::layout::cpu_feature;

use super::affinity::affinity;

/// Bits of [`cpu_feature`] that this CPU and its operating system have.
#[cfg(target_arch = "x86_64")]
pub(crate) fn cpu_features() -> u64 {
    use std::arch::is_x86_feature_detected as has;
    let found = [
        (cpu_feature::AVX2, has!("avx2")),
        (cpu_feature::FMA, has!("fma")),
        (cpu_feature::F16C, has!("f16c")),
        (cpu_feature::BMI2, has!("bmi2")),
        (cpu_feature::AVX512F, has!("avx512f")),
        (cpu_feature::AVX512BW, has!("avx512bw")),
        (cpu_feature::AVX512VL, has!("avx512vl")),
        (cpu_feature::AVX512DQ, has!("avx512dq")),
        (cpu_feature::AVX512VNNI, has!("avx512vnni")),
        (cpu_feature::AVX512BF16, has!("avx512bf16")),
        (cpu_feature::BMI1, has!("bmi1")),
        (cpu_feature::AVX512CD, has!("avx512cd")),
    ];
    found.iter().filter(|(_, there)| *there).fold(0, |bits, (bit, _)| bits | bit)
}

/// Plans hold x86-64 code only, which no other CPU runs.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn cpu_features() -> u64 {
    0
}

/// Names of the features in `needed` that are not in `found`.
pub(crate) fn missing_features(needed: u64, found: u64) -> Vec<&'static str> {
    let missing = needed & !found;
    cpu_feature::ALL.iter().filter(|(bit, _)| missing & bit != 0).map(|(_, name)| *name).collect()
}

/// What the process was given when it first asked, that is before a thread of it was pinned.
struct Given {
    /// See [`allowed_cores`].
    cores: Vec<usize>,
    /// See [`default_threads`].
    threads: u32,
}

fn given() -> &'static Given {
    static GIVEN: OnceLock<Given> = OnceLock::new();
    GIVEN.get_or_init(|| {
        let cores = find_allowed_cores();
        let quota = std::thread::available_parallelism().ok().map(NonZero::get);
        let threads = threads_for(cores.len(), quota);
        Given { cores, threads }
    })
}

/// Cores that this process may use: one hardware thread of each core first, then their siblings.
pub(crate) fn allowed_cores() -> &'static [usize] {
    &given().cores
}

/// Threads that can run at once: allowed cores, or fewer if a control group has a quota of time.
pub(crate) fn default_threads() -> u32 {
    given().threads
}

/// At least one. More threads than `quota` would be stopped while others spin for them.
fn threads_for(cores: usize, quota: Option<usize>) -> u32 {
    let least = quota.unwrap_or(usize::MAX).min(cores).max(1);
    u32::try_from(least).unwrap_or(u32::MAX)
}

fn find_allowed_cores() -> Vec<usize> {
    let Some(set) = affinity() else { return Vec::new() };
    let count = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: `CPU_ISSET` reads a bit inside the set.
    let allowed = (0..count).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) });
    let mut ranked: Vec<(usize, usize)> = allowed.map(|core| (sibling_rank(core), core)).collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, core)| core).collect()
}

/// How many hardware threads of the same core have a lower number; 0 if that is not known.
fn sibling_rank(core: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    rank_in_list(list.trim(), core)
}

/// How many numbers of a list such as "0-1,8" stand below `core`.
fn rank_in_list(list: &str, core: usize) -> usize {
    let below = |range: &str| -> Option<usize> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some(last.saturating_add(1).min(core).saturating_sub(first))
    };
    list.split(',').filter_map(below).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_come_after_cores() {
        assert_eq!(rank_in_list("0-1", 1), 1);
        assert_eq!(rank_in_list("0,8", 8), 1);
        assert_eq!(rank_in_list("4", 4), 0);
        assert_eq!(rank_in_list("", 4), 0);
    }

    #[test]
    fn a_missing_feature_has_a_name() {
        let needed = cpu_feature::AVX2 | cpu_feature::AVX512VNNI;
        assert_eq!(missing_features(needed, cpu_feature::AVX2), ["avx512vnni"]);
        let needed = cpu_feature::BMI1 | cpu_feature::AVX512CD;
        assert_eq!(missing_features(needed, 0), ["bmi1", "avx512cd"]);
    }

    #[test]
    fn a_quota_below_the_cores_counts() {
        assert_eq!(threads_for(64, Some(2)), 2);
        assert_eq!(threads_for(4, Some(64)), 4);
        assert_eq!(threads_for(4, None), 4);
        assert_eq!(threads_for(0, None), 1);
    }

    #[test]
    fn some_core_is_allowed() {
        assert!(!allowed_cores().is_empty());
        assert!((1..=allowed_cores().len()).contains(&(default_threads() as usize)));
    }
}
