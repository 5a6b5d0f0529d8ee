//! Maps compiled kernels and calls them on buffers: the harness of tests, examples and tools. The
//! runtime has its own loader and does not use this.

#![allow(unsafe_code, reason = "machine code is called and its buffers are viewed as numbers")]

use crate::codegen::CompiledKernel;
use crate::error::KernelError;
use memmap2::{Mmap, MmapMut};

/// A kernel in executable memory.
#[derive(Debug)]
pub struct Runnable {
    code: Mmap,
    entry_bytes: usize,
}

type Entry = unsafe extern "C" fn(*const u64, u64, u64);

impl Runnable {
    /// Copies a kernel into executable memory.
    ///
    /// # Errors
    /// [`KernelError::Map`] when the machine gives none.
    pub fn new(kernel: &CompiledKernel) -> Result<Self, KernelError> {
        let bytes = kernel.bytes.len();
        let failed =
            |e: std::io::Error| KernelError::Map { bytes: bytes as u64, message: e.to_string() };
        let mut memory = MmapMut::map_anon(bytes).map_err(failed)?;
        memory.copy_from_slice(&kernel.bytes);
        let code = memory.make_exec().map_err(failed)?;
        Ok(Self { code, entry_bytes: kernel.entry_bytes as usize })
    }

    /// Runs all `parts` of the kernel, one after another, on this thread.
    ///
    /// Buffers are the operands in order, each as large as the specification says: a kernel does
    /// not check them. A write behind a buffer is found here after the fact.
    ///
    /// # Panics
    /// When the kernel wrote behind a buffer.
    pub fn run(&self, buffers: &mut [&mut Buffer], parts: u64) {
        let table: Vec<u64> = buffers.iter_mut().map(|b| b.address()).collect();
        for part in 0..parts {
            self.run_part(&table, part, parts);
        }
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(buffer.guard_is_whole(), "the kernel wrote behind operand {index}");
        }
    }

    /// Runs one part on operand addresses, which must be valid for this kernel's shapes.
    pub fn run_part(&self, table: &[u64], part: u64, parts: u64) {
        let address = self.code[self.entry_bytes..].as_ptr();
        // SAFETY: the mapping holds a whole kernel, entered at its entry point with its ABI. Its
        // accesses are those of its specification, which the harness's user answers for.
        unsafe {
            let entry = std::mem::transmute::<*const u8, Entry>(address);
            entry(table.as_ptr(), part, parts);
        }
    }
}

/// Plain numbers that a [`Buffer`] can be viewed as.
pub trait Plain: Copy + Default {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}
impl Plain for f32 {}

/// Page-aligned memory with a guard behind it; large ones in huge pages where there are any.
pub struct Buffer {
    memory: MmapMut,
    bytes: usize,
}

const GUARD: u8 = 0xa5;
const GUARD_BYTES: usize = 256;

impl Buffer {
    /// `bytes` zeros.
    ///
    /// # Panics
    /// When the machine has no memory left.
    pub fn zeroed(bytes: usize) -> Self {
        let mut memory = MmapMut::map_anon(bytes + GUARD_BYTES).expect("memory for a buffer");
        #[cfg(target_os = "linux")]
        {
            // Only advice: without huge pages everything works, slower.
            let _ = memory.advise(memmap2::Advice::HugePage);
        }
        memory[bytes..].fill(GUARD);
        Self { memory, bytes }
    }

    /// A copy of `values`.
    pub fn of<T: Plain>(values: &[T]) -> Self {
        let mut buffer = Self::zeroed(size_of_val(values));
        buffer.as_mut().copy_from_slice(values);
        buffer
    }

    /// The step block of a window of `rows` rows, all with logits.
    pub fn step(rows: u32) -> Self {
        let mut words = [0u32; 16];
        words[0] = rows;
        words[1] = rows;
        Self::of(&words)
    }

    /// The contents as numbers; a remainder is left out.
    #[expect(clippy::should_implement_trait, reason = "the element type is the caller's")]
    pub fn as_ref<T: Plain>(&self) -> &[T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: the memory is initialised, page-aligned, and every pattern is a `Plain`.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), count) }
    }

    /// The contents as numbers; a remainder is left out.
    #[expect(clippy::should_implement_trait, reason = "the element type is the caller's")]
    pub fn as_mut<T: Plain>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: as for `as_ref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().cast(), count) }
    }

    pub fn address(&mut self) -> u64 {
        self.memory.as_mut_ptr() as u64
    }

    fn guard_is_whole(&self) -> bool {
        self.memory[self.bytes..].iter().all(|&b| b == GUARD)
    }
}
