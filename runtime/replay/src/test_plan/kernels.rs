//! The kernels of the test plan: functions of this process, as simple as can be.

use super::{
    COMMIT_ROWS, COMMIT_SLOTS, LOGIT_ROWS, OFFSETS, PAGE_TOKENS, PAGES_PER_SLOT, PENDING_WORDS,
    POSITIONS, ROW_SLOTS, SLOT_WORDS, TABLE, TAIL_ROWS, TOKENS, VOCAB, mix,
};

pub type Kernel = unsafe extern "C" fn(*const u64, u64, u64);

/// Words of the row of the arena that [`back`] fills for each row of a window.
pub const BACK_WORDS: usize = 16;

fn share(count: usize, part: u64, parts: u64) -> std::ops::Range<usize> {
    let (part, parts) = (part as usize, parts as usize);
    count * part / parts..count * (part + 1) / parts
}

fn at<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Word of a state that grows, for the entry `index` of `slot`.
unsafe fn entry(step: *const u32, state: u64, slot: usize, index: usize) -> *mut u32 {
    // SAFETY: the page table names pages that the slot holds.
    unsafe {
        let page = *step.add(TABLE + slot * PAGES_PER_SLOT + index / PAGE_TOKENS) as usize;
        at::<u32>(state).add(page * PAGE_TOKENS + index % PAGE_TOKENS)
    }
}

/// Args: step, first state, second state. Appends each row's token.
pub unsafe extern "C" fn append(args: *const u64, part: u64, parts: u64) {
    // SAFETY: called by the replayer with the operands that the plan names.
    unsafe {
        let step: *const u32 = at(*args);
        for row in share(*step as usize, part, parts) {
            let position = *step.add(POSITIONS + row) as usize;
            let slot = *step.add(ROW_SLOTS + row) as usize;
            for state in 1..=2 {
                *entry(step, *args.add(state), slot, position) = *step.add(TOKENS + row);
            }
        }
    }
}

/// Args: step, pairs. Appends each row's token, the entry of the position before its own.
pub unsafe extern "C" fn append_pairs(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for row in share(*step as usize, part, parts) {
            let position = *step.add(POSITIONS + row) as usize;
            if position > 0 {
                let slot = *step.add(ROW_SLOTS + row) as usize;
                *entry(step, *args.add(1), slot, position - 1) = *step.add(TOKENS + row);
            }
        }
    }
}

/// Args: step, recurrent state, hashes. Each row's hash goes to the arena, and to the state.
pub unsafe extern "C" fn recur(args: *const u64, part: u64, _: u64) {
    if part > 0 {
        return;
    }
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for row in 0..*step as usize {
            let slot = *step.add(ROW_SLOTS + row) as usize;
            let hash = at::<u32>(*args.add(1)).add(slot * SLOT_WORDS);
            *hash = mix(*hash, *step.add(TOKENS + row));
            *at::<u32>(*args.add(2)).add(row) = *hash;
        }
    }
}

/// As [`recur`], but the state keeps its value and gets pending rows.
pub unsafe extern "C" fn recur_pending(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for row in share(*step as usize, part, parts) {
            let slot = *step.add(ROW_SLOTS + row) as usize;
            let offset = *step.add(OFFSETS + row) as usize;
            let value = at::<u32>(*args.add(1)).add(slot * SLOT_WORDS);
            let tokens = (row - offset..=row).map(|row| *step.add(TOKENS + row));
            *at::<u32>(*args.add(2)).add(row) = tokens.fold(*value, mix);
            *value.add((offset + 1) * PENDING_WORDS) = *step.add(TOKENS + row);
        }
    }
}

/// Args: step, recurrent state. Applies accepted pending rows.
pub unsafe extern "C" fn recur_commit(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for index in share(*step.add(2) as usize, part, parts) {
            let slot = *step.add(COMMIT_SLOTS + index) as usize;
            let value = at::<u32>(*args.add(1)).add(slot * SLOT_WORDS);
            for row in 0..*step.add(COMMIT_ROWS + index) as usize {
                *value = mix(*value, *value.add((row + 1) * PENDING_WORDS));
            }
        }
    }
}

/// The token `back` steps before a row, plus 1; 0 before the beginning.
unsafe fn before(step: *const u32, tail: *const u32, row: usize, back: usize) -> u32 {
    // SAFETY: `back` is at most the rows of the tail.
    unsafe {
        match (*step.add(OFFSETS + row) as usize).checked_sub(back) {
            Some(_) => *step.add(TOKENS + row - back) + 1,
            None => *tail.add(TAIL_ROWS + *step.add(OFFSETS + row) as usize - back),
        }
    }
}

/// Args: step, tail, tokens before each row, 1 if rows are pending. Changes the tail itself if not.
unsafe fn tail_of_rows(args: *const u64, pending: bool) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        let rows = *step as usize;
        let slot_of = |row: usize| *step.add(ROW_SLOTS + row);
        for row in 0..rows {
            let tail = at::<u32>(*args.add(1)).add(slot_of(row) as usize * SLOT_WORDS);
            for back in 1..=TAIL_ROWS {
                let place = at::<u32>(*args.add(2)).add(row * BACK_WORDS + back);
                *place = before(step, tail, row, back);
            }
            let offset = *step.add(OFFSETS + row) as usize;
            if pending {
                *tail.add((offset + 1) * PENDING_WORDS) = *step.add(TOKENS + row) + 1;
            } else if row + 1 == rows || slot_of(row + 1) != slot_of(row) {
                let last: [u32; TAIL_ROWS] =
                    std::array::from_fn(|i| before(step, tail, row, TAIL_ROWS - 1 - i));
                (0..TAIL_ROWS).for_each(|i| *tail.add(i) = last[i]);
            }
        }
    }
}

pub unsafe extern "C" fn tail(args: *const u64, part: u64, _: u64) {
    if part == 0 {
        // SAFETY: as above.
        unsafe { tail_of_rows(args, false) }
    }
}

pub unsafe extern "C" fn tail_pending(args: *const u64, part: u64, _: u64) {
    if part == 0 {
        // SAFETY: as above.
        unsafe { tail_of_rows(args, true) }
    }
}

/// Args: step, tail. Applies accepted pending rows.
pub unsafe extern "C" fn tail_commit(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for index in share(*step.add(2) as usize, part, parts) {
            let slot = *step.add(COMMIT_SLOTS + index) as usize;
            let tail = at::<u32>(*args.add(1)).add(slot * SLOT_WORDS);
            for row in 0..*step.add(COMMIT_ROWS + index) as usize {
                (1..TAIL_ROWS).for_each(|i| *tail.add(i - 1) = *tail.add(i));
                *tail.add(TAIL_ROWS - 1) = *tail.add((row + 1) * PENDING_WORDS);
            }
        }
    }
}

/// Args: step, first state, second state, hashes, copied, repacked, mapped, constants, logits.
pub unsafe extern "C" fn attend(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for logit_row in share(*step.add(1) as usize, part, parts) {
            let row = *step.add(LOGIT_ROWS + logit_row) as usize;
            let slot = *step.add(ROW_SLOTS + row) as usize;
            let token = *step.add(TOKENS + row);
            let mut hash = 0;
            for position in 0..=*step.add(POSITIONS + row) as usize {
                let stored = [1, 2].map(|state| *entry(step, *args.add(state), slot, position));
                hash = if stored[0] == stored[1] { mix(hash, stored[0]) } else { u32::MAX };
            }
            let of_token = |arg: usize| *at::<f32>(*args.add(arg)).add(token as usize);
            let kept = *at::<u32>(*args.add(3)).add(row);
            let logits = at::<f32>(*args.add(8)).add(logit_row * VOCAB);
            let values = [hash as f32, kept as f32, token as f32, parts as f32];
            for (index, value) in values.into_iter().enumerate() {
                *logits.add(index) = value;
            }
            for index in 4..VOCAB {
                *logits.add(index) = of_token(index);
            }
        }
    }
}

/// Args: step, first state, pairs, tokens before each row, logits. Spoils the hash of rows whose
/// tail or pairs are not what the first state says.
pub unsafe extern "C" fn check(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for logit_row in share(*step.add(1) as usize, part, parts) {
            let row = *step.add(LOGIT_ROWS + logit_row) as usize;
            let slot = *step.add(ROW_SLOTS + row) as usize;
            let position = *step.add(POSITIONS + row) as usize;
            let token = |position: usize| *entry(step, *args.add(1), slot, position);
            let back = |back: usize| position.checked_sub(back).map_or(0, |p| token(p) + 1);
            let tails = at::<u32>(*args.add(3)).add(row * BACK_WORDS);
            let tail = (1..=TAIL_ROWS).all(|i| *tails.add(i) == back(i));
            let pairs = (0..position).all(|i| *entry(step, *args.add(2), slot, i) == token(i + 1));
            if !tail || !pairs {
                let logits = at::<f32>(*args.add(4)).add(logit_row * VOCAB);
                *logits = if tail { -1.0 } else { -2.0 };
            }
        }
    }
}

/// Args: step, pairs, hashes of the draft's state, logits: `[hash of all pairs, hash of the state,
/// token, 0...]`.
pub unsafe extern "C" fn draft(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for row in share(*step as usize, part, parts) {
            let slot = *step.add(ROW_SLOTS + row) as usize;
            let position = *step.add(POSITIONS + row) as usize;
            let pairs = (0..position).map(|index| *entry(step, *args.add(1), slot, index));
            let kept = *at::<u32>(*args.add(2)).add(row);
            let values = [pairs.fold(0, mix), kept, *step.add(TOKENS + row)];
            let logits = at::<f32>(*args.add(3)).add(row * VOCAB);
            (0..VOCAB).for_each(|i| *logits.add(i) = *values.get(i).unwrap_or(&0) as f32);
        }
    }
}

/// Args: step, f32 of a file, destination. Doubles a weight.
pub unsafe extern "C" fn double(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        for index in share(VOCAB, part, parts) {
            *at::<f32>(*args.add(2)).add(index) = *at::<f32>(*args.add(1)).add(index) * 2.0;
        }
    }
}
