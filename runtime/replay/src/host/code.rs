//! Machine code of a plan, made executable, and how it is called.
#![allow(unsafe_code, reason = "executes the machine code of a plan")]

use std::io;
use std::ptr::NonNull;

use strata_plan::Plan;
use strata_plan::layout::Target;

type KernelFn = unsafe extern "C" fn(*const u64, u64, u64);

/// Where a kernel begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelEntry(KernelFn);

impl KernelEntry {
    /// Computes share `part` of `parts` of a kernel over the operands at the addresses in `args`.
    #[inline]
    pub fn call(self, args: &[u64], part: u32, parts: u32) {
        // SAFETY: entries come from a checked plan, which is trusted as a program is; its compiler
        // made the kernel for these operands, whose addresses are offsets checked to lie in spaces
        // that live as long as the engine.
        unsafe { (self.0)(args.as_ptr(), u64::from(part), u64::from(parts)) }
    }
}

/// The code section, mapped for execution and never writable at the same time.
#[derive(Debug)]
pub(crate) struct Code {
    mapping: NonNull<u8>,
    bytes: usize,
    entries: Box<[KernelEntry]>,
}

// SAFETY: nothing writes the mapping after `load`.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// Makes the code of `plan` executable and finds the kernels of `target`.
    pub fn load(plan: &Plan, target: &Target) -> io::Result<Self> {
        let code = plan.code();
        let bytes = code.len().max(1).next_multiple_of(4096);
        // SAFETY: a new anonymous mapping at an address that the system chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut loaded = Self { mapping, bytes, entries: Box::default() };
        // SAFETY: the mapping is new, writable and at least as long as the code.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), mapping.as_ptr(), code.len()) };
        // SAFETY: the mapping made above, whole.
        let sealed = unsafe { libc::mprotect(start, bytes, libc::PROT_READ | libc::PROT_EXEC) };
        if sealed != 0 {
            return Err(io::Error::last_os_error());
        }
        let first = target.first_kernel as usize;
        let kernels = &plan.kernels()[first..first + target.kernel_count as usize];
        let entry = |offset: u64| {
            let offset = usize::try_from(offset).expect("inside the section");
            // SAFETY: the plan was checked: a kernel begins in CODE. It has the signature that all
            // kernels of this device have.
            unsafe {
                let start = mapping.as_ptr().add(offset);
                KernelEntry(std::mem::transmute::<*mut u8, KernelFn>(start))
            }
        };
        loaded.entries = kernels.iter().map(|kernel| entry(kernel.code_offset)).collect();
        Ok(loaded)
    }

    pub fn entries(&self) -> &[KernelEntry] {
        &self.entries
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `load`; no kernel runs once its owner is dropped.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.bytes) };
    }
}
