//! Element and vector types, and values.

use inkwell::AddressSpace;
use inkwell::context::Context;
use inkwell::types::BasicTypeEnum;
use inkwell::values::BasicValueEnum;

/// The type of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elem {
    /// A condition.
    I1,
    I8,
    I16,
    I32,
    I64,
    F16,
    Bf16,
    F32,
    /// An address; never a vector.
    Ptr,
}

impl Elem {
    /// A vector of `lanes` elements (a scalar when `lanes` is 1).
    pub const fn x(self, lanes: u32) -> Ty {
        Ty { elem: self, lanes }
    }

    pub const fn scalar(self) -> Ty {
        self.x(1)
    }

    pub const fn bytes(self) -> u32 {
        match self {
            Self::I1 | Self::I8 => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::Ptr => 8,
        }
    }
}

/// A scalar (`lanes == 1`) or vector type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ty {
    pub elem: Elem,
    pub lanes: u32,
}

impl Ty {
    /// The same number of lanes of another element.
    pub const fn with(self, elem: Elem) -> Self {
        Self { elem, lanes: self.lanes }
    }
}

/// A value in the kernel: uniform (one lane) or varying.
#[derive(Clone, Copy, Debug)]
pub struct Val<'c>(pub(super) BasicValueEnum<'c>);

impl Val<'_> {
    pub fn ty(self) -> Ty {
        match self.0.get_type() {
            BasicTypeEnum::VectorType(v) => elem_of(v.get_element_type()).x(v.get_size()),
            scalar => elem_of(scalar).scalar(),
        }
    }

    pub fn lanes(self) -> u32 {
        self.ty().lanes
    }
}

fn elem_of(ty: BasicTypeEnum) -> Elem {
    match ty {
        BasicTypeEnum::IntType(t) => match t.get_bit_width() {
            1 => Elem::I1,
            8 => Elem::I8,
            16 => Elem::I16,
            32 => Elem::I32,
            _ => Elem::I64,
        },
        BasicTypeEnum::FloatType(t) if t == t.get_context().f16_type() => Elem::F16,
        BasicTypeEnum::FloatType(t) if t == t.get_context().bf16_type() => Elem::Bf16,
        BasicTypeEnum::FloatType(_) => Elem::F32,
        _ => Elem::Ptr,
    }
}

pub(super) fn lower(context: &Context, ty: Ty) -> BasicTypeEnum<'_> {
    let int = |bits: u32| match bits {
        1 => context.bool_type(),
        8 => context.i8_type(),
        16 => context.i16_type(),
        32 => context.i32_type(),
        _ => context.i64_type(),
    };
    let vector = ty.lanes > 1;
    match ty.elem {
        Elem::Ptr => context.ptr_type(AddressSpace::default()).into(),
        Elem::F16 if vector => context.f16_type().vec_type(ty.lanes).into(),
        Elem::F16 => context.f16_type().into(),
        Elem::Bf16 if vector => context.bf16_type().vec_type(ty.lanes).into(),
        Elem::Bf16 => context.bf16_type().into(),
        Elem::F32 if vector => context.f32_type().vec_type(ty.lanes).into(),
        Elem::F32 => context.f32_type().into(),
        elem => {
            let bits = if elem == Elem::I1 { 1 } else { elem.bytes() * 8 };
            if vector { int(bits).vec_type(ty.lanes).into() } else { int(bits).into() }
        }
    }
}
