//! Reads little-endian values from the front of a file, never past its end.

use std::fmt;

use super::error::GgufError;

/// What is being read, for messages.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    Header,
    Key(u64),
    Value(&'a str),
    Tensor(u64),
    Named(&'a str),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Header => write!(f, "header"),
            Place::Key(index) => write!(f, "metadata key {index}"),
            Place::Value(key) => write!(f, "value of `{key}`"),
            Place::Tensor(index) => write!(f, "tensor {index}"),
            Place::Named(name) => write!(f, "tensor `{name}`"),
        }
    }
}

#[derive(Clone, Copy)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    pub place: Place<'a>,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0, place: Place::Header }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    pub fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    /// The next `count` bytes. `count` comes from the file, so it may be anything.
    pub fn take(&mut self, count: u64, field: &'static str) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        if count > left {
            let place = self.place.to_string();
            return Err(GgufError::Truncated {
                place,
                field,
                at: self.at as u64,
                needed: count,
                left,
            });
        }
        // Not more than what is left, so it fits `usize`.
        let end = self.at + count as usize;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], GgufError> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N as u64, field)?);
        Ok(value)
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, GgufError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, GgufError> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A 64-bit length and as many bytes of UTF-8.
    pub fn text(&mut self, field: &'static str) -> Result<&'a str, GgufError> {
        let length = self.u64(field)?;
        let at = self.at as u64;
        let bytes = self.take(length, field)?;
        std::str::from_utf8(bytes).map_err(|error| GgufError::NotUtf8 {
            place: self.place.to_string(),
            at: at + error.valid_up_to() as u64,
        })
    }

    /// A count of things of at least `least_bytes` each, refused if the file cannot hold them.
    pub fn check_count(
        &self,
        what: &'static str,
        found: u64,
        least_bytes: u64,
    ) -> Result<usize, GgufError> {
        let most = self.left() / least_bytes;
        if found > most {
            return Err(GgufError::Count { place: self.place.to_string(), what, found, most });
        }
        Ok(found as usize)
    }
}
