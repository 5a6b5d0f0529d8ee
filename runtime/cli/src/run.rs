//! `strata run`.

use std::io::Write;
use std::path::{Path, PathBuf};

use strata_replay::{Engine, Sampling};

use crate::CliError;
use crate::error::Doing;
use crate::generate::{Request, Sequence, open_with_vocabulary};
use crate::progress::Progress;
use crate::speculation::DraftArg;
use crate::trace::RoutingTrace;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata run model.plan --prompt 'Why is the sky blue?'
  strata run model.plan --raw --prompt 'def fibonacci(n):' --max-tokens 64 --json
  strata run model.plan --chat --temp 0.7 --top-p 0.9
  strata run model.plan --prompt \"$(cat long.txt)\" --save-state long.state
  strata run model.ron --prompt 'Hello'        # compiled into the cache first")]
pub struct RunArgs {
    /// A plan, or a model definition (.ron) to compile first
    plan: PathBuf,
    /// Text to answer; through the model's chat template if it has one
    #[arg(long, required_unless_present = "chat", conflicts_with = "chat")]
    prompt: Option<String>,
    /// Talk to the model
    #[arg(long)]
    chat: bool,
    /// Continue the prompt as it is, control tokens included, without a chat template
    #[arg(long)]
    raw: bool,
    /// System message of the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Tokens to generate at most
    #[arg(short = 'n', long, value_name = "N")]
    max_tokens: Option<u32>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// End the text before this string; can be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after the token that ends a text
    #[arg(long)]
    ignore_eos: bool,
    /// Tokens to guess and check at once: auto, a number, or off. The text is the same
    #[arg(long, value_name = "N", default_value = "auto")]
    draft: DraftArg,
    /// Write the state behind the prompt, so that it need not be read again
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    save_state: Option<PathBuf>,
    /// Begin with a saved state; what the prompt has in common with it is not read again
    #[arg(long, value_name = "FILE")]
    load_state: Option<PathBuf>,
    /// Write the experts of each token that is read to a file
    #[arg(long, value_name = "FILE")]
    trace_routing: Option<PathBuf>,
    /// Print one JSON object at the end instead of text
    #[arg(long, conflicts_with = "chat")]
    json: bool,
    /// Worker threads; the plan's number, or all allowed cores, if not given
    #[arg(short, long)]
    threads: Option<u32>,
}

#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SamplingArgs {
    /// 0 takes the most probable token
    #[arg(long = "temp", visible_alias = "temperature", default_value_t = 0.0)]
    temperature: f32,
    /// Keep the K most probable tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,
    /// Keep the fewest tokens that sum to this probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Drop tokens below this fraction of the most probable one
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Make tokens of the last --repeat-tokens less probable; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,
    /// Tokens that --repeat-penalty looks back
    #[arg(long, value_name = "N", default_value_t = 64)]
    repeat_tokens: u32,
    /// Seed of the sampler
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    fn checked(self) -> Result<Sampling, CliError> {
        let within = |name: &str, value: f32, low: f32, high: f32| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                Err(CliError::Usage(format!("{name} is {value}, needs {low} to {high}")))
            }
        };
        within("--temp", self.temperature, 0.0, 100.0)?;
        within("--top-p", self.top_p, f32::MIN_POSITIVE, 1.0)?;
        within("--min-p", self.min_p, 0.0, 1.0)?;
        within("--repeat-penalty", self.repeat_penalty, 0.01, 100.0)?;
        Ok(Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            repeat_tokens: self.repeat_tokens,
            seed: self.seed,
        })
    }
}

/// Runs `strata run`.
pub fn run(args: &RunArgs, progress: &Progress, out: &mut dyn Write) -> Result<(), CliError> {
    let request = Request {
        max_tokens: args.max_tokens,
        sampling: args.sampling.checked()?,
        stops: args.stop.clone(),
        ignore_eos: args.ignore_eos,
    };
    let plan = plan_of(&args.plan, progress)?;
    let mut model = open_with_vocabulary(&plan, args.threads, progress)?;
    let mut sequence = sequence_of(args, &mut model.engine)?;
    let Some(prompt) = &args.prompt else {
        let chat = crate::chat::Chat { raw: args.raw, system: args.system.clone(), request };
        return chat.run(&mut model, &mut sequence, out);
    };
    let prompt = if args.raw {
        model.vocabulary.encode_raw(prompt)?
    } else {
        model.vocabulary.encode_chat(&crate::chat::messages(args.system.as_deref(), prompt))?
    };
    let (json, loaded) = (args.json, sequence.held_tokens(&model.engine)?);
    let generated = sequence.generate(&mut model, &prompt, &request, &mut |text| {
        if !json {
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    })?;
    if generated.cached_tokens < loaded {
        progress.note(&format!(
            "of the {loaded} saved tokens the prompt begins with {}, the rest was read again",
            generated.cached_tokens
        ));
    }
    if json {
        serde_json::to_writer(&mut *out, &generated).doing("writing JSON")?;
    }
    writeln!(out)?;
    if !json && progress.is_shown() {
        let mut notes = std::io::stderr();
        let _ = writeln!(
            notes,
            "[{} prompt tokens, {} of them known, at {:.1}/s, {} tokens at {:.1}/s, first after \
             {:.0} ms, {} of {} drafts accepted]",
            generated.prompt_tokens,
            generated.cached_tokens,
            generated.prefill_tokens_per_s,
            generated.tokens.len(),
            generated.decode_tokens_per_s,
            generated.first_token_ms,
            generated.speculation.accepted,
            generated.speculation.drafted
        );
    }
    Ok(())
}

fn sequence_of(args: &RunArgs, engine: &mut Engine) -> Result<Sequence, CliError> {
    let mut sequence = match &args.load_state {
        Some(file) => Sequence::load(engine, file, args.draft.0)?,
        None => Sequence::new(engine, args.draft.0)?,
    };
    if let Some(file) = &args.trace_routing {
        sequence.trace(RoutingTrace::new(engine, file)?);
    }
    if let Some(file) = &args.save_state {
        sequence.save_prompt(file.clone());
    }
    Ok(sequence)
}

/// The plan itself, or the cached plan of a model definition.
fn plan_of(path: &Path, progress: &Progress) -> Result<PathBuf, CliError> {
    if path.extension().is_none_or(|e| e != "ron") {
        return Ok(path.to_owned());
    }
    #[cfg(feature = "compiler")]
    return crate::compile::compile_into_cache(path, progress);
    #[cfg(not(feature = "compiler"))]
    {
        let _ = progress;
        Err(CliError::Usage(format!(
            "{} is a model definition and this strata was built without the compiler: \
             compile it elsewhere and run the plan",
            path.display()
        )))
    }
}
