//! The packed file of a plan: repacked weights for which there is no RAM. It lies beside the plan, is
//! made by the first engine that opens the plan, and mapped by all.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytemuck::Zeroable;
use strata_plan::Plan;
use strata_plan::layout::{NONE, PACK_FORMAT, PACK_MAGIC, PackHeader, space, tier};

use crate::error::ReplayError;
use crate::host::{FillableFile, MappedFile, free_bytes};
use crate::load::Loader;
use crate::open::folder_of;

/// Stored bytes at the beginning and end of a weight that tell it from another of the same shape.
const SAMPLE_BYTES: usize = 64;

/// Bytes of one expert below which reading ahead brings in more of other experts than of this one.
const SMALL_EXPERT_BYTES: u64 = 256 << 10;

/// Why the packed file of a plan could not be used or made.
#[derive(Debug)]
pub enum PackFault {
    /// Something else stands at its path.
    Foreign,
    /// The disk has too little room. All in bytes; `stale` are those of a packed file of that name
    /// that is of no use.
    Disk { needed: u64, free: u64, stale: u64 },
    /// The file system refused something.
    Io { doing: &'static str, bytes: u64, error: io::Error },
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

impl fmt::Display for PackFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(
                f,
                "this is not a file that Strata made, and the plan keeps repacked weights under \
                 that name: move it away, or compile to another name"
            ),
            Self::Disk { needed, free, stale } => {
                let short = mib(needed.saturating_sub(*free));
                let (needed, free) = (mib(*needed), mib(*free));
                write!(
                    f,
                    "making it takes {needed} MiB of the disk, {free} MiB are free: {short} MiB \
                     too few; make room, compile to a folder on a larger disk, or raise budget_mib"
                )?;
                match stale {
                    0 => Ok(()),
                    _ => write!(
                        f,
                        "; the file of that name is outdated, removing it frees {} MiB",
                        mib(*stale)
                    ),
                }
            }
            Self::Io { doing, bytes, error } => write!(
                f,
                "{doing}: {error}; it takes {} MiB and is made when the plan is first opened: \
                 make its folder writable, compile to a folder that is, or raise budget_mib until \
                 all weights fit RAM",
                mib(*bytes)
            ),
        }
    }
}

/// Maps the packed file of the loader's plan, which lies at `plan_path`, and makes it first if it is
/// not there or of no use. `None` if the plan has none.
///
/// # Errors
/// Something else has its name, or it cannot be made; nothing is then left of it.
pub(crate) fn open_pack(
    plan_path: &Path,
    loader: &mut Loader<'_>,
) -> Result<Option<MappedFile>, ReplayError> {
    let plan = loader.plan();
    let row = plan.spaces().iter().find(|row| row.kind == space::PACK && row.bytes > 0);
    let Some(row) = row else { return Ok(None) };
    let path = folder_of(plan_path).join(plan.name(row.name));
    let pack = Pack { header: header(row.bytes, contents(plan, loader.files())), path };
    let mapped = match pack.find()? {
        Some(mapped) => mapped,
        None => pack.make(loader)?,
    };
    advise(plan, &mapped);
    Ok(Some(mapped))
}

/// The header of a file of `file_bytes` with `contents`.
fn header(file_bytes: u64, contents: u64) -> PackHeader {
    let (magic, format) = (PACK_MAGIC, PACK_FORMAT);
    let mut header = PackHeader { magic, format, file_bytes, contents, ..PackHeader::zeroed() };
    let checked = std::mem::offset_of!(PackHeader, checksum);
    header.checksum = strata_plan::checksum(&bytemuck::bytes_of(&header)[..checked]);
    header
}

/// Hash of what is in the file and what that is made from, see `docs/PLAN_FORMAT.md`.
fn contents(plan: &Plan, files: &[Option<MappedFile>]) -> u64 {
    let mut all = Vec::new();
    for weight in plan.weights().iter().filter(|weight| weight.tier == tier::PACKED) {
        for name in [plan.name(weight.name), plan.name(weight.dtype)] {
            all.extend_from_slice(&(name.len() as u64).to_le_bytes());
            all.extend_from_slice(name.as_bytes());
        }
        all.extend_from_slice(bytemuck::cast_slice(&[weight.offset, weight.bytes]));
        all.extend_from_slice(bytemuck::cast_slice(&weight.dims));
        let parts = &plan.parts()[weight.parts.range()];
        for part in parts {
            let file = &plan.files()[part.file as usize];
            all.extend_from_slice(bytemuck::cast_slice(&[file.bytes, file.header_hash]));
            all.extend_from_slice(bytemuck::cast_slice(&[part.offset, part.bytes]));
            all.extend_from_slice(bytemuck::cast_slice(&[
                part.destination,
                part.destination_bytes,
                kernel_hash(plan, part.kernel),
            ]));
        }
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
        for (part, at_end) in [(first, false), (last, true)] {
            if let Some(file) = &files[part.file as usize] {
                all.extend_from_slice(sample(file, (part.offset, part.bytes), at_end));
            }
        }
    }
    strata_plan::checksum(&all)
}

/// The code of the first target stands for what all of them do: they write the same bytes.
fn kernel_hash(plan: &Plan, kernel: u32) -> u64 {
    let target = plan.targets().first().filter(|_| kernel != NONE);
    target.map_or(0, |target| {
        let row = plan.kernels()[(target.first_kernel + kernel) as usize];
        let narrow = |bytes: u64| usize::try_from(bytes).expect("inside the code");
        let start = narrow(row.code_offset);
        strata_plan::checksum(&plan.code()[start..start + narrow(row.code_bytes)])
    })
}

/// The first or last bytes of a range of `file`.
fn sample(file: &MappedFile, (offset, bytes): (u64, u64), at_end: bool) -> &[u8] {
    let narrow = |bytes: u64| usize::try_from(bytes).expect("inside a file that is mapped");
    let (start, end) = (narrow(offset), narrow(offset + bytes));
    let count = SAMPLE_BYTES.min(end - start);
    let range = if at_end { end - count..end } else { start..start + count };
    // One page is wanted, not what lies around it.
    file.random(range.clone());
    &file.bytes()[range]
}

/// Tells the system how the weights are read. Experts are chosen anew for each token.
fn advise(plan: &Plan, mapped: &MappedFile) {
    let narrow = |bytes: u64| usize::try_from(bytes).expect("inside a file that is mapped");
    for weight in plan.weights().iter().filter(|weight| weight.tier == tier::PACKED) {
        let is_bank = weight.dims[2] > 1 && weight.dims[3] == 1;
        if is_bank && weight.bytes / u64::from(weight.dims[0].max(1)) < SMALL_EXPERT_BYTES {
            let start = narrow(weight.offset);
            mapped.random(start..start + narrow(weight.bytes));
        }
    }
}

/// The packed file that a plan needs.
struct Pack {
    path: PathBuf,
    header: PackHeader,
}

impl Pack {
    fn refuse(&self, fault: PackFault) -> ReplayError {
        ReplayError::Pack { path: self.path.clone(), fault }
    }

    fn io(&self, doing: &'static str) -> impl Fn(io::Error) -> ReplayError {
        let bytes = self.header.file_bytes;
        move |error| self.refuse(PackFault::Io { doing, bytes, error })
    }

    /// The file, if it is there and the one that is needed.
    fn find(&self) -> Result<Option<MappedFile>, ReplayError> {
        let reading = self.io("reading it");
        // Looked at before it is opened: opening a pipe would wait.
        match fs::metadata(&self.path) {
            Ok(found) if !found.is_file() => return Err(self.refuse(PackFault::Foreign)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(reading(error)),
        }
        let file = File::open(&self.path).map_err(&reading)?;
        let mut found = Vec::with_capacity(size_of::<PackHeader>());
        (&file).take(size_of::<PackHeader>() as u64).read_to_end(&mut found).map_err(&reading)?;
        let begins = found.len().min(PACK_MAGIC.len());
        if found[..begins] != PACK_MAGIC[..begins] {
            return Err(self.refuse(PackFault::Foreign));
        }
        let bytes = file.metadata().map_err(&reading)?.len();
        if found != bytemuck::bytes_of(&self.header) || bytes != self.header.file_bytes {
            return Ok(None);
        }
        let mapped = MappedFile::map(&file).map_err(&reading)?;
        // It was measured before it was mapped.
        Ok((mapped.bytes().len() as u64 == self.header.file_bytes).then_some(mapped))
    }

    /// Makes the file, or waits for the process that does.
    fn make(&self, loader: &mut Loader<'_>) -> Result<MappedFile, ReplayError> {
        let temporary = self.temporary();
        loop {
            let file = self.lock(&temporary)?;
            let own = is_at(&file, &temporary);
            let found = self.find();
            if own && !matches!(found, Ok(None)) {
                let _ = fs::remove_file(&temporary);
            }
            if let Some(mapped) = found? {
                return Ok(mapped);
            }
            // Else the one who had the lock has taken the file away.
            if own {
                let filled = self.fill(&file, &temporary, loader);
                if filled.is_err() {
                    // The first error is the one to report.
                    let _ = fs::remove_file(&temporary);
                }
                return filled;
            }
        }
    }

    /// A fixed name, so that what a killed process leaves is found again.
    fn temporary(&self) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(self.path.file_name().unwrap_or_default());
        name.push(".partial");
        self.path.with_file_name(name)
    }

    /// The file under the temporary name, locked. Links are not followed, and a file that has other
    /// names as well is not written to.
    fn lock(&self, temporary: &Path) -> Result<File, ReplayError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
        let file = options.open(temporary).map_err(self.io("making it in its folder"))?;
        file.lock().map_err(self.io("waiting for another process to make it"))?;
        let found = file.metadata().map_err(self.io("making it in its folder"))?;
        if !found.is_file() || found.nlink() > 1 {
            return Err(ReplayError::Pack { path: temporary.into(), fault: PackFault::Foreign });
        }
        Ok(file)
    }

    fn fill(
        &self,
        file: &File,
        temporary: &Path,
        loader: &mut Loader<'_>,
    ) -> Result<MappedFile, ReplayError> {
        let writing = self.io("writing it");
        file.set_len(0).map_err(&writing)?;
        let (needed, free) = (self.header.file_bytes, free_bytes(file).map_err(&writing)?);
        if needed > free {
            let stale = fs::metadata(&self.path).map_or(0, |found| found.len());
            return Err(self.refuse(PackFault::Disk { needed, free, stale }));
        }
        let mut filled = FillableFile::new(file, needed).map_err(&writing)?;
        loader.expect(tier::PACKED);
        loader.load(tier::PACKED, filled.bytes_mut());
        filled.bytes_mut()[..size_of::<PackHeader>()]
            .copy_from_slice(bytemuck::bytes_of(&self.header));
        filled.sync().map_err(&writing)?;
        drop(filled);
        file.sync_all().map_err(&writing)?;
        let mapped = MappedFile::map(file).map_err(&writing)?;
        fs::rename(temporary, &self.path).map_err(&writing)?;
        // The new name is on the disk only when its folder is.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))
            .and_then(|f| f.sync_all())
            .map_err(&writing)?;
        Ok(mapped)
    }
}

/// Whether `file` is the one that stands at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
