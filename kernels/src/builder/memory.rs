//! Addresses, loads and stores. Offsets are in bytes; accesses are aligned to their element only.

#![allow(unsafe_code, reason = "inkwell marks address arithmetic as unsafe")]

use super::{KernelBuilder, POSITIONED, Ty, Val};
use inkwell::values::BasicValue;

impl<'c> KernelBuilder<'c> {
    /// `address + bytes` (bytes: i64).
    pub fn at(&self, address: Val<'c>, bytes: Val<'c>) -> Val<'c> {
        let byte = self.context.i8_type();
        let index = [bytes.0.into_int_value()];
        // SAFETY: this only records an instruction; a wrong offset is a fault of the generated
        // kernel, not of this process's memory.
        let moved =
            unsafe { self.builder.build_in_bounds_gep(byte, self.pointer(address), &index, "") };
        Val(moved.expect(POSITIONED).into())
    }

    /// `address + bytes` for a constant.
    pub fn offset(&self, address: Val<'c>, bytes: i64) -> Val<'c> {
        self.at(address, self.i64(bytes))
    }

    /// `address + index * stride_bytes` (index: i64).
    pub fn element(&self, address: Val<'c>, index: Val<'c>, stride_bytes: i64) -> Val<'c> {
        self.at(address, self.mul(index, self.i64(stride_bytes)))
    }

    pub fn load(&self, ty: Ty, address: Val<'c>) -> Val<'c> {
        let value = self.builder.build_load(self.type_of(ty), self.pointer(address), "");
        let value = value.expect(POSITIONED);
        let load = value.as_instruction_value().expect("a load is an instruction");
        load.set_alignment(ty.elem.bytes()).expect("a power of two");
        Val(value)
    }

    pub fn store(&self, address: Val<'c>, value: Val<'c>) {
        let store = self.builder.build_store(self.pointer(address), value.0).expect(POSITIONED);
        store.set_alignment(value.ty().elem.bytes()).expect("a power of two");
    }

    /// `bytes` of stack, 64-byte aligned, private to this call. Keep the sum below 64 KB.
    pub fn scratch(&self, bytes: u32) -> Val<'c> {
        let here = self.builder.get_insert_block().expect(POSITIONED);
        let entry = self.function.get_first_basic_block().expect("the entry block");
        match entry.get_first_instruction() {
            Some(first) => self.builder.position_before(&first),
            None => self.builder.position_at_end(entry),
        }
        let area = self.context.i8_type().array_type(bytes);
        let slot = self.builder.build_alloca(area, "").expect(POSITIONED);
        let alloca = slot.as_instruction_value().expect("an alloca is an instruction");
        alloca.set_alignment(64).expect("a power of two");
        self.builder.position_at_end(here);
        Val(slot.into())
    }

    /// Asks for the cache line at `address` soon.
    pub fn prefetch(&self, address: Val<'c>) {
        let args = [address, self.i32(0), self.i32(3), self.i32(1)];
        self.intrinsic("llvm.prefetch", &[address.ty()], &args);
    }
}
