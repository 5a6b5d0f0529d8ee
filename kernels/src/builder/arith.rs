//! Constants and element operations. A uniform operand is spread over the other's lanes.

use super::{Elem, KernelBuilder, POSITIONED, Ty, Val};
use inkwell::types::BasicTypeEnum;
use inkwell::values::{BasicValue, BasicValueEnum};
use inkwell::{FloatPredicate, IntPredicate};

/// A comparison. Integers compare signed, except by `Below`; a NaN makes every float comparison
/// false, except `Ne`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Unsigned less-than (integers only).
    Below,
}

macro_rules! int_operations {
    ($($(#[$doc:meta])* $name:ident => $build:ident),* $(,)?) => { $(
        $(#[$doc])*
        pub fn $name(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
            let (a, b) = self.unify(a, b);
            match (a.0, b.0) {
                (BasicValueEnum::VectorValue(x), BasicValueEnum::VectorValue(y)) => {
                    Val(self.builder.$build(x, y, "").expect(POSITIONED).into())
                }
                (x, y) => {
                    let (x, y) = (x.into_int_value(), y.into_int_value());
                    Val(self.builder.$build(x, y, "").expect(POSITIONED).into())
                }
            }
        }
    )* };
}

macro_rules! float_operations {
    ($($(#[$doc:meta])* $name:ident => $build:ident),* $(,)?) => { $(
        $(#[$doc])*
        pub fn $name(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
            let (a, b) = self.unify(a, b);
            match (a.0, b.0) {
                (BasicValueEnum::VectorValue(x), BasicValueEnum::VectorValue(y)) => {
                    Val(self.builder.$build(x, y, "").expect(POSITIONED).into())
                }
                (x, y) => {
                    let (x, y) = (x.into_float_value(), y.into_float_value());
                    Val(self.builder.$build(x, y, "").expect(POSITIONED).into())
                }
            }
        }
    )* };
}

macro_rules! conversions {
    ($($(#[$doc:meta])* $name:ident: $from:ident -> $to:ident => $build:ident),* $(,)?) => { $(
        $(#[$doc])*
        pub fn $name(&self, value: Val<'c>, elem: Elem) -> Val<'c> {
            match (value.0, self.type_of(value.ty().with(elem))) {
                (BasicValueEnum::VectorValue(v), BasicTypeEnum::VectorType(t)) => {
                    Val(self.builder.$build(v, t, "").expect(POSITIONED).into())
                }
                (v, t) => Val(self.builder.$build(v.$from(), t.$to(), "").expect(POSITIONED).into()),
            }
        }
    )* };
}

impl<'c> KernelBuilder<'c> {
    /// A uniform integer constant.
    pub fn int(&self, elem: Elem, value: i64) -> Val<'c> {
        let ty = self.type_of(elem.scalar()).into_int_type();
        #[expect(clippy::cast_sign_loss, reason = "two's complement bits are wanted")]
        let bits = value as u64;
        let mask = if elem == Elem::I64 { u64::MAX } else { (1 << ty.get_bit_width()) - 1 };
        Val(ty.const_int(bits & mask, false).into())
    }

    pub fn i32(&self, value: i32) -> Val<'c> {
        self.int(Elem::I32, i64::from(value))
    }

    pub fn i64(&self, value: i64) -> Val<'c> {
        self.int(Elem::I64, value)
    }

    /// A uniform f32 constant, bit for bit.
    pub fn f32(&self, value: f32) -> Val<'c> {
        let bits = self.int(Elem::I32, i64::from(value.to_bits()));
        self.bitcast(bits, Elem::F32.scalar())
    }

    /// All bits zero.
    pub fn zero(&self, ty: Ty) -> Val<'c> {
        Val(self.type_of(ty).const_zero())
    }

    int_operations! {
        /// Wrapping sum.
        add => build_int_add,
        sub => build_int_sub,
        mul => build_int_mul,
        udiv => build_int_unsigned_div,
        urem => build_int_unsigned_rem,
        and => build_and,
        or => build_or,
        xor => build_xor,
        shl => build_left_shift,
    }

    float_operations! {
        fadd => build_float_add,
        fsub => build_float_sub,
        fmul => build_float_mul,
        /// IEEE division.
        fdiv => build_float_div,
    }

    conversions! {
        zext: into_int_value -> into_int_type => build_int_z_extend,
        sext: into_int_value -> into_int_type => build_int_s_extend,
        trunc: into_int_value -> into_int_type => build_int_truncate,
        /// Signed integer to the nearest float.
        int_to_float: into_int_value -> into_float_type => build_signed_int_to_float,
        /// Float to signed integer toward zero; the value must be in range.
        float_to_int: into_float_value -> into_int_type => build_float_to_signed_int,
        /// Exact widening of a float.
        fext: into_float_value -> into_float_type => build_float_ext,
        /// Narrowing of a float to the nearest, ties to even. Not for bf16 (a library call).
        ftrunc: into_float_value -> into_float_type => build_float_trunc,
    }

    /// Logical shift right.
    pub fn shr(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.right_shift(a, b, false)
    }

    /// Arithmetic shift right.
    pub fn sar(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.right_shift(a, b, true)
    }

    fn right_shift(&self, a: Val<'c>, b: Val<'c>, signed: bool) -> Val<'c> {
        let (a, b) = self.unify(a, b);
        match (a.0, b.0) {
            (BasicValueEnum::VectorValue(x), BasicValueEnum::VectorValue(y)) => {
                Val(self.builder.build_right_shift(x, y, signed, "").expect(POSITIONED).into())
            }
            (x, y) => {
                let (x, y) = (x.into_int_value(), y.into_int_value());
                Val(self.builder.build_right_shift(x, y, signed, "").expect(POSITIONED).into())
            }
        }
    }

    /// `a * b + c` rounded once.
    pub fn fma(&self, a: Val<'c>, b: Val<'c>, c: Val<'c>) -> Val<'c> {
        let (a, b) = self.unify(a, b);
        let (a, c) = self.unify(a, c);
        let (a, b) = self.unify(a, b);
        self.intrinsic("llvm.fma", &[a.ty()], &[a, b, c]).expect("a value")
    }

    /// IEEE square root.
    pub fn sqrt(&self, a: Val<'c>) -> Val<'c> {
        self.intrinsic("llvm.sqrt", &[a.ty()], &[a]).expect("a value")
    }

    /// Clears the sign bit.
    pub fn fabs(&self, a: Val<'c>) -> Val<'c> {
        self.intrinsic("llvm.fabs", &[a.ty()], &[a]).expect("a value")
    }

    /// Flips the sign bit.
    pub fn fneg(&self, a: Val<'c>) -> Val<'c> {
        let bits = self.bitcast(a, a.ty().with(Elem::I32));
        let flipped = self.xor(bits, self.i32(i32::MIN));
        self.bitcast(flipped, a.ty())
    }

    /// To the nearest whole number, ties to even.
    pub fn round_even(&self, a: Val<'c>) -> Val<'c> {
        self.intrinsic("llvm.roundeven", &[a.ty()], &[a]).expect("a value")
    }

    /// `if a > b { a } else { b }`: a NaN in either gives `b`.
    pub fn fmax(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.select(self.fcmp(Compare::Gt, a, b), a, b)
    }

    /// `if a < b { a } else { b }`: a NaN in either gives `b`.
    pub fn fmin(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.select(self.fcmp(Compare::Lt, a, b), a, b)
    }

    /// The lesser of two signed integers.
    pub fn imin(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.select(self.icmp(Compare::Lt, a, b), a, b)
    }

    /// The greater of two signed integers.
    pub fn imax(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        self.select(self.icmp(Compare::Gt, a, b), a, b)
    }

    pub fn icmp(&self, compare: Compare, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        let predicate = match compare {
            Compare::Eq => IntPredicate::EQ,
            Compare::Ne => IntPredicate::NE,
            Compare::Lt => IntPredicate::SLT,
            Compare::Le => IntPredicate::SLE,
            Compare::Gt => IntPredicate::SGT,
            Compare::Ge => IntPredicate::SGE,
            Compare::Below => IntPredicate::ULT,
        };
        let (a, b) = self.unify(a, b);
        match (a.0, b.0) {
            (BasicValueEnum::VectorValue(x), BasicValueEnum::VectorValue(y)) => {
                Val(self.builder.build_int_compare(predicate, x, y, "").expect(POSITIONED).into())
            }
            (x, y) => {
                let (x, y) = (x.into_int_value(), y.into_int_value());
                Val(self.builder.build_int_compare(predicate, x, y, "").expect(POSITIONED).into())
            }
        }
    }

    pub fn fcmp(&self, compare: Compare, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        let predicate = match compare {
            Compare::Eq => FloatPredicate::OEQ,
            Compare::Ne => FloatPredicate::UNE,
            Compare::Lt | Compare::Below => FloatPredicate::OLT,
            Compare::Le => FloatPredicate::OLE,
            Compare::Gt => FloatPredicate::OGT,
            Compare::Ge => FloatPredicate::OGE,
        };
        let (a, b) = self.unify(a, b);
        match (a.0, b.0) {
            (BasicValueEnum::VectorValue(x), BasicValueEnum::VectorValue(y)) => {
                Val(self.builder.build_float_compare(predicate, x, y, "").expect(POSITIONED).into())
            }
            (x, y) => {
                let (x, y) = (x.into_float_value(), y.into_float_value());
                Val(self.builder.build_float_compare(predicate, x, y, "").expect(POSITIONED).into())
            }
        }
    }

    /// `if condition { a } else { b }`, lane by lane when the condition varies.
    pub fn select(&self, condition: Val<'c>, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        let (a, b) = self.unify(a, b);
        let lanes = condition.lanes();
        let (a, b) = if lanes > 1 && a.lanes() == 1 {
            (self.splat(a, lanes), self.splat(b, lanes))
        } else {
            (a, b)
        };
        let chosen = match condition.0 {
            BasicValueEnum::VectorValue(c) => self.builder.build_select(c, a.0, b.0, ""),
            c => self.builder.build_select(c.into_int_value(), a.0, b.0, ""),
        };
        Val(chosen.expect(POSITIONED).as_basic_value_enum())
    }

    /// The same bits as another type of the same size.
    pub fn bitcast(&self, value: Val<'c>, ty: Ty) -> Val<'c> {
        Val(self.builder.build_bit_cast(value.0, self.type_of(ty), "").expect(POSITIONED))
    }

    /// Spreads a uniform operand over the lanes of a varying one.
    fn unify(&self, a: Val<'c>, b: Val<'c>) -> (Val<'c>, Val<'c>) {
        match (a.lanes(), b.lanes()) {
            (1, n) if n > 1 => (self.splat(a, n), b),
            (n, 1) if n > 1 => (a, self.splat(b, n)),
            _ => (a, b),
        }
    }
}
