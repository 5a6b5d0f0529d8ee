//! After an engine is open, windows do not allocate: on no thread, not once.
#![allow(unsafe_code, reason = "a global allocator that counts")]

#[path = "../src/test_plan.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod test_plan;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use strata_replay::speculate::{Draft, Speculator, Writing};
use strata_replay::{Engine, EngineOptions, Row, Sampler, Sampling};

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_thousand_windows_allocate_nothing() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let plan = test_plan::write_kind(folder, "alloc", true, &|_| {});
    let options = EngineOptions { threads: Some(2), snapshots: 1, ..Default::default() };
    let mut engine = Engine::open(&plan, &options, &mut |_, _| {}).unwrap();
    let sampling = Sampling { temperature: 0.8, top_p: 0.9, min_p: 0.01, ..Sampling::default() };
    let mut sampler = Sampler::new(sampling, test_plan::VOCAB);
    let mut speculator = Speculator::new(&engine, Draft::Auto);
    let mut context = Vec::with_capacity(test_plan::CONTEXT + 1);
    let slot = engine.new_sequence().unwrap();
    // A thread's first lines to the system may allocate once.
    engine.run(&[Row { token: 0, slot, logits: true }]).unwrap();

    let before = CALLS.load(Ordering::Relaxed);
    let mut windows = 0;
    while windows < 1_000 {
        let other = engine.new_sequence().unwrap();
        for step in 0..test_plan::CONTEXT as u32 - 4 {
            let rows = [slot, other].map(|slot| Row { token: step % 8, slot, logits: true });
            let output = engine.run(&rows[(windows % 2) as usize..]).unwrap();
            let token = sampler.sample(output.logits(0), &[]);
            engine.run_timed(&[Row { token, slot: other, logits: false }]).unwrap();
            windows += 2;
            engine.run_uncommitted(&[Row { token, slot: other, logits: true }; 2]).unwrap();
            engine.commit(other, 0).unwrap();
            engine.draft_begin(other).unwrap();
            engine.draft(&[(other, token)]).unwrap();
            assert!(engine.outputs().count() == 0, "a draft has none");
            if step % 8 == 7 {
                engine.snapshot(slot, 0).unwrap();
                engine.truncate(slot, 0).unwrap();
                engine.restore(other, 0).unwrap();
            }
        }
        engine.truncate(other, 0).unwrap();
        engine.prefill(other, &[3; 20], None).unwrap();
        context.clear();
        context.extend_from_slice(&[3; 21]);
        while context.len() < test_plan::CONTEXT {
            let limit = test_plan::CONTEXT - context.len();
            let (context, sampler) = (&mut context, &mut sampler);
            let text = Writing { sequence: other, context, sampler, limit };
            windows += speculator.round(&mut engine, text, &mut |_| true).unwrap().tokens as u32;
        }
        engine.release(other);
        engine.truncate(slot, 0).unwrap();
    }
    let calls = CALLS.load(Ordering::Relaxed) - before;
    drop(engine);
    std::fs::remove_dir_all(plan.parent().unwrap()).unwrap();
    assert_eq!(calls, 0, "allocations and frees in {windows} windows");
}
