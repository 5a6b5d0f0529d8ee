use std::sync::atomic::{AtomicU32, Ordering};

use crate::host::{Pool, Worker};

/// After each barrier every part must see what all others did before it.
#[test]
fn barriers_hold_all_parts_back() {
    for parts in [1, 2, 4] {
        let mut pool = Pool::new(Some(parts)).unwrap();
        assert_eq!(pool.parts(), parts);
        let counts: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
        let rounds = 500;
        for job in 0..4 {
            let work = |worker: Worker<'_>| {
                assert_eq!(worker.parts, parts);
                for round in 1..=rounds {
                    counts[worker.part as usize].fetch_add(1, Ordering::Relaxed);
                    worker.barrier.wait();
                    let least = job * rounds + round;
                    for count in &counts {
                        let found = count.load(Ordering::Relaxed);
                        assert!(found == least || found == least + 1, "{found} in {least}");
                    }
                    worker.barrier.wait();
                }
            };
            pool.run(work, &work);
        }
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 4 * rounds));
    }
}

#[test]
fn the_caller_is_part_zero_and_may_borrow_mutably() {
    let mut pool = Pool::new(Some(3)).unwrap();
    let mut mine = Vec::new();
    let others = AtomicU32::new(0);
    for _ in 0..10 {
        pool.run(|worker| mine.push(worker.part), &|worker| {
            others.fetch_add(worker.part, Ordering::Relaxed);
        });
    }
    assert_eq!(mine, [0; 10]);
    assert_eq!(others.load(Ordering::Relaxed), 10 * (1 + 2));
}
