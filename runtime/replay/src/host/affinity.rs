//! Threads kept on cores, and let go again.
#![allow(unsafe_code, reason = "the affinity of threads")]

use std::cell::Cell;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cpu::allowed_cores;

const SET_BYTES: usize = size_of::<libc::cpu_set_t>();

/// Cores that the calling thread may run on; `None` if the system does not say.
pub(crate) fn affinity() -> Option<libc::cpu_set_t> {
    // SAFETY: a set of bits, for which all zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as long as stated; thread 0 is the calling one.
    let found = unsafe { libc::sched_getaffinity(0, SET_BYTES, &raw mut set) };
    (found == 0).then_some(set)
}

fn set_affinity(thread: libc::pid_t, set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set is as long as stated.
    match unsafe { libc::sched_setaffinity(thread, SET_BYTES, std::ptr::from_ref(set)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Keeps the calling thread on `cores`, some of [`allowed_cores`].
///
/// # Errors
/// The system refuses, which costs only speed.
pub(crate) fn keep_on_cores(cores: &[usize]) -> io::Result<()> {
    // SAFETY: a set of bits; `cores` came from a set of this size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|&core| libc::CPU_SET(core, &mut set));
        set
    };
    set_affinity(0, &set)
}

/// Lets the calling thread run on all cores that this process could use when it opened its first
/// engine.
///
/// A thread that runs an engine is kept on one core until the engine is dropped, and threads that
/// it starts meanwhile inherit that core. Such a thread calls this first, unless it is to run an
/// engine itself.
///
/// # Errors
/// The system refuses: none of those cores is left to the process.
pub fn use_all_cores() -> io::Result<()> {
    keep_on_cores(allowed_cores())
}

/// A thread that pools have pinned, and where it could run before the first of them did.
struct Pinned {
    thread: libc::pid_t,
    pins: u32,
    before: libc::cpu_set_t,
}

/// All threads that are pinned now. Locked only when a pool meets a new thread and when it ends.
fn pinned() -> MutexGuard<'static, Vec<Pinned>> {
    static PINNED: Mutex<Vec<Pinned>> = Mutex::new(Vec::new());
    PINNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a thread on cores until it and all other pins of that thread are dropped, on any thread.
#[derive(Debug)]
pub(crate) struct Pin {
    thread: libc::pid_t,
}

impl Pin {
    /// Pins the calling thread; `None` if the system refuses, which costs only speed.
    pub fn to_cores(cores: &[usize]) -> Option<Self> {
        let thread = calling_thread();
        let mut pinned = pinned();
        let known = pinned.iter().position(|entry| entry.thread == thread);
        let before = affinity()?;
        keep_on_cores(cores).ok()?;
        match known {
            Some(index) => pinned[index].pins += 1,
            None => pinned.push(Pinned { thread, pins: 1, before }),
        }
        Some(Self { thread })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = pinned();
        let Some(index) = pinned.iter().position(|entry| entry.thread == self.thread) else {
            return;
        };
        pinned[index].pins -= 1;
        if pinned[index].pins == 0 {
            let Pinned { thread, before, .. } = pinned.swap_remove(index);
            if is_of_process(thread) {
                // A thread that ends right now needs nothing.
                let _ = set_affinity(thread, &before);
            }
        }
    }
}

/// Another process may have the number of a thread that has ended.
fn is_of_process(thread: libc::pid_t) -> bool {
    // SAFETY: signal 0 is only checked, never sent.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) == 0 }
}

/// The system's number of the calling thread, which no other living thread has.
pub(crate) fn calling_thread() -> libc::pid_t {
    thread_local!(static HERE: Cell<libc::pid_t> = const { Cell::new(0) });
    if HERE.get() == 0 {
        // SAFETY: only returns a number, and always does.
        HERE.set(unsafe { libc::gettid() });
    }
    HERE.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores() -> usize {
        let set = affinity().unwrap();
        // SAFETY: `CPU_ISSET` reads a bit inside the set.
        (0..8 * SET_BYTES).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).count()
    }

    /// On one core there is nothing to see.
    #[test]
    fn the_last_pin_gives_the_cores_back_in_any_order() {
        std::thread::spawn(|| {
            let all = cores();
            for first in [0, 1] {
                let one = &allowed_cores()[..1];
                let mut pins = [Pin::to_cores(one), Pin::to_cores(one)];
                assert_eq!(cores(), 1);
                pins[first] = None;
                assert_eq!(cores(), 1, "another pool still runs here");
                drop(pins);
                assert_eq!(cores(), all);
            }
            // Dropped elsewhere: the thread that was pinned is let go, not the one that drops.
            let pin = Pin::to_cores(&allowed_cores()[..1]);
            std::thread::spawn(move || drop(pin)).join().unwrap();
            assert_eq!(cores(), all);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_started_by_a_pinned_one_can_use_all_cores() {
        std::thread::spawn(|| {
            let all = cores();
            let _pin = Pin::to_cores(&allowed_cores()[..1]);
            let started = std::thread::spawn(|| {
                let inherited = cores();
                use_all_cores().unwrap();
                (inherited, cores())
            });
            assert_eq!(started.join().unwrap(), (1, all));
        })
        .join()
        .unwrap();
    }
}
