//! Running the two engines and reading what they say.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use serde_json::Value;

/// A run that could not be made or read.
#[derive(Debug)]
pub enum BenchError {
    Io { path: PathBuf, error: std::io::Error },
    Failed { command: String, output: String },
    Unreadable { command: String, need: &'static str, output: String },
    NoModels { folder: PathBuf },
}

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Failed { command, output } => write!(f, "`{command}` failed:\n{output}"),
            Self::Unreadable { command, need, output } => {
                write!(f, "`{command}` printed no {need}:\n{output}")
            }
            Self::NoModels { folder } => {
                write!(f, "no GGUF file in {}: run `make models`", folder.display())
            }
        }
    }
}

impl std::error::Error for BenchError {}

/// Tokens a second of one engine in one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    pub prefill: f64,
    pub decode: f64,
}

/// Two runs, one after the other.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    pub strata: Speed,
    pub peer: Speed,
    /// GB/s read by all threads together, sampled in strata's run.
    pub read_gb_per_s: f64,
    pub decode_fraction_of_read: f64,
    pub prefill_fraction_of_int8: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Perplexity {
    pub strata: f64,
    pub peer: f64,
}

/// The commands and what they are asked to do.
#[derive(Clone, Debug)]
pub struct Tools {
    pub strata: PathBuf,
    pub peer: PathBuf,
    pub threads: u32,
    pub prompt_tokens: u32,
    pub decode_tokens: u32,
}

impl Tools {
    /// Imports and compiles a model beside its file; returns the plan.
    pub fn compile(&self, file: &Path) -> Result<PathBuf, BenchError> {
        let (definition, plan) = (file.with_extension("ron"), file.with_extension("plan"));
        output(Command::new(&self.strata).arg("import").arg(file).arg("-o").arg(&definition))?;
        output(Command::new(&self.strata).arg("compile").arg(&definition).arg("-o").arg(&plan))?;
        Ok(plan)
    }

    /// One repetition of each engine.
    pub fn pair(&self, file: &Path, plan: &Path) -> Result<Pair, BenchError> {
        let (p, n, t) = (
            self.prompt_tokens.to_string(),
            self.decode_tokens.to_string(),
            self.threads.to_string(),
        );
        let mut strata = Command::new(&self.strata);
        strata.arg("bench").arg(plan).args(["-p", &p, "-n", &n, "-t", &t, "-r", "1", "--json"]);
        let ours = json(&mut strata)?;
        let mut peer = Command::new(self.peer.join("llama-bench"));
        peer.arg("-m").arg(file).args(["-p", &p, "-n", &n, "-t", &t, "-r", "1", "-o", "json"]);
        let theirs = json(&mut peer)?;
        let rate = |prompt: bool| {
            let key = if prompt { "n_prompt" } else { "n_gen" };
            let row = theirs.as_array()?.iter().find(|row| row[key].as_u64() > Some(0))?;
            row["avg_ts"].as_f64()
        };
        let number = |key: &str| ours[key].as_f64();
        let read = || {
            Some(Pair {
                strata: Speed {
                    prefill: number("prefill_tokens_per_s")?,
                    decode: number("decode_tokens_per_s")?,
                },
                peer: Speed { prefill: rate(true)?, decode: rate(false)? },
                read_gb_per_s: number("read_gb_per_s")?,
                decode_fraction_of_read: number("decode_fraction_of_read")?,
                prefill_fraction_of_int8: number("prefill_fraction_of_int8")?,
            })
        };
        read().ok_or_else(|| BenchError::Unreadable {
            command: format!("{strata:?} and {peer:?}"),
            need: "rates in the JSON",
            output: format!("{ours}\n{theirs}"),
        })
    }

    /// 8 chunks of 512 tokens through both engines.
    pub fn perplexity(
        &self,
        file: &Path,
        plan: &Path,
        text: &Path,
    ) -> Result<Perplexity, BenchError> {
        let chunks = ["--chunks", "8"];
        let mut strata = Command::new(&self.strata);
        strata.arg("perplexity").arg(plan).arg(text).args(chunks).arg("--json");
        let ours = json(&mut strata)?["perplexity"].as_f64();
        let mut peer = Command::new(self.peer.join("llama-perplexity"));
        peer.arg("-m").arg(file).arg("-f").arg(text).args(["-c", "512"]).args(chunks);
        peer.args(["-t", &self.threads.to_string()]);
        let said = output(&mut peer)?;
        let theirs = said
            .split("Final estimate: PPL =")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let both = ours.zip(theirs).map(|(strata, peer)| Perplexity { strata, peer });
        both.ok_or_else(|| BenchError::Unreadable {
            command: format!("{strata:?} and {peer:?}"),
            need: "perplexity",
            output: said,
        })
    }
}

/// The GGUF files of `folder`, or those of them that are named.
pub fn model_files(folder: &Path, named: &[String]) -> Result<Vec<PathBuf>, BenchError> {
    let fail = |error| BenchError::Io { path: folder.to_owned(), error };
    let mut files: Vec<PathBuf> = if named.is_empty() {
        let entries = std::fs::read_dir(folder).map_err(fail)?;
        let paths = entries.map(|entry| entry.map(|e| e.path())).collect::<Result<Vec<_>, _>>();
        paths.map_err(fail)?
    } else {
        named.iter().map(|name| folder.join(name)).collect()
    };
    files.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    files.sort_by_key(|path| std::fs::metadata(path).map_or(0, |m| m.len()));
    if files.is_empty() {
        Err(BenchError::NoModels { folder: folder.to_owned() })
    } else {
        Ok(files)
    }
}

/// Writes a temporary file beside `path`, then renames it.
pub fn write_whole(path: &Path, text: &str) -> Result<(), BenchError> {
    let part = path.with_extension("part");
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| BenchError::Io { path: path.to_owned(), error })
}

/// Standard output and error of a command that succeeded.
fn output(command: &mut Command) -> Result<String, BenchError> {
    let name = PathBuf::from(command.get_program());
    let done = command.output().map_err(|error| BenchError::Io { path: name, error })?;
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    if done.status.success() {
        Ok(said.into_owned())
    } else {
        Err(BenchError::Failed { command: format!("{command:?}"), output: said.into_owned() })
    }
}

/// The JSON that a command prints on standard output.
fn json(command: &mut Command) -> Result<Value, BenchError> {
    let name = PathBuf::from(command.get_program());
    let done = command.output().map_err(|error| BenchError::Io { path: name, error })?;
    let text = String::from_utf8_lossy(&done.stdout);
    serde_json::from_str(&text).map_err(|_| BenchError::Unreadable {
        command: format!("{command:?}"),
        need: "JSON",
        output: text.into_owned() + &String::from_utf8_lossy(&done.stderr),
    })
}
