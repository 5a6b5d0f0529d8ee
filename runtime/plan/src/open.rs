//! Opening a plan: mapped, checked whole, then read through typed slices.
#![allow(unsafe_code, reason = "a plan is mapped; asks who runs this process")]

use std::fs::{File as FsFile, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytemuck::Pod;
use memmap2::Mmap;

use crate::check;
use crate::error::PlanError;
use crate::layout::{
    Arg, Command, Device, File, Header, Kernel, Model, NONE, Name, Output, Part, Provenance,
    Schedule, Space, State, Target, Text, Weight, section,
};
use crate::trust::{Distrust, User};

/// A plan that has been checked: every row number, code and range in it is good.
pub struct Plan {
    bytes: Bytes,
    sections: Sections,
}

/// Where each section lies in the file, by kind.
#[derive(Clone, Debug)]
pub(crate) struct Sections([Range<usize>; section::ALL.len()]);

enum Bytes {
    Mapped(Mmap),
    /// In words, so that rows are aligned; the second is the length in bytes.
    Owned(Box<[u64]>, usize),
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.name(self.model().name);
        f.debug_struct("Plan")
            .field("model", &name)
            .field("bytes", &self.bytes.get().len())
            .finish()
    }
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(words, bytes) => &bytemuck::cast_slice(words)[..*bytes],
        }
    }
}

impl Sections {
    pub(crate) fn new(ranges: [Range<usize>; section::ALL.len()]) -> Self {
        Self(ranges)
    }

    fn range(&self, kind: u32) -> Range<usize> {
        self.0[kind as usize - 1].clone()
    }

    pub(crate) fn rows<'a, T: Pod>(&self, bytes: &'a [u8], kind: u32) -> &'a [T] {
        bytemuck::cast_slice(&bytes[self.range(kind)])
    }
}

macro_rules! accessors {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $kind:ident,)*) => {$(
        $(#[$doc])*
        pub fn $name(&self) -> &[$ty] {
            self.sections.rows(self.bytes.get(), section::$kind)
        }
    )*};
}

fn user_of_process() -> User {
    // SAFETY: both only return a number, and always do.
    unsafe { User { user: libc::geteuid(), group: libc::getegid() } }
}

/// The regular file at `path`, and what is known of it.
fn open_file(path: &Path) -> Result<(FsFile, Metadata), PlanError> {
    let refuse = |error| PlanError::Io { path: path.to_owned(), error };
    let file = FsFile::open(path).map_err(refuse)?;
    let found = file.metadata().map_err(refuse)?;
    if !found.is_file() {
        return Err(refuse(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
    }
    Ok((file, found))
}

impl Plan {
    /// Maps the plan at `path` and checks all of it, to be looked at.
    ///
    /// # Errors
    /// The first fault found, in the order of the file. The weight files are not looked at, see
    /// [`Plan::check_files`]; nor is who may write the plan, see [`Plan::open_trusted`].
    pub fn open(path: &Path) -> Result<Self, PlanError> {
        let (file, found) = open_file(path)?;
        Self::map(path, &file, found.len())
    }

    /// As [`Plan::open`], for a plan whose machine code is to be run: refuses one that somebody
    /// other than the user and root may write.
    ///
    /// # Errors
    /// As [`Plan::open`], and [`PlanError::Untrusted`]. The file that was opened is judged, not
    /// what stands at `path` at another time.
    pub fn open_trusted(path: &Path) -> Result<Self, PlanError> {
        let (file, found) = open_file(path)?;
        if let Some(distrust) = Distrust::of(&found, user_of_process()) {
            return Err(PlanError::Untrusted { path: path.to_owned(), distrust });
        }
        Self::map(path, &file, found.len())
    }

    fn map(path: &Path, file: &FsFile, bytes: u64) -> Result<Self, PlanError> {
        if bytes == 0 {
            return Err(PlanError::TooShort { found_bytes: 0, needed_bytes: 64 });
        }
        // SAFETY: the mapping is private and read-only. That nobody rewrites the file in place is
        // what trust in a plan means: `write_plan_file` replaces a plan by rename.
        let map = unsafe { Mmap::map(file) };
        let map = map.map_err(|error| PlanError::Io { path: path.to_owned(), error })?;
        Self::check(Bytes::Mapped(map))
    }

    /// Checks a plan that is already in memory.
    ///
    /// # Errors
    /// As [`Plan::open`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PlanError> {
        let mut words = vec![0u64; bytes.len().div_ceil(8)].into_boxed_slice();
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self::check(Bytes::Owned(words, bytes.len()))
    }

    fn check(bytes: Bytes) -> Result<Self, PlanError> {
        let sections = check::sections(bytes.get())?;
        let plan = Self { bytes, sections };
        check::contents(&plan)?;
        Ok(plan)
    }

    /// Compares each file of the plan with the one it was compiled from, by size and by
    /// `header_hash(path)` where the plan holds a hash. Relative names are taken from `plan_dir`.
    ///
    /// # Errors
    /// Names the first file that is missing or different, with what was found and needed.
    pub fn check_files(
        &self,
        plan_dir: &Path,
        header_hash: &mut dyn FnMut(&Path) -> io::Result<u64>,
    ) -> Result<(), PlanError> {
        for file in self.files() {
            let path = self.file_path(file, plan_dir);
            let refuse = |error| PlanError::WeightFile { path: path.clone(), error };
            let found = std::fs::metadata(&path).map_err(refuse)?.size();
            if found != file.bytes {
                return Err(PlanError::WeightFileBytes { path, found, needed: file.bytes });
            }
            if file.header_hash != 0 {
                let found = header_hash(&path).map_err(refuse)?;
                if found != file.header_hash {
                    let needed = file.header_hash;
                    return Err(PlanError::WeightFileHeader { path, found, needed });
                }
            }
        }
        Ok(())
    }

    /// Where `file` lies, for a plan in `plan_dir`.
    pub fn file_path(&self, file: &File, plan_dir: &Path) -> PathBuf {
        plan_dir.join(self.name(file.name))
    }

    /// The checksum that its header states: two plans that differ in a byte differ in it.
    pub fn checksum(&self) -> u64 {
        let header: &Header = bytemuck::from_bytes(&self.bytes.get()[..size_of::<Header>()]);
        header.checksum
    }

    pub fn model(&self) -> &Model {
        &self.model_rows()[0]
    }

    pub(crate) fn model_rows(&self) -> &[Model] {
        self.sections.rows(self.bytes.get(), section::MODEL)
    }

    accessors! {
        devices: Device = DEVICES,
        targets: Target = TARGETS,
        spaces: Space = SPACES,
        schedules: Schedule = SCHEDULES,
        outputs: Output = OUTPUTS,
        commands: Command = COMMANDS,
        args: Arg = ARGS,
        kernels: Kernel = KERNELS,
        /// Machine code of all targets; starts on a page of the file.
        code: u8 = CODE,
        files: File = FILES,
        weights: Weight = WEIGHTS,
        parts: Part = PARTS,
        states: State = STATES,
        constants: f32 = CONSTANTS,
        tokens: u32 = TOKENS,
        /// One row for each command.
        provenance: Provenance = PROVENANCE,
        texts: Text = TEXTS,
        names: Name = NAMES,
        name_bytes: u8 = NAME_BYTES,
        text_bytes: u8 = TEXT_BYTES,
    }

    /// The string in row `row` of NAMES; empty for [`NONE`].
    ///
    /// # Panics
    /// If `row` did not come from this plan.
    pub fn name(&self, row: u32) -> &str {
        if row == NONE {
            return "";
        }
        let name = self.names()[row as usize];
        let range = name.offset as usize..name.offset as usize + name.bytes as usize;
        std::str::from_utf8(&self.name_bytes()[range]).expect("checked when opened")
    }

    /// The body of the text in row `row` of TEXTS.
    ///
    /// # Panics
    /// If `row` did not come from this plan.
    pub fn text(&self, row: u32) -> &str {
        self.text_body(&self.texts()[row as usize])
    }

    /// The first text of `kind`, one of [`crate::layout::text`].
    pub fn text_of_kind(&self, kind: u32) -> Option<&str> {
        self.texts().iter().find(|text| text.kind == kind).map(|text| self.text_body(text))
    }

    /// The body of one of this plan's texts.
    pub fn text_body(&self, text: &Text) -> &str {
        let start = usize::try_from(text.offset).expect("checked when opened");
        let bytes = usize::try_from(text.bytes).expect("checked when opened");
        let body = &self.text_bytes()[start..start + bytes];
        std::str::from_utf8(body).expect("checked when opened")
    }

    /// The chat template, if the model has one.
    pub fn chat_template(&self) -> Option<&str> {
        let row = self.model().chat_template;
        (row != NONE).then(|| self.text(row))
    }

    /// Tokens that end a text.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.tokens()[self.model().stop_tokens.range()]
    }
}
