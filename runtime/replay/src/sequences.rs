//! Sequences: who is in a slot, at which position, on which pages.

use strata_plan::layout::Model;

use crate::error::ReplayError;
use crate::held::Held;
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
    /// While drafting: rows behind `held.position` that were drafted. Nothing of them stays.
    drafted: Option<u32>,
}

#[derive(Debug)]
struct Snapshot {
    taken: bool,
    held: Held,
}

/// What the rows of a window are to their sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They follow the sequence's last token.
    Append,
    /// They follow what was drafted, and are forgotten with it.
    Draft,
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
    /// A row may store its entry so many positions before its own.
    reach: u32,
}

impl Slot {
    /// Position of the first row of a window.
    fn start(&self, purpose: Purpose) -> u32 {
        match purpose {
            Purpose::Append => self.held.position,
            Purpose::Draft => self.held.position + self.drafted.unwrap_or(0),
        }
    }
}

impl Sequences {
    /// What [`Sequences::new`] allocates, about.
    pub fn bytes(model: &Model, snapshots: u32) -> u64 {
        let held = Held::bytes(model.pages_per_slot, model.context_tokens);
        let slot = (size_of::<Slot>() + 2 * size_of::<PageCopy>()) as u64 + held;
        let snapshot = size_of::<Snapshot>() as u64 + held;
        let slots = u64::from(model.slots).saturating_mul(slot);
        let snapshots = u64::from(snapshots).saturating_mul(snapshot);
        Pages::bytes(model.pages).saturating_add(slots).saturating_add(snapshots)
    }

    /// `reach` is the largest `first` of the states that grow.
    pub fn new(model: &Model, snapshots: u32, reach: u32) -> Self {
        let held = || Held::empty(model.pages_per_slot, model.context_tokens);
        let slot = |_| Slot {
            live: false,
            generation: 0,
            held: held(),
            pending: 0,
            uncommitted: 0,
            drafted: None,
        };
        Self {
            slots: (0..model.slots).map(slot).collect(),
            snapshots: (0..snapshots).map(|_| Snapshot { taken: false, held: held() }).collect(),
            pages: Pages::new(model.pages),
            // Of each slot the page that it stands on, and the one before.
            copies: Vec::with_capacity(2 * model.slots as usize),
            context_tokens: model.context_tokens,
            page_tokens: model.page_tokens,
            reach,
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

    /// A new sequence that holds `tokens` on pages of its own; or changes nothing.
    pub fn start_with(&mut self, tokens: &[u32]) -> Result<SlotId, ReplayError> {
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if count > self.context_tokens {
            let (rows, context_tokens) = (count, self.context_tokens);
            return Err(ReplayError::Context { slot: 0, position: 0, rows, context_tokens });
        }
        let (needed, free) = (count.div_ceil(self.page_tokens), self.pages.free());
        if needed > free {
            return Err(ReplayError::NoPage { needed, free, pages: self.pages.count() });
        }
        let id = self.start()?;
        let held = &mut self.slots[id.slot as usize].held;
        for _ in 0..needed {
            held.push(self.pages.take().expect("counted before"));
        }
        held.tokens[..tokens.len()].copy_from_slice(tokens);
        held.position = count;
        Ok(id)
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
        slot.drafted = None;
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

    /// Tokens that are committed.
    pub fn tokens(&self, id: SlotId) -> Result<&[u32], ReplayError> {
        self.check(id)?;
        Ok(self.slots[id.slot as usize].held.tokens())
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

    /// Frees what lies behind `position`, drafts included.
    fn set_position(&mut self, slot: u32, position: u32) {
        let slot = &mut self.slots[slot as usize];
        slot.drafted = None;
        slot.held.position = position;
        slot.held.shrink(position.div_ceil(self.page_tokens), &mut self.pages);
    }

    /// Gives each row its position and its slot a page to write it to; or changes nothing.
    ///
    /// `positions` has as many elements as `rows`. Returns pages that must be copied first, because
    /// somebody else holds them too.
    pub fn begin(
        &mut self,
        rows: &[Row],
        purpose: Purpose,
        positions: &mut [u32],
    ) -> Result<&[PageCopy], ReplayError> {
        let counted = self.count_rows(rows, purpose, positions);
        if let Err(error) = counted.and_then(|()| self.check_pages(purpose)) {
            self.slots.iter_mut().for_each(|slot| slot.pending = 0);
            return Err(error);
        }
        self.copies.clear();
        for slot in self.slots.iter_mut().filter(|slot| slot.pending > 0) {
            let (start, held) = (slot.start(purpose), &mut slot.held);
            let end = (start + slot.pending).div_ceil(self.page_tokens);
            for index in start.saturating_sub(self.reach) / self.page_tokens..end {
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
        if purpose == Purpose::Append {
            for (row, &position) in rows.iter().zip(&*positions) {
                let held = &mut self.slots[row.slot.slot as usize].held;
                held.tokens[position as usize] = row.token;
            }
        }
        Ok(&self.copies)
    }

    fn count_rows(
        &mut self,
        rows: &[Row],
        purpose: Purpose,
        positions: &mut [u32],
    ) -> Result<(), ReplayError> {
        for (index, (row, place)) in rows.iter().zip(positions).enumerate() {
            self.check_committed(row.slot)?;
            let slot = &mut self.slots[row.slot.slot as usize];
            if slot.pending > 0 && rows[index - 1].slot != row.slot {
                return Err(ReplayError::Segment { row: index, slot: row.slot.slot });
            }
            if purpose == Purpose::Draft && (slot.drafted.is_none() || slot.pending > 0) {
                return Err(ReplayError::DraftRow { slot: row.slot.slot, rows: slot.pending });
            }
            *place = slot.start(purpose) + slot.pending;
            slot.pending += 1;
            if *place >= self.context_tokens {
                return Err(ReplayError::Context {
                    slot: row.slot.slot,
                    position: slot.held.position,
                    rows: *place + 1 - slot.held.position,
                    context_tokens: self.context_tokens,
                });
            }
        }
        Ok(())
    }

    /// Counts a page for each sequence that writes to a shared one. Of the last two holders the
    /// second could keep the original, so that a window is refused which just would have fitted.
    fn check_pages(&self, purpose: Purpose) -> Result<(), ReplayError> {
        let running = self.slots.iter().filter(|slot| slot.pending > 0);
        let missing = running.map(|slot| self.missing(slot, slot.start(purpose), slot.pending));
        let (needed, free) = (missing.sum(), self.pages.free());
        if needed > free {
            return Err(ReplayError::NoPage { needed, free, pages: self.pages.count() });
        }
        Ok(())
    }

    /// Pages that `rows` rows from position `start` on need beyond those that the slot holds alone.
    fn missing(&self, slot: &Slot, start: u32, rows: u32) -> u32 {
        let first = start.saturating_sub(self.reach) / self.page_tokens;
        let writable = |index: &u32| {
            *index < slot.held.page_count && !self.pages.is_shared(slot.held.pages[*index as usize])
        };
        let all = first..(start + rows).div_ceil(self.page_tokens);
        u32::try_from(all.filter(|index| !writable(index)).count()).expect("fewer than positions")
    }

    /// Whether a sequence finds pages for `rows` more rows.
    pub fn has_pages(&self, id: SlotId, rows: usize) -> bool {
        let slot = &self.slots[id.slot as usize];
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        self.missing(slot, slot.held.position, rows) <= self.pages.free()
    }

    /// Drafting begins behind the last committed token.
    pub fn begin_draft(&mut self, id: SlotId) -> Result<(), ReplayError> {
        self.check_committed(id)?;
        self.slots[id.slot as usize].drafted = Some(0);
        Ok(())
    }

    /// The next rows of the window that began follow its rows.
    pub fn drafted(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.pending > 0) {
            slot.drafted = slot.drafted.map(|rows| rows + slot.pending);
            slot.pending = 0;
        }
    }

    /// Slots of the window that began, and their rows in it.
    pub fn rows_of_window(&self) -> impl Iterator<Item = (u32, u32)> {
        let all = self.slots.iter().zip(0..).map(|(slot, number)| (number, slot.pending));
        all.filter(|(_, rows)| *rows > 0)
    }

    /// Leaves the rows of the window that began to [`Sequences::commit`].
    pub fn wait_for_commit(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.pending > 0) {
            slot.uncommitted = slot.pending;
            slot.pending = 0;
        }
    }

    /// Whether [`Sequences::commit`] will take all of `commits`.
    pub fn check_commits(&self, commits: &[(SlotId, u32)]) -> Result<(), ReplayError> {
        for (index, &(id, accepted)) in commits.iter().enumerate() {
            self.check(id)?;
            // A second commit of a sequence finds no rows.
            let again = commits[..index].iter().any(|(other, _)| *other == id);
            let rows = if again { 0 } else { self.slots[id.slot as usize].uncommitted };
            if accepted > rows || again {
                return Err(ReplayError::Commit { slot: id.slot, rows, accepted });
            }
        }
        Ok(())
    }

    /// Keeps the first `accepted` rows that the sequence has to commit, and frees pages that only
    /// the others needed. Both were checked.
    pub fn commit(&mut self, id: SlotId, accepted: u32) {
        let slot = &mut self.slots[id.slot as usize];
        slot.uncommitted = 0;
        let position = slot.held.position + accepted;
        self.set_position(id.slot, position);
    }

    /// Makes the rows of the window that began permanent.
    pub fn commit_all(&mut self) {
        for number in 0..u32::try_from(self.slots.len()).expect("made from a u32") {
            let slot = &mut self.slots[number as usize];
            if slot.pending > 0 {
                let position = slot.held.position + slot.pending;
                slot.pending = 0;
                self.set_position(number, position);
            }
        }
    }

    /// Keeps what the sequence holds now, until the snapshot is taken anew or dropped.
    pub fn snapshot(&mut self, id: SlotId, index: u32) -> Result<(), ReplayError> {
        self.check_committed(id)?;
        self.check_snapshot(index)?;
        // Without what was drafted.
        self.set_position(id.slot, self.slots[id.slot as usize].held.position);
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
        let slot = &mut self.slots[id.slot as usize];
        slot.held.become_copy_of(&snapshot.held, &mut self.pages);
        slot.drafted = None;
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
