//! The words of a model: found through a plan, a GGUF file or a tokenizer.json.

use std::io::Read;
use std::path::Path;

use serde_json::Value;
use strata_formats::Metadata;
use strata_plan::Plan;
use strata_plan::layout::NONE;
use strata_text::{
    ChatRequest, ChatTemplate, Detokenizer, GgufVocab, Specials, Tokenizer, encode_chat,
};

use crate::CliError;
use crate::error::Doing;
use crate::generate::Prompt;

/// A tokenizer, the template of conversations and the tokens that end a text.
pub struct Vocabulary {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    stop_tokens: Vec<u32>,
    /// The token that every text begins with, if the model wants one.
    leading_token: Option<u32>,
}

impl Vocabulary {
    /// Of the file that a plan names, with the plan's template and end tokens.
    fn of_plan(path: &Path, plan: &Plan) -> Result<Self, CliError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let Some(file) = plan.files().get(plan.model().tokenizer_file as usize) else {
            return Err(CliError::Usage(format!(
                "{} names no vocabulary, so it cannot read or write text: add `tokenizer` to its \
                 model definition and compile again",
                path.display()
            )));
        };
        let tokenizer = read_tokenizer(&plan.file_path(file, folder))?;
        let template = plan
            .chat_template()
            .map(ChatTemplate::new)
            .transpose()
            .doing("reading the chat template of the plan")?;
        let mut stop_tokens = plan.stop_tokens().to_vec();
        stop_tokens.extend_from_slice(tokenizer.end_ids());
        let model = plan.model();
        let leading_token = (model.add_bos != 0 && model.bos != NONE).then_some(model.bos);
        Ok(Self { tokenizer, template, stop_tokens, leading_token })
    }

    /// Of a plan, a GGUF file, a tokenizer.json or a folder that holds one.
    pub fn open(path: &Path) -> Result<Self, CliError> {
        if begins_with(path, &strata_plan::layout::MAGIC) {
            let plan = Plan::open(path).doing(format!("opening {}", path.display()))?;
            return Self::of_plan(path, &plan);
        }
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let tokenizer = read_tokenizer(&path)?;
        let stop_tokens = tokenizer.end_ids().to_vec();
        let leading_token = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        Ok(Self { tokenizer, template: None, stop_tokens, leading_token })
    }

    /// The text as it is; control tokens only if `special`.
    pub fn encode(&self, text: &str, special: bool, bos: bool) -> Result<Vec<u32>, CliError> {
        let specials = if special { Specials::Parse } else { Specials::AsText };
        let body = self.tokenizer.encode(text, specials, false).doing("encoding text")?;
        Ok(self.leading_token.filter(|_| bos).into_iter().chain(body).collect())
    }

    /// A prompt that is continued as it is, control tokens included.
    pub fn encode_raw(&self, text: &str) -> Result<Prompt, CliError> {
        Ok(Prompt { tokens: self.encode(text, true, true)?, boundary: 0 })
    }

    /// A text to be scored: no control tokens in it.
    pub fn encode_document(&self, text: &str) -> Result<Vec<u32>, CliError> {
        self.encode(text, false, true)
    }

    /// A conversation that the model is to answer; without a template its texts, line by line.
    pub fn encode_chat(&self, messages: &[Value]) -> Result<Prompt, CliError> {
        let tokens = self.encode_messages(messages, true)?;
        let before = self.encode_messages(messages, false)?;
        // The next turn may write the beginning of the answer in another way.
        let same = tokens.iter().zip(&before).take_while(|(a, b)| a == b).count();
        let boundary = same.min(tokens.len().saturating_sub(1));
        Ok(Prompt { tokens, boundary })
    }

    fn encode_messages(&self, messages: &[Value], answer: bool) -> Result<Vec<u32>, CliError> {
        let Some(template) = &self.template else {
            let texts: Vec<&str> = messages.iter().filter_map(|m| m["content"].as_str()).collect();
            return self.encode_document(&texts.join("\n"));
        };
        let request = ChatRequest {
            messages: Value::Array(messages.to_vec()),
            add_generation_prompt: answer,
            bos_token: self.tokenizer.bos().map(|id| self.tokenizer.token_text(id)),
            eos_token: self.tokenizer.eos().map(|id| self.tokenizer.token_text(id)),
            ..ChatRequest::default()
        };
        encode_chat(template, &self.tokenizer, &request).doing("rendering the chat template")
    }

    pub fn decode(&self, ids: &[u32]) -> Result<String, CliError> {
        let known = self.tokenizer.vocab_len();
        if let Some(id) = ids.iter().find(|id| **id as usize >= known) {
            return Err(CliError::Usage(format!("token {id} is not one of the {known} there are")));
        }
        Ok(self.tokenizer.decode(ids, false))
    }

    pub fn detokenizer(&self) -> Detokenizer<'_> {
        Detokenizer::continuing(&self.tokenizer, true)
    }

    pub fn ends_text(&self, token: u32) -> bool {
        self.stop_tokens.contains(&token)
    }

    /// The token that every text begins with, if the model wants one.
    pub fn leading_token(&self) -> Option<u32> {
        self.leading_token
    }

    /// Bytes of text that a token stands for.
    pub fn token_bytes(&self, token: u32) -> usize {
        self.tokenizer.token_bytes(token).len()
    }
}

const GGUF_MAGIC: &[u8] = b"GGUF";

/// Whether a file begins with `magic`: files are known by what they hold, not by their names.
fn begins_with(path: &Path, magic: &[u8]) -> bool {
    let mut found = vec![0; magic.len()];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut found));
    read.is_ok() && found == magic
}

fn read_tokenizer(path: &Path) -> Result<Tokenizer, CliError> {
    let doing = || format!("reading the vocabulary of {}", path.display());
    if !begins_with(path, GGUF_MAGIC) {
        return Tokenizer::from_file(path).doing(doing());
    }
    let source = strata_formats::FileBytes::map(path).doing(doing())?;
    let gguf = strata_formats::Gguf::read(source).doing(doing())?;
    let columns = columns(gguf.metadata()).doing(doing())?;
    Tokenizer::from_gguf(&columns).doing(doing())
}

/// The `tokenizer.ggml.*` keys.
fn columns(metadata: &Metadata) -> Result<GgufVocab, strata_formats::KeyError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let strings = |name: &str| -> Result<Vec<String>, strata_formats::KeyError> {
        let found = metadata.strs(&key(name))?.unwrap_or_default();
        Ok(found.into_iter().map(str::to_owned).collect())
    };
    let types = metadata.i64s(&key("token_type"))?;
    Ok(GgufVocab {
        model: metadata.str(&key("model"))?.unwrap_or_default().to_owned(),
        pre: metadata.str(&key("pre"))?.unwrap_or_default().to_owned(),
        tokens: strings("tokens")?,
        scores: metadata.f32s(&key("scores"))?,
        types: types
            .map(|all| all.into_iter().map(|t| i32::try_from(t).unwrap_or(i32::MAX)).collect()),
        merges: strings("merges")?,
        bos: metadata.u32(&key("bos_token_id"))?,
        eos: metadata.u32(&key("eos_token_id"))?,
        unk: metadata.u32(&key("unknown_token_id"))?,
        pad: metadata.u32(&key("padding_token_id"))?,
        eot: metadata.u32(&key("eot_token_id"))?,
        add_bos: metadata.bool(&key("add_bos_token"))?,
        add_eos: metadata.bool(&key("add_eos_token"))?,
        add_space_prefix: metadata.bool(&key("add_space_prefix"))?,
    })
}

/// The chat template that comes with a vocabulary: in a GGUF's metadata, or in files beside a
/// tokenizer.json.
#[cfg_attr(not(feature = "compiler"), allow(dead_code, reason = "plans carry the template"))]
pub fn chat_template_beside(tokenizer: &Path) -> Result<Option<String>, CliError> {
    if begins_with(tokenizer, GGUF_MAGIC) {
        let doing = || format!("reading the metadata of {}", tokenizer.display());
        let source = strata_formats::FileBytes::map(tokenizer).doing(doing())?;
        let gguf = strata_formats::Gguf::read(source).doing(doing())?;
        let template = gguf.metadata().str("tokenizer.chat_template").doing(doing())?;
        return Ok(template.map(str::to_owned));
    }
    ChatTemplate::source_beside(tokenizer)
        .doing(format!("looking for a chat template beside {}", tokenizer.display()))
}
