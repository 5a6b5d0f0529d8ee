//! `strata tokenize`.

use std::io::Write;
use std::path::PathBuf;

use crate::CliError;
use crate::error::Doing;
use crate::vocabulary::Vocabulary;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata tokenize model.plan 'Hello world'
  strata tokenize model.gguf --special '<|im_start|>user'
  strata tokenize model.plan --decode 9906,1917")]
pub struct TokenizeArgs {
    /// A plan, a GGUF file, a tokenizer.json, or a folder that holds one
    source: PathBuf,
    /// Text to encode
    #[arg(required_unless_present = "decode", conflicts_with = "decode")]
    text: Option<String>,
    /// Token ids to decode
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    decode: Option<Vec<u32>>,
    /// Let the text contain control tokens
    #[arg(long)]
    special: bool,
    /// Begin with the token that begins a text
    #[arg(long)]
    bos: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `strata tokenize`.
pub fn tokenize(args: &TokenizeArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let vocabulary = Vocabulary::open(&args.source)?;
    let (ids, text) = match (&args.text, &args.decode) {
        (Some(text), _) => (vocabulary.encode(text, args.special, args.bos)?, text.clone()),
        (None, Some(ids)) => (ids.clone(), vocabulary.decode(ids)?),
        (None, None) => unreachable!("clap asks for one of the two"),
    };
    if args.json {
        let pieces =
            ids.iter().map(|&id| vocabulary.decode(&[id])).collect::<Result<Vec<_>, _>>()?;
        let json = serde_json::json!({ "tokens": ids, "pieces": pieces, "text": text });
        serde_json::to_writer(&mut *out, &json).doing("writing JSON")?;
        writeln!(out)?;
    } else if args.decode.is_some() {
        writeln!(out, "{text}")?;
    } else {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(" "))?;
    }
    Ok(())
}
