//! States of sequences, typed by how they change. The operations are the same for every model.
//!
//! | kind | begin | commit | snapshot, restore |
//! |---|---|---|---|
//! | append | copies shared pages that rows are written to | the position moves on by the accepted rows, pages of the others are freed | pages are shared |
//! | recurrent | nothing | the COMMIT schedule applies the accepted pending rows | the value is copied |
//! | tail | nothing | the COMMIT schedule applies the accepted pending rows | the value is copied |
//!
//! A VERIFY window reads values of recurrent states and tails and writes pending rows behind them;
//! PREFILL and DRAFT windows write the values. Pending rows are never copied, cleared or saved: a
//! window writes those that its commit reads.
//!
//! A seeded state takes the value of another one when drafting begins, and is worth nothing at
//! other times.
//!
//! Positions and pages are the business of [`crate::sequences`]; this file moves bytes.

use std::ops::Range;

use strata_plan::Plan;
use strata_plan::layout::{NONE, State, state};

use crate::sequences::PageCopy;

/// Where a state lies. `memory` is the STATES space in all calls.
#[derive(Clone, Debug)]
struct Place {
    name: u32,
    offset: usize,
    stride_bytes: usize,
    value_bytes: usize,
}

impl Place {
    fn new(row: &State) -> Self {
        let narrow = |bytes| usize::try_from(bytes).expect("inside a space that is mapped");
        Self {
            name: row.name,
            offset: narrow(row.offset),
            stride_bytes: narrow(row.stride_bytes),
            value_bytes: narrow(row.value_bytes),
        }
    }

    /// Bytes of page `index`.
    fn page(&self, index: u32) -> Range<usize> {
        let start = self.offset + index as usize * self.stride_bytes;
        start..start + self.stride_bytes
    }

    /// Bytes of the value in slot `index`.
    fn value(&self, index: u32) -> Range<usize> {
        let start = self.offset + index as usize * self.stride_bytes;
        start..start + self.value_bytes
    }
}

/// A seeded state and its seed.
#[derive(Clone, Debug)]
struct Seeded {
    place: Place,
    seed: Place,
}

/// All states of a plan.
#[derive(Debug)]
pub(crate) struct States {
    append: Box<[Place]>,
    /// Recurrent ones and tails, but for seeded ones.
    fixed: Box<[Place]>,
    seeded: Box<[Seeded]>,
    reach: u32,
}

impl States {
    pub fn new(plan: &Plan) -> Self {
        let all = plan.states();
        let of = |wanted: fn(&&State) -> bool| all.iter().filter(wanted).map(Place::new).collect();
        let seeded = |row: &State| Seeded {
            place: Place::new(row),
            seed: Place::new(&all[row.seed as usize]),
        };
        Self {
            append: of(|row| row.kind == state::APPEND),
            fixed: of(|row| row.kind != state::APPEND && row.seed == NONE),
            seeded: all.iter().filter(|row| row.seed != NONE).map(seeded).collect(),
            reach: all.iter().map(|row| row.first).max().unwrap_or(0),
        }
    }

    /// The most positions that an entry stands before the row that stores it.
    pub fn reach(&self) -> u32 {
        self.reach
    }

    /// Bytes of a snapshot beyond its pages.
    pub fn snapshot_bytes(&self) -> usize {
        self.fixed.iter().map(|state| state.value_bytes).sum()
    }

    /// Name of a state that cannot be truncated, if there is one. Such states have pending rows in
    /// VERIFY windows.
    pub fn not_truncatable(&self) -> Option<u32> {
        self.fixed.first().map(|state| state.name)
    }

    /// Before a window: gives sequences their own copy of the pages that they share and will write.
    pub fn begin(&self, memory: &mut [u8], copies: &[PageCopy]) {
        for copy in copies {
            for state in &self.append {
                memory.copy_within(state.page(copy.from), state.page(copy.to).start);
            }
        }
    }

    /// Before a draft: gives seeded states the values of their seeds.
    pub fn seed(&self, memory: &mut [u8], slot: u32) {
        for Seeded { place, seed } in &self.seeded {
            memory.copy_within(seed.value(slot), place.value(slot).start);
        }
    }

    /// A sequence without positions.
    pub fn clear(&self, memory: &mut [u8], slot: u32) {
        for state in &self.fixed {
            memory[state.value(slot)].fill(0);
        }
    }

    /// Copies what does not lie on pages to `saved`, which has [`States::snapshot_bytes`].
    pub fn snapshot(&self, memory: &[u8], slot: u32, saved: &mut [u8]) {
        let mut rest = saved;
        for value in self.values(slot) {
            let (place, next) = rest.split_at_mut(value.len());
            place.copy_from_slice(&memory[value]);
            rest = next;
        }
    }

    /// Copies back what [`States::snapshot`] saved, to any slot.
    pub fn restore(&self, memory: &mut [u8], slot: u32, saved: &[u8]) {
        let mut rest = saved;
        for value in self.values(slot) {
            let (place, next) = rest.split_at(value.len());
            memory[value].copy_from_slice(place);
            rest = next;
        }
    }

    /// Where the values of `slot` lie that make up its sequence, without its pages.
    pub fn values(&self, slot: u32) -> impl Iterator<Item = Range<usize>> {
        self.fixed.iter().map(move |state| state.value(slot))
    }

    /// Where the pages of a sequence lie, which are `pages` in the order of positions: those of one
    /// state after those of another.
    pub fn pages<'a>(&'a self, pages: &'a [u32]) -> impl Iterator<Item = Range<usize>> + 'a {
        self.append.iter().flat_map(move |state| pages.iter().map(|&page| state.page(page)))
    }

    /// Bytes of one page of all states.
    pub fn page_bytes(&self) -> usize {
        self.append.iter().map(|state| state.stride_bytes).sum()
    }
}
