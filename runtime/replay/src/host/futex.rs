//! A counter that threads wait for: first spinning, then asleep.
#![allow(unsafe_code, reason = "the futex call")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Polls between two looks at the clock.
const POLLS: u32 = 64;

/// Counts up; threads wait until it has moved on. On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Signal {
    value: AtomicU32,
    sleepers: AtomicU32,
}

impl Signal {
    #[inline]
    pub fn get(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Moves on and wakes who sleeps. What was written before is seen by who waited.
    #[inline]
    pub fn advance(&self) {
        self.value.fetch_add(1, Ordering::SeqCst);
        // Sequentially consistent on both sides: either the sleeper is counted here, or it sees the
        // new value when it is about to sleep.
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            futex(&self.value, libc::FUTEX_WAKE, u32::MAX >> 1);
        }
    }

    /// Returns once the value is not `seen`; spins for about `spin`, then sleeps.
    #[inline]
    pub fn wait(&self, seen: u32, spin: Duration) {
        if self.get() == seen {
            self.wait_longer(seen, spin);
        }
    }

    #[cold]
    fn wait_longer(&self, seen: u32, spin: Duration) {
        if !spin.is_zero() {
            let began = Instant::now();
            loop {
                for _ in 0..POLLS {
                    if self.get() != seen {
                        return;
                    }
                    std::hint::spin_loop();
                }
                if began.elapsed() >= spin {
                    break;
                }
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.value.load(Ordering::SeqCst) == seen {
            futex(&self.value, libc::FUTEX_WAIT, seen);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A wait may end early and a wake may wake nobody: callers look at the value again.
fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    // SAFETY: the word outlives the call; there is no timeout.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            operation | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        );
    }
}
