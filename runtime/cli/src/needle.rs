//! `strata needle`: does a model find one sentence in a long text?
//!
//! A text of plain sentences is filled up to a number of tokens, a sentence with a number in it is
//! put at some depth, and the model is asked for the number. It is found if the answer has it. The
//! form of the test is that of Kamradt (2023).

use std::io::Write;
use std::path::PathBuf;

use serde::Serialize;
use strata_replay::Sampling;
use strata_replay::speculate::Draft;

use crate::CliError;
use crate::chat::messages;
use crate::error::Doing;
use crate::generate::{Loaded, Prompt, Request, Sequence, open_with_vocabulary};
use crate::progress::Progress;
use crate::vocabulary::Vocabulary;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  strata needle model.plan --depths 10,50,90 --lengths 512,1024,2048,4096 --json")]
pub struct NeedleArgs {
    plan: PathBuf,
    /// Where the sentence stands, in percent of the text
    #[arg(long, value_delimiter = ',', default_value = "10,50,90",
        value_parser = clap::value_parser!(u32).range(0..=100))]
    depths: Vec<u32>,
    /// Tokens of the whole prompt
    #[arg(long, value_delimiter = ',', default_value = "512,1024,2048,4096",
        value_parser = clap::value_parser!(u32).range(128..))]
    lengths: Vec<u32>,
    /// Texts for each length and depth
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Seed of the texts
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Worker threads; the plan's number, or all allowed cores, if not given
    #[arg(short, long)]
    threads: Option<u32>,
}

const FILLER: &str = include_str!("needle/filler.txt");
const NAMES: [&str; 12] = [
    "Nora", "Paul", "Jonas", "Iris", "Anna", "Peter", "Clara", "Oscar", "Lena", "Hugo", "Emma",
    "Simon",
];
const CITIES: [&str; 12] = [
    "Cairo", "Oslo", "Paris", "Lima", "Rome", "Berlin", "Tokyo", "Madrid", "Vienna", "Athens",
    "Dublin", "Lisbon",
];
/// Room for an answer of one sentence.
const ANSWER_TOKENS: u32 = 48;

/// One length and depth.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    length: u32,
    depth: u32,
    found: u32,
    total: u32,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    seed: u64,
    found: u32,
    total: u32,
    cells: Vec<Cell>,
}

/// Runs `strata needle`.
pub fn needle(args: &NeedleArgs, progress: &Progress, out: &mut dyn Write) -> Result<(), CliError> {
    let mut model = open_with_vocabulary(&args.plan, args.threads, progress)?;
    let context = model.engine.model().context_tokens;
    let longest = args.lengths.iter().copied().max().unwrap_or(0);
    if longest.saturating_add(ANSWER_TOKENS) > context {
        return Err(CliError::Usage(format!(
            "--lengths {longest} and an answer of {ANSWER_TOKENS} tokens need more than the plan's \
             context of {context}: take shorter ones, or compile with a longer context"
        )));
    }
    let cells = args.lengths.len() * args.depths.len();
    let bar = progress.count("texts", cells as u64 * u64::from(args.count));
    let mut sequence = Sequence::new(&mut model.engine, Draft::Auto)?;
    let mut cells = Vec::with_capacity(cells);
    for &length in &args.lengths {
        for &depth in &args.depths {
            let mut cell = Cell { length, depth, found: 0, total: args.count };
            for number in 0..args.count {
                let seed = [u64::from(length), u64::from(depth), u64::from(number)];
                let mut random = Random::new(args.seed, seed);
                let needle = Needle::new(&mut random);
                let prompt = needle.prompt(&model.vocabulary, length, depth, &mut random)?;
                let found = is_found(&mut model, &mut sequence, &prompt, &needle)?;
                cell.found += u32::from(found);
                bar.inc(1);
            }
            cells.push(cell);
        }
    }
    bar.finish_and_clear();
    let sum = |of: fn(&Cell) -> u32| cells.iter().map(of).sum();
    let plan = model.engine.plan();
    let report = Report {
        model: plan.name(plan.model().name).to_owned(),
        seed: args.seed,
        found: sum(|cell| cell.found),
        total: sum(|cell| cell.total),
        cells,
    };
    if args.json {
        serde_json::to_writer(&mut *out, &report).doing("writing JSON")?;
        return Ok(writeln!(out)?);
    }
    print(args, &report, out)
}

fn print(args: &NeedleArgs, report: &Report, out: &mut dyn Write) -> Result<(), CliError> {
    write!(out, "{:<8}", "tokens")?;
    for depth in &args.depths {
        write!(out, " {:>7}", format!("{depth} %"))?;
    }
    writeln!(out)?;
    for row in report.cells.chunks(args.depths.len().max(1)) {
        write!(out, "{:<8}", row.first().map_or(0, |cell| cell.length))?;
        for cell in row {
            write!(out, " {:>7}", format!("{}/{}", cell.found, cell.total))?;
        }
        writeln!(out)?;
    }
    Ok(writeln!(out, "found {} of {}", report.found, report.total)?)
}

fn is_found(
    model: &mut Loaded,
    sequence: &mut Sequence,
    prompt: &Prompt,
    needle: &Needle,
) -> Result<bool, CliError> {
    let request = Request {
        max_tokens: Some(ANSWER_TOKENS),
        sampling: Sampling::default(),
        stops: Vec::new(),
        ignore_eos: false,
    };
    sequence.reset(&mut model.engine)?;
    let answer = sequence.generate(model, prompt, &request, &mut |_| Ok(()))?;
    Ok(answer.text.contains(&needle.number))
}

/// A sentence and the question for it.
#[derive(Debug)]
struct Needle {
    whose: String,
    number: String,
}

impl Needle {
    fn new(random: &mut Random) -> Self {
        let (name, city) = (random.one_of(&NAMES), random.one_of(&CITIES));
        let number = 10_000 + random.below(90_000);
        Self { whose: format!("{name} of {city}"), number: number.to_string() }
    }

    fn sentence(&self) -> String {
        format!("The secret number of {} is {}.", self.whose, self.number)
    }

    /// A prompt of at most `length` tokens, and nearly as many.
    fn prompt(
        &self,
        vocabulary: &Vocabulary,
        length: u32,
        depth: u32,
        random: &mut Random,
    ) -> Result<Prompt, CliError> {
        let sentences: Vec<&str> = FILLER.lines().collect();
        let mut sizes = Vec::with_capacity(sentences.len());
        for sentence in &sentences {
            sizes.push(vocabulary.encode(&format!(" {sentence}"), false, false)?.len());
        }
        let rest = self.ask(vocabulary, &[], depth)?.tokens.len();
        let room = (length as usize).saturating_sub(rest);
        let (mut filler, mut tokens) = (Vec::new(), 0);
        while tokens < room {
            for index in random.order(sentences.len()) {
                filler.push(sentences[index]);
                tokens += sizes[index];
                if tokens >= room {
                    break;
                }
            }
        }
        // A sentence by itself has about as many tokens as it has in the text.
        loop {
            let prompt = self.ask(vocabulary, &filler, depth)?;
            if prompt.tokens.len() <= length as usize || filler.pop().is_none() {
                return Ok(prompt);
            }
        }
    }

    fn ask(
        &self,
        vocabulary: &Vocabulary,
        filler: &[&str],
        depth: u32,
    ) -> Result<Prompt, CliError> {
        let place = filler.len() * depth as usize / 100;
        let (before, after) = filler.split_at(place);
        let needle = self.sentence();
        let all: Vec<&str> =
            before.iter().copied().chain([needle.as_str()]).chain(after.iter().copied()).collect();
        let question = format!("What is the secret number of {}?", self.whose);
        vocabulary.encode_chat(&messages(None, &format!("{}\n{question}", all.join(" "))))
    }
}

/// A small random generator that is the same everywhere (Steele, Lea and Flood, 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn new(seed: u64, parts: [u64; 3]) -> Self {
        let mut random = Self(seed);
        for part in parts {
            random.0 = random.next() ^ part;
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len() as u64) as usize]
    }

    /// The numbers below `count` in any order.
    fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            order.swap(last, self.below(last as u64 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filler_is_many_different_sentences_without_numbers() {
        let mut lines: Vec<&str> = FILLER.lines().collect();
        assert!(lines.iter().all(|line| line.ends_with('.') && !line.contains("secret")));
        assert!(!FILLER.contains(|c: char| c.is_ascii_digit()));
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!((lines.len(), all), (80, 80));
    }

    #[test]
    fn a_seed_gives_the_same_needle_and_another_seed_another() {
        let needle = |seed| {
            let needle = Needle::new(&mut Random::new(seed, [512, 50, 1]));
            (needle.whose.clone(), needle.number.clone(), needle.sentence())
        };
        assert_eq!(needle(3), needle(3));
        assert_ne!(needle(3), needle(4));
        assert!(needle(3).2.contains(&needle(3).1));
        let mut order = Random::new(1, [0; 3]).order(50);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
