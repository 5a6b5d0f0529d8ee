//! Typed look-ups in a JSON table, with errors that name the key.

use std::path::Path;

use serde_json::Value;

use crate::error::ModelError;
use crate::import::narrow;

/// A table of a configuration. A key that is `null` counts as absent, as its writers mean it.
pub(super) struct Config<'c> {
    pub path: &'c Path,
    pub json: &'c Value,
    /// Numbers that stand for absent keys.
    pub defaults: &'static [(&'static str, f64)],
}

impl<'c> Config<'c> {
    /// A table without defaults.
    pub fn new(path: &'c Path, json: &'c Value) -> Self {
        Self { path, json, defaults: &[] }
    }

    fn default(&self, key: &str) -> Option<f64> {
        self.defaults.iter().find(|(name, _)| *name == key).map(|&(_, value)| value)
    }

    pub fn refused(&self, key: &str, found: impl ToString, need: &str) -> ModelError {
        ModelError::Key {
            path: self.path.into(),
            key: format!("config key {key}"),
            found: found.to_string(),
            need: need.into(),
        }
    }

    fn get(&self, key: &str) -> Option<&'c Value> {
        self.json.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        need: &str,
        convert: impl FnOnce(&'c Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.refused(key, value, need))
    }

    fn missing(&self, key: &str, need: &'static str) -> ModelError {
        ModelError::MissingKey { path: self.path.into(), key: key.into(), need }
    }

    pub fn optional(&self, key: &str) -> Result<Option<u32>, ModelError> {
        let convert = |value: &Value| value.as_u64().and_then(|v| u32::try_from(v).ok());
        let found = self.typed(key, "an integer that fits 32 bits", convert)?;
        Ok(found.or_else(|| self.default(key).map(|value| value as u32)))
    }

    pub fn need(&self, key: &str) -> Result<u32, ModelError> {
        self.optional(key)?.ok_or_else(|| self.missing(key, "an integer"))
    }

    pub fn need_narrow(&self, key: &str) -> Result<u16, ModelError> {
        narrow(self.path, key, self.need(key)?)
    }

    pub fn narrow_or(&self, key: &str, default: u32) -> Result<u16, ModelError> {
        narrow(self.path, key, self.optional(key)?.unwrap_or(default))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.typed(key, "a number", Value::as_f64)?.or_else(|| self.default(key)))
    }

    pub fn need_number(&self, key: &str) -> Result<f64, ModelError> {
        self.number(key)?.ok_or_else(|| self.missing(key, "a number"))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn text(&self, key: &str) -> Result<Option<&'c str>, ModelError> {
        self.typed(key, "a text", Value::as_str)
    }

    pub fn need_text(&self, key: &str) -> Result<&'c str, ModelError> {
        self.text(key)?.ok_or_else(|| self.missing(key, "a text"))
    }

    pub fn list(&self, key: &str) -> Result<Option<&'c [Value]>, ModelError> {
        self.typed(key, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    /// A table inside the table.
    pub fn table(&self, key: &str) -> Option<Config<'c>> {
        let json = self.get(key).filter(|value| value.is_object())?;
        Some(Config::new(self.path, json))
    }

    /// One token id or a list of them.
    pub fn ids(&self, key: &str) -> Result<Option<Vec<u32>>, ModelError> {
        self.typed(key, "a token id or a list of them", |value| {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
            match value {
                Value::Array(list) => list.iter().map(id).collect(),
                one => id(one).map(|id| vec![id]),
            }
        })
    }
}
