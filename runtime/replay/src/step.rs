//! The STEP space: all that varies from window to window, in one block that kernels read.

use strata_plan::layout::Model;

use crate::sequences::{Row, Sequences};

/// Where the arrays of the step block lie, in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLayout {
    tokens: usize,
    positions: usize,
    slots: usize,
    offsets: usize,
    logit_rows: usize,
    page_table: usize,
    commit_slots: usize,
    commit_rows: usize,
    pages_per_slot: usize,
}

impl StepLayout {
    pub fn new(model: &Model) -> Self {
        let words = |bytes: u32| bytes as usize / 4;
        Self {
            tokens: words(model.step_tokens),
            positions: words(model.step_positions),
            slots: words(model.step_slots),
            offsets: words(model.step_offsets),
            logit_rows: words(model.step_logit_rows),
            page_table: words(model.step_page_table),
            commit_slots: words(model.step_commit_slots),
            commit_rows: words(model.step_commit_rows),
            pages_per_slot: model.pages_per_slot as usize,
        }
    }

    /// Writes a window into `memory`, the STEP space. Its sequences have begun.
    pub fn write(&self, memory: &mut [u8], rows: &[Row], positions: &[u32], sequences: &Sequences) {
        let words = words_of(memory);
        let (mut logit_rows, mut segment) = (0, 0);
        for (index, (row, &position)) in rows.iter().zip(positions).enumerate() {
            words[self.tokens + index] = row.token;
            words[self.positions + index] = position;
            words[self.slots + index] = row.slot.slot;
            if row.logits {
                words[self.logit_rows + logit_rows] = narrow(index);
                logit_rows += 1;
            }
            // Rows of a sequence stand together.
            if index == 0 || rows[index - 1].slot != row.slot {
                let table = sequences.page_table(row.slot.slot);
                let start = self.page_table + row.slot.slot as usize * self.pages_per_slot;
                words[start..start + table.len()].copy_from_slice(table);
                segment = index;
            }
            words[self.offsets + index] = narrow(index - segment);
        }
        words[0] = narrow(rows.len());
        words[1] = narrow(logit_rows);
        words[2] = 0;
    }

    /// Writes slots and their accepted rows, and returns how many; those with none are left out.
    pub fn write_commits(
        &self,
        memory: &mut [u8],
        commits: impl Iterator<Item = (u32, u32)>,
    ) -> usize {
        let words = words_of(memory);
        let mut count = 0;
        for (slot, rows) in commits.filter(|(_, rows)| *rows > 0) {
            words[self.commit_slots + count] = slot;
            words[self.commit_rows + count] = rows;
            count += 1;
        }
        words[2] = narrow(count);
        count
    }
}

fn words_of(memory: &mut [u8]) -> &mut [u32] {
    let whole = memory.len() / 4 * 4;
    bytemuck::cast_slice_mut(&mut memory[..whole])
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("windows have few rows")
}
