//! Why a plan was refused.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::trust::Distrust;

/// Why a plan was refused. It is checked whole on opening; nothing has been allocated or launched.
///
/// `section` is the name of a section, `row` counts from 0 in it, `field` is a field of its row.
#[derive(Debug)]
pub enum PlanError {
    Io { path: PathBuf, error: io::Error },
    TooShort { found_bytes: u64, needed_bytes: u64 },
    Magic { found: [u8; 8] },
    Format { found: u32, needed: u32 },
    FileBytes { found: u64, stated: u64 },
    Checksum { found: u64, stated: u64 },
    SectionKind { index: usize, found: u32 },
    SectionTwice { section: &'static str },
    SectionMissing { section: &'static str },
    RowBytes { section: &'static str, found: u32, needed: u32 },
    SectionAlign { section: &'static str, offset: u64, align_bytes: u64 },
    SectionOrder { section: &'static str, offset: u64, earliest: u64 },
    SectionRange { section: &'static str, rows: u64, offset: u64, file_bytes: u64 },
    SectionRows { section: &'static str, found: usize, needed: usize },
    Reserve { section: &'static str, row: usize },
    Reference { at: At, field: &'static str, found: u64, rows: usize, of: &'static str },
    Code { at: At, field: &'static str, found: u64 },
    Range { at: At, field: &'static str, offset: u64, bytes: u64, limit: u64 },
    Align { at: At, field: &'static str, found: u64, align_bytes: u64 },
    Limit { at: At, field: &'static str, found: u64, relation: Relation, limit: u64 },
    Utf8 { at: At },
    FileName { at: At, found: String },
    Opcode { command: usize, opcode: &'static str, device: &'static str },
    Untrusted { path: PathBuf, distrust: Distrust },
    WeightFile { path: PathBuf, error: io::Error },
    WeightFileBytes { path: PathBuf, found: u64, needed: u64 },
    WeightFileHeader { path: PathBuf, found: u64, needed: u64 },
}

/// A row of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub section: &'static str,
    pub row: usize,
}

/// What a value had to be in relation to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    AtLeast,
    AtMost,
    Equal,
}

const RECOMPILE: &str = "the plan is damaged or from another build: compile the model again";

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.section, self.row)
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtLeast => "at least",
            Self::AtMost => "at most",
            Self::Equal => "exactly",
        })
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "plan {}: {error}", path.display()),
            Self::TooShort { .. }
            | Self::Magic { .. }
            | Self::Format { .. }
            | Self::FileBytes { .. }
            | Self::Checksum { .. } => self.file(f),
            Self::Untrusted { path, distrust } => {
                write!(f, "plan {} holds machine code and {distrust}", path.display())
            }
            Self::WeightFile { path, error } => write!(
                f,
                "weight file {}: {error}; put it there, or compile again with its new path",
                path.display()
            ),
            Self::WeightFileBytes { path, found, needed } => write!(
                f,
                "weight file {} has {found} bytes, the plan was compiled from one of {needed}: \
                 restore that file or compile again",
                path.display()
            ),
            Self::WeightFileHeader { path, found, needed } => write!(
                f,
                "weight file {} has header hash {found:016x}, the plan was compiled from \
                 {needed:016x}: restore that file or compile again",
                path.display()
            ),
            Self::Opcode { command, opcode, device } => write!(
                f,
                "COMMANDS[{command}] is {opcode}, which a {device} device does not know; {RECOMPILE}"
            ),
            _ => self.contents(f),
        }
    }
}

impl PlanError {
    fn file(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { found_bytes, needed_bytes } => write!(
                f,
                "{found_bytes} bytes are too few for a plan, its header and directory take \
                 {needed_bytes}; {RECOMPILE}"
            ),
            Self::Magic { found } => write!(
                f,
                "not a plan: it begins with \"{}\", a plan with \"{}\"; name a file written by \
                 `strata compile`",
                found.escape_ascii(),
                crate::layout::MAGIC.escape_ascii()
            ),
            Self::Format { found, needed } => write!(
                f,
                "plan format {found}, this program reads {needed}: compile the model again"
            ),
            Self::FileBytes { found, stated } => write!(
                f,
                "the file has {found} bytes, its header states {stated}: it was cut or appended \
                 to; {RECOMPILE}"
            ),
            Self::Checksum { found, stated } => {
                write!(f, "checksum {found:016x}, the header states {stated:016x}; {RECOMPILE}")
            }
            _ => Ok(()),
        }
    }

    fn contents(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SectionKind { index, found } => {
                write!(f, "directory entry {index} has the unknown kind {found}")
            }
            Self::SectionTwice { section } => write!(f, "section {section} is there twice"),
            Self::SectionMissing { section } => write!(f, "section {section} is missing"),
            Self::RowBytes { section, found, needed } => {
                write!(f, "rows of section {section} have {found} bytes, needed {needed}")
            }
            Self::SectionAlign { section, offset, align_bytes } => {
                write!(f, "section {section} begins at {offset}, no multiple of {align_bytes}")
            }
            Self::SectionOrder { section, offset, earliest } => {
                write!(f, "section {section} begins at {offset}, inside what ends at {earliest}")
            }
            Self::SectionRange { section, rows, offset, file_bytes } => write!(
                f,
                "section {section} of {rows} rows at {offset} ends after the file's {file_bytes} \
                 bytes"
            ),
            Self::SectionRows { section, found, needed } => {
                write!(f, "section {section} has {found} rows, needed {needed}")
            }
            Self::Reserve { section, row } => {
                write!(f, "a reserved field of {section}[{row}] is not zero")
            }
            Self::Reference { at, field, found, rows, of } => {
                write!(f, "{at}.{field} names row {found} of {of}, which has {rows}")
            }
            Self::Code { at, field, found } => write!(f, "{at}.{field} is {found}, no known code"),
            Self::Range { at, field, offset, bytes, limit } => write!(
                f,
                "{at}.{field}: {bytes} bytes at {offset} do not lie in the {limit} that are there"
            ),
            Self::Align { at, field, found, align_bytes } => {
                write!(f, "{at}.{field} is {found}, no multiple of {align_bytes}")
            }
            Self::Limit { at, field, found, relation, limit } => {
                write!(f, "{at}.{field} is {found}, needed {relation} {limit}")
            }
            Self::Utf8 { at } => write!(f, "{at} is not UTF-8"),
            Self::FileName { at, found } => {
                write!(f, "{at}.name is {found:?}, needed the name of a file beside the plan")
            }
            _ => Ok(()),
        }?;
        write!(f, "; {RECOMPILE}")
    }
}

impl std::error::Error for PlanError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } | Self::WeightFile { error, .. } => Some(error),
            _ => None,
        }
    }
}
