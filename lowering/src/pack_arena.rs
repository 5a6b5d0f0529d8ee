//! Values get their places in the arena.

use std::cmp::Reverse;

use strata_graph::{Graph, Id, Table, ValueId};

use crate::compute_lifetimes::{Lifetime, Lifetimes, value_name, window_name};
use crate::report::PassReport;

/// Every value starts on a cache line of its own, so that parts of a kernel never share one with
/// another value.
pub const ARENA_ALIGN_BYTES: u64 = 64;

/// Where each value lies, and how large the arena is.
#[derive(Clone, Debug)]
pub struct ArenaLayout {
    /// Offset of each value in the arena; `None` for weights and states.
    pub offsets: Table<ValueId, Option<u64>>,
    pub bytes: u64,
    /// The values that are alive at the peak, the largest first, with their bytes.
    pub at_peak: Vec<(String, u64)>,
}

/// Places values first-fit, once by falling size and once by start, and keeps the smaller arena.
///
/// Two values whose lifetimes overlap never share a byte.
pub fn pack_arena(graph: &Graph, lifetimes: &Lifetimes) -> (ArenaLayout, PassReport) {
    let rows: Vec<(ValueId, Lifetime)> =
        lifetimes.of_value.iter().filter_map(|(value, l)| Some((value, (*l)?))).collect();
    let spans: Vec<Lifetime> = rows.iter().map(|(_, lifetime)| *lifetime).collect();
    let (placed, bytes) = pack_spans(&spans);
    let mut offsets: Table<ValueId, Option<u64>> = graph.values().map(|_| None).collect();
    for (&(value, _), offset) in rows.iter().zip(placed) {
        offsets.set(value, Some(offset));
    }
    let (peak_bytes, peak_group) = lifetimes.peak();
    let alive = |l: &Lifetime| l.first <= peak_group && peak_group <= l.last;
    let mut at_peak: Vec<(String, u64)> = rows
        .iter()
        .filter(|(_, l)| alive(l))
        .map(|&(value, l)| (value_name(graph, value), l.bytes))
        .collect();
    at_peak.sort_by_key(|(_, bytes)| Reverse(*bytes));
    let mut report = PassReport::new("pack_arena", window_name(graph))
        .count("arena_bytes", bytes)
        .count("peak_bytes", peak_bytes)
        .count("at_peak_count", at_peak.len() as u64);
    for (name, bytes) in at_peak.iter().take(8) {
        report = report.count(format!("at_peak {name} bytes"), *bytes);
    }
    (ArenaLayout { offsets, bytes, at_peak }, report)
}

/// Offsets for `spans` in order, and the bytes that they take together.
pub fn pack_spans(spans: &[Lifetime]) -> (Vec<u64>, u64) {
    let mut by_size: Vec<usize> = (0..spans.len()).collect();
    by_size.sort_by_key(|&i| (Reverse(spans[i].bytes), spans[i].first, i));
    let mut by_start: Vec<usize> = (0..spans.len()).collect();
    by_start.sort_by_key(|&i| (spans[i].first, Reverse(spans[i].last), i));
    let [by_size, by_start] = [by_size, by_start].map(|order| first_fit(spans, &order));
    if by_start.1 < by_size.1 { by_start } else { by_size }
}

/// Puts each span at the lowest aligned offset that is free during its whole life.
fn first_fit(spans: &[Lifetime], order: &[usize]) -> (Vec<u64>, u64) {
    let mut offsets = vec![0; spans.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(spans.len());
    let mut bytes = 0;
    for &i in order {
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&other| spans[i].overlaps(&spans[other]))
            .map(|&other| (offsets[other], offsets[other] + spans[other].bytes))
            .collect();
        taken.sort_unstable();
        let mut offset = 0u64;
        for (start, end) in taken {
            if offset + spans[i].bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ARENA_ALIGN_BYTES));
        }
        offsets[i] = offset;
        bytes = bytes.max((offset + spans[i].bytes).next_multiple_of(ARENA_ALIGN_BYTES));
        placed.push(i);
    }
    (offsets, bytes)
}

impl ArenaLayout {
    /// # Panics
    /// If `value` is a weight or a state.
    pub fn offset(&self, value: ValueId) -> u64 {
        self.offsets[value].unwrap_or_else(|| panic!("%{} has no place", value.index()))
    }
}
