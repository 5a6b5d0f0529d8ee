//! The CPU device: threads on cores of their own that run one job together, with barriers in it.
#![allow(unsafe_code, reason = "a job is borrowed by other threads for the time it runs")]

use std::cell::UnsafeCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::affinity::{Pin, calling_thread, keep_on_cores};
use super::cpu::{allowed_cores, default_threads};
use super::futex::Signal;

/// How long a thread spins for others inside a window before it sleeps: longer than the unevenness
/// of static shares, shorter than what another process's time slice costs.
const BARRIER_SPIN: Duration = Duration::from_micros(50);
/// How long a thread spins for the next job: about what the host does between two windows.
const IDLE_SPIN: Duration = Duration::from_micros(100);

/// All parts meet here, as often as they like.
#[derive(Debug)]
pub(crate) struct Barrier {
    parts: u32,
    spin: Duration,
    arrived: Arrived,
    passed: Signal,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Arrived(AtomicU32);

impl Barrier {
    fn new(parts: u32, spin: Duration) -> Self {
        Self { parts, spin, arrived: Arrived::default(), passed: Signal::default() }
    }

    /// Returns once all parts have called it; what they wrote before is then seen by all.
    #[inline]
    pub fn wait(&self) {
        if self.parts == 1 {
            return;
        }
        // Read before arriving: the last part may move it on right after.
        let passed = self.passed.get();
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.parts {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.passed.advance();
        } else {
            self.passed.wait(passed, self.spin);
        }
    }
}

/// What a part of a job is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worker<'a> {
    pub part: u32,
    pub parts: u32,
    pub barrier: &'a Barrier,
}

type Job = dyn Fn(Worker<'_>) + Sync;

#[derive(Debug)]
struct Shared {
    barrier: Barrier,
    /// Counts jobs.
    started: Signal,
    idle_spin: Duration,
    job: JobPlace,
    stop: AtomicBool,
}

/// The job that runs; written before `started` moves on, read after.
struct JobPlace(UnsafeCell<Option<*const Job>>);

impl std::fmt::Debug for JobPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JobPlace")
    }
}

// SAFETY: only `Pool::run` writes it, while all workers wait for `started`; the job is `Sync`.
unsafe impl Send for JobPlace {}
// SAFETY: as above.
unsafe impl Sync for JobPlace {}

/// Threads that wait for jobs; the caller is part 0 of each. Asleep when there is nothing to do.
#[derive(Debug)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Where part 0 runs: a core of its own, or all.
    cores: &'static [usize],
    /// The thread that was part 0 last, which is let go with the pool.
    pinned: Option<(libc::pid_t, Option<Pin>)>,
}

impl Pool {
    /// A pool of `parts` threads, one of them the caller, or [`default_threads`].
    pub fn new(parts: Option<u32>) -> io::Result<Self> {
        let cores = allowed_cores();
        let parts = parts.unwrap_or_else(default_threads).max(1);
        // Threads that share a core only delay each other by spinning.
        let own_cores = parts as usize <= cores.len();
        let spin = |spin: Duration| if own_cores { spin } else { Duration::ZERO };
        let shared = Arc::new(Shared {
            barrier: Barrier::new(parts, spin(BARRIER_SPIN)),
            started: Signal::default(),
            idle_spin: spin(IDLE_SPIN),
            job: JobPlace(UnsafeCell::new(None)),
            stop: AtomicBool::new(false),
        });
        let cores_of = |part: u32| {
            if own_cores { &cores[part as usize..=part as usize] } else { cores }
        };
        let mut pool = Self { shared, workers: Vec::new(), cores: cores_of(0), pinned: None };
        for part in 1..parts {
            let (shared, cores) = (pool.shared.clone(), cores_of(part));
            let name = format!("strata-{part}");
            pool.workers.push(Builder::new().name(name).spawn(move || work(&shared, part, cores))?);
        }
        Ok(pool)
    }

    pub fn parts(&self) -> u32 {
        self.shared.barrier.parts
    }

    /// Runs `main` as part 0 and `other` as all other parts, and returns when all are done.
    ///
    /// Both must meet the same barriers. A panic in `other` ends the process: the parts that wait
    /// for it could not go on.
    pub fn run(&mut self, main: impl FnOnce(Worker<'_>), other: &(dyn Fn(Worker<'_>) + Sync)) {
        self.pin_caller();
        let barrier = &self.shared.barrier;
        if !self.workers.is_empty() {
            // SAFETY: only the lifetime changes. The job is used until the last barrier of this
            // call, which comes before its borrow ends.
            let job =
                unsafe { std::mem::transmute::<&(dyn Fn(Worker<'_>) + Sync), &'static Job>(other) };
            // SAFETY: all workers wait for `started`: nobody reads the place now.
            unsafe { *self.shared.job.0.get() = Some(std::ptr::from_ref(job)) };
            self.shared.started.advance();
        }
        let guard = AbortOnPanic;
        main(Worker { part: 0, parts: barrier.parts, barrier });
        barrier.wait();
        std::mem::forget(guard);
    }

    /// Keeps the calling thread where part 0 runs, from its first job on until the pool is dropped
    /// or another thread becomes part 0.
    fn pin_caller(&mut self) {
        let here = calling_thread();
        if self.pinned.as_ref().is_none_or(|(thread, _)| *thread != here) {
            self.pinned = Some((here, Pin::to_cores(self.cores)));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.started.advance();
        for worker in self.workers.drain(..) {
            // A worker that panicked has ended the process already.
            let _ = worker.join();
        }
    }
}

fn work(shared: &Shared, part: u32, cores: &[usize]) {
    // Refused, it costs only speed.
    let _ = keep_on_cores(cores);
    let barrier = &shared.barrier;
    let mut seen = 0;
    loop {
        shared.started.wait(seen, shared.idle_spin);
        seen = shared.started.get();
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: written before `started` moved on, and not again before this part has passed the
        // barrier below.
        let job = unsafe { *shared.job.0.get() };
        if let Some(job) = job {
            let guard = AbortOnPanic;
            // SAFETY: `run` returns after that barrier, so that the job still lives.
            unsafe { (*job)(Worker { part, parts: barrier.parts, barrier }) };
            std::mem::forget(guard);
        }
        barrier.wait();
    }
}

/// Ends the process when dropped, that is when the frame it stands in unwinds.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        std::process::abort();
    }
}
