//! Sequences: who is in a slot, at which position, on which pages.

use strata_plan::layout::Model;

use crate::error::ReplayError;
use crate::pages::Pages;

/// A live sequence. Goes stale when it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    pub(crate) slot: u32,
    generation: u32,
}

impl SlotId {
    /// The slot's number, less than the model's `slots`.
    pub fn slot(self) -> u32 {
        self.slot
    }
}

/// One row of a window: a token that is appended to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub token: u32,
    pub slot: SlotId,
    /// Whether the logits behind this token are wanted.
    pub logits: bool,
}

/// A page that must be copied before a window writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCopy {
    pub from: u32,
    pub to: u32,
}

/// Some positions of a sequence on their pages: a slot's, or a snapshot's.
#[derive(Debug)]
struct Held {
    position: u32,
    /// Physical pages, of which the first `page_count` are held.
    pages: Box<[u32]>,
    page_count: u32,
}

impl Held {
    fn empty(pages: u32) -> Self {
        Self { position: 0, pages: vec![0; pages as usize].into_boxed_slice(), page_count: 0 }
    }

    fn pages(&self) -> &[u32] {
        &self.pages[..self.page_count as usize]
    }

    fn shrink(&mut self, page_count: u32, pages: &mut Pages) {
        while self.page_count > page_count {
            self.page_count -= 1;
            let place = &mut self.pages[self.page_count as usize];
            pages.release(*place);
            // A page number that no row may read still lies in the space.
            *place = 0;
        }
    }

    fn push(&mut self, page: u32) {
        self.pages[self.page_count as usize] = page;
        self.page_count += 1;
    }

    fn become_copy_of(&mut self, other: &Self, pages: &mut Pages) {
        // First shared, then released: both may hold the same pages.
        other.pages().iter().for_each(|&page| pages.share(page));
        self.shrink(0, pages);
        other.pages().iter().for_each(|&page| self.push(page));
        self.position = other.position;
    }
}

#[derive(Debug)]
struct Slot {
    live: bool,
    generation: u32,
    held: Held,
    /// Rows of the window that is being prepared or run.
    pending: u32,
    /// Rows behind `held.position` that a window has run and that may still be rejected. They have
    /// their pages; until they are decided the sequence only waits.
    uncommitted: u32,
}

#[derive(Debug)]
struct Snapshot {
    taken: bool,
    held: Held,
}

/// All sequences and snapshots of an engine. Nothing here allocates after `new`.
#[derive(Debug)]
pub(crate) struct Sequences {
    slots: Box<[Slot]>,
    snapshots: Box<[Snapshot]>,
    pages: Pages,
    copies: Vec<PageCopy>,
    context_tokens: u32,
    page_tokens: u32,
}

impl Sequences {
    /// What [`Sequences::new`] allocates, about.
    pub fn bytes(model: &Model, snapshots: u32) -> u64 {
        let held = u64::from(model.pages_per_slot) * size_of::<u32>() as u64;
        let slot = (size_of::<Slot>() + size_of::<PageCopy>()) as u64 + held;
        let snapshot = size_of::<Snapshot>() as u64 + held;
        let slots = u64::from(model.slots).saturating_mul(slot);
        let snapshots = u64::from(snapshots).saturating_mul(snapshot);
        Pages::bytes(model.pages).saturating_add(slots).saturating_add(snapshots)
    }

    pub fn new(model: &Model, snapshots: u32) -> Self {
        let held = || Held::empty(model.pages_per_slot);
        let slot =
            |_| Slot { live: false, generation: 0, held: held(), pending: 0, uncommitted: 0 };
        Self {
            slots: (0..model.slots).map(slot).collect(),
            snapshots: (0..snapshots).map(|_| Snapshot { taken: false, held: held() }).collect(),
            pages: Pages::new(model.pages),
            copies: Vec::with_capacity(model.slots as usize),
            context_tokens: model.context_tokens,
            page_tokens: model.page_tokens,
        }
    }

    /// Starts an empty sequence in the first free slot.
    pub fn start(&mut self) -> Result<SlotId, ReplayError> {
        let all = self.slots.len();
        let found = self.slots.iter_mut().zip(0..).find(|(slot, _)| !slot.live);
        let Some((slot, number)) = found else {
            return Err(ReplayError::NoSlot { slots: u32::try_from(all).unwrap_or(u32::MAX) });
        };
        slot.live = true;
        Ok(SlotId { slot: number, generation: slot.generation })
    }

    /// Ends a sequence. One that was ended before stays so.
    pub fn release(&mut self, id: SlotId) {
        if self.check(id).is_err() {
            return;
        }
        let slot = &mut self.slots[id.slot as usize];
        slot.held.shrink(0, &mut self.pages);
        slot.held.position = 0;
        slot.uncommitted = 0;
        slot.live = false;
        slot.generation = slot.generation.wrapping_add(1);
    }

    /// # Errors
    /// [`ReplayError::SlotGone`] if the sequence was released.
    pub fn check(&self, id: SlotId) -> Result<(), ReplayError> {
        match self.slots.get(id.slot as usize) {
            Some(slot) if slot.live && slot.generation == id.generation => Ok(()),
            _ => Err(ReplayError::SlotGone { slot: id.slot }),
        }
    }

    /// # Errors
    /// As [`Sequences::check`]; [`ReplayError::Uncommitted`] if rows wait to be committed.
    pub fn check_committed(&self, id: SlotId) -> Result<(), ReplayError> {
        self.check(id)?;
        match self.slots[id.slot as usize].uncommitted {
            0 => Ok(()),
            rows => Err(ReplayError::Uncommitted { slot: id.slot, rows }),
        }
    }

    pub fn position(&self, id: SlotId) -> Result<u32, ReplayError> {
        self.check(id)?;
        Ok(self.slots[id.slot as usize].held.position)
    }

    pub fn free_pages(&self) -> u32 {
        self.pages.free()
    }

    /// Physical pages of a slot, in order of positions.
    pub fn page_table(&self, slot: u32) -> &[u32] {
        self.slots[slot as usize].held.pages()
    }

    /// Forgets the positions from `position` on, and frees their pages.
    pub fn truncate(&mut self, id: SlotId, position: u32) -> Result<(), ReplayError> {
        self.check_committed(id)?;
        let found = self.position(id)?;
        if position > found {
            return Err(ReplayError::Truncate { position: found, asked: position });
        }
        self.set_position(id.slot, position);
        Ok(())
    }

    fn set_position(&mut self, slot: u32, position: u32) {
        let held = &mut self.slots[slot as usize].held;
        held.position = position;
        held.shrink(position.div_ceil(self.page_tokens), &mut self.pages);
    }

    /// Gives each row its position and its slot a page to write it to; or changes nothing.
    ///
    /// `positions` has as many elements as `rows`. Returns pages that must be copied first, because
    /// somebody else holds them too.
    pub fn begin(
        &mut self,
        rows: &[Row],
        positions: &mut [u32],
    ) -> Result<&[PageCopy], ReplayError> {
        let counted = self.count_rows(rows, positions).and_then(|()| self.check_pages());
        if let Err(error) = counted {
            self.slots.iter_mut().for_each(|slot| slot.pending = 0);
            return Err(error);
        }
        self.copies.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.pending > 0) {
            let held = &mut slot.held;
            let end = (held.position + slot.pending).div_ceil(self.page_tokens);
            for index in held.position / self.page_tokens..end {
                let there = (index < held.page_count).then(|| held.pages[index as usize]);
                if there.is_some_and(|page| !self.pages.is_shared(page)) {
                    continue;
                }
                let page = self.pages.take().expect("counted before");
                if let Some(shared) = there {
                    self.pages.release(shared);
                    held.pages[index as usize] = page;
                    self.copies.push(PageCopy { from: shared, to: page });
                } else {
                    held.push(page);
                }
            }
        }
        Ok(&self.copies)
    }

    fn count_rows(&mut self, rows: &[Row], positions: &mut [u32]) -> Result<(), ReplayError> {
        for (row, place) in rows.iter().zip(positions) {
            self.check_committed(row.slot)?;
            let slot = &mut self.slots[row.slot.slot as usize];
            *place = slot.held.position + slot.pending;
            slot.pending += 1;
            if *place >= self.context_tokens {
                return Err(ReplayError::Context {
                    slot: row.slot.slot,
                    position: slot.held.position,
                    rows: slot.pending,
                    context_tokens: self.context_tokens,
                });
            }
        }
        Ok(())
    }

    /// Counts a page for each sequence that writes to a shared one. Of the last two holders the
    /// second could keep the original, so that a window is refused which just would have fitted.
    fn check_pages(&self) -> Result<(), ReplayError> {
        let mut needed = 0;
        for slot in self.slots.iter().filter(|slot| slot.pending > 0) {
            let end = (slot.held.position + slot.pending).div_ceil(self.page_tokens);
            let first = slot.held.position / self.page_tokens;
            let writable = |index: &u32| {
                *index < slot.held.page_count
                    && !self.pages.is_shared(slot.held.pages[*index as usize])
            };
            let missing = (first..end).filter(|index| !writable(index)).count();
            needed += u32::try_from(missing).expect("fewer than positions");
        }
        let free = self.pages.free();
        if needed > free {
            return Err(ReplayError::NoPage { needed, free, pages: self.pages.count() });
        }
        Ok(())
    }

    /// Leaves the rows of the window that began to [`Sequences::commit`].
    pub fn wait_for_commit(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.pending > 0) {
            slot.uncommitted = slot.pending;
            slot.pending = 0;
        }
    }

    /// Keeps the first `accepted` rows that the sequence has to commit, and frees pages that only
    /// the others needed.
    pub fn commit(&mut self, id: SlotId, accepted: u32) -> Result<(), ReplayError> {
        self.check(id)?;
        let slot = &mut self.slots[id.slot as usize];
        let rows = slot.uncommitted;
        if accepted > rows {
            return Err(ReplayError::Commit { slot: id.slot, rows, accepted });
        }
        slot.uncommitted = 0;
        let position = slot.held.position + accepted;
        self.set_position(id.slot, position);
        Ok(())
    }

    /// Makes the rows of the window that began permanent.
    pub fn commit_all(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.pending > 0) {
            slot.held.position += slot.pending;
            slot.pending = 0;
        }
    }

    /// Keeps what the sequence holds now, until the snapshot is taken anew or dropped.
    pub fn snapshot(&mut self, id: SlotId, index: u32) -> Result<(), ReplayError> {
        self.check_committed(id)?;
        self.check_snapshot(index)?;
        let snapshot = &mut self.snapshots[index as usize];
        snapshot.held.become_copy_of(&self.slots[id.slot as usize].held, &mut self.pages);
        snapshot.taken = true;
        Ok(())
    }

    /// Makes the sequence what a snapshot holds, which may be of another sequence.
    pub fn restore(&mut self, id: SlotId, index: u32) -> Result<(), ReplayError> {
        self.check_committed(id)?;
        self.check_snapshot(index)?;
        let snapshot = &self.snapshots[index as usize];
        if !snapshot.taken {
            return Err(ReplayError::SnapshotEmpty { index });
        }
        self.slots[id.slot as usize].held.become_copy_of(&snapshot.held, &mut self.pages);
        Ok(())
    }

    /// Lets go of what a snapshot holds.
    pub fn drop_snapshot(&mut self, index: u32) -> Result<(), ReplayError> {
        self.check_snapshot(index)?;
        let snapshot = &mut self.snapshots[index as usize];
        snapshot.taken = false;
        snapshot.held.position = 0;
        snapshot.held.shrink(0, &mut self.pages);
        Ok(())
    }

    fn check_snapshot(&self, index: u32) -> Result<(), ReplayError> {
        if (index as usize) < self.snapshots.len() {
            return Ok(());
        }
        let snapshots = u32::try_from(self.snapshots.len()).unwrap_or(u32::MAX);
        Err(ReplayError::SnapshotIndex { index, snapshots })
    }
}
