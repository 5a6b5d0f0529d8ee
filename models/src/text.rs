//! Model definitions as text: reading with positions in errors, writing with units in comments.

use std::fmt::{Display, Write};
use std::fs;
use std::path::Path;

use ron::Options;
use ron::extensions::Extensions;

use crate::error::ModelError;
use crate::limits;
use crate::schema::{
    Attention, Bias, Block, ChatTemplate, Gqa, Mlp, ModelDef, Norm, Pairs, Rope, Scaling,
    TokenizerSource,
};

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
    out.field("layers", def.layers, "the runs of blocks start over until all are described");
    out.open("blocks: [");
    for block in &def.blocks {
        write_block(&mut out, block);
    }
    out.close("],");
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

fn write_block(out: &mut Lines, block: &Block) {
    out.open("(");
    out.field("repeat", block.repeat, "layers");
    let Attention::Gqa(gqa) = &block.attention;
    write_gqa(out, gqa);
    if block.post_norms {
        out.field("post_norms", true, "");
    }
    match &block.mlp {
        Mlp::Gated(gated) => {
            let act = gated.act;
            let text = format!("Gated(intermediate: {}, act: {act:?})", gated.intermediate);
            out.field("mlp", text, "");
        }
        Mlp::Moe(moe) => {
            out.open("mlp: Moe(");
            out.field("experts", moe.experts, "");
            out.field("top_k", moe.top_k, "experts a token");
            out.field("intermediate", moe.intermediate, "width of one expert");
            out.field("norm_top_k", moe.norm_top_k, "weights of the chosen sum to 1");
            out.field("act", format!("{:?}", moe.act), "");
            out.close("),");
        }
    }
    out.close("),");
}

fn write_gqa(out: &mut Lines, gqa: &Gqa) {
    out.open("attention: Gqa(");
    out.field("heads", gqa.heads, "");
    out.field("kv_heads", gqa.kv_heads, "");
    out.field("head_dim", gqa.head_dim, "");
    if gqa.qk_norm {
        out.field("qk_norm", true, "");
    }
    if gqa.bias != Bias::None {
        out.field("bias", format!("{:?}", gqa.bias), "");
    }
    write_rope(out, &gqa.rope);
    if let Some(scale) = gqa.scale {
        out.field("scale", format!("{scale:?}"), "factor on q . k");
    }
    if let Some(window) = gqa.window {
        out.field("window", window, "positions seen, the query's own included");
    }
    out.close("),");
}

fn write_rope(out: &mut Lines, rope: &Rope) {
    let mut text = format!("theta: {:?}", rope.theta);
    if let Some(dims) = rope.dims {
        let _ = write!(text, ", dims: {dims}");
    }
    if rope.pairing != Pairs::Halves {
        let _ = write!(text, ", pairing: {:?}", rope.pairing);
    }
    let scaling = match &rope.scaling {
        Scaling::None => {
            return out.line(&format!("rope: ({text}),"));
        }
        Scaling::Linear { factor } => format!("Linear(factor: {factor:?})"),
        Scaling::Llama3 { factor, low, high, original_context } => format!(
            "Llama3(factor: {factor:?}, low: {low:?}, high: {high:?}, \
             original_context: {original_context})"
        ),
        Scaling::Divisors(divisors) => format!("Divisors({divisors:?})"),
    };
    out.open("rope: (");
    out.line(&format!("{text},"));
    out.field("scaling", scaling, "");
    out.close("),");
}

fn write_files(out: &mut Lines, def: &ModelDef) {
    let weights = &def.weights;
    out.open("weights: (");
    out.field("layout", format!("{:?}", weights.layout), "");
    if weights.prefix != "model." {
        out.field("prefix", quoted(&weights.prefix), "of tensor names");
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
