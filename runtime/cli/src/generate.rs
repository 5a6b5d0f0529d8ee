//! Generating text: one sequence, from a prompt to a stop.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use strata_replay::speculate::{Draft, Speculator, Writing};
use strata_replay::{Engine, EngineOptions, Row, Sampler, Sampling, SlotId};
use strata_text::{Detokenizer, StopFilter};

use crate::CliError;
use crate::error::Doing;
use crate::progress::Progress;
use crate::speculation::Speculation;
use crate::trace::RoutingTrace;
use crate::vocabulary::Vocabulary;

/// Opens a plan that the user may trust and loads its weights, with a bar.
pub fn open_engine(
    plan: &Path,
    threads: Option<u32>,
    progress: &Progress,
) -> Result<Engine, CliError> {
    let bar = progress.bytes("loading");
    // One snapshot, for the beginning that turns of a conversation share.
    let options = EngineOptions { threads, snapshots: 1, ..EngineOptions::default() };
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

/// What a model reads.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub tokens: Vec<u32>,
    /// So many tokens will be there again in the next turn of a conversation; 0 if that is not
    /// known.
    pub boundary: usize,
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
    pub speculation: Speculation,
}

/// The snapshot that a sequence keeps.
const CHECKPOINT: u32 = 0;

/// A sequence in the engine, and all that goes with reading and writing it.
#[derive(Debug)]
pub struct Sequence {
    slot: SlotId,
    speculator: Speculator,
    /// Tokens of the snapshot that was taken of it.
    checkpoint: Option<usize>,
    trace: Option<RoutingTrace>,
    /// Where the state behind the prompt goes.
    save: Option<PathBuf>,
}

impl Sequence {
    pub fn new(engine: &mut Engine, draft: Draft) -> Result<Self, CliError> {
        let slot = engine.new_sequence().doing("starting a sequence")?;
        Ok(Self::of(engine, slot, draft))
    }

    /// The sequence in a file.
    pub fn load(engine: &mut Engine, file: &Path, draft: Draft) -> Result<Self, CliError> {
        let slot = engine.load_sequence(file).doing("loading a sequence")?;
        Ok(Self::of(engine, slot, draft))
    }

    fn of(engine: &Engine, slot: SlotId, draft: Draft) -> Self {
        let speculator = Speculator::new(engine, draft);
        Self { slot, speculator, checkpoint: None, trace: None, save: None }
    }

    /// Notes the experts of all tokens that are read from now on.
    pub fn trace(&mut self, trace: RoutingTrace) {
        self.trace = Some(trace);
    }

    /// Writes the state behind the next prompt, but for its last token, to `file`.
    pub fn save_prompt(&mut self, file: PathBuf) {
        self.save = Some(file);
    }

    /// Tokens that it holds.
    pub fn held_tokens(&self, engine: &Engine) -> Result<u32, CliError> {
        engine.position(self.slot).doing("looking at the sequence")
    }

    pub fn reset(&mut self, engine: &mut Engine) -> Result<(), CliError> {
        self.checkpoint = None;
        engine.truncate(self.slot, 0).doing("resetting the sequence")
    }

    /// Continues `prompt`, of which the common beginning with what the sequence holds is not read
    /// again. Each piece of text goes to `on_text` as soon as no stop string can take it back.
    pub fn generate(
        &mut self,
        Loaded { engine, vocabulary }: &mut Loaded,
        prompt: &Prompt,
        request: &Request,
        on_text: &mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Generated, CliError> {
        let began = Instant::now();
        let tokens = &prompt.tokens;
        let cached = self.keep_common(engine, tokens)?;
        let mut sampler = Sampler::new(request.sampling, engine.model().vocab as usize);
        let mut answer = Answer::new(vocabulary, request, on_text)?;
        let first = self.read(engine, prompt, cached, &mut sampler)?;
        let prefilled = began.elapsed().as_secs_f64();

        let room = (engine.model().context_tokens as usize).saturating_sub(tokens.len());
        // The last token of a text is sampled but need not be read.
        answer.limit = (room + 1).min(request.max_tokens.map_or(usize::MAX, |n| n as usize));
        let mut context = tokens.clone();
        context.push(first);
        let mut go_on = answer.limit > 0 && answer.take(first);
        self.speculator.take_stats();
        while go_on {
            let limit = answer.limit - answer.tokens.len();
            let text = Writing {
                sequence: self.slot,
                context: &mut context,
                sampler: &mut sampler,
                limit,
            };
            let take = &mut |token| {
                go_on = answer.take(token);
                go_on
            };
            let round = self.speculator.round(engine, text, take).doing("running a window")?;
            self.note(engine, round.tokens)?;
        }
        answer.finish()?;
        let decoded = began.elapsed().as_secs_f64() - prefilled;
        self.trace.as_mut().map_or(Ok(()), RoutingTrace::finish)?;
        let decode_steps = answer.tokens.len().saturating_sub(1);
        Ok(Generated {
            prompt_tokens: tokens.len() as u32,
            cached_tokens: cached as u32,
            tokens: answer.tokens,
            text: answer.text.all,
            finish_reason: answer.finish_reason,
            prefill_tokens_per_s: (tokens.len() - cached) as f64 / prefilled,
            decode_tokens_per_s: if decode_steps > 0 { decode_steps as f64 / decoded } else { 0.0 },
            first_token_ms: prefilled * 1e3,
            speculation: self.speculator.take_stats().into(),
        })
    }

    /// Goes back to the longest common beginning with `prompt` that the sequence can go back to;
    /// the last token of the prompt is always read again.
    fn keep_common(&mut self, engine: &mut Engine, prompt: &[u32]) -> Result<usize, CliError> {
        if prompt.is_empty() {
            return Err(CliError::Usage("the prompt has no tokens: give it some text".into()));
        }
        let held = engine.tokens(self.slot).doing("reusing the conversation")?;
        let (same, all) = (held.iter().zip(prompt).take_while(|(a, b)| a == b).count(), held.len());
        let mut keep = same.min(prompt.len() - 1);
        if keep < all && !engine.can_truncate() {
            keep = self.checkpoint.filter(|&tokens| tokens <= keep).unwrap_or(0);
            if keep > 0 {
                engine.restore(self.slot, CHECKPOINT).doing("reusing the conversation")?;
                return Ok(keep);
            }
            self.checkpoint = None;
        }
        engine.truncate(self.slot, keep as u32).doing("reusing the conversation")?;
        Ok(keep)
    }

    /// Appends the tokens of `prompt` from `cached` on, in the largest windows there are, and samples
    /// what follows.
    fn read(
        &mut self,
        engine: &mut Engine,
        prompt: &Prompt,
        cached: usize,
        sampler: &mut Sampler,
    ) -> Result<u32, CliError> {
        let tokens = &prompt.tokens;
        let last = tokens.len() - 1;
        let boundary = if engine.can_truncate() { 0 } else { prompt.boundary };
        let save = self.save.as_ref().map_or(0, |_| last);
        let window = engine.model().max_rows as usize;
        let mut at = cached;
        loop {
            if at == boundary && at > 0 {
                engine.snapshot(self.slot, CHECKPOINT).doing("keeping the conversation")?;
                self.checkpoint = Some(at);
            }
            if at == save
                && let Some(file) = self.save.take()
            {
                engine.save_sequence(self.slot, &file).doing("saving the sequence")?;
            }
            let marks = [boundary, save].into_iter().filter(|&mark| mark > at);
            let end = marks.fold(tokens.len(), usize::min).min(at + window);
            let row =
                |index: usize| Row { token: tokens[index], slot: self.slot, logits: index == last };
            let rows: Vec<Row> = (at..end).map(row).collect();
            let output = engine.run(&rows).doing("running a window")?;
            if end == tokens.len() {
                let token = sampler.sample(output.logits(0), tokens);
                self.note(engine, rows.len())?;
                return Ok(token);
            }
            self.note(engine, rows.len())?;
            at = end;
        }
    }

    fn note(&mut self, engine: &Engine, rows: usize) -> Result<(), CliError> {
        self.trace.as_mut().map_or(Ok(()), |trace| trace.add(engine, rows))
    }
}

/// The text that is made of the tokens.
struct Answer<'a> {
    vocabulary: &'a Vocabulary,
    request: &'a Request,
    on_text: &'a mut dyn FnMut(&str) -> Result<(), CliError>,
    text: TextStream<'a>,
    tokens: Vec<u32>,
    limit: usize,
    finish_reason: FinishReason,
    error: Option<CliError>,
}

impl<'a> Answer<'a> {
    fn new(
        vocabulary: &'a Vocabulary,
        request: &'a Request,
        on_text: &'a mut dyn FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Self, CliError> {
        Ok(Self {
            text: TextStream::new(vocabulary, &request.stops)?,
            vocabulary,
            request,
            on_text,
            tokens: Vec::new(),
            limit: 0,
            finish_reason: FinishReason::Length,
            error: None,
        })
    }

    /// False if the text ends with this token.
    fn take(&mut self, token: u32) -> bool {
        self.tokens.push(token);
        if !self.request.ignore_eos && self.vocabulary.ends_text(token) {
            self.finish_reason = FinishReason::Stop;
            return false;
        }
        match self.text.push(token, self.on_text) {
            Ok(false) => self.tokens.len() < self.limit,
            Ok(true) => {
                self.finish_reason = FinishReason::Stop;
                false
            }
            Err(error) => {
                self.error = Some(error);
                false
            }
        }
    }

    fn finish(&mut self) -> Result<(), CliError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => self.text.finish(self.on_text),
        }
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
