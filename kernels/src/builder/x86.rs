//! Integer dot products of x86.

use super::{Elem, KernelBuilder, Val};

impl<'c> KernelBuilder<'c> {
    /// `vpmaddubsw`: 32 u8 times 32 i8, neighbours added with saturation, as 16 i16. Exact while
    /// two products fit i16, so for u8 values up to 127.
    pub fn madd_u8_i8(&self, unsigned: Val<'c>, signed: Val<'c>) -> Val<'c> {
        self.intrinsic("llvm.x86.avx2.pmadd.ub.sw", &[], &[unsigned, signed]).expect("a value")
    }

    /// `vpmaddwd`: 16 i16 times 16 i16, neighbours added, as 8 i32.
    pub fn madd_i16(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.intrinsic("llvm.x86.avx2.pmadd.wd", &[], &[a, b]).expect("a value")
    }

    /// `vpsignb`: `a` times the sign of `b`, 32 i8 each. `-(-128)` stays -128.
    pub fn sign_i8(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.intrinsic("llvm.x86.avx2.psign.b", &[], &[a, b]).expect("a value")
    }

    /// Magnitudes of i8 lanes, as u8 (128 for -128).
    pub fn abs_i8(&self, a: Val<'c>) -> Val<'c> {
        let wraps = self.int(Elem::I1, 0);
        self.intrinsic("llvm.abs", &[a.ty()], &[a, wraps]).expect("a value")
    }

    /// `vpshufb`: `table[index]` for 32 or 64 bytes of indices below 16.
    pub fn lookup(&self, table: &[u8; 16], indices: Val<'c>) -> Val<'c> {
        let lanes = indices.lanes();
        if lanes == 64 && !self.facts().cpu.ends_with("v4") {
            let half = |first| self.lookup(table, self.slice(indices, first, 32));
            return self.concat(half(0), half(32));
        }
        let name =
            if lanes == 64 { "llvm.x86.avx512.pshuf.b.512" } else { "llvm.x86.avx2.pshuf.b" };
        let table = self.repeated_bytes(table, lanes);
        self.intrinsic(name, &[], &[table, indices]).expect("a value")
    }

    /// `vpdpbusd`: 16 x (i32 + the sum of four u8 times i8).
    pub fn dot_u8_i8(&self, sum: Val<'c>, unsigned: Val<'c>, signed: Val<'c>) -> Val<'c> {
        if !self.facts().features.contains("avx512vnni") {
            return self.dot_by_products(sum, unsigned, signed);
        }
        let args = [sum, unsigned, signed];
        self.intrinsic("llvm.x86.avx512.vpdpbusd.512", &[], &args).expect("a value")
    }

    /// What [`dot_u8_i8`](Self::dot_u8_i8) computes, by 16-bit products.
    fn dot_by_products(&self, sum: Val<'c>, unsigned: Val<'c>, signed: Val<'c>) -> Val<'c> {
        let pairs = |part: u32| {
            let part = |v| self.slice(v, 16 * part, 16);
            let unsigned = self.zext(part(unsigned), Elem::I16);
            self.madd_i16(unsigned, self.sext(part(signed), Elem::I16))
        };
        let pairs = self.concat(self.concat(pairs(0), pairs(1)), self.concat(pairs(2), pairs(3)));
        let every_second = |first: u32| (0..16).map(|i| 2 * i + first).collect::<Vec<_>>();
        let of = |first| self.shuffle(pairs, pairs, &every_second(first));
        self.add(sum, self.add(of(0), of(1)))
    }

    /// The first `count` (i32) of 16 f32 at `address`; the other lanes are 0 and not read.
    pub fn load_first(&self, address: Val<'c>, count: Val<'c>) -> Val<'c> {
        let half = |first: u32| {
            let mask = self.first_lanes(first, count);
            let at = self.offset(address, (4 * first).into());
            self.intrinsic("llvm.x86.avx.maskload.ps.256", &[], &[at, mask]).expect("a value")
        };
        self.concat(half(0), half(8))
    }

    /// Stores the first `count` (i32) of 16 f32 at `address`.
    pub fn store_first(&self, address: Val<'c>, value: Val<'c>, count: Val<'c>) {
        for first in [0, 8] {
            let mask = self.first_lanes(first, count);
            let at = self.offset(address, (4 * first).into());
            let part = self.slice(value, first, 8);
            self.intrinsic("llvm.x86.avx.maskstore.ps.256", &[], &[at, mask, part]);
        }
    }

    /// All bits set in those of lanes `first .. first + 8` that are below `count`.
    fn first_lanes(&self, first: u32, count: Val<'c>) -> Val<'c> {
        let lanes = self.slice(self.lane_numbers(16), first, 8);
        self.sext(self.icmp(super::Compare::Lt, lanes, count), Elem::I32)
    }
}
