//! Why a node was refused.

use std::fmt;

use crate::{DType, TensorType};

/// A node whose operands do not fit its op. The graph under construction is unchanged.
#[derive(Clone, Debug, PartialEq)]
pub enum ShapeError {
    Arity { op: &'static str, found: usize, need: usize },
    Rank { op: &'static str, operand: &'static str, found: usize, need: usize },
    LastDim { op: &'static str, operand: &'static str, found: u32, need: u32 },
    Dims { op: &'static str, operand: &'static str, found: TensorType, need: TensorType },
    Element { op: &'static str, operand: &'static str, found: DType, need: &'static str },
    Attribute { op: &'static str, name: &'static str, found: u32, need: &'static str },
}

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arity { op, found, need } => {
                write!(f, "{op} takes {need} operands, found {found}")
            }
            Self::Rank { op, operand, found, need } => {
                write!(f, "{op}: {operand} has {found} dimensions, needs {need}")
            }
            Self::LastDim { op, operand, found, need } => {
                write!(f, "{op}: the innermost dimension of {operand} is {found}, needs {need}")
            }
            Self::Dims { op, operand, found, need } => {
                write!(f, "{op}: {operand} is {found}, needs {need}")
            }
            Self::Element { op, operand, found, need } => {
                write!(f, "{op}: the elements of {operand} are {found}, needs {need}")
            }
            Self::Attribute { op, name, found, need } => {
                write!(f, "{op}: {name} is {found}, needs {need}")
            }
        }
    }
}

impl std::error::Error for ShapeError {}
