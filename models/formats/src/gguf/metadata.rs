//! The key-value part of a GGUF file, with getters that convert and say what is wrong.

use super::cursor::Cursor;
use super::error::KeyError;
use super::value::{Array, Value, ValueType, read_value};
use crate::source::FileBytes;

/// Where a value lies. Its bytes were checked when the file was opened.
#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    pub ty: ValueType,
    pub at: usize,
    pub bytes: usize,
}

/// Metadata of a GGUF file. Every key occurs once; the order of the file is kept.
///
/// A getter answers `Ok(None)` for a key that is absent, so that optional keys stay optional; use
/// [`Metadata::required`] for the others.
#[derive(Clone, Debug)]
pub struct Metadata {
    source: FileBytes,
    entries: Vec<Entry>,
    /// Indices of `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl Metadata {
    /// Fails with the key that is there twice.
    pub(super) fn new(source: FileBytes, entries: Vec<Entry>) -> Result<Metadata, String> {
        let by_key = crate::shards::sorted_by_name(&entries, |entry| &entry.key)?;
        Ok(Metadata { source, entries, by_key })
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// All pairs in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.entries.iter().filter_map(|entry| Some((entry.key.as_str(), self.value(entry)?)))
    }

    pub fn contains(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.value(self.entry(key)?)
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        let found = self
            .by_key
            .binary_search_by(|&index| self.entries[index as usize].key.as_str().cmp(key));
        found.ok().map(|at| &self.entries[self.by_key[at] as usize])
    }

    fn value(&self, entry: &Entry) -> Option<Value<'_>> {
        let bytes = self.source.get(entry.at..entry.at + entry.bytes)?;
        // All was read once at open, so this fails only if the file was changed under us.
        match entry.ty {
            ValueType::Array => Array::of_checked(bytes).map(Value::Array),
            ty => read_value(&mut Cursor::new(bytes), ty, 0).ok(),
        }
    }

    /// Turns an absent key into an error: `metadata.required("llama.block_count", Metadata::u32)`.
    ///
    /// # Errors
    /// The key is absent, or the getter fails.
    pub fn required<'a, T>(
        &'a self,
        key: &str,
        get: impl FnOnce(&'a Metadata, &str) -> Result<Option<T>, KeyError>,
    ) -> Result<T, KeyError> {
        get(self, key)?.ok_or_else(|| KeyError::Missing { key: key.to_string() })
    }

    fn scalar<'a, T>(
        &'a self,
        key: &str,
        needed: &'static str,
        convert: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, KeyError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = value.type_name();
        match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(KeyError::Type { key: key.to_string(), found, needed }),
        }
    }

    /// An integer of any width that fits `T`.
    fn integer<T: TryFrom<i128>>(
        &self,
        key: &str,
        needed: &'static str,
    ) -> Result<Option<T>, KeyError> {
        let Some(value) = self.scalar(key, needed, Value::integer)? else { return Ok(None) };
        fit(key, value, needed).map(Some)
    }

    /// # Errors
    /// The value is no integer, or does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, KeyError> {
        self.integer(key, "u32")
    }

    /// # Errors
    /// The value is no integer, or does not fit.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, KeyError> {
        self.integer(key, "u64")
    }

    /// # Errors
    /// The value is no integer, or does not fit.
    pub fn i64(&self, key: &str) -> Result<Option<i64>, KeyError> {
        self.integer(key, "i64")
    }

    /// A float; f64 is rounded, an integer is converted.
    ///
    /// # Errors
    /// The value is no number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, KeyError> {
        self.scalar(key, "a number", Value::float)
    }

    /// # Errors
    /// The value is no bool.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, KeyError> {
        self.scalar(key, "bool", |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// # Errors
    /// The value is no text.
    pub fn str(&self, key: &str) -> Result<Option<&str>, KeyError> {
        self.scalar(key, "text", |value| match value {
            Value::Str(text) => Some(text),
            _ => None,
        })
    }

    /// # Errors
    /// The value is no array.
    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, KeyError> {
        self.scalar(key, "array", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// The texts of an array of texts, in order.
    ///
    /// # Errors
    /// The value is no array of texts.
    pub fn strs(&self, key: &str) -> Result<Option<Vec<&str>>, KeyError> {
        self.scalar(key, "array of text", |value| match value {
            Value::Array(array) => array.strs().map(Iterator::collect),
            _ => None,
        })
    }

    /// # Errors
    /// The value is no array of numbers.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, KeyError> {
        self.scalar(key, "array of numbers", |value| match value {
            Value::Array(array) => array.iter().map(Value::float).collect(),
            _ => None,
        })
    }

    /// # Errors
    /// The value is no array of bools.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, KeyError> {
        self.scalar(key, "array of bool", |value| match value {
            Value::Array(array) => array
                .iter()
                .map(|value| match value {
                    Value::Bool(value) => Some(value),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    /// # Errors
    /// The value is no array of integers, or one does not fit.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, KeyError> {
        self.integers(key, "u32", "array of integers")
    }

    /// # Errors
    /// The value is no array of integers, or one does not fit.
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>, KeyError> {
        self.integers(key, "u64", "array of integers")
    }

    /// # Errors
    /// The value is no array of integers, or one does not fit.
    pub fn i64s(&self, key: &str) -> Result<Option<Vec<i64>>, KeyError> {
        self.integers(key, "i64", "array of integers")
    }

    fn integers<T: TryFrom<i128>>(
        &self,
        key: &str,
        element: &'static str,
        needed: &'static str,
    ) -> Result<Option<Vec<T>>, KeyError> {
        let values = self.scalar(key, needed, |value| match value {
            Value::Array(array) => array.iter().map(Value::integer).collect::<Option<Vec<_>>>(),
            _ => None,
        })?;
        let Some(values) = values else { return Ok(None) };
        values.into_iter().map(|value| fit(key, value, element)).collect::<Result<_, _>>().map(Some)
    }
}

fn fit<T: TryFrom<i128>>(key: &str, value: i128, needed: &'static str) -> Result<T, KeyError> {
    T::try_from(value).map_err(|_| KeyError::Fit {
        key: key.to_string(),
        found: value.to_string(),
        needed,
    })
}
