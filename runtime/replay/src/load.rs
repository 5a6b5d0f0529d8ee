//! Brings weights from their files into place: repacked by kernels of the plan, or copied.
//!
//! All parts of the pool walk over all pieces, chunk by chunk, each with its own share of a chunk,
//! and never wait for each other. Pages of the files are let go of behind them, so that the process
//! holds the weights once and not twice.

use std::ops::Range;

use strata_plan::Plan;
use strata_plan::layout::NONE;

use crate::host::{Filling, KernelEntry, MappedFile, Pool, Worker};

/// Of a file, that all parts work on together.
const CHUNK_BYTES: usize = 16 << 20;
/// Shares of a copy begin on a cache line.
const LINE_BYTES: usize = 64;

/// A piece of a weight: a range of a file and its place in the space of its tier.
#[derive(Clone, Debug)]
struct Piece {
    file: usize,
    source: Range<usize>,
    destination: usize,
    kernel: Option<usize>,
}

impl Piece {
    fn chunks(&self) -> usize {
        self.source.len().div_ceil(CHUNK_BYTES).max(1)
    }

    /// Bytes of the file that chunk `chunk` reads; of a repacked piece about these, since its
    /// shares are counted in rows.
    fn chunk(&self, chunk: usize) -> Range<usize> {
        let at = |n: usize| self.source.start + share(self.source.len(), n, self.chunks());
        at(chunk)..at(chunk + 1)
    }
}

/// `count * n / of` without overflow of the product.
fn share(count: usize, n: usize, of: usize) -> usize {
    usize::try_from(count as u128 * n as u128 / of as u128).expect("not above count")
}

/// Where pieces come from and go to.
struct Loading<'a> {
    pieces: &'a [Piece],
    files: &'a [Option<MappedFile>],
    kernels: &'a [KernelEntry],
    memory: Filling<'a>,
    step_address: u64,
}

impl Loading<'_> {
    fn file(&self, piece: &Piece) -> &MappedFile {
        self.files[piece.file].as_ref().expect("every file of a part is mapped")
    }

    /// Does one part's share of chunk `chunk`.
    fn work(&self, piece: &Piece, chunk: usize, worker: Worker<'_>) {
        let file = self.file(piece);
        let (part, parts) = (worker.part as usize, worker.parts as usize);
        if let Some(kernel) = piece.kernel {
            let args = [
                self.step_address,
                file.address() + piece.source.start as u64,
                self.memory.address() + piece.destination as u64,
            ];
            let narrow = |n: usize| u32::try_from(n).expect("a file has fewer chunks");
            let parts_of_all = narrow(piece.chunks() * parts);
            self.kernels[kernel].call(&args, narrow(chunk * parts + part), parts_of_all);
            return;
        }
        let range = piece.chunk(chunk);
        let line = |n: usize| match n {
            n if n == parts => range.end,
            n => range.start + share(range.len(), n, parts) / LINE_BYTES * LINE_BYTES,
        };
        let own = line(part)..line(part + 1);
        let destination = piece.destination + (own.start - piece.source.start);
        self.memory.copy(&file.bytes()[own], destination);
    }

    fn walk(&self, worker: Worker<'_>, after_chunk: &mut dyn FnMut(&Piece, Range<usize>)) {
        for piece in self.pieces {
            for chunk in 0..piece.chunks() {
                self.work(piece, chunk, worker);
                after_chunk(piece, piece.chunk(chunk));
            }
        }
    }
}

/// Where a part stands in a file: pages ahead are asked for, pages behind let go.
#[derive(Debug, Default)]
struct Wake {
    file: Option<usize>,
    asked_to: usize,
    forgotten_to: usize,
}

impl Wake {
    fn follow(&mut self, number: usize, file: &MappedFile, position: usize) {
        if self.file != Some(number) {
            *self = Self { file: Some(number), asked_to: position, forgotten_to: 0 };
        }
        // Small pieces move it by less than a call is worth.
        if self.asked_to < position + CHUNK_BYTES {
            let end = (position + 2 * CHUNK_BYTES).min(file.bytes().len());
            let start = self.asked_to.max(position).min(end);
            file.will_need(start..end);
            self.asked_to = position + 2 * CHUNK_BYTES;
        }
        if position >= self.forgotten_to + CHUNK_BYTES {
            file.forget(self.forgotten_to..position);
            self.forgotten_to = position;
        }
    }
}

/// Brings in the weights of one tier after another, and says how far it is with all of them.
pub(crate) struct Loader<'a> {
    plan: &'a Plan,
    files: &'a [Option<MappedFile>],
    kernels: &'a [KernelEntry],
    step_address: u64,
    pool: &'a mut Pool,
    /// Is told bytes done and all bytes, of the files.
    progress: &'a mut dyn FnMut(u64, u64),
    done: usize,
    total: usize,
}

impl<'a> Loader<'a> {
    pub fn new(
        plan: &'a Plan,
        (files, step_address): (&'a [Option<MappedFile>], u64),
        kernels: &'a [KernelEntry],
        pool: &'a mut Pool,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        Self { plan, files, kernels, step_address, pool, progress, done: 0, total: 0 }
    }

    pub fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// Those that weights are read from.
    pub fn files(&self) -> &'a [Option<MappedFile>] {
        self.files
    }

    /// Counts the weights of `tier` among what will be loaded.
    pub fn expect(&mut self, tier: u32) {
        self.total += pieces(self.plan, tier).iter().map(|piece| piece.source.len()).sum::<usize>();
    }

    /// Fills the space of `tier`, whose bytes are `memory`.
    pub fn load(&mut self, tier: u32, memory: &mut [u8]) {
        let pieces = pieces(self.plan, tier);
        let loading = Loading {
            pieces: &pieces,
            files: self.files,
            kernels: self.kernels,
            memory: Filling::new(memory),
            step_address: self.step_address,
        };
        for file in self.files.iter().flatten() {
            file.sequential(0..file.bytes().len());
        }
        let (progress, total) = (&mut self.progress, self.total as u64);
        progress(self.done as u64, total);
        let mut wake = Wake::default();
        let mut follow = |piece: &Piece, chunk: Range<usize>| {
            self.done += chunk.len();
            wake.follow(piece.file, loading.file(piece), chunk.end);
            progress(self.done as u64, total);
        };
        let main = |worker: Worker<'_>| loading.walk(worker, &mut follow);
        // Parts do not wait for each other, so each lets go of what it leaves behind.
        self.pool.run(main, &|worker| {
            let mut wake = Wake::default();
            loading.walk(worker, &mut |piece, chunk| {
                wake.follow(piece.file, loading.file(piece), chunk.end);
            });
        });
        for file in self.files.iter().flatten() {
            let all = 0..file.bytes().len();
            // A part that was behind may have touched pages again.
            file.forget(all.clone());
            file.in_any_order(all);
        }
    }
}

/// Pieces of all weights of `tier`, in the order of the files.
fn pieces(plan: &Plan, tier: u32) -> Vec<Piece> {
    let narrow =
        |bytes: u64| usize::try_from(bytes).expect("inside a file or space that is mapped");
    let mut pieces = Vec::new();
    for weight in plan.weights().iter().filter(|weight| weight.tier == tier) {
        for part in &plan.parts()[weight.parts.range()] {
            let start = narrow(part.offset);
            pieces.push(Piece {
                file: part.file as usize,
                source: start..start + narrow(part.bytes),
                destination: narrow(weight.offset + part.destination),
                kernel: (part.kernel != NONE).then_some(part.kernel as usize),
            });
        }
    }
    pieces.sort_by_key(|piece| (piece.file, piece.source.start, piece.destination));
    pieces
}
