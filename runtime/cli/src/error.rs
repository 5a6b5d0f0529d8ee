//! What can go wrong on a command line.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A command that failed. Every arm says what was being done.
#[derive(Debug)]
pub enum CliError {
    /// A room's own error, with what this command was doing.
    Room {
        doing: String,
        error: Box<dyn Error + Send + Sync>,
    },
    Read {
        path: PathBuf,
        error: io::Error,
    },
    Write {
        path: PathBuf,
        error: io::Error,
    },
    /// Standard output.
    Output(io::Error),
    /// An argument that parses but cannot be used here: what, and what to do.
    Usage(String),
    NoCacheDir,
}

impl CliError {
    /// 2 for a wrong command line, 1 for work that failed.
    pub fn exit_code(&self) -> u8 {
        if matches!(self, Self::Usage(_)) { 2 } else { 1 }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Room { doing, error } => write!(f, "{doing}: {error}"),
            Self::Read { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            Self::Write { path, error } => write!(f, "cannot write {}: {error}", path.display()),
            Self::Output(error) => write!(f, "cannot write to standard output: {error}"),
            Self::Usage(what) => f.write_str(what),
            Self::NoCacheDir => {
                f.write_str("no home directory to keep a cache in: set XDG_CACHE_HOME to a folder")
            }
        }
    }
}

impl Error for CliError {}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Says what a room was asked to do when it failed.
pub trait Doing<T> {
    fn doing(self, what: impl fmt::Display) -> Result<T, CliError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T, CliError> {
        self.map_err(|error| CliError::Room { doing: what.to_string(), error: error.into() })
    }
}
