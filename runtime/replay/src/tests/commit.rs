//! Windows of which only some rows are kept.

use super::{TestPlan, hash, rows};
use crate::test_plan::PAGE_TOKENS;
use crate::{Engine, ReplayError, Row, SlotId};

fn propose(engine: &mut Engine, slot: SlotId, tokens: &[u32]) -> Vec<f32> {
    let rows: Vec<Row> = tokens.iter().map(|&token| Row { token, slot, logits: true }).collect();
    let output = engine.run_uncommitted(&rows).unwrap();
    (0..output.count()).map(|index| output.logits(index)[0]).collect()
}

fn hash_after(engine: &mut Engine, slot: SlotId, token: u32) -> f32 {
    engine.run(&rows(slot, &[token])).unwrap().logits(0)[0]
}

#[test]
fn only_accepted_rows_stay() {
    let plan = TestPlan::new("accepted");
    let mut engine = plan.open_with_threads(2);
    for accepted in 0..=4 {
        let slot = engine.new_sequence().unwrap();
        engine.run(&rows(slot, &[1, 2, 3])).unwrap();
        let proposed = [4, 5, 6, 7];
        let free = engine.free_pages();
        let found = propose(&mut engine, slot, &proposed);
        let mut tokens = vec![1, 2, 3];
        for (token, found) in proposed.into_iter().zip(found) {
            tokens.push(token);
            assert_eq!(found, hash(&tokens) as f32);
        }
        assert_eq!(engine.position(slot).unwrap(), 3, "nothing is applied yet");
        engine.commit(slot, accepted).unwrap();
        assert_eq!(engine.position(slot).unwrap(), 3 + accepted);
        let more_pages = u32::from(3 + accepted > PAGE_TOKENS as u32);
        assert_eq!(engine.free_pages(), free - more_pages, "pages of rejected rows are free");
        tokens.truncate(3 + accepted as usize);
        tokens.push(0);
        assert_eq!(hash_after(&mut engine, slot, 0), hash(&tokens) as f32);
        engine.release(slot);
    }
}

#[test]
fn rejected_rows_do_not_reach_a_snapshot() {
    let plan = TestPlan::new("rejected");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1, 2])).unwrap();
    engine.snapshot(slot, 0).unwrap();
    propose(&mut engine, slot, &[7, 7]);
    engine.commit(slot, 0).unwrap();
    let other = engine.new_sequence().unwrap();
    engine.restore(other, 0).unwrap();
    assert_eq!(hash_after(&mut engine, other, 3), hash(&[1, 2, 3]) as f32);
    assert_eq!(hash_after(&mut engine, slot, 4), hash(&[1, 2, 4]) as f32);
}

#[test]
fn a_sequence_with_rows_to_commit_waits_and_others_run() {
    let plan = TestPlan::new("waits");
    let mut engine = plan.open_with_threads(1);
    let (slot, other) = (engine.new_sequence().unwrap(), engine.new_sequence().unwrap());
    engine.snapshot(other, 0).unwrap();
    let all = engine.free_pages();
    propose(&mut engine, slot, &[1, 2, 3]);
    let waits = |result: Result<(), ReplayError>| {
        matches!(result, Err(ReplayError::Uncommitted { slot: 0, rows: 3 }))
    };
    assert!(waits(engine.run(&rows(slot, &[1])).map(drop)));
    assert!(waits(engine.run_uncommitted(&rows(slot, &[1])).map(drop)));
    assert!(waits(engine.truncate(slot, 0)));
    assert!(waits(engine.snapshot(slot, 0)));
    assert!(waits(engine.restore(slot, 0)));
    // A window that is refused, and one of another sequence, decide nothing of this one.
    assert_eq!(hash_after(&mut engine, other, 5), hash(&[5]) as f32);
    propose(&mut engine, other, &[6, 7]);
    let error = engine.commit(slot, 4).unwrap_err();
    assert!(matches!(error, ReplayError::Commit { slot: 0, rows: 3, accepted: 4 }), "{error}");
    engine.commit(slot, 2).unwrap();
    engine.commit(other, 1).unwrap();
    assert_eq!(hash_after(&mut engine, slot, 0), hash(&[1, 2, 0]) as f32);
    assert_eq!(hash_after(&mut engine, other, 0), hash(&[5, 6, 0]) as f32);
    assert!(engine.commit(slot, 1).is_err(), "all is committed");

    propose(&mut engine, slot, &[1]);
    engine.release(slot);
    engine.release(other);
    assert!(matches!(engine.commit(slot, 1), Err(ReplayError::SlotGone { .. })));
    assert_eq!(engine.free_pages(), all);
    let again = engine.new_sequence().unwrap();
    assert_eq!(hash_after(&mut engine, again, 4), hash(&[4]) as f32);
}
