//! Drafting on the test plan, whose draft head knows the tokens from the second on.

use super::{TestPlan, expected, hash, rows};
use crate::test_plan::{CONTEXT, PAGE_TOKENS};
use crate::{Engine, ReplayError, SlotId};

/// Drafts `tokens` one by one and checks what the draft head saw.
fn draft(engine: &mut Engine, slot: SlotId, tokens: &[u32]) {
    let mut all = engine.tokens(slot).unwrap().to_vec();
    engine.draft_begin(slot).unwrap();
    for &token in tokens {
        all.push(token);
        let output = engine.draft(&[(slot, token)]).unwrap();
        let wanted = [hash(&all[1..]) as f32, hash(&all) as f32, token as f32];
        assert_eq!(output.logits(0)[..3], wanted, "drafting {all:?}");
    }
}

fn after(engine: &mut Engine, slot: SlotId, token: u32) -> Vec<f32> {
    engine.run(&rows(slot, &[token])).unwrap().logits(0)[..3].to_vec()
}

#[test]
fn nothing_of_a_draft_stays() {
    let plan = TestPlan::recurrent("draft");
    let mut engine = plan.open_with_threads(2);
    assert!(engine.can_draft());
    let slot = engine.new_sequence().unwrap();
    let mut tokens = vec![1, 2, 3];
    engine.run(&rows(slot, &tokens)).unwrap();
    let free = engine.free_pages();
    for round in 0..6 {
        draft(&mut engine, slot, &[4, 5, 6, 7, round]);
        // Again: what was drafted before is forgotten.
        draft(&mut engine, slot, &[7, round]);
        assert_eq!(engine.tokens(slot).unwrap(), tokens);
        tokens.push(round);
        assert_eq!(after(&mut engine, slot, round), expected(&tokens), "round {round}");
        let pages = tokens.len().div_ceil(PAGE_TOKENS) as u32;
        assert_eq!(engine.free_pages(), free + 1 - pages, "pages of drafts are free");
    }
    draft(&mut engine, slot, &[1, 2, 3, 4, 5]);
    engine.snapshot(slot, 0).unwrap();
    engine.release(slot);
    engine.drop_snapshot(0).unwrap();
    assert_eq!(engine.free_pages(), free + 1);
}

#[test]
fn drafts_and_rows_to_commit_take_turns() {
    let plan = TestPlan::recurrent("turns");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1, 2])).unwrap();
    let mut tokens = vec![1, 2];
    for accepted in [3, 0, 2, 1] {
        draft(&mut engine, slot, &[5, 6, 7]);
        engine.run_uncommitted(&rows(slot, &[5, 6, 7])).unwrap();
        let error = engine.draft_begin(slot).unwrap_err();
        assert!(matches!(error, ReplayError::Uncommitted { slot: 0, rows: 3 }), "{error}");
        engine.commit(slot, accepted).unwrap();
        tokens.extend_from_slice(&[5, 6, 7][..accepted as usize]);
        assert_eq!(engine.tokens(slot).unwrap(), tokens);
    }
    tokens.push(0);
    assert_eq!(after(&mut engine, slot, 0), expected(&tokens));
}

#[test]
fn a_draft_spoils_no_page_that_others_hold() {
    let plan = TestPlan::recurrent("shared-draft");
    let mut engine = plan.open_with_threads(1);
    // On the end of a page, where the first entry that is written lies on the page before.
    for length in [PAGE_TOKENS, PAGE_TOKENS + 2] {
        let tokens: Vec<u32> = (0..length as u32).collect();
        let slot = engine.new_sequence().unwrap();
        engine.prefill(slot, &tokens, None).unwrap();
        engine.snapshot(slot, 0).unwrap();
        let other = engine.new_sequence().unwrap();
        engine.restore(other, 0).unwrap();
        engine.run(&rows(slot, &[6, 1])).unwrap();
        draft(&mut engine, other, &[7, 7]);
        let with = |more: &[u32]| expected(&[&tokens[..], more].concat());
        assert_eq!(after(&mut engine, slot, 2), with(&[6, 1, 2]));
        assert_eq!(after(&mut engine, other, 3), with(&[3]));
        assert_eq!(after(&mut engine, slot, 2), with(&[6, 1, 2, 2]));
        engine.release(slot);
        engine.release(other);
    }
}

#[test]
fn sequences_are_drafted_together() {
    let plan = TestPlan::recurrent("draft-many");
    let mut engine = plan.open_with_threads(2);
    let slots = [(); 3].map(|()| engine.new_sequence().unwrap());
    for (slot, tokens) in slots.into_iter().zip([&[1, 2, 3][..], &[4, 5], &[6]]) {
        engine.run(&rows(slot, tokens)).unwrap();
    }
    engine.draft_begin(slots[0]).unwrap();
    engine.draft_begin(slots[1]).unwrap();
    let output = engine.draft(&[(slots[1], 7), (slots[0], 0)]).unwrap();
    assert_eq!(output.logits(0)[0], hash(&[5, 7]) as f32);
    assert_eq!(output.logits(1)[0], hash(&[2, 3, 0]) as f32);
    let output = engine.draft(&[(slots[0], 1)]).unwrap();
    assert_eq!(output.logits(0)[0], hash(&[2, 3, 0, 1]) as f32);
    let error = |engine: &mut Engine, tokens: &[(SlotId, u32)]| {
        engine.draft(tokens).unwrap_err().to_string()
    };
    let text = error(&mut engine, &[(slots[2], 1)]);
    assert!(text.contains("drafting the sequence in slot 2 has not begun"), "{text}");
    let text = error(&mut engine, &[(slots[0], 1), (slots[0], 1)]);
    assert!(text.contains("slot 0 stands in a draft twice"), "{text}");
    let text = error(&mut engine, &[(slots[0], 1), (slots[1], 1), (slots[2], 1)]);
    assert!(text.contains("3 sequences cannot be drafted at once"), "{text}");
    assert!(error(&mut engine, &[]).contains("at least one"));
    assert!(error(&mut engine, &[(slots[0], 8)]).contains("token 8"));
    // Refused calls have left it where it was.
    let output = engine.draft(&[(slots[0], 2)]).unwrap();
    assert_eq!(output.logits(0)[0], hash(&[2, 3, 0, 1, 2]) as f32);
    // A window of the sequence ends its draft.
    after(&mut engine, slots[0], 4);
    assert!(error(&mut engine, &[(slots[0], 1)]).contains("has not begun"));
}

#[test]
fn a_draft_ends_with_the_context() {
    let plan = TestPlan::recurrent("draft-context");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    engine.prefill(slot, &[3; CONTEXT - 1], None).unwrap();
    draft(&mut engine, slot, &[1]);
    let error = engine.draft(&[(slot, 1)]).unwrap_err();
    assert!(matches!(error, ReplayError::Context { position: 29, rows: 2, .. }), "{error}");
    assert_eq!(after(&mut engine, slot, 3), expected(&[3; CONTEXT]));
}

#[test]
fn a_model_without_a_draft_head_says_so() {
    let plan = TestPlan::new("no-draft");
    let mut engine = plan.open_with_threads(1);
    assert!(!engine.can_draft());
    let slot = engine.new_sequence().unwrap();
    assert!(matches!(engine.draft_begin(slot), Err(ReplayError::NoDraft)));
    assert!(matches!(engine.draft(&[(slot, 1)]), Err(ReplayError::NoDraft)));
}
