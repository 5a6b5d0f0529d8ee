//! The bytes of a file, mapped, or owned where there is no file.
#![allow(unsafe_code, reason = "a memory map of a file cannot be made by safe code")]

use std::fs::File;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use crate::error::OpenError;

/// Bytes of a model file that may be held by several owners. Cloning shares them.
#[derive(Clone)]
pub struct FileBytes(Arc<Inner>);

enum Inner {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps `path` for reading.
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is not a regular file.
    pub fn map(path: &Path) -> Result<FileBytes, OpenError> {
        let io = |doing| move |error| OpenError::Io { path: path.to_path_buf(), doing, error };
        let file = File::open(path).map_err(io("open"))?;
        let meta = file.metadata().map_err(io("read the size of"))?;
        if !meta.is_file() {
            return Err(OpenError::NotAFile { path: path.to_path_buf() });
        }
        if meta.len() == 0 {
            // A map of no bytes is an error on some systems.
            return Ok(FileBytes::from(Vec::new()));
        }
        // SAFETY: the map is read-only and lives as long as this value. Another process that
        // writes to or shortens the file meanwhile breaks the promise that the bytes stay; model
        // files are not written in place (our own writer renames), and no reader here trusts a
        // value that it has not just read, so that such a change gives wrong numbers or a bus
        // error and never an access outside the map.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io("map"))?;
        Ok(FileBytes(Arc::new(Inner::Mapped(map))))
    }

    /// Asks the system to read a range ahead. A hint: failure is of no consequence.
    pub fn read_ahead(&self, offset: u64, bytes: u64) {
        #[cfg(unix)]
        if let Inner::Mapped(map) = &*self.0
            && let (Ok(offset), Ok(bytes)) = (usize::try_from(offset), usize::try_from(bytes))
            && offset.checked_add(bytes).is_some_and(|end| end <= map.len())
        {
            let _ = map.advise_range(memmap2::Advice::WillNeed, offset, bytes);
        }
        #[cfg(not(unix))]
        let _ = (offset, bytes);
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Arc::new(Inner::Owned(bytes)))
    }
}

impl Deref for FileBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Inner::Mapped(map) => map,
            Inner::Owned(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileBytes({} bytes)", self.len())
    }
}
