//! Generating text: one sequence, from a prompt to a stop.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use strata_replay::{Engine, EngineOptions, Row, Sampler, Sampling, SlotId};
use strata_text::{Detokenizer, StopFilter};

use crate::CliError;
use crate::error::Doing;
use crate::progress::Progress;
use crate::vocabulary::Vocabulary;

/// Opens a plan that the user may trust and loads its weights, with a bar.
pub fn open_engine(
    plan: &Path,
    threads: Option<u32>,
    progress: &Progress,
) -> Result<Engine, CliError> {
    let bar = progress.bytes("loading");
    let options = EngineOptions { threads, ..EngineOptions::default() };
    let engine = Engine::open(plan, &options, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    })
    .doing(format!("opening {}", plan.display()))?;
    bar.finish_and_clear();
    Ok(engine)
}

/// A plan that is ready, and the words of its model.
pub struct Loaded {
    pub engine: Engine,
    pub vocabulary: Vocabulary,
}

/// Opens a plan while another thread reads its vocabulary: for small models that takes as long.
pub fn open_with_vocabulary(
    plan: &Path,
    threads: Option<u32>,
    progress: &Progress,
) -> Result<Loaded, CliError> {
    std::thread::scope(|scope| {
        let vocabulary = scope.spawn(|| Vocabulary::open(plan));
        let engine = open_engine(plan, threads, progress)?;
        let vocabulary = vocabulary.join().unwrap_or_else(|_| {
            Err(CliError::Usage(format!("the vocabulary of {} cannot be read", plan.display())))
        })?;
        Ok(Loaded { engine, vocabulary })
    })
}

/// When to stop and how to choose tokens.
#[derive(Clone, Debug)]
pub struct Request {
    pub max_tokens: Option<u32>,
    pub sampling: Sampling,
    pub stops: Vec<String>,
    /// Go on after a token that ends a text.
    pub ignore_eos: bool,
}

/// Why a text ended, in the words of the OpenAI API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// A token or a string that ends the text.
    Stop,
    /// The limit of tokens, or the end of the context.
    Length,
}

/// A finished text and what it took.
#[derive(Clone, Debug, Serialize)]
pub struct Generated {
    pub prompt_tokens: u32,
    /// Tokens of the prompt that were still there from the turn before.
    pub cached_tokens: u32,
    pub tokens: Vec<u32>,
    pub text: String,
    pub finish_reason: FinishReason,
    pub prefill_tokens_per_s: f64,
    pub decode_tokens_per_s: f64,
    pub first_token_ms: f64,
}

/// A sequence in the engine and the tokens that it holds.
#[derive(Debug)]
pub struct Sequence {
    slot: SlotId,
    tokens: Vec<u32>,
}

impl Sequence {
    pub fn new(engine: &mut Engine) -> Result<Self, CliError> {
        let slot = engine.new_sequence().doing("starting a sequence")?;
        Ok(Self { slot, tokens: Vec::new() })
    }

    pub fn reset(&mut self, engine: &mut Engine) -> Result<(), CliError> {
        engine.truncate(self.slot, 0).doing("resetting the sequence")?;
        self.tokens.clear();
        Ok(())
    }

    /// Continues `prompt`, of which the common beginning with what the sequence holds is not read
    /// again. Each piece of text goes to `on_text` as soon as no stop string can take it back.
    pub fn generate(
        &mut self,
        Loaded { engine, vocabulary }: &mut Loaded,
        prompt: &[u32],
        request: &Request,
        on_text: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Generated, CliError> {
        let began = Instant::now();
        let cached = self.keep_common(engine, prompt)?;
        let mut sampler = Sampler::new(request.sampling, engine.model().vocab as usize);
        let mut text = TextStream::new(vocabulary, &request.stops)?;
        let mut next = self.read(engine, &prompt[cached..], &mut sampler)?;
        let prefilled = began.elapsed().as_secs_f64();

        let limit = self.token_limit(engine, request.max_tokens);
        let mut tokens = Vec::with_capacity(limit.min(1 << 20));
        let mut finish = FinishReason::Length;
        while tokens.len() < limit {
            tokens.push(next);
            if !request.ignore_eos && vocabulary.ends_text(next) {
                finish = FinishReason::Stop;
                break;
            }
            if text.push(next, on_text)? {
                finish = FinishReason::Stop;
                break;
            }
            if tokens.len() < limit {
                next = self.read(engine, &[next], &mut sampler)?;
            }
        }
        text.finish(on_text)?;
        let decoded = began.elapsed().as_secs_f64() - prefilled;
        let decode_steps = tokens.len().saturating_sub(1);
        Ok(Generated {
            prompt_tokens: prompt.len() as u32,
            cached_tokens: cached as u32,
            tokens,
            text: text.all,
            finish_reason: finish,
            prefill_tokens_per_s: (prompt.len() - cached) as f64 / prefilled,
            decode_tokens_per_s: if decode_steps > 0 { decode_steps as f64 / decoded } else { 0.0 },
            first_token_ms: prefilled * 1e3,
        })
    }

    /// Truncates to the common beginning with `prompt`; its last token is always read again.
    fn keep_common(&mut self, engine: &mut Engine, prompt: &[u32]) -> Result<usize, CliError> {
        if prompt.is_empty() {
            return Err(CliError::Usage("the prompt has no tokens: give it some text".into()));
        }
        let same = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let keep = same.min(prompt.len() - 1);
        engine.truncate(self.slot, keep as u32).doing("reusing the conversation")?;
        self.tokens.truncate(keep);
        Ok(keep)
    }

    /// Appends `tokens` in the largest windows there are and samples what follows.
    fn read(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        sampler: &mut Sampler,
    ) -> Result<u32, CliError> {
        let window = engine.model().max_rows as usize;
        let mut chunks = tokens.chunks(window).peekable();
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            let row = |(i, &token): (usize, &u32)| Row {
                token,
                slot: self.slot,
                logits: last && i + 1 == chunk.len(),
            };
            let rows: Vec<Row> = chunk.iter().enumerate().map(row).collect();
            let output = engine.run(&rows).doing("running a window")?;
            self.tokens.extend_from_slice(chunk);
            if last {
                return Ok(sampler.sample(output.logits(0), &self.tokens));
            }
        }
        unreachable!("callers give at least one token")
    }

    fn token_limit(&self, engine: &Engine, max_tokens: Option<u32>) -> usize {
        let room = (engine.model().context_tokens as usize).saturating_sub(self.tokens.len());
        // The last token of a text is sampled but need not be read.
        (room + 1).min(max_tokens.map_or(usize::MAX, |n| n as usize))
    }
}

/// Tokens to text to what may be shown.
struct TextStream<'v> {
    detokenizer: Detokenizer<'v>,
    stops: StopFilter,
    all: String,
}

impl<'v> TextStream<'v> {
    fn new(vocabulary: &'v Vocabulary, stops: &[String]) -> Result<Self, CliError> {
        let stops = StopFilter::new(stops).map_err(|error| CliError::Usage(error.to_string()))?;
        Ok(Self { detokenizer: vocabulary.detokenizer(), stops, all: String::new() })
    }

    /// True if a stop string was met.
    fn push(
        &mut self,
        token: u32,
        on_text: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<bool, CliError> {
        let Some(piece) = self.detokenizer.push(token) else { return Ok(false) };
        let emit = self.stops.push(piece);
        self.show(&emit.text, on_text)?;
        Ok(emit.stopped.is_some())
    }

    fn finish(
        &mut self,
        on_text: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        let piece = self.detokenizer.flush().unwrap_or_default();
        let mut rest = self.stops.push(piece).text;
        rest.push_str(&self.stops.finish());
        self.show(&rest, on_text)
    }

    fn show(
        &mut self,
        text: &str,
        on_text: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        self.all.push_str(text);
        on_text(text)
    }
}
