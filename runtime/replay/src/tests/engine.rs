use std::time::Duration;

use super::{TestPlan, expected, hash, rows};
use crate::test_plan::{LARGE_FLOATS, VOCAB, stored};
use crate::{EngineOptions, ReplayError, Row};

#[test]
fn a_window_reads_every_space() {
    for threads in [1, 2, 4] {
        let plan = TestPlan::new(&format!("spaces-{threads}"));
        let mut engine = plan.open_with_threads(threads);
        let slot = engine.new_sequence().unwrap();
        for token in 0..VOCAB {
            let output = engine.run(&rows(slot, &[token as u32])).unwrap();
            assert_eq!(output.count(), 1);
            let logits = output.logits(0);
            assert_eq!(logits[3], threads as f32);
            let repacked = 2.0 * stored(1, token);
            let weights = [stored(0, token), repacked, stored(2, token), token as f32 + 0.75];
            assert_eq!(logits[4..], weights);
        }
    }
}

#[test]
fn a_launch_uses_no_more_parts_than_its_grid() {
    let plan = TestPlan::new("grid");
    let mut engine = plan.open_with_threads(4);
    let slot = engine.new_sequence().unwrap();
    engine.run(&rows(slot, &[1])).unwrap();
    let words: &[u32] = bytemuck::cast_slice(&engine.spaces.arena.bytes()[2048..2048 + 16]);
    assert_eq!(words, [2, 2, 0, 0], "two parts were asked for");
}

#[test]
fn a_large_weight_is_copied_whole() {
    for threads in [1, 3] {
        let plan = TestPlan::new(&format!("large-{threads}"));
        let (mut last, mut calls) = ((0, 0), 0);
        let options = EngineOptions { threads: Some(threads), ..Default::default() };
        let engine = crate::Engine::open(&plan.path, &options, &mut |done, total| {
            assert!(done >= last.0 && done <= total);
            (last, calls) = ((done, total), calls + 1);
        });
        let engine = engine.unwrap();
        let file_bytes = 2 * VOCAB * 4 + LARGE_FLOATS * 4;
        assert_eq!(last, (file_bytes as u64, file_bytes as u64));
        assert!(calls >= 4, "a start, two small weights, chunks of the large one");
        let bytes = &engine.spaces.weights.bytes()[256..256 + LARGE_FLOATS * 4];
        let floats: &[f32] = bytemuck::cast_slice(bytes);
        assert!(floats.iter().enumerate().all(|(index, &value)| value == index as f32));
    }
}

#[test]
fn windows_of_any_size_append_the_same() {
    let tokens: Vec<u32> = (0..23).map(|i| (i * 5 + 1) % VOCAB as u32).collect();
    let plan = TestPlan::new("sizes");
    let mut engine = plan.open_with_threads(2);
    for chunk in [1, 2, 3, 4, 5, 7, 8] {
        let slot = engine.new_sequence().unwrap();
        let output = engine.prefill(slot, &tokens, Some(chunk)).unwrap();
        assert_eq!(output.logits(0)[0], expected(&tokens)[0], "chunks of {chunk}");
        assert_eq!(engine.position(slot).unwrap(), 23);
        engine.release(slot);
    }
    let slot = engine.new_sequence().unwrap();
    assert_eq!(engine.prefill(slot, &tokens, None).unwrap().logits(0)[0], expected(&tokens)[0]);
}

#[test]
fn sequences_share_a_window() {
    let plan = TestPlan::new("share");
    let mut engine = plan.open_with_threads(2);
    let (a, b) = (engine.new_sequence().unwrap(), engine.new_sequence().unwrap());
    engine.run(&rows(a, &[1, 2, 3])).unwrap();
    let row = |token, slot, logits| Row { token, slot, logits };
    let window = [row(4, a, true), row(6, a, false), row(5, b, true), row(7, b, true)];
    let output = engine.run(&window).unwrap();
    assert_eq!(output.count(), 3);
    for (index, tokens) in [&[1, 2, 3, 4][..], &[5], &[5, 7]].into_iter().enumerate() {
        assert_eq!(output.logits(index)[0], hash(tokens) as f32);
    }
    assert_eq!((engine.position(a).unwrap(), engine.position(b).unwrap()), (5, 2));
    assert_eq!(engine.tokens(a).unwrap(), [1, 2, 3, 4, 6]);

    let apart = engine.run(&[row(1, a, true), row(1, b, true), row(1, a, true)]).unwrap_err();
    assert!(matches!(apart, ReplayError::Segment { row: 2, slot: 0 }), "{apart}");
    assert!(apart.to_string().contains("put the rows of a sequence together"));
    assert_eq!(engine.tokens(b).unwrap(), [5, 7]);
}

#[test]
fn the_smallest_window_is_taken_and_another_can_be_forced() {
    let plan = TestPlan::new("smallest");
    let mut engine = plan.open_with_threads(2);
    let slot = engine.new_sequence().unwrap();
    let timed = |engine: &mut crate::Engine, count: usize| {
        let timed = engine.run_timed(&rows(slot, &vec![1; count])).unwrap();
        (timed.schedule, timed.nanoseconds.len())
    };
    assert_eq!(timed(&mut engine, 1), (0, 4));
    assert_eq!(timed(&mut engine, 3), (1, 4));
    assert_eq!(timed(&mut engine, 5), (2, 4));
    let tokens = [1; 10];
    let forced = engine.run_window(2, &rows(slot, &[1])).unwrap();
    assert_eq!(forced.logits(0)[0], hash(&tokens) as f32);
    let small = engine.run_window(0, &rows(slot, &[1, 1])).unwrap_err();
    assert!(matches!(small, ReplayError::Window { rows: 2, .. }), "{small}");
    assert_eq!(engine.position(slot).unwrap(), 10);
    assert!(engine.last_window_ns() > 0);
}

#[test]
fn a_poisoned_arena_changes_nothing_that_is_computed() {
    let plan = TestPlan::new("poison");
    let mut engine = plan.open(&EngineOptions { poison_arena: true, ..Default::default() });
    let slot = engine.new_sequence().unwrap();
    let output = engine.run(&rows(slot, &[3, 2])).unwrap();
    assert_eq!(output.logits(0)[0], hash(&[3, 2]) as f32);
    // Of a plan without recurrent state nobody writes this.
    assert_eq!(output.logits(0)[1], u32::MAX as f32);
}

#[test]
fn an_engine_can_move_to_another_thread_and_rest() {
    let plan = TestPlan::new("move");
    let mut engine = plan.open_with_threads(2);
    let slot = engine.new_sequence().unwrap();
    std::thread::spawn(move || {
        for count in 1..10 {
            // Long enough for the workers to fall asleep.
            std::thread::sleep(Duration::from_millis(2));
            let output = engine.run(&rows(slot, &[1])).unwrap();
            assert_eq!(output.logits(0)[0], hash(&vec![1; count]) as f32);
        }
    })
    .join()
    .unwrap();
}
