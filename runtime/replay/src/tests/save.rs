//! Sequences in files.

use std::fs;
use std::path::PathBuf;

use super::{TestPlan, expected, rows};
use crate::save::{FORMAT, Header, StateFault};
use crate::test_plan::CONTEXT;
use crate::{Engine, ReplayError, SlotId};

fn after(engine: &mut Engine, slot: SlotId, token: u32) -> Vec<f32> {
    engine.run(&rows(slot, &[token])).unwrap().logits(0)[..3].to_vec()
}

fn file_of(plan: &TestPlan) -> PathBuf {
    plan.path.with_file_name("a.state")
}

#[test]
fn a_saved_sequence_goes_on_where_it_was() {
    let plan = TestPlan::recurrent("save");
    let file = file_of(&plan);
    for length in [0, 1, 4, 7, 26] {
        let mut tokens: Vec<u32> = (0..length).map(|i| (i * 3 + 2) % 8).collect();
        let mut engine = plan.open_with_threads(1);
        // On other pages and in another slot than it will be read to.
        let other = engine.new_sequence().unwrap();
        engine.run(&rows(other, &[7; 6])).unwrap();
        let slot = engine.new_sequence().unwrap();
        if length > 0 {
            engine.prefill(slot, &tokens, None).unwrap();
        }
        // Rejected rows and drafts are not saved.
        engine.run_uncommitted(&rows(slot, &[6, 6])).unwrap();
        let error = engine.save_sequence(slot, &file).unwrap_err();
        assert!(matches!(error, ReplayError::Uncommitted { rows: 2, .. }), "{error}");
        engine.commit(slot, 0).unwrap();
        engine.draft_begin(slot).unwrap();
        engine.draft(&[(slot, 5)]).unwrap();
        engine.save_sequence(slot, &file).unwrap();
        drop(engine);

        let mut engine = plan.open_with_threads(2);
        let free = engine.free_pages();
        let slot = engine.load_sequence(&file).unwrap();
        assert_eq!(engine.tokens(slot).unwrap(), tokens);
        assert_eq!(engine.free_pages(), free - length.div_ceil(4));
        engine.draft_begin(slot).unwrap();
        engine.draft(&[(slot, 5)]).unwrap();
        tokens.push(3);
        assert_eq!(after(&mut engine, slot, 3), expected(&tokens), "{length} tokens");
        let again = engine.load_sequence(&file).unwrap();
        *tokens.last_mut().unwrap() = 1;
        assert_eq!(after(&mut engine, again, 1), expected(&tokens));
    }
    let left = fs::read_dir(file.parent().unwrap()).unwrap().count();
    assert_eq!(left, 3, "plan, weights and state: the temporary file is gone");
}

/// The fault of a file with other bytes; the engine has lost nothing.
fn fault(engine: &mut Engine, plan: &TestPlan, bytes: &[u8]) -> StateFault {
    let file = file_of(plan);
    fs::write(&file, bytes).unwrap();
    let free = engine.free_pages();
    let error = engine.load_sequence(&file).unwrap_err();
    assert_eq!(engine.free_pages(), free);
    let text = error.to_string();
    assert!(text.starts_with(&file.display().to_string()), "{text}");
    let ReplayError::StateFile { fault, .. } = error else { panic!("{error}") };
    fault
}

#[test]
fn each_fault_of_a_file_is_named() {
    let plan = TestPlan::recurrent("save-faults");
    let file = file_of(&plan);
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1, 2, 3, 4, 5])).unwrap();
    engine.save_sequence(slot, &file).unwrap();
    let good = fs::read(&file).unwrap();
    let needed = good.len() as u64;
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let checksum = engine.plan().checksum();
    let (head, states) = (size_of::<Header>(), size_of::<Header>() + 5 * 4);
    let mut found = |bytes: &[u8]| fault(&mut engine, &plan, bytes);
    assert_eq!(found(b"short"), StateFault::Bytes { found: 5, needed: 72 });
    assert_eq!(found(&patched(0, b"STRATAPL")), StateFault::Magic { found: *b"STRATAPL" });
    assert_eq!(found(&patched(8, &[9])), StateFault::Format { found: FORMAT - 1 + 9 });
    let other = checksum ^ 1;
    let fault = found(&patched(16, &other.to_le_bytes()));
    assert_eq!(fault, StateFault::Plan { found: other, needed: checksum });
    assert_eq!(found(&patched(40, &[1])), StateFault::Reserve);
    assert_eq!(found(&good[..good.len() - 1]), StateFault::Bytes { found: needed - 1, needed });
    let more = [&good[..], &[0]].concat();
    assert_eq!(found(&more), StateFault::Bytes { found: needed + 1, needed });
    let fault = found(&patched(12, &[6]));
    assert_eq!(fault, StateFault::Bytes { found: needed, needed: needed + 4 });
    assert!(matches!(found(&patched(12, &[255; 4])), StateFault::Bytes { .. }));
    let token = StateFault::Token { index: 1, token: 8, vocab: 8 };
    assert_eq!(found(&patched(head + 4, &[8])), token);
    // Each place of tokens and states is under the checksum, and so is the checksum itself.
    for at in (head..good.len()).step_by(97).chain([head, states, good.len() - 1]) {
        let spoilt = patched(at, &[good[at] ^ 1]);
        assert!(matches!(found(&spoilt), StateFault::Checksum { .. }), "byte {at}");
    }
    fs::write(&file, &good).unwrap();
    let loaded = engine.load_sequence(&file).unwrap();
    assert_eq!(after(&mut engine, loaded, 0), expected(&[1, 2, 3, 4, 5, 0]));
}

#[test]
fn a_sequence_that_has_no_room_is_refused() {
    let plan = TestPlan::recurrent("save-room");
    let file = file_of(&plan);
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    engine.prefill(slot, &[1; CONTEXT], None).unwrap();
    engine.save_sequence(slot, &file).unwrap();
    let error = engine.load_sequence(&file).unwrap_err();
    assert!(matches!(error, ReplayError::NoPage { needed: 8, free: 6, .. }), "{error}");
    assert!(engine.new_sequence().is_ok() && engine.new_sequence().is_ok(), "no slot is lost");
    engine.truncate(slot, 0).unwrap();
    let error = engine.load_sequence(&file).unwrap_err();
    assert!(matches!(error, ReplayError::NoSlot { slots: 3 }), "{error}");
    assert_eq!(engine.free_pages(), 14);
    let missing = engine.load_sequence(&plan.path.with_file_name("none")).unwrap_err();
    assert!(matches!(missing, ReplayError::File { .. }), "{missing}");
    let nowhere = plan.path.with_file_name("none").join("a.state");
    assert!(matches!(engine.save_sequence(slot, &nowhere), Err(ReplayError::File { .. })));
}

#[test]
fn a_file_that_cannot_be_replaced_stays() {
    let plan = TestPlan::new("save-blocked");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    let folder = plan.path.with_file_name("folder");
    fs::create_dir(&folder).unwrap();
    assert!(matches!(engine.save_sequence(slot, &folder), Err(ReplayError::File { .. })));
    let left = fs::read_dir(plan.path.parent().unwrap()).unwrap().count();
    assert_eq!(left, 3, "no temporary file is left");
}
