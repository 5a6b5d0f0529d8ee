//! States of fixed size: pending rows, commits, snapshots, outputs.

use super::{TestPlan, expected, hash, rows};
use crate::test_plan::VERIFY_ROWS;
use crate::{Engine, ReplayError, Row, SlotId};

fn after(engine: &mut Engine, slot: SlotId, token: u32) -> Vec<f32> {
    engine.run(&rows(slot, &[token])).unwrap().logits(0)[..3].to_vec()
}

fn propose(engine: &mut Engine, slot: SlotId, tokens: &[u32]) -> Vec<Vec<f32>> {
    let rows: Vec<Row> = tokens.iter().map(|&token| Row { token, slot, logits: true }).collect();
    let output = engine.run_uncommitted(&rows).unwrap();
    (0..output.count()).map(|index| output.logits(index)[..3].to_vec()).collect()
}

#[test]
fn recurrent_states_and_tails_follow_snapshots() {
    let plan = TestPlan::recurrent("recurrent");
    let mut engine = plan.open_with_threads(2);
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1, 2])).unwrap();
    engine.snapshot(slot, 1).unwrap();
    assert_eq!(after(&mut engine, slot, 3), expected(&[1, 2, 3]));
    engine.restore(slot, 1).unwrap();
    assert_eq!(after(&mut engine, slot, 4), expected(&[1, 2, 4]));
    let fork = engine.new_sequence().unwrap();
    engine.restore(fork, 1).unwrap();
    assert_eq!(after(&mut engine, fork, 5), expected(&[1, 2, 5]));
    assert_eq!(after(&mut engine, slot, 6), expected(&[1, 2, 4, 6]));

    let error = engine.truncate(slot, 2).unwrap_err();
    assert!(error.to_string().contains("state hash cannot go back from position 4 to 2"));
    assert_eq!(after(&mut engine, slot, 7), expected(&[1, 2, 4, 6, 7]));
    engine.truncate(slot, 0).unwrap();
    assert_eq!(after(&mut engine, slot, 1), expected(&[1]));
    engine.release(slot);
    let slot = engine.new_sequence().unwrap();
    assert_eq!(after(&mut engine, slot, 2), expected(&[2]), "a new sequence starts at zero");
}

#[test]
fn windows_of_any_kind_leave_the_same_states() {
    let tokens: Vec<u32> = (0..24).map(|i| (i * 5 + 1) % 8).collect();
    let plan = TestPlan::recurrent("kinds");
    let mut engine = plan.open_with_threads(2);
    // Windows of 1 and 4 rows verify and commit, the one of 8 changes values in place.
    for chunk in [1, 3, 4, 5, 8] {
        let slot = engine.new_sequence().unwrap();
        let output = engine.prefill(slot, &tokens, Some(chunk)).unwrap();
        assert_eq!(output.logits(0)[..3], expected(&tokens), "chunks of {chunk}");
        engine.release(slot);
    }
    let slot = engine.new_sequence().unwrap();
    let mut so_far = Vec::new();
    for (index, piece) in tokens.chunks(3).enumerate() {
        let output = engine.run_window([2, 1][index % 2], &rows(slot, piece)).unwrap();
        so_far.extend_from_slice(piece);
        assert_eq!(output.logits(0)[..3], expected(&so_far));
    }
}

#[test]
fn a_commit_keeps_the_accepted_rows_of_every_state() {
    let plan = TestPlan::recurrent("accepted-states");
    let mut engine = plan.open_with_threads(2);
    for accepted in 0..=4u32 {
        let slot = engine.new_sequence().unwrap();
        engine.run(&rows(slot, &[1, 2, 3])).unwrap();
        let mut tokens = vec![1, 2, 3];
        for (token, found) in
            [4, 5, 6, 7].into_iter().zip(propose(&mut engine, slot, &[4, 5, 6, 7]))
        {
            tokens.push(token);
            assert_eq!(found, expected(&tokens));
        }
        engine.commit(slot, accepted).unwrap();
        tokens.truncate(3 + accepted as usize);
        assert_eq!(engine.tokens(slot).unwrap(), tokens);
        // A second time, so that older pending rows lie behind the value.
        propose(&mut engine, slot, &[0]);
        engine.commit(slot, 1).unwrap();
        tokens.extend([0, 6]);
        assert_eq!(after(&mut engine, slot, 6), expected(&tokens), "{accepted} accepted");
        engine.release(slot);
    }
}

#[test]
fn sequences_are_committed_together_or_not_at_all() {
    let plan = TestPlan::recurrent("together");
    let mut engine = plan.open_with_threads(2);
    let (a, b) = (engine.new_sequence().unwrap(), engine.new_sequence().unwrap());
    let row = |token, slot| Row { token, slot, logits: false };
    engine.run_uncommitted(&[row(1, a), row(2, a), row(3, b), row(4, b)]).unwrap();
    let error = engine.commit_many(&[(a, 1), (b, 3)]).unwrap_err();
    assert!(matches!(error, ReplayError::Commit { slot: 1, rows: 2, accepted: 3 }), "{error}");
    let twice = engine.commit_many(&[(a, 1), (b, 2), (a, 1)]).unwrap_err();
    assert!(matches!(twice, ReplayError::Commit { slot: 0, .. }), "{twice}");
    assert_eq!(engine.tokens(a).unwrap(), [0; 0]);
    engine.commit_many(&[(b, 2), (a, 1)]).unwrap();
    assert_eq!(after(&mut engine, a, 5), expected(&[1, 5]));
    assert_eq!(after(&mut engine, b, 5), expected(&[3, 4, 5]));
    // One that waits while the other is run and committed.
    propose(&mut engine, a, &[6, 7]);
    assert_eq!(after(&mut engine, b, 6), expected(&[3, 4, 5, 6]));
    engine.commit_many(&[(a, 2)]).unwrap();
    assert_eq!(after(&mut engine, a, 0), expected(&[1, 5, 6, 7, 0]));
}

#[test]
fn more_rows_than_can_wait_are_refused() {
    let plan = TestPlan::recurrent("too-many");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    let error = engine.run_uncommitted(&rows(slot, &[1; VERIFY_ROWS + 1])).unwrap_err();
    assert!(error.to_string().contains("the largest VERIFY window has 4 rows"), "{error}");
    assert_eq!(after(&mut engine, slot, 1), expected(&[1]));
}

#[test]
fn pending_rows_reach_no_snapshot_and_no_new_sequence() {
    let plan = TestPlan::recurrent("no-pending");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1, 2])).unwrap();
    propose(&mut engine, slot, &[7, 7, 7]);
    engine.commit(slot, 0).unwrap();
    engine.snapshot(slot, 0).unwrap();
    let other = engine.new_sequence().unwrap();
    engine.restore(other, 0).unwrap();
    assert_eq!(after(&mut engine, other, 3), expected(&[1, 2, 3]));
    propose(&mut engine, slot, &[7, 7, 7]);
    engine.release(slot);
    let slot = engine.new_sequence().unwrap();
    assert_eq!(after(&mut engine, slot, 4), expected(&[4]));
}

#[test]
fn outputs_are_of_the_last_window() {
    let plan = TestPlan::recurrent("outputs");
    let mut engine = plan.open_with_threads(1);
    assert_eq!(engine.outputs().count(), 0, "no window was run");
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1, 2, 3])).unwrap();
    let found: Vec<_> = engine.outputs().collect();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].name, found[0].dtype, found[0].rows), ("hashes", "u32", 3));
    assert_eq!((found[0].dims, found[0].bytes.len()), (&[4][..], 16));
    assert_eq!(found[0].words(), [hash(&[1]), hash(&[1, 2]), hash(&[1, 2, 3])]);
    assert_eq!(found[0].floats(), [0.0; 0]);
    let plain = TestPlan::new("no-outputs");
    let mut engine = plain.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1])).unwrap();
    assert_eq!(engine.outputs().count(), 0);
}
