//! Checks of the operands of one node.

use crate::error::ShapeError;
use crate::types::{DType, TensorType};

/// Checks of one node's operands; each names the op and the operand.
pub(super) struct Check<'a> {
    pub op: &'static str,
    pub names: Vec<&'static str>,
    pub types: &'a [TensorType],
}

impl Check<'_> {
    pub fn last_dim(&self, operand: usize, need: u32) -> Result<(), ShapeError> {
        let found = self.types[operand].last_dim();
        let (op, operand) = (self.op, self.names[operand]);
        if found == need { Ok(()) } else { Err(ShapeError::LastDim { op, operand, found, need }) }
    }

    pub fn rank(&self, operand: usize, need: usize) -> Result<(), ShapeError> {
        let found = self.types[operand].dims().len();
        let (op, operand) = (self.op, self.names[operand]);
        if found == need { Ok(()) } else { Err(ShapeError::Rank { op, operand, found, need }) }
    }

    pub fn dims(&self, operand: usize, need: TensorType) -> Result<(), ShapeError> {
        let found = self.types[operand];
        let (op, operand) = (self.op, self.names[operand]);
        if found.dims() == need.dims() {
            Ok(())
        } else {
            Err(ShapeError::Dims { op, operand, found, need })
        }
    }

    pub fn element(
        &self,
        operand: usize,
        need: &'static str,
        ok: impl Fn(DType) -> bool,
    ) -> Result<(), ShapeError> {
        let found = self.types[operand].dtype;
        let (op, operand) = (self.op, self.names[operand]);
        if ok(found) { Ok(()) } else { Err(ShapeError::Element { op, operand, found, need }) }
    }

    pub fn f32(&self, operand: usize) -> Result<(), ShapeError> {
        self.element(operand, "f32", |d| d == DType::F32)
    }

    pub fn state(&self, operand: usize) -> Result<(), ShapeError> {
        self.element(operand, "a state", |d| d == DType::State)
    }

    pub fn u32(&self, operand: usize) -> Result<(), ShapeError> {
        self.element(operand, "u32", |d| d == DType::U32)
    }

    /// Rows of the window: at least two dimensions, the outermost counts rows.
    pub fn activation(&self, operand: usize) -> Result<(), ShapeError> {
        if self.types[operand].dims().len() < 2 { self.rank(operand, 2) } else { Ok(()) }
    }

    pub fn attribute(
        &self,
        name: &'static str,
        found: u16,
        need: &'static str,
        ok: impl Fn(u32) -> bool,
    ) -> Result<(), ShapeError> {
        let found = u32::from(found);
        let op = self.op;
        if ok(found) { Ok(()) } else { Err(ShapeError::Attribute { op, name, found, need }) }
    }

    /// A number of heads that divides the innermost dimension of `operand`.
    pub fn heads(&self, operand: usize, heads: u16) -> Result<u32, ShapeError> {
        let width = self.types[operand].last_dim();
        self.attribute("heads", heads, "a divisor of the innermost dimension", |heads| {
            heads != 0 && width.is_multiple_of(heads)
        })?;
        Ok(width / u32::from(heads))
    }

    /// Dimensions of rotary embedding: pairs, and no more than a head has.
    pub fn rotated(&self, dims: u16, head_dim: u32) -> Result<(), ShapeError> {
        self.attribute("dims", dims, "an even number of at most head_dim", |dims| {
            dims != 0 && dims.is_multiple_of(2) && dims <= head_dim
        })
    }

    /// A vector of per-element gains or biases; its own element type is settled on loading.
    pub fn vector(&self, operand: usize, need: u32) -> Result<(), ShapeError> {
        self.element(operand, "a float format", |d| d.is_float() || d == DType::Unresolved)?;
        self.rank(operand, 1)?;
        self.last_dim(operand, need)
    }

    /// [`Self::product_of`] over all of a row.
    pub fn product(&self, x: usize, weight: usize) -> Result<(), ShapeError> {
        self.product_of(x, weight, self.types[x].last_dim())
    }

    /// `x`, or a part of `width` of its rows, fits `weight`: f32 with a float weight, q8 with a
    /// quantised one. Before weights are resolved and activations quantised either may be f32.
    pub fn product_of(&self, x: usize, weight: usize, width: u32) -> Result<(), ShapeError> {
        self.activation(x)?;
        self.element(x, "f32 or q8", |d| matches!(d, DType::F32 | DType::Q8))?;
        self.element(weight, "a weight format", |d| {
            d.is_float() || d.is_block_quantised() || d == DType::Unresolved
        })?;
        if self.types[x].dtype == DType::Q8 {
            self.element(weight, "a quantised format", DType::is_block_quantised)?;
        }
        self.last_dim(weight, width)
    }
}
