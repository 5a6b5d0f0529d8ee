//! Writing a plan file, whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::image::PlanImage;

/// Writes `image` to `path` through a temporary file in the same folder, so that a reader sees the
/// old plan or the new one, and a running program keeps the one it has mapped.
///
/// # Errors
/// Those of the file system; the temporary file is then gone and `path` is as it was.
pub fn write_plan_file(path: &Path, image: &PlanImage) -> io::Result<()> {
    let temporary = temporary_path(path)?;
    let written = write_new(&temporary, &image.to_bytes()).and_then(|()| {
        fs::rename(&temporary, path)?;
        sync_folder(path)
    });
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
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

fn temporary_path(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the path of a plan has no file name")
    })?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.partial", std::process::id()));
    Ok(path.with_file_name(hidden))
}
