//! Talking to a model on a terminal.

use std::io::{IsTerminal, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::CliError;
use crate::error::Doing;
use crate::generate::{Loaded, Request, Sequence};

/// A conversation of one user message.
pub fn messages(system: Option<&str>, user: &str) -> Vec<Value> {
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    system.into_iter().chain([json!({ "role": "user", "content": user })]).collect()
}

/// `strata run --chat`.
#[derive(Debug)]
pub struct Chat {
    /// Continue what is typed instead of answering it.
    pub raw: bool,
    pub system: Option<String>,
    pub request: Request,
}

const HELP: &str = "/reset starts over, /save FILE writes the conversation as JSON, /quit ends";

impl Chat {
    /// Reads lines until the end of the input. Lines that begin with `/` are commands.
    pub fn run(
        &self,
        model: &mut Loaded,
        sequence: &mut Sequence,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let mut lines = Lines::new()?;
        let mut conversation = self.opening();
        if lines.is_terminal() {
            writeln!(out, "{HELP}")?;
            out.flush()?;
        }
        while let Some(line) = lines.next()? {
            let line = line.trim_end();
            match line.split_once(' ').unwrap_or((line, "")) {
                ("", _) => {}
                ("/quit" | "/exit", _) => break,
                ("/help", _) => writeln!(out, "{HELP}")?,
                ("/reset", _) => {
                    sequence.reset(&mut model.engine)?;
                    conversation = self.opening();
                }
                ("/save", "") => writeln!(out, "/save needs the name of a file")?,
                ("/save", file) => save(Path::new(file.trim()), &conversation, out)?,
                (command, _) if command.starts_with('/') => {
                    writeln!(out, "no command {command}; {HELP}")?;
                }
                _ => {
                    self.turn(line, model, (sequence, &mut conversation), out)?;
                }
            }
            out.flush()?;
        }
        Ok(())
    }

    fn opening(&self) -> Vec<Value> {
        self.system.iter().map(|text| json!({ "role": "system", "content": text })).collect()
    }

    /// Answers one line. What cannot be answered (a full context) is said, and the chat goes on.
    fn turn(
        &self,
        line: &str,
        model: &mut Loaded,
        (sequence, conversation): (&mut Sequence, &mut Vec<Value>),
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        conversation.push(json!({ "role": "user", "content": line }));
        let prompt = if self.raw {
            model.vocabulary.encode_raw(line)
        } else {
            model.vocabulary.encode_chat(conversation)
        };
        let answer = prompt.and_then(|prompt| {
            sequence.generate(model, &prompt, &self.request, &mut |text| {
                out.write_all(text.as_bytes())?;
                Ok(out.flush()?)
            })
        });
        writeln!(out)?;
        match answer {
            Ok(generated) => {
                conversation.push(json!({ "role": "assistant", "content": generated.text }));
                Ok(())
            }
            Err(error @ CliError::Output(_)) => Err(error),
            Err(error) => {
                conversation.pop();
                writeln!(out, "{error}; /reset starts over")?;
                Ok(())
            }
        }
    }
}

fn save(file: &Path, conversation: &[Value], out: &mut dyn Write) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(conversation).doing("writing JSON")?;
    match crate::files::write_whole(file, text.as_bytes()) {
        Ok(()) => writeln!(out, "saved {}", file.display())?,
        Err(error) => writeln!(out, "{error}")?,
    }
    Ok(())
}

/// Lines from an editor on a terminal, from standard input elsewhere.
enum Lines {
    Editor(Box<rustyline::DefaultEditor>),
    Plain(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Lines {
    fn new() -> Result<Self, CliError> {
        if std::io::stdin().is_terminal() {
            let editor = rustyline::DefaultEditor::new().doing("opening the line editor")?;
            Ok(Self::Editor(Box::new(editor)))
        } else {
            Ok(Self::Plain(std::io::stdin().lines()))
        }
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Self::Editor(_))
    }

    fn next(&mut self) -> Result<Option<String>, CliError> {
        use rustyline::error::ReadlineError;
        match self {
            Self::Plain(lines) => lines.next().transpose().doing("reading standard input"),
            Self::Editor(editor) => match editor.readline("> ") {
                Ok(line) => {
                    // A line that cannot be kept in the history is still a line.
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(error).doing("reading the terminal"),
            },
        }
    }
}
