//! The hot loop. It knows commands and a queue, and nothing of sequences, tokens or files.

use std::ops::Range;
use std::time::Instant;

use strata_plan::layout::{Command, opcode};

use crate::host::{KernelEntry, Worker};

/// What a device does with commands. One queue a part; all parts see the same commands.
pub(crate) trait Queue {
    /// Runs kernel `row` over the operands in `args`, spread as `grid` says.
    fn launch(&mut self, row: u32, args: Range<usize>, grid: [u32; 3]);
    /// Waits until all parts have finished what stands before.
    fn barrier(&mut self);
}

/// Replays `commands`, front to back.
#[inline]
pub(crate) fn replay<Q: Queue>(commands: &[Command], queue: &mut Q) {
    for command in commands {
        match command.opcode {
            opcode::LAUNCH => queue.launch(command.row, command.args.range(), command.grid),
            opcode::BARRIER => queue.barrier(),
            _ => unreachable!("a plan's opcodes are checked when it is opened"),
        }
    }
}

/// One part of the CPU.
#[derive(Debug)]
pub(crate) struct HostQueue<'a> {
    kernels: &'a [KernelEntry],
    /// Addresses, one for each row of ARGS.
    args: &'a [u64],
    worker: Worker<'a>,
}

impl<'a> HostQueue<'a> {
    pub fn new(worker: Worker<'a>, kernels: &'a [KernelEntry], args: &'a [u64]) -> Self {
        Self { kernels, args, worker }
    }
}

impl Queue for HostQueue<'_> {
    #[inline]
    fn launch(&mut self, row: u32, args: Range<usize>, grid: [u32; 3]) {
        let parts = if grid[0] == 0 { self.worker.parts } else { self.worker.parts.min(grid[0]) };
        if self.worker.part < parts {
            self.kernels[row as usize].call(&self.args[args], self.worker.part, parts);
        }
    }

    #[inline]
    fn barrier(&mut self) {
        self.worker.barrier.wait();
    }
}

/// A queue that notes how long each command took on it.
#[derive(Debug)]
pub(crate) struct TimedQueue<'a, Q> {
    pub queue: Q,
    /// One for each command, in order.
    pub nanoseconds: &'a mut [u64],
    pub next: usize,
}

impl<Q> TimedQueue<'_, Q> {
    fn note(&mut self, began: Instant) {
        self.nanoseconds[self.next] = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.next += 1;
    }
}

impl<Q: Queue> Queue for TimedQueue<'_, Q> {
    fn launch(&mut self, row: u32, args: Range<usize>, grid: [u32; 3]) {
        let began = Instant::now();
        self.queue.launch(row, args, grid);
        self.note(began);
    }

    fn barrier(&mut self) {
        let began = Instant::now();
        self.queue.barrier();
        self.note(began);
    }
}
