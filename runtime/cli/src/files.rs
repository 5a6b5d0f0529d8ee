//! Writing results and finding the cache.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::CliError;

/// Writes `bytes` to a temporary file beside `path`, then renames it: never half a file.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    let fail = |error| CliError::Write { path: path.to_owned(), error };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        fail(error)
    })
}

/// Reads a text file that the user named.
pub fn read_text(path: &Path) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|error| CliError::Read { path: path.to_owned(), error })
}

/// The folder for what can be made again: `$XDG_CACHE_HOME/strata` or `~/.cache/strata`.
pub fn cache_dir() -> Result<PathBuf, CliError> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|dir| Path::new(dir).is_absolute())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .ok_or(CliError::NoCacheDir)?;
    let dir = base.join("strata");
    fs::create_dir_all(&dir).map_err(|error| CliError::Write { path: dir.clone(), error })?;
    Ok(dir)
}
