//! One text and one state, bit for bit, however they come about: with drafts of any depth, right or
//! wrong; with the prompt cut anywhere; beside other sequences; after saving and loading; after
//! rejected rows and restored snapshots. What they are compared with is plain decoding.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]

mod requantise;
mod subjects;
mod support;

use strata_replay::speculate::{Draft, Drafter, Offer, Speculator, Writing};
use strata_replay::{Engine, ReplayError, Row, Sampler, Sampling, SlotId};
use subjects::{
    NANO_MIX, NANO_Q8, ORACLE_F32, ORACLE_MIX, ORACLE_Q8, Plain, Random, Subject, assert_bits,
    assert_state, read, state_bytes, with_engine,
};
use support::scratch;

/// Tokens of a prompt, and of the text with it.
const PROMPT: usize = 70;
const TOTAL: usize = 256;

/// Which drafts are wrong.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    None,
    All,
    /// The first one of the first round, the second one of the second round, and so on.
    OneByOne,
}

/// Drafts the text that is known, with wrong tokens at chosen places.
#[derive(Debug)]
struct Scripted {
    text: Vec<u32>,
    wrong: Wrong,
    rounds: usize,
}

impl Drafter for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn offer(&mut self, _: &[u32]) -> Option<Offer> {
        Some(Offer { class: 0, most: usize::MAX })
    }

    fn draft(
        &mut self,
        _: &mut Engine,
        _: SlotId,
        context: &[u32],
        (count, drafts): (usize, &mut Vec<u32>),
    ) -> Result<(), ReplayError> {
        let wrong_at = self.rounds % (count + 1);
        self.rounds += 1;
        for (index, token) in self.text[context.len()..].iter().take(count).enumerate() {
            let wrong = match self.wrong {
                Wrong::None => false,
                Wrong::All => true,
                Wrong::OneByOne => index == wrong_at,
            };
            drafts.push(if wrong { token ^ 1 } else { *token });
        }
        Ok(())
    }
}

fn scripted(text: &[u32], wrong: Wrong) -> Vec<Box<dyn Drafter>> {
    vec![Box::new(Scripted { text: text.to_vec(), wrong, rounds: 0 })]
}

/// Continues `context`, whose first tokens the sequence holds, and returns the logits behind it.
fn write(
    engine: &mut Engine,
    slot: SlotId,
    (context, total): (&mut Vec<u32>, usize),
    speculator: &mut Speculator,
) -> Vec<f32> {
    let held = engine.position(slot).unwrap() as usize;
    let unread = &context[held..context.len() - 1];
    if !unread.is_empty() {
        engine.prefill(slot, unread, None).unwrap();
    }
    let mut sampler = Sampler::new(Sampling::default(), engine.model().vocab as usize);
    while context.len() < total {
        let limit = total - context.len();
        let text = Writing { sequence: slot, context, sampler: &mut sampler, limit };
        speculator.round(engine, text, &mut |_| true).unwrap();
    }
    read(engine, slot, &context[total - 1..])
}

/// Writes the text again with `speculator` and compares everything.
fn check_text(what: &str, engine: &mut Engine, plain: &Plain, speculator: &mut Speculator) {
    let slot = engine.new_sequence().unwrap();
    let total = plain.tokens.len();
    let mut context = plain.tokens[..PROMPT].to_vec();
    let logits = write(engine, slot, (&mut context, total), speculator);
    assert_eq!(context, plain.tokens, "{what}");
    assert_bits(what, &logits, &plain.logits[total - 1]);
    assert_state(what, &state_bytes(engine, slot), &plain.state);
    engine.release(slot);
}

fn check_drafts(subject: Subject) {
    with_engine(&subject.plan(), |mut engine| {
        let engine = &mut engine;
        let plain = Plain::greedy(engine, &subject.prompt(0, PROMPT), TOTAL);
        let modes = (1..=8).map(Draft::Fixed).chain([Draft::Off, Draft::Auto]);
        for mode in modes {
            let what = format!("{}, {mode:?}", subject.name);
            let mut own = Speculator::new(engine, mode);
            check_text(&what, engine, &plain, &mut own);
            let stats = own.take_stats();
            println!("{what}: {:.2} of the drafts accepted", stats.acceptance());
            for wrong in [Wrong::None, Wrong::All, Wrong::OneByOne] {
                let drafters = scripted(&plain.tokens, wrong);
                let mut speculator = Speculator::with_drafters(engine, mode, drafters);
                check_text(&format!("{what}, wrong: {wrong:?}"), engine, &plain, &mut speculator);
                let stats = speculator.take_stats();
                match (mode, wrong) {
                    (Draft::Off, _) => assert_eq!(stats.drafted, 0),
                    (_, Wrong::None) => assert_eq!(stats.accepted, stats.drafted),
                    (_, Wrong::All) => assert_eq!(stats.accepted, 0),
                    (Draft::Fixed(n), Wrong::OneByOne) => {
                        let depth = n.min(7) as usize;
                        assert!(stats.accepted_at[..depth].iter().all(|&n| n > 0));
                        let refused = stats.checked_at.iter().zip(&stats.accepted_at);
                        assert!(refused.take(depth).all(|(checked, ok)| checked > ok));
                    }
                    _ => {}
                }
            }
        }
    });
}

/// The prompt in chunks of every length, and in two pieces cut at every length.
fn check_splits(subject: Subject) {
    const READ: usize = 128;
    with_engine(&subject.plan(), |mut engine| {
        let engine = &mut engine;
        let prompt = subject.prompt(1, READ);
        let plain = Plain::greedy(engine, &prompt, READ);
        for length in 1..=64 {
            for cut in [false, true] {
                let what = format!("{}, split at {length}, cut {cut}", subject.name);
                let slot = engine.new_sequence().unwrap();
                let (first, rest) = prompt.split_at(if cut { length } else { 0 });
                if cut {
                    engine.prefill(slot, first, None).unwrap();
                }
                let chunk = (!cut).then_some(length);
                let logits = engine.prefill(slot, rest, chunk).unwrap().logits(0).to_vec();
                assert_bits(&what, &logits, plain.logits.last().unwrap());
                assert_state(&what, &state_bytes(engine, slot), &plain.state);
                engine.release(slot);
            }
        }
    });
}

/// Two and three texts in shared verify windows, of which each keeps what it likes.
fn check_companions(subject: Subject) {
    with_engine(&subject.plan(), |mut engine| {
        let engine = &mut engine;
        let plain: Vec<Plain> = (0..3)
            .map(|which| Plain::greedy(engine, &subject.prompt(which, PROMPT), TOTAL))
            .collect();
        for count in [2, 3] {
            let slots: Vec<SlotId> = (0..count).map(|_| engine.new_sequence().unwrap()).collect();
            let mut random = Random(count as u64);
            // They begin at different lengths.
            for (index, slot) in slots.iter().enumerate() {
                engine.prefill(*slot, &plain[index].tokens[..PROMPT - 13 * index], None).unwrap();
            }
            while slots.iter().any(|slot| engine.position(*slot).unwrap() < TOTAL as u32) {
                share_a_window(engine, &slots, &plain, &mut random);
            }
            for (slot, plain) in slots.into_iter().zip(&plain) {
                let what = format!("{}, one of {count} texts", subject.name);
                assert_state(&what, &state_bytes(engine, slot), &plain.state);
                engine.release(slot);
            }
        }
    });
}

fn share_a_window(engine: &mut Engine, slots: &[SlotId], plain: &[Plain], random: &mut Random) {
    let (mut rows, mut commits, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for (&slot, plain) in slots.iter().zip(plain) {
        let at = engine.position(slot).unwrap() as usize;
        let room = (TOTAL - at).min(8 - rows.len());
        if room == 0 {
            continue;
        }
        let count = 1 + random.below(room.min(4));
        let right = random.below(count + 1);
        for index in 0..count {
            let token = plain.tokens[at + index] ^ u32::from(index >= right);
            rows.push(Row { token, slot, logits: true });
            expected.push((index < right).then(|| &plain.logits[at + index]));
        }
        // What is right need not be kept.
        commits.push((slot, random.below(right + 1) as u32));
    }
    let output = engine.run_uncommitted(&rows).unwrap();
    for (index, expected) in expected.into_iter().enumerate() {
        if let Some(expected) = expected {
            assert_bits(&format!("row {index} of {rows:?}"), output.logits(index), expected);
        }
    }
    engine.commit_many(&commits).unwrap();
}

/// Sequences that have all their pages in common, at the end of one: rows behind it store the draft
/// head's last entry there, so that each must have a copy of that page, too.
fn check_shared_pages(subject: Subject) {
    const SHARED: usize = 128;
    with_engine(&subject.plan(), |mut engine| {
        let engine = &mut engine;
        let plain = Plain::greedy(engine, &subject.prompt(0, PROMPT), TOTAL);
        let [one, other] = [(); 2].map(|()| engine.new_sequence().unwrap());
        engine.prefill(one, &plain.tokens[..SHARED], None).unwrap();
        engine.snapshot(one, 0).unwrap();
        read(engine, one, &plain.tokens[SHARED..=SHARED]);
        for accepted in [0, 1, 2] {
            engine.restore(other, 0).unwrap();
            engine.draft_begin(other).unwrap();
            engine.draft(&[(other, 3)]).unwrap();
            let token = |index: usize| plain.tokens[SHARED + index] ^ 1;
            let row = |index| Row { token: token(index), slot: other, logits: true };
            engine.run_uncommitted(&[0, 1, 2].map(row)).unwrap();
            engine.commit(other, accepted).unwrap();
        }
        // What the other one left must not be overwritten by what is right before `one` goes on.
        for slot in [one, other] {
            if slot == other {
                engine.restore(other, 0).unwrap();
            }
            let what = format!("{}, {slot:?} with shared pages", subject.name);
            let at = engine.position(slot).unwrap() as usize;
            let logits = engine.prefill(slot, &plain.tokens[at..], None).unwrap().logits(0);
            assert_bits(&what, logits, &plain.logits[TOTAL - 1]);
            assert_state(&what, &state_bytes(engine, slot), &plain.state);
        }
    });
}

/// A text that goes on in another slot, and in another run of the program.
fn check_save(subject: Subject) {
    let plan = subject.plan();
    let dir = scratch(&format!("speculation-save-{}", subject.name));
    let files = [90, 128, 131].map(|tokens| (tokens, dir.join(format!("{tokens}.state"))));
    let finish = |engine: &mut Engine, plain: &Plain, what: &str| {
        for (tokens, file) in &files {
            let slot = engine.load_sequence(file).unwrap();
            assert_eq!(engine.tokens(slot).unwrap(), &plain.tokens[..*tokens]);
            let mut context = plain.tokens[..tokens + 1].to_vec();
            let drafters = scripted(&plain.tokens, Wrong::OneByOne);
            let mut speculator = Speculator::with_drafters(engine, Draft::Fixed(3), drafters);
            let logits = write(engine, slot, (&mut context, TOTAL), &mut speculator);
            let what = format!("{}, {what} after {tokens} tokens", subject.name);
            assert_eq!(context, plain.tokens, "{what}");
            assert_bits(&what, &logits, &plain.logits[TOTAL - 1]);
            assert_state(&what, &state_bytes(engine, slot), &plain.state);
            engine.release(slot);
        }
    };
    let plain = with_engine(&plan, |mut engine| {
        let engine = &mut engine;
        let plain = Plain::greedy(engine, &subject.prompt(2, PROMPT), TOTAL);
        // The slot that is saved and the one that is loaded into are not the same.
        let slot = engine.new_sequence().unwrap();
        let mut context = plain.tokens[..PROMPT].to_vec();
        for (tokens, file) in &files {
            let drafters = scripted(&plain.tokens, Wrong::OneByOne);
            let mut speculator = Speculator::with_drafters(engine, Draft::Fixed(4), drafters);
            write(engine, slot, (&mut context, *tokens), &mut speculator);
            engine.save_sequence(slot, file).unwrap();
            context.push(plain.tokens[*tokens]);
        }
        finish(engine, &plain, "loaded beside it");
        plain
    });
    with_engine(&plan, |mut engine| finish(&mut engine, &plain, "loaded in another run"));
}

/// A thousand tokens behind a restored snapshot, with rejections all the way.
fn check_a_thousand(subject: Subject) {
    const LONG: usize = 1088;
    let plan = subject.plan();
    let prompt = subject.prompt(3, PROMPT);
    let plain = with_engine(&plan, |mut engine| Plain::greedy(&mut engine, &prompt, LONG));
    with_engine(&plan, |mut engine| {
        let engine = &mut engine;
        let slot = engine.new_sequence().unwrap();
        engine.prefill(slot, &plain.tokens[..PROMPT - 1], None).unwrap();
        engine.snapshot(slot, 0).unwrap();
        // Another text, partly rejected and then given up.
        let strange = subject.prompt(4, 100);
        for rows in strange.chunks(5) {
            let rows: Vec<Row> =
                rows.iter().map(|&token| Row { token, slot, logits: true }).collect();
            engine.run_uncommitted(&rows).unwrap();
            engine.commit(slot, 3).unwrap();
            engine.draft_begin(slot).unwrap();
            engine.draft(&[(slot, rows[4].token)]).unwrap();
        }
        engine.restore(slot, 0).unwrap();
        let mut context = plain.tokens[..PROMPT].to_vec();
        let drafters = scripted(&plain.tokens, Wrong::OneByOne);
        let mut speculator = Speculator::with_drafters(engine, Draft::Fixed(4), drafters);
        let logits = write(engine, slot, (&mut context, LONG), &mut speculator);
        assert_eq!(context, plain.tokens, "{}", subject.name);
        assert_bits(subject.name, &logits, &plain.logits[LONG - 1]);
        assert_state(subject.name, &state_bytes(engine, slot), &plain.state);
        let stats = speculator.take_stats();
        assert!(stats.drafted > stats.accepted && stats.accepted > 0);
    });
}

macro_rules! for_each_subject {
    ($($module:ident $subject:ident,)*) => { $(
        mod $module {
            #[test]
            fn drafts_change_nothing() {
                super::check_drafts(super::$subject);
            }

            #[test]
            fn prompts_can_be_split_anywhere() {
                super::check_splits(super::$subject);
            }

            #[test]
            fn companions_change_nothing() {
                super::check_companions(super::$subject);
            }

            #[test]
            fn shared_pages_are_copied() {
                super::check_shared_pages(super::$subject);
            }

            #[test]
            fn saved_sequences_go_on() {
                super::check_save(super::$subject);
            }

            #[test]
            fn a_thousand_tokens_after_rejections() {
                super::check_a_thousand(super::$subject);
            }
        }
    )* };
}

for_each_subject! {
    nano_q8_0 NANO_Q8,
    nano_q4_mix NANO_MIX,
    oracle_f32 ORACLE_F32,
    oracle_q8_0 ORACLE_Q8,
    oracle_q4_mix ORACLE_MIX,
}
