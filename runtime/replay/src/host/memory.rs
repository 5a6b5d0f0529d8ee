//! Anonymous memory in huge pages, and mapped files.
#![allow(unsafe_code, reason = "mappings of the operating system")]

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

use memmap2::{Advice, Mmap, UncheckedAdvice};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed anonymous memory that begins on a huge page. Kernels write it through its address while a
/// window runs; the host reads and writes it between windows.
#[derive(Debug)]
pub(crate) struct HugeMemory {
    base: NonNull<u8>,
    bytes: usize,
    mapping: (NonNull<u8>, usize),
}

// SAFETY: the memory belongs to this value alone, like that of a box.
unsafe impl Send for HugeMemory {}
// SAFETY: through a shared reference it can only be read.
unsafe impl Sync for HugeMemory {}

impl HugeMemory {
    /// Reserves `bytes`; pages come with their first write.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let rounded =
            bytes.max(1).checked_next_multiple_of(HUGE_PAGE_BYTES).ok_or_else(too_large)?;
        let length = rounded.checked_add(HUGE_PAGE_BYTES).ok_or_else(too_large)?;
        // SAFETY: a new anonymous mapping at an address that the system chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(too_large)?;
        let skip = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: `skip` is less than the huge page that was asked for beyond `rounded`.
        let base = unsafe { start.add(skip) };
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: the range lies in the mapping. Without huge pages everything works, slower,
            // so that a refusal is no error.
            unsafe { libc::madvise(base.as_ptr().cast(), rounded, libc::MADV_HUGEPAGE) };
        }
        Ok(Self { base, bytes, mapping: (start, length) })
    }

    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and zeroed for as long as `self`; kernels write only while the engine that
        // owns this memory is borrowed exclusively.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for HugeMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nothing refers to any more.
        unsafe { libc::munmap(self.mapping.0.as_ptr().cast(), self.mapping.1) };
    }
}

/// Memory that several threads fill at once, each its own ranges.
#[derive(Debug)]
pub(crate) struct Filling<'a> {
    base: NonNull<u8>,
    bytes: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: see `copy`, which is all that can be done through a shared reference.
unsafe impl Sync for Filling<'_> {}

impl<'a> Filling<'a> {
    pub fn new(memory: &'a mut [u8]) -> Self {
        let bytes = memory.len();
        Self { base: NonNull::from(memory).cast(), bytes, memory: PhantomData }
    }

    /// Where kernels write, under the same rule as [`Filling::copy`].
    pub fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Copies `source` to `offset`. Callers see to it that no two of them write the same bytes.
    ///
    /// # Panics
    /// If the memory ends before the copy.
    pub fn copy(&self, source: &[u8], offset: usize) {
        let end = offset.checked_add(source.len());
        assert!(end.is_some_and(|end| end <= self.bytes), "a copy ends inside its space");
        // SAFETY: in bounds; the memory is borrowed exclusively by the filling, whose users write
        // disjoint ranges, and nobody reads before it ends.
        unsafe {
            let place = self.base.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(source.as_ptr(), place, source.len());
        }
    }
}

/// A file, mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile(Mmap);

impl MappedFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::map(&File::open(path)?)
    }

    pub fn map(file: &File) -> io::Result<Self> {
        // SAFETY: private and read-only. Kernels only compute with what they read here, so that a
        // file that somebody writes to meanwhile gives wrong numbers and nothing worse; a file that
        // is cut ends the process.
        unsafe { Mmap::map(file) }.map(Self)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn address(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// Says that `range` is read next. Advice that is refused costs nothing but speed.
    pub fn will_need(&self, range: Range<usize>) {
        let _ = self.0.advise_range(Advice::WillNeed, range.start, range.len());
    }

    /// Says that `range` is read front to back.
    pub fn sequential(&self, range: Range<usize>) {
        let _ = self.0.advise_range(Advice::Sequential, range.start, range.len());
    }

    /// Says that single pages of `range` are read, here and there.
    pub fn random(&self, range: Range<usize>) {
        let _ = self.0.advise_range(Advice::Random, range.start, range.len());
    }

    /// Takes back what was said of `range`.
    pub fn in_any_order(&self, range: Range<usize>) {
        let _ = self.0.advise_range(Advice::Normal, range.start, range.len());
    }

    /// Unmaps the whole pages of `range` until they are touched again; the page cache keeps them.
    pub fn forget(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(4096);
        let end = range.end / 4096 * 4096;
        if start < end {
            // SAFETY: of a private read-only file mapping, pages come back from the file.
            let _ = unsafe {
                self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }
}
