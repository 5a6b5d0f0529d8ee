//! Token ids and chat template from the files beside `config.json`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::config::Config;
use crate::error::ModelError;
use crate::schema::{ChatTemplate, Tokens};

/// Special tokens and where the template is. Of the keys in several files those of
/// `generation_config.json` count first, as it was made for generating.
pub(super) fn read(
    config: &Config<'_>,
    root: &Value,
) -> Result<(Tokens, ChatTemplate), ModelError> {
    let folder = folder_of(config.path);
    let generation = read_json(&folder.join("generation_config.json"))?;
    let tokenizer = read_json(&folder.join("tokenizer_config.json"))?;
    let at = |json| Config::new(config.path, json);
    let sources = [generation.as_ref().map(at), Some(at(root)), Some(at(config.json))];
    let mut ids = [None, None];
    for source in sources.iter().flatten() {
        for (slot, key) in ids.iter_mut().zip(["bos_token_id", "eos_token_id"]) {
            if slot.is_none() {
                *slot = source.ids(key)?;
            }
        }
    }
    let [bos, eos] = ids;
    let bos = bos.and_then(|ids| ids.first().copied());
    let asked = tokenizer.as_ref().map(at).map_or(Ok(None), |t| t.flag("add_bos_token"))?;
    let add_bos = match asked {
        Some(add_bos) => add_bos,
        None => template_begins_with_special(&folder.join("tokenizer.json"))?,
    };
    let has_template = folder.join("chat_template.jinja").is_file()
        || tokenizer.is_some_and(|json| json.get("chat_template").is_some());
    let template = if has_template { ChatTemplate::SameAsTokenizer } else { ChatTemplate::None };
    let tokens = Tokens { bos, eos: eos.unwrap_or_default(), add_bos: add_bos && bos.is_some() };
    Ok((tokens, template))
}

fn folder_of(path: &Path) -> &Path {
    if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) }
}

/// `None` if there is no such file.
fn read_json(path: &Path) -> Result<Option<Value>, ModelError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(ModelError::Read { path: path.into(), error }),
    };
    serde_json::from_str(&text).map(Some).map_err(|error| ModelError::Syntax {
        path: Some(path.into()),
        line: error.line(),
        column: error.column(),
        message: error.to_string(),
    })
}

/// Whether the post-processor of a `tokenizer.json` puts a special token before a text.
fn template_begins_with_special(path: &Path) -> Result<bool, ModelError> {
    let Some(json) = read_json(path)? else { return Ok(false) };
    let processor = &json["post_processor"];
    let listed = processor["processors"].as_array().map_or(&[][..], Vec::as_slice);
    let begins = |processor: &Value| {
        processor["single"].get(0).is_some_and(|first| first.get("SpecialToken").is_some())
    };
    Ok(begins(processor) || listed.iter().any(begins))
}
