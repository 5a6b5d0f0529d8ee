//! Why a text is no graph.

use std::fmt;

use crate::error::ShapeError;
use crate::types::TensorType;

/// The line that was refused, counted from 1, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct ParseError {
    pub line: usize,
    pub fault: ParseFault,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq)]
pub enum ParseFault {
    /// The text at the fault, and what should stand there.
    Expected { found: String, need: &'static str },
    /// An attribute that is missing, or whose value does not parse.
    Attribute { op: String, attribute: String, found: Option<String> },
    /// A weight or state out of turn.
    Number { found: String, need: String },
    /// An operand that no earlier line defines.
    Undefined { value: String },
    /// A result number that an earlier line has.
    Redefined { value: u32 },
    /// Another number of results or of their types than the op gives.
    Results { op: &'static str, found: usize, need: usize },
    /// Another type than the op gives.
    ResultType { value: u32, found: TensorType, need: TensorType },
    /// Operands that do not fit the op.
    Shape(ShapeError),
}

/// Longest piece of the text that a message repeats, in characters.
const EXCERPT_CHARS: usize = 48;

impl ParseFault {
    pub(super) fn expected(found: &str, need: &'static str) -> Self {
        let mut excerpt: String = found.chars().take(EXCERPT_CHARS).collect();
        if excerpt.len() < found.len() {
            excerpt.push_str("..");
        }
        Self::Expected { found: excerpt, need }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.fault)
    }
}

impl fmt::Display for ParseFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expected { found, need } if found.is_empty() => {
                write!(f, "found the end of the line, needs {need}")
            }
            Self::Expected { found, need } => write!(f, "found `{found}`, needs {need}"),
            Self::Attribute { op, attribute, found: Some(found) } => {
                write!(f, "{op}: {attribute} is `{found}`, needs a value of its type")
            }
            Self::Attribute { op, attribute, found: None } => {
                write!(f, "{op}: found no {attribute}, needs {attribute}=VALUE")
            }
            Self::Number { found, need } => {
                write!(f, "found {found}, needs {need}: rows are numbered in order from 0")
            }
            Self::Undefined { value } => {
                write!(f, "{value} is read, needs a line before this one that defines it")
            }
            Self::Redefined { value } => {
                write!(f, "%{value} is defined twice, needs a number of its own")
            }
            Self::Results { op, found, need } => {
                write!(f, "{op} gives {need} results, found {found}")
            }
            Self::ResultType { value, found, need } => {
                write!(f, "%{value} is said to be {found}, needs {need}")
            }
            Self::Shape(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ParseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            ParseFault::Shape(error) => Some(error),
            _ => None,
        }
    }
}
