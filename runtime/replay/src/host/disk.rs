//! Files of a known size that are filled through a mapping.
#![allow(unsafe_code, reason = "mappings of the operating system")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use memmap2::MmapMut;

/// A file, mapped for writing.
#[derive(Debug)]
pub(crate) struct FillableFile(MmapMut);

impl FillableFile {
    /// Maps the empty `file`, of which nobody else has a mapping, with `bytes` of zeros.
    ///
    /// The disk gives all of them first: a write to a mapping that the disk has no room for would
    /// end the process.
    pub fn new(file: &File, bytes: u64) -> io::Result<Self> {
        reserve(file, bytes)?;
        // SAFETY: the file is locked by its only user, who neither cuts it nor writes to it in
        // another way while it is mapped.
        unsafe { MmapMut::map_mut(file) }.map(Self)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// Returns when all that was written is on the disk.
    pub fn sync(&self) -> io::Result<()> {
        self.0.flush()
    }
}

fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    loop {
        // SAFETY: takes numbers only; the file is open for as long as `file` is borrowed.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Bytes that the disk of `file` has left for this user.
pub(crate) fn free_bytes(file: &File) -> io::Result<u64> {
    let mut found = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: writes one `statvfs` to where one lies; the file is open as above.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: filled, as the call has succeeded.
    let found = unsafe { found.assume_init() };
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_disk_has_is_refused_before_anything_is_written() {
        let path = std::env::temp_dir().join(format!("strata-disk-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let free = free_bytes(&file).unwrap();
        assert!(free > 0);
        assert!(FillableFile::new(&file, 1 << 62).is_err());
        let mut filled = FillableFile::new(&file, 5000).unwrap();
        filled.bytes_mut()[4999] = 7;
        filled.sync().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[4999]), (5000, 0, 7));
        std::fs::remove_file(path).unwrap();
    }
}
