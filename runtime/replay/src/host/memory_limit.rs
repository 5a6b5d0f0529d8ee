//! How much memory can be taken without swapping or being killed.

use std::fs;
use std::path::Path;

/// Bytes that this process can still take: what the system has, and what its control group allows.
/// `None` if the system does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_rest(&text));
    match (system, group) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The least that any of the control groups above this process leaves.
fn group_rest(groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut folder = Path::new("/sys/fs/cgroup").join(path.trim().trim_start_matches('/'));
    let mut least = None;
    while folder.starts_with("/sys/fs/cgroup") {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
        };
        if let (Some(limit), Some(used)) = (number("memory.max"), number("memory.current")) {
            let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let rest = limit.saturating_sub(used).saturating_add(file_cache(&stat));
            least = Some(least.map_or(rest, |least: u64| least.min(rest)));
        }
        if !folder.pop() {
            break;
        }
    }
    least
}

/// Pages of files that nobody has used of late: the kernel gives them up first.
fn file_cache(stat: &str) -> u64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernel_s_tables() {
        let meminfo = "MemTotal:  100 kB\nMemAvailable:     42 kB\n";
        assert_eq!(mem_available(meminfo), Some(42 * 1024));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
        assert_eq!(file_cache("anon 5\ninactive_file 77\n"), 77);
    }

    #[test]
    fn this_system_says_what_it_has() {
        assert!(available_bytes().unwrap() > 1 << 20);
    }
}
