//! Chat templates: Jinja as `transformers` sets it up (block trimming on, loop controls, Python's
//! string methods, `raise_exception`, `strftime_now`, `tojson`).

use std::error::Error as _;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, State, Value, syntax::SyntaxConfig};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Map;

use crate::guard::{Guard, GuardedPrompt, literals_of, unused_char};
use crate::python::JsonStyle;
use crate::strftime::strftime;

/// Steps that one render may take, about half a second's worth. A thousand messages need some hundred
/// thousand.
const FUEL: u64 = 5_000_000;

const NAME: &str = "chat_template";
/// Names under which the render's own values stand among the template's variables.
const NOW: &str = "__now_unix_s";
const MARK: &str = "__mark";

/// Why a template was refused or a chat could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// The template is not Jinja as we know it.
    Syntax { line: usize, detail: String },
    /// The template failed on this chat.
    Render { line: usize, detail: String },
    /// The template refused this chat with `raise_exception`.
    Raised { message: String },
    /// The request holds every character that could mark its text.
    NoMark,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { line, detail } => write!(
                f,
                "chat template, line {line}: {detail}; give another template or a raw prompt"
            ),
            Self::Render { line, detail } => {
                write!(f, "chat template, line {line}, failed on these messages: {detail}")
            }
            Self::Raised { message } => write!(f, "the chat template refused the chat: {message}"),
            Self::NoMark => write!(f, "the chat uses every character of three Unicode blocks"),
        }
    }
}

impl std::error::Error for TemplateError {}

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// A list of messages: `role`, `content`, and what else the template knows.
    pub messages: serde_json::Value,
    /// A list of tool schemas.
    pub tools: Option<serde_json::Value>,
    /// Whether the prompt ends with the head of the answer.
    pub add_generation_prompt: bool,
    /// Further variables (`enable_thinking`, ...); they win over the named ones.
    pub kwargs: Map<String, serde_json::Value>,
    /// Text of BOS. [`crate::encode_chat`] takes the tokenizer's if this is `None`.
    pub bos_token: Option<String>,
    /// Text of EOS, as above.
    pub eos_token: Option<String>,
    /// The time that `strftime_now` shows, in seconds since 1970 UTC; the clock's if `None`.
    pub now_unix_s: Option<i64>,
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    literals: Vec<String>,
}

impl ChatTemplate {
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python_method);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| syntax_error(&error))?;
        Ok(Self { environment, source: source.to_owned(), literals: literals_of(source) })
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt as one text, in which the request's text is not told from the template's. For
    /// what a model is to read, use [`crate::encode_chat`].
    ///
    /// # Errors
    /// [`TemplateError::Render`] and [`TemplateError::Raised`].
    pub fn render(&self, request: &ChatRequest) -> Result<String, TemplateError> {
        let variables = variables(request, |value| value.clone(), Map::clone);
        self.render_with(request, variables, None)
    }

    /// The prompt with the request's text marked, so that it cannot become one of `controls`,
    /// the texts of the control tokens.
    ///
    /// # Errors
    /// As [`Self::render`], and [`TemplateError::NoMark`].
    pub fn render_guarded(
        &self,
        request: &ChatRequest,
        controls: &[&str],
    ) -> Result<GuardedPrompt, TemplateError> {
        let tools = request.tools.as_ref().map(ToString::to_string).unwrap_or_default();
        let kwargs = serde_json::Value::Object(request.kwargs.clone()).to_string();
        let texts = [self.source.as_str(), &request.messages.to_string(), &tools, &kwargs];
        let mark = unused_char(&texts).ok_or(TemplateError::NoMark)?;
        let guard = Guard::new(mark, controls, &self.literals);
        let variables = variables(request, |value| guard.value(value), |map| guard.fields(map));
        let marked = self.render_with(request, variables, Some(mark))?;
        Ok(GuardedPrompt::new(marked, mark))
    }

    fn render_with(
        &self,
        request: &ChatRequest,
        mut variables: Map<String, serde_json::Value>,
        mark: Option<char>,
    ) -> Result<String, TemplateError> {
        variables.insert(NOW.to_owned(), request.now_unix_s.unwrap_or_else(clock_unix_s).into());
        if let Some(mark) = mark {
            variables.insert(MARK.to_owned(), mark.to_string().into());
        }
        let template = self.environment.get_template(NAME).map_err(|error| syntax_error(&error))?;
        template.render(Value::from(Serde(&variables))).map_err(|error| render_error(&error))
    }
}

/// The variables that `transformers` passes. Absent tools and documents are none, not undefined.
fn variables(
    request: &ChatRequest,
    guard: impl Fn(&serde_json::Value) -> serde_json::Value,
    guard_fields: impl Fn(&Map<String, serde_json::Value>) -> Map<String, serde_json::Value>,
) -> Map<String, serde_json::Value> {
    let mut variables = Map::new();
    variables.insert("messages".to_owned(), guard(&request.messages));
    let tools = request.tools.as_ref().map_or(serde_json::Value::Null, guard);
    variables.insert("tools".to_owned(), tools);
    variables.insert("documents".to_owned(), serde_json::Value::Null);
    variables.insert("add_generation_prompt".to_owned(), request.add_generation_prompt.into());
    for (name, text) in [("bos_token", &request.bos_token), ("eos_token", &request.eos_token)] {
        if let Some(text) = text {
            variables.insert(name.to_owned(), text.as_str().into());
        }
    }
    variables.extend(guard_fields(&request.kwargs));
    variables
}

fn clock_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// `{% generation %}` marks the assistant's text for training and prints nothing. A block that is
/// always taken keeps its white space control.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let inside = &rest[at + 2..];
        let Some(end) = inside.find("%}") else { break };
        let body = &inside[..end];
        let word = body.trim_matches(['-', '+']).trim();
        let replacement = match word {
            "generation" => "if true",
            "endgeneration" => "endif",
            other => other,
        };
        out.push_str(&rest[..at + 2]);
        if replacement == word {
            out.push_str(body);
        } else {
            out.push_str(&body.replacen(word, &format!(" {replacement} "), 1));
        }
        rest = &inside[end..];
    }
    out.push_str(rest);
    out
}

/// Carries the message of `raise_exception` through the engine's errors.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
}

fn strftime_now(state: &mut State, format: String) -> String {
    let now = state.lookup(NOW).and_then(|now| i64::try_from(now).ok());
    strftime(&format, now.unwrap_or_else(clock_unix_s))
}

fn tojson(
    state: &mut State,
    value: &Value,
    ensure_ascii: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    let value = serde_json::to_value(value).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, "tojson of a value that JSON lacks")
            .with_source(error)
    })?;
    let mut style = JsonStyle::new(args.get("indent")?);
    style.ensure_ascii =
        args.get::<Option<bool>>("ensure_ascii")?.or(ensure_ascii).unwrap_or(false);
    style.sort_keys = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(separators) = args.get::<Option<Vec<String>>>("separators")? {
        let [item, key] = <[String; 2]>::try_from(separators)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "separators are two strings"))?;
        (style.item_separator, style.key_separator) = (item, key);
    }
    args.assert_all_used()?;
    style.mark = state.lookup(MARK).and_then(|mark| mark.as_str()?.chars().next());
    Ok(style.dump(&value))
}

/// Python's methods, with those that the compatibility layer lacks.
fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let (Some(text), [affix]) = (value.as_str(), args)
        && let Some(affix) = affix.as_str()
    {
        let cut = match method {
            "removeprefix" => Some(text.strip_prefix(affix)),
            "removesuffix" => Some(text.strip_suffix(affix)),
            _ => None,
        };
        if let Some(cut) = cut {
            return Ok(Value::from(cut.unwrap_or(text)));
        }
    }
    unknown_method_callback(state, value, method, args)
}

fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(0), detail: detail(error) }
}

fn render_error(error: &Error) -> TemplateError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return TemplateError::Raised { message: raised.0.clone() };
        }
        source = inner.source();
    }
    TemplateError::Render { line: error.line().unwrap_or(0), detail: detail(error) }
}

fn detail(error: &Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
