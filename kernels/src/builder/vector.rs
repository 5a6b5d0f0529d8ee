//! Operations across lanes.

use super::{Elem, KernelBuilder, POSITIONED, Val};
use inkwell::types::{BasicTypeEnum, VectorType};
use inkwell::values::IntValue;

impl<'c> KernelBuilder<'c> {
    /// A uniform value in every lane.
    pub fn splat(&self, value: Val<'c>, lanes: u32) -> Val<'c> {
        if lanes == 1 {
            return value;
        }
        let ty = value.ty().elem.x(lanes);
        let BasicTypeEnum::VectorType(vector) = self.type_of(ty) else {
            unreachable!("more than one lane is a vector")
        };
        let first = self.insert(Val(vector.get_poison().into()), value, 0);
        self.shuffle(first, first, &vec![0; lanes as usize])
    }

    pub fn extract(&self, vector: Val<'c>, lane: u32) -> Val<'c> {
        let index = self.context.i32_type().const_int(u64::from(lane), false);
        let vector = vector.0.into_vector_value();
        Val(self.builder.build_extract_element(vector, index, "").expect(POSITIONED))
    }

    pub fn insert(&self, vector: Val<'c>, value: Val<'c>, lane: u32) -> Val<'c> {
        let index = self.context.i32_type().const_int(u64::from(lane), false);
        let vector = vector.0.into_vector_value();
        let inserted = self.builder.build_insert_element(vector, value.0, index, "");
        Val(inserted.expect(POSITIONED).into())
    }

    /// Lane `i` of the result is lane `lanes[i]` of `a` followed by `b`.
    pub fn shuffle(&self, a: Val<'c>, b: Val<'c>, lanes: &[u32]) -> Val<'c> {
        let mask: Vec<IntValue> =
            lanes.iter().map(|&i| self.context.i32_type().const_int(u64::from(i), false)).collect();
        let (a, b) = (a.0.into_vector_value(), b.0.into_vector_value());
        let shuffled = self.builder.build_shuffle_vector(a, b, VectorType::const_vector(&mask), "");
        Val(shuffled.expect(POSITIONED).into())
    }

    /// Lanes `[first, first + count)` of a vector (a scalar when `count` is 1).
    pub fn slice(&self, vector: Val<'c>, first: u32, count: u32) -> Val<'c> {
        if count == 1 {
            return self.extract(vector, first);
        }
        let lanes: Vec<u32> = (first..first + count).collect();
        self.shuffle(vector, vector, &lanes)
    }

    /// The lanes of `a`, then those of `b`.
    pub fn concat(&self, a: Val<'c>, b: Val<'c>) -> Val<'c> {
        let lanes: Vec<u32> = (0..a.lanes() + b.lanes()).collect();
        self.shuffle(a, b, &lanes)
    }

    /// The contract's sum over lanes: the upper half is added to the lower half until one is left
    /// (for 16 lanes: `i + 8`, `i + 4`, `i + 2`, `i + 1`).
    pub fn tree_sum(&self, vector: Val<'c>) -> Val<'c> {
        self.tree(vector, |low, high| self.fadd(low, high))
    }

    /// The greatest lane, by [`fmax`](Self::fmax) in the order of [`tree_sum`](Self::tree_sum).
    pub fn tree_max(&self, vector: Val<'c>) -> Val<'c> {
        self.tree(vector, |low, high| self.fmax(low, high))
    }

    /// Integer sum over lanes.
    pub fn tree_add(&self, vector: Val<'c>) -> Val<'c> {
        self.tree(vector, |low, high| self.add(low, high))
    }

    fn tree(&self, vector: Val<'c>, join: impl Fn(Val<'c>, Val<'c>) -> Val<'c>) -> Val<'c> {
        let mut value = vector;
        while value.lanes() > 1 {
            let half = value.lanes() / 2;
            value = join(self.slice(value, 0, half), self.slice(value, half, half));
        }
        value
    }

    /// A constant of `lanes` bytes: `bytes` again and again.
    pub fn repeated_bytes(&self, bytes: &[u8; 16], lanes: u32) -> Val<'c> {
        let byte = |i: u32| bytes[i as usize % bytes.len()].into();
        let byte = |i| self.context.i8_type().const_int(byte(i), false);
        Val(VectorType::const_vector(&(0..lanes).map(byte).collect::<Vec<_>>()).into())
    }

    /// `[0, 1, 2, ..]` as i32.
    pub fn lane_numbers(&self, lanes: u32) -> Val<'c> {
        let numbers: Vec<IntValue> =
            (0..lanes).map(|i| self.context.i32_type().const_int(u64::from(i), false)).collect();
        debug_assert_eq!(Elem::I32.bytes(), 4);
        Val(VectorType::const_vector(&numbers).into())
    }
}
