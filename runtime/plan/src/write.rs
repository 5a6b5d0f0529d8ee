//! Writing a plan file, whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::image::PlanImage;

/// Writes `image` to `path` through a temporary file in the same folder, so that a reader sees the
/// old plan or the new one, and a running program keeps the one it has mapped.
///
/// # Errors
/// Those of the file system; the temporary file is then gone and `path` is as it was.
pub fn write_plan_file(path: &Path, image: &PlanImage) -> io::Result<()> {
    let (mut file, temporary) = create_temporary(path)?;
    let written = write_all(&mut file, &image.to_bytes()).and_then(|()| {
        fs::rename(&temporary, path)?;
        sync_folder(path)
    });
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Names that are tried for a temporary file. Those that are there were left by a process that was
/// killed, or put there by somebody.
const ATTEMPTS: u32 = 1_000;

/// A file beside `path` that did not exist: what another user has put there is neither followed nor
/// written to, since whoever owns the file could change the machine code in it later.
fn create_temporary(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o644);
    for attempt in 0..ATTEMPTS {
        let temporary = temporary_path(path, attempt)?;
        match options.open(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    let last = temporary_path(path, ATTEMPTS - 1)?;
    let text =
        format!("{ATTEMPTS} temporary files up to {} are there: remove them", last.display());
    Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
}

fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync_all()
}

/// The new name is on the disk only when its folder is.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

fn temporary_path(path: &Path, attempt: u32) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the path of a plan has no file name")
    })?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.{attempt}.partial", std::process::id()));
    Ok(path.with_file_name(hidden))
}
