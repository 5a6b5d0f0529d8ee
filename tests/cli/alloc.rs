//! Nothing is allocated after an engine has opened: 1,000 windows of changing sizes and sequences.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests may panic and tell figures")]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use strata_replay::{Engine, EngineOptions, Row, SlotId};
use support::{compile, repository, scratch};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on as it is; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller keeps the contract of `GlobalAlloc`, which is that of `System`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as above.
    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }

    // SAFETY: as above.
    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, bytes) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const WINDOWS: usize = 1000;
/// Rows of the windows, verify and prefill sizes mixed; the second number is how many of them are
/// the other sequence's.
const SIZES: [(usize, usize); 10] =
    [(1, 0), (40, 8), (2, 1), (3, 0), (8, 4), (130, 30), (1, 1), (6, 2), (32, 0), (4, 4)];

fn window(one: SlotId, other: SlotId, (rows, foreign): (usize, usize)) -> Vec<Row> {
    let row = |i: usize| Row {
        token: (i * 37 % 256) as u32,
        slot: if i < foreign { other } else { one },
        logits: i.is_multiple_of(5),
    };
    (0..rows).map(row).collect()
}

#[test]
fn a_thousand_windows_allocate_nothing() {
    let dir = scratch("alloc");
    let config = dir.join("config.ron");
    std::fs::write(&config, "(sequences: (slots: 2, context_tokens: 1024))").unwrap();
    let model = repository().join("tests/oracle/llama/model-f32.gguf");
    let plan = compile(&dir, &model, &["--config", config.to_str().unwrap()]);
    let options = EngineOptions { threads: Some(2), snapshots: 1, ..EngineOptions::default() };
    let mut engine = Engine::open(&plan, &options, &mut |_, _| {}).unwrap();
    let (one, other) = (engine.new_sequence().unwrap(), engine.new_sequence().unwrap());
    let windows = SIZES.map(|size| window(one, other, size));

    // The caller's own count is checked too: an allocator that counts nothing proves nothing.
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(100)));
    assert_ne!(ALLOCATIONS.load(Ordering::Relaxed), before);

    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let mut best = 0u64;
    let mut truncations = 0;
    for (round, rows) in windows.iter().cycle().take(WINDOWS).enumerate() {
        for slot in [one, other] {
            if engine.position(slot).unwrap() > 800 {
                engine.truncate(slot, 77).unwrap();
                truncations += 1;
            }
        }
        if round % 100 == 50 {
            engine.snapshot(one, 0).unwrap();
        } else if round % 100 == 60 {
            engine.restore(one, 0).unwrap();
            engine.drop_snapshot(0).unwrap();
        }
        let output = engine.run(rows).unwrap();
        best += u64::from(strata_replay::argmax(output.logits(0)));
    }
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "allocations in {WINDOWS} windows");
    assert!(truncations > 10 && best > 0, "{truncations} truncations, sum of tokens {best}");
}
