//! The JSON header. Maps of serde_json keep the last of two equal names; here that is an error.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::error::SafetensorsError;
use crate::shards::sorted_by_name;

/// One entry as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTensor {
    pub dtype: String,
    /// Outermost dimension first.
    pub shape: Vec<u64>,
    /// Begin and end, from the beginning of the data.
    pub data_offsets: [u64; 2],
}

#[derive(Debug, Default)]
pub struct Header {
    pub metadata: Vec<(String, String)>,
    pub tensors: Vec<(String, RawTensor)>,
}

impl Header {
    pub fn parse(json: &[u8]) -> Result<Header, SafetensorsError> {
        let header: Header =
            serde_json::from_slice(json).map_err(|error| SafetensorsError::Header {
                line: error.line() as u64,
                column: error.column() as u64,
                reason: error.to_string(),
            })?;
        sorted_by_name(&header.tensors, |(name, _)| name)
            .map_err(|name| SafetensorsError::DuplicateTensor { name })?;
        sorted_by_name(&header.metadata, |(key, _)| key)
            .map_err(|key| SafetensorsError::DuplicateKey { key })?;
        Ok(header)
    }
}

/// A JSON object as pairs, in order, repeats included.
pub struct Pairs<T>(pub Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
            type Value = Pairs<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor(std::marker::PhantomData))
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                let mut seen_metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name != "__metadata__" {
                        header.tensors.push((name, map.next_value()?));
                        continue;
                    }
                    if seen_metadata {
                        return Err(A::Error::custom("`__metadata__` is there twice"));
                    }
                    seen_metadata = true;
                    header.metadata = map.next_value::<Pairs<String>>()?.0;
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
