//! Metadata values: scalars, texts and arrays, borrowed from the file.

use super::MAX_ARRAY_DEPTH;
use super::cursor::Cursor;
use super::error::GgufError;

/// The type of a metadata value, with the numbers that GGUF gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    const BY_ID: [(ValueType, &'static str); 13] = [
        (ValueType::U8, "u8"),
        (ValueType::I8, "i8"),
        (ValueType::U16, "u16"),
        (ValueType::I16, "i16"),
        (ValueType::U32, "u32"),
        (ValueType::I32, "i32"),
        (ValueType::F32, "f32"),
        (ValueType::Bool, "bool"),
        (ValueType::Str, "text"),
        (ValueType::Array, "array"),
        (ValueType::U64, "u64"),
        (ValueType::I64, "i64"),
        (ValueType::F64, "f64"),
    ];

    pub fn from_id(id: u32) -> Option<ValueType> {
        Self::BY_ID.get(id as usize).map(|row| row.0)
    }

    pub fn id(self) -> u32 {
        self as u32
    }

    pub fn name(self) -> &'static str {
        Self::BY_ID[self as usize].1
    }

    /// Bytes of one value; `None` where they vary.
    pub fn bytes(self) -> Option<u64> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::Str | ValueType::Array => None,
        }
    }

    /// The least that one element can take in the file.
    fn least_bytes(self) -> u64 {
        match self {
            ValueType::Str => 8,
            ValueType::Array => 12,
            _ => self.bytes().expect("all but text and array have a size"),
        }
    }
}

/// A metadata value. Texts and arrays point into the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The value as an integer, if it is one of any width. A bool is none.
    pub fn integer(self) -> Option<i128> {
        Some(match self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value as a float: f32, f64 rounded, or an integer.
    pub fn float(self) -> Option<f32> {
        match self {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => self.integer().map(|v| v as f32),
        }
    }

    /// What it is, for messages: `u32`, `array of text`.
    pub fn type_name(self) -> String {
        match self {
            Value::Array(array) => format!("array of {}", array.element.name()),
            _ => self.value_type().name().to_string(),
        }
    }

    pub fn value_type(self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::Str(_) => ValueType::Str,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }
}

/// An array of one element type, checked when the file was opened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    element: ValueType,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// The array that begins and ends with `bytes`, without a walk over its elements.
    pub(super) fn of_checked(bytes: &'a [u8]) -> Option<Array<'a>> {
        let mut cursor = Cursor::new(bytes);
        let element = read_type(&mut cursor).ok()?;
        let count = usize::try_from(cursor.u64("array length").ok()?).ok()?;
        Some(Array { element, count, bytes: &bytes[cursor.at()..] })
    }

    pub fn element_type(self) -> ValueType {
        self.element
    }

    pub fn len(self) -> usize {
        self.count
    }

    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// The elements in order. Reads only forward: texts have no index.
    pub fn iter(self) -> impl Iterator<Item = Value<'a>> {
        let mut cursor = Cursor::new(self.bytes);
        // Elements were checked at open; were the file changed since, the walk ends early.
        (0..self.count).map_while(move |_| read_value(&mut cursor, self.element, 0).ok())
    }

    /// The texts of an array of texts.
    pub fn strs(self) -> Option<impl Iterator<Item = &'a str>> {
        (self.element == ValueType::Str).then(|| {
            self.iter().filter_map(|value| match value {
                Value::Str(text) => Some(text),
                _ => None,
            })
        })
    }

    /// The elements of an array of u8, without a copy.
    pub fn u8_slice(self) -> Option<&'a [u8]> {
        (self.element == ValueType::U8).then_some(self.bytes)
    }
}

/// Reads and checks one value. `depth` is the number of arrays around it.
pub fn read_value<'a>(
    cursor: &mut Cursor<'a>,
    ty: ValueType,
    depth: u32,
) -> Result<Value<'a>, GgufError> {
    const FIELD: &str = "value";
    Ok(match ty {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(FIELD)?)),
        ValueType::Bool => match cursor.array::<1>(FIELD)?[0] {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            found => return Err(GgufError::Bool { place: cursor.place.to_string(), found }),
        },
        ValueType::Str => Value::Str(cursor.text("text")?),
        ValueType::Array => Value::Array(read_array(cursor, depth)?),
    })
}

/// Element type, count, elements. Every element is walked once, so that reading it later is safe.
fn read_array<'a>(cursor: &mut Cursor<'a>, depth: u32) -> Result<Array<'a>, GgufError> {
    if depth >= MAX_ARRAY_DEPTH {
        return Err(GgufError::ArrayDepth { place: cursor.place.to_string() });
    }
    let element = read_type(cursor)?;
    let found = cursor.u64("array length")?;
    let count = cursor.check_count("array elements", found, element.least_bytes())?;
    let mut walk = *cursor;
    match element.bytes() {
        Some(bytes) if element != ValueType::Bool => {
            walk.take(found * bytes, "array")?;
        }
        _ => {
            for _ in 0..count {
                read_value(&mut walk, element, depth + 1)?;
            }
        }
    }
    let bytes = cursor.take((walk.at() - cursor.at()) as u64, "array")?;
    Ok(Array { element, count, bytes })
}

pub fn read_type(cursor: &mut Cursor<'_>) -> Result<ValueType, GgufError> {
    let id = cursor.u32("value type")?;
    ValueType::from_id(id)
        .ok_or_else(|| GgufError::ValueType { place: cursor.place.to_string(), found: id })
}
