//! Random histories of sequences against plain decoding: windows whose rows are kept or rejected,
//! drafts, snapshots and restores, files, truncations, sequences that come and go. Whatever
//! happened to a sequence, logits, drafts and state have the bits that its tokens give by
//! themselves.
//!
//! Sequences follow a few known texts with common beginnings, so that each position of each text is
//! decoded plainly only once. Rejected rows hold anything.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod requantise;
mod subjects;
mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use strata_replay::{Engine, ReplayError, Row, SlotId, argmax};
use subjects::{
    ORACLE_F32, ORACLE_MIX, Random, SNAPSHOTS, Subject, assert_bits, assert_state, read,
    state_bytes, with_engine,
};
use support::scratch;

const LENGTH: usize = 320;
/// Tokens that a text has in common with the first one.
const COMMON: [usize; 4] = [LENGTH, 0, 40, 137];
const STEPS: usize = 1500;
const SLOTS: usize = 3;
const VERIFY: usize = 8;
const LOGIT_ROWS: usize = 32;

/// A text, decoded plainly.
struct Text {
    tokens: Vec<u32>,
    /// Behind each token.
    logits: Vec<Vec<f32>>,
    /// Of the draft head behind so many tokens, for the next one and for what it drafts.
    drafts: Vec<[Vec<f32>; 2]>,
    /// Behind whole pages.
    states: BTreeMap<usize, Vec<u8>>,
}

impl Text {
    fn decode(engine: &mut Engine, tokens: Vec<u32>) -> Self {
        let slot = engine.new_sequence().unwrap();
        let logits: Vec<Vec<f32>> =
            tokens.iter().map(|&token| read(engine, slot, &[token])).collect();
        engine.release(slot);
        // Again, since drafts and rejected rows are not plain.
        let slot = engine.new_sequence().unwrap();
        let (mut drafts, mut states) = (Vec::new(), BTreeMap::new());
        for (at, &token) in tokens.iter().enumerate() {
            if at > 0 && at % engine.model().page_tokens as usize == 0 {
                states.insert(at, state_bytes(engine, slot));
            }
            drafts.push(draft_two(engine, slot, token));
            assert_bits("behind a draft", &read(engine, slot, &[token]), &logits[at]);
        }
        engine.release(slot);
        Self { tokens, logits, drafts, states }
    }
}

fn draft_two(engine: &mut Engine, slot: SlotId, token: u32) -> [Vec<f32>; 2] {
    engine.draft_begin(slot).unwrap();
    let first = engine.draft(&[(slot, token)]).unwrap().logits(0).to_vec();
    let next = argmax(&first);
    let second = engine.draft(&[(slot, next)]).unwrap().logits(0).to_vec();
    [first, second]
}

fn texts(engine: &mut Engine, subject: Subject) -> Vec<Text> {
    let first = subject.prompt(0, LENGTH);
    let text = |(which, common): (usize, &usize)| {
        let mut tokens = subject.prompt(which, LENGTH);
        tokens[..*common].copy_from_slice(&first[..*common]);
        Text::decode(engine, tokens)
    };
    COMMON.iter().enumerate().map(text).collect()
}

/// What a sequence or a snapshot holds: the beginning of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    text: usize,
    at: usize,
}

#[derive(Debug)]
struct Live {
    slot: SlotId,
    place: Place,
    /// Rows that wait to be committed, of which so many are right.
    right: Option<usize>,
}

struct History<'a> {
    engine: &'a mut Engine,
    texts: &'a [Text],
    random: Random,
    live: Vec<Live>,
    snapshots: [Option<Place>; SNAPSHOTS as usize],
    file: PathBuf,
    saved: Option<Place>,
    /// How often what happened.
    done: BTreeMap<&'static str, u32>,
}

impl History<'_> {
    fn step(&mut self) {
        let what = match self.random.below(24) {
            0 => self.start(),
            1 => self.release(),
            2 => self.truncate(),
            3 | 4 => self.snapshot(),
            5 | 6 => self.restore(),
            7 => self.save(),
            8 => self.load(),
            9 | 10 => self.branch(),
            11..=13 => self.draft(),
            14..=17 => self.append(),
            18..=21 => self.verify(),
            22 => self.commit(),
            _ => self.compare(),
        };
        if let Some(what) = what {
            *self.done.entry(what).or_default() += 1;
        }
    }

    /// One of the sequences without rows to commit.
    fn settled(&mut self) -> Option<usize> {
        let all: Vec<usize> =
            (0..self.live.len()).filter(|&i| self.live[i].right.is_none()).collect();
        (!all.is_empty()).then(|| all[self.random.below(all.len())])
    }

    fn start(&mut self) -> Option<&'static str> {
        let text = self.random.below(self.texts.len());
        match self.engine.new_sequence() {
            Ok(slot) => self.live.push(Live { slot, place: Place { text, at: 0 }, right: None }),
            Err(error) => {
                assert!(matches!(error, ReplayError::NoSlot { .. }), "{error}");
                assert_eq!(self.live.len(), SLOTS);
                return None;
            }
        }
        Some("start")
    }

    /// Also of a sequence with rows to commit.
    fn release(&mut self) -> Option<&'static str> {
        if self.live.is_empty() || self.random.below(3) > 0 {
            return None;
        }
        let gone = self.live.swap_remove(self.random.below(self.live.len()));
        self.engine.release(gone.slot);
        assert!(self.engine.position(gone.slot).is_err());
        Some("release")
    }

    fn truncate(&mut self) -> Option<&'static str> {
        let index = self.settled()?;
        let Live { slot, place, .. } = self.live[index];
        if place.at > 1 {
            let part = 1 + self.random.below(place.at - 1) as u32;
            let refused = self.engine.truncate(slot, part).unwrap_err();
            assert!(matches!(refused, ReplayError::TruncateState { .. }), "{refused}");
        }
        if place.at < LENGTH && self.random.below(3) > 0 {
            return Some("refused truncate");
        }
        self.engine.truncate(slot, 0).unwrap();
        self.live[index].place.at = 0;
        Some("truncate")
    }

    fn snapshot(&mut self) -> Option<&'static str> {
        let (index, number) = (self.settled()?, self.random.below(SNAPSHOTS as usize));
        if self.random.below(6) == 0 {
            self.engine.drop_snapshot(number as u32).unwrap();
            self.snapshots[number] = None;
            return Some("drop");
        }
        if self.random.below(2) == 0 {
            self.end_page(index);
        }
        self.engine.snapshot(self.live[index].slot, number as u32).unwrap();
        self.snapshots[number] = Some(self.live[index].place);
        Some("snapshot")
    }

    fn restore(&mut self) -> Option<&'static str> {
        let (index, number) = (self.settled()?, self.random.below(SNAPSHOTS as usize));
        let restored = self.engine.restore(self.live[index].slot, number as u32);
        let Some(place) = self.snapshots[number] else {
            let refused = restored.unwrap_err();
            assert!(matches!(refused, ReplayError::SnapshotEmpty { .. }), "{refused}");
            return None;
        };
        restored.unwrap();
        self.live[index].place = place;
        Some("restore")
    }

    fn save(&mut self) -> Option<&'static str> {
        let index = self.settled()?;
        self.engine.save_sequence(self.live[index].slot, &self.file).unwrap();
        self.saved = Some(self.live[index].place);
        Some("save")
    }

    fn load(&mut self) -> Option<&'static str> {
        let place = self.saved?;
        if self.live.len() == SLOTS {
            return None;
        }
        let slot = self.engine.load_sequence(&self.file).unwrap();
        self.live.push(Live { slot, place, right: None });
        Some("load")
    }

    /// From now on a sequence follows another text that begins alike.
    fn branch(&mut self) -> Option<&'static str> {
        let index = self.settled()?;
        let (place, text) = (self.live[index].place, self.random.below(self.texts.len()));
        let begins = |text: usize| &self.texts[text].tokens[..place.at];
        if text == place.text || begins(text) != begins(place.text) {
            return None;
        }
        self.live[index].place.text = text;
        Some("branch")
    }

    /// Drafts of one sequence or of several at once, or a beginning that leads nowhere.
    fn draft(&mut self) -> Option<&'static str> {
        let mut drafting: Vec<usize> = Vec::new();
        for index in 0..self.live.len() {
            let Live { slot, place, right } = self.live[index];
            if right.is_none() && place.at < LENGTH && self.random.below(3) > 0 {
                self.engine.draft_begin(slot).unwrap();
                drafting.push(index);
            }
        }
        if drafting.is_empty() {
            return None;
        }
        if self.random.below(4) == 0 {
            // Of tokens that are in no text.
            let junk = self.random.below(512) as u32;
            let rows: Vec<_> = drafting.iter().map(|&i| (self.live[i].slot, junk)).collect();
            self.engine.draft(&rows).unwrap();
            return Some("draft of anything");
        }
        let mut tokens: Vec<u32> = drafting
            .iter()
            .map(|&i| self.texts[self.live[i].place.text].tokens[self.live[i].place.at])
            .collect();
        for depth in 0..1 + self.random.below(2) {
            let slots = drafting.iter().map(|&i| self.live[i].slot);
            let rows: Vec<(SlotId, u32)> = slots.zip(tokens.iter().copied()).collect();
            let output = self.engine.draft(&rows).unwrap();
            for (row, &index) in drafting.iter().enumerate() {
                let Place { text, at } = self.live[index].place;
                let expected = &self.texts[text].drafts[at][depth];
                assert_bits(&format!("draft {depth} of {text} {at}"), output.logits(row), expected);
                tokens[row] = argmax(expected);
            }
        }
        Some("draft")
    }

    /// Rows of sequences that have none to commit, at most `most` of them, with the number of rows of
    /// each.
    fn choose(&mut self, most: usize) -> Vec<(usize, usize)> {
        let (mut chosen, mut left) = (Vec::new(), most);
        for index in 0..self.live.len() {
            let room = (LENGTH - self.live[index].place.at).min(left);
            if self.live[index].right.is_none() && room > 0 && self.random.below(3) > 0 {
                let count = 1 + self.random.below(room);
                left -= count;
                chosen.push((index, count));
            }
        }
        chosen
    }

    /// A window whose rows all stay.
    fn append(&mut self) -> Option<&'static str> {
        let most = [1, 2, 3, 8, 20, LOGIT_ROWS][self.random.below(6)];
        let chosen = self.choose(most);
        let rights: Vec<usize> = chosen.iter().map(|&(_, count)| count).collect();
        self.run(&chosen, &rights, false)?;
        for (index, count) in chosen {
            self.live[index].place.at += count;
        }
        Some("append")
    }

    /// A window whose rows wait, some of them wrong.
    fn verify(&mut self) -> Option<&'static str> {
        let chosen = self.choose(VERIFY);
        let rights: Vec<usize> =
            chosen.iter().map(|&(_, count)| self.random.below(count + 1)).collect();
        self.run(&chosen, &rights, true)?;
        for (&(index, _), right) in chosen.iter().zip(rights) {
            self.live[index].right = Some(right);
        }
        // Mostly at once.
        if self.random.below(4) > 0 {
            self.commit();
        }
        Some("verify")
    }

    fn run(&mut self, chosen: &[(usize, usize)], rights: &[usize], verify: bool) -> Option<()> {
        let (mut rows, mut expected) = (Vec::new(), Vec::new());
        for (&(index, count), &right) in chosen.iter().zip(rights) {
            let Live { slot, place, .. } = self.live[index];
            let text = &self.texts[place.text];
            for row in 0..count {
                let own = text.tokens[place.at + row];
                let token = if row < right { own } else { self.random.below(512) as u32 };
                rows.push(Row { token, slot, logits: true });
                expected.push((row < right).then_some(&text.logits[place.at + row]));
            }
        }
        if rows.is_empty() {
            return None;
        }
        let ran = if verify { self.engine.run_uncommitted(&rows) } else { self.engine.run(&rows) };
        let output = ran.unwrap();
        for (row, expected) in expected.into_iter().enumerate() {
            if let Some(expected) = expected {
                assert_bits(&format!("row {row} of {rows:?}"), output.logits(row), expected);
            }
        }
        Some(())
    }

    /// Keeps some of the right rows of some of the sequences that wait.
    fn commit(&mut self) -> Option<&'static str> {
        let mut commits = Vec::new();
        for live in &mut self.live {
            if let Some(right) = live.right
                && self.random.below(4) > 0
            {
                let accepted = right - self.random.below(right + 1) / 2;
                commits.push((live.slot, accepted as u32));
                live.place.at += accepted;
                live.right = None;
            }
        }
        self.engine.commit_many(&commits).unwrap();
        (!commits.is_empty()).then_some("commit")
    }

    /// Reads on to the end of the page: rows behind it still write to the last entry of some states
    /// on this page, which others may share by then.
    fn end_page(&mut self, index: usize) {
        let Live { slot, place: Place { text, at }, .. } = self.live[index];
        let end = at.next_multiple_of(self.engine.model().page_tokens as usize);
        if end > at {
            read(self.engine, slot, &self.texts[text].tokens[at..end]);
        }
        self.live[index].place.at = end;
    }

    /// The whole state, at the end of the page that a sequence stands on.
    fn compare(&mut self) -> Option<&'static str> {
        let index = self.settled()?;
        let Live { slot, place: Place { text, at }, .. } = self.live[index];
        assert_eq!(self.engine.position(slot).unwrap() as usize, at);
        assert_eq!(self.engine.tokens(slot).unwrap(), &self.texts[text].tokens[..at]);
        self.end_page(index);
        let end = self.live[index].place.at;
        let expected = self.texts[text].states.get(&end)?;
        let what = format!("text {text}, {end} tokens");
        assert_state(&what, &state_bytes(self.engine, slot), expected);
        Some("compare")
    }
}

fn check(subject: Subject, seed: u64) {
    with_engine(&subject.plan(), |mut engine| {
        let texts = texts(&mut engine, subject);
        let dir = scratch(&format!("histories-{}-{seed}", subject.name));
        let mut history = History {
            engine: &mut engine,
            texts: &texts,
            random: Random(seed),
            live: Vec::new(),
            snapshots: [None; SNAPSHOTS as usize],
            file: dir.join("sequence.state"),
            saved: None,
            done: BTreeMap::new(),
        };
        for _ in 0..STEPS {
            history.step();
        }
        println!("{}, seed {seed}: {:?}", subject.name, history.done);
        let all = [
            "append",
            "branch",
            "commit",
            "compare",
            "draft",
            "draft of anything",
            "drop",
            "load",
            "refused truncate",
            "release",
            "restore",
            "save",
            "snapshot",
            "start",
            "truncate",
            "verify",
        ];
        for what in all {
            let count = history.done.get(what).copied().unwrap_or(0);
            assert!(count >= 5, "{what} happened {count} times only");
        }
        // Nothing is held any more once all is let go.
        let slots: Vec<SlotId> = history.live.iter().map(|live| live.slot).collect();
        slots.into_iter().for_each(|slot| engine.release(slot));
        (0..SNAPSHOTS).for_each(|index| engine.drop_snapshot(index).unwrap());
        assert_eq!(engine.free_pages(), engine.model().pages);
    });
}

#[test]
fn any_history_of_the_oracle_in_f32() {
    check(ORACLE_F32, 1);
}

#[test]
fn another_history_of_the_oracle_in_f32() {
    check(ORACLE_F32, 0x5eed);
}

#[test]
fn any_history_of_the_oracle_in_four_bits() {
    check(ORACLE_MIX, 7);
}
