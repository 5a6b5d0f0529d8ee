//! Model definitions as text: reading with positions in errors, writing with units in comments.

mod blocks;

use std::fmt::{Display, Write};
use std::fs;
use std::path::Path;

use ron::Options;
use ron::extensions::Extensions;

use crate::error::ModelError;
use crate::limits;
use crate::schema::{ChatTemplate, ModelDef, Norm, Residual, TokenizerSource};

/// Reads and checks the definition in the file at `path`.
///
/// # Errors
/// [`ModelError::Read`], [`ModelError::Syntax`] with the line, or [`ModelError::Field`].
pub fn open(path: &Path) -> Result<ModelDef, ModelError> {
    let text =
        fs::read_to_string(path).map_err(|error| ModelError::Read { path: path.into(), error })?;
    parse(&text).map_err(|error| match error {
        ModelError::Syntax { line, column, message, .. } => {
            ModelError::Syntax { path: Some(path.into()), line, column, message }
        }
        other => other,
    })
}

/// Reads and checks a definition. Fields that may be absent are written without `Some`.
///
/// # Errors
/// [`ModelError::Syntax`] with the line, or [`ModelError::Field`].
pub fn parse(text: &str) -> Result<ModelDef, ModelError> {
    let extensions = Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES;
    let def: ModelDef = Options::default()
        .with_default_extension(extensions)
        .from_str(text)
        .map_err(|error| ModelError::Syntax {
            path: None,
            line: error.span.start.line,
            column: error.span.start.col,
            message: error.code.to_string(),
        })?;
    limits::check(&def)?;
    Ok(def)
}

/// The definition as text; [`parse`] gives it back unchanged.
pub fn to_ron(def: &ModelDef) -> String {
    let mut out = Lines { text: String::new(), depth: 0 };
    out.line("// Sizes are element counts.");
    out.open("(");
    out.field("name", quoted(&def.name), "");
    out.field("hidden", def.hidden, "width of the residual stream");
    out.field("vocab", def.vocab, "rows of the embedding table");
    out.field("context", def.context, "tokens");
    let Norm::RmsNorm { eps, zero_centred } = def.norm;
    if zero_centred {
        let norm = format!("RmsNorm(eps: {eps:?}, zero_centred: true)");
        out.field("norm", norm, "stored gains are gain - 1");
    } else {
        out.field("norm", format!("RmsNorm(eps: {eps:?})"), "");
    }
    if def.embed_scale != 1.0 {
        out.field("embed_scale", format!("{:?}", def.embed_scale), "factor on embedding rows");
    }
    if let Residual::HyperConnections { streams, low_rank } = def.residual {
        let text = format!("HyperConnections(streams: {streams}, low_rank: {low_rank})");
        out.field("residual", text, "streams of `hidden`");
    }
    out.field("layers", def.layers, "the runs of blocks start over until all are described");
    out.open("blocks: [");
    for block in &def.blocks {
        blocks::write_block(&mut out, "(", block);
    }
    out.close("],");
    if let Some(ngram) = &def.ngram {
        blocks::write_ngram(&mut out, ngram);
    }
    if let Some(draft) = &def.draft {
        blocks::write_draft(&mut out, draft);
    }
    out.field("head", format!("{:?}", def.head), "");
    write_files(&mut out, def);
    out.close(")");
    out.text
}

/// Lines of RON in the making.
struct Lines {
    text: String,
    depth: usize,
}

impl Lines {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "{:width$}{text}", "", width = 4 * self.depth);
    }

    fn open(&mut self, text: &str) {
        self.line(text);
        self.depth += 1;
    }

    fn close(&mut self, text: &str) {
        self.depth -= 1;
        self.line(text);
    }

    /// `name: value, // comment`, the comment only if there is one.
    fn field(&mut self, name: &str, value: impl Display, comment: &str) {
        let comment = if comment.is_empty() { String::new() } else { format!(" // {comment}") };
        self.line(&format!("{name}: {value},{comment}"));
    }
}

fn write_files(out: &mut Lines, def: &ModelDef) {
    let weights = &def.weights;
    out.open("weights: (");
    out.field("layout", format!("{:?}", weights.layout), "");
    if weights.prefix != "model." {
        out.field("prefix", quoted(&weights.prefix), "of tensor names");
    }
    if !weights.renamed.is_empty() {
        let pair =
            |(ours, theirs): &(String, String)| format!("({}, {})", quoted(ours), quoted(theirs));
        let pairs: Vec<String> = weights.renamed.iter().map(pair).collect();
        out.field("renamed", format!("[{}]", pairs.join(", ")), "parts of names: (ours, theirs)");
    }
    let files: Vec<String> = weights.files.iter().map(|file| quoted(file)).collect();
    out.field("files", format!("[{}]", files.join(", ")), "beside this file");
    out.close("),");
    out.open("tokens: (");
    if let Some(bos) = def.tokens.bos {
        out.field("bos", bos, "");
    }
    out.field("eos", format!("{:?}", def.tokens.eos), "generation stops at any of these");
    if def.tokens.add_bos {
        out.field("add_bos", true, "");
    }
    out.close("),");
    let tokenizer = match &def.tokenizer {
        TokenizerSource::SameAsWeights => "SameAsWeights".into(),
        TokenizerSource::File(file) => format!("File({})", quoted(file)),
    };
    out.field("tokenizer", tokenizer, "");
    let template = match &def.chat_template {
        ChatTemplate::None => "None".into(),
        ChatTemplate::SameAsTokenizer => "SameAsTokenizer".into(),
        ChatTemplate::File(file) => format!("File({})", quoted(file)),
    };
    out.field("chat_template", template, "");
}

/// A RON string. Escapes are those that RON and Rust share.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
