//! A sequence in a file, for another run of the same plan.
//!
//! Little-endian, in this order: a [`Header`]; the tokens, `u32` each; for each state that grows, in
//! the order of the plan, its pages in the order of positions; the values of the other states, in
//! the order of the plan; FNV-1a over the words of all that stands before, the last word filled up
//! with zeros. docs/STATE_FORMAT.md says the same.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};

use crate::error::ReplayError;
use crate::sequences::SlotId;
use crate::session::Engine;

/// What a file of a sequence begins with.
pub(crate) const MAGIC: [u8; 8] = *b"STRATASQ";
/// The format's number. There is no migration: a prompt can be read again.
pub(crate) const FORMAT: u32 = 1;

const BUFFER_BYTES: usize = 1 << 20;
/// Files that are being written have names of their own; after so many that exist, something else
/// is wrong.
const MOST_NAMES: u32 = 1000;

#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Header {
    pub magic: [u8; 8],
    pub format: u32,
    /// Tokens of the sequence.
    pub tokens: u32,
    /// Checksum of the plan.
    pub plan: u64,
    /// Of the whole file.
    pub file_bytes: u64,
    pub reserved: [u64; 4],
}

/// Why a file of a sequence was refused. The engine is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFault {
    Magic { found: [u8; 8] },
    Format { found: u32 },
    Plan { found: u64, needed: u64 },
    Bytes { found: u64, needed: u64 },
    Token { index: u32, token: u32, vocab: u32 },
    Reserve,
    Checksum { found: u64, stated: u64 },
}

impl std::fmt::Display for StateFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic { found } => write!(
                f,
                "it begins with \"{}\", a saved sequence with \"{}\": name a file that was saved \
                 from a sequence",
                found.escape_ascii(),
                MAGIC.escape_ascii()
            ),
            Self::Format { found } => write!(
                f,
                "its format is {found}, this program reads {FORMAT}: read the prompt again and save \
                 it anew"
            ),
            Self::Plan { found, needed } => write!(
                f,
                "it was saved from the plan with checksum {found:016x}, this one has {needed:016x}: \
                 open that plan, or read the prompt again"
            ),
            Self::Bytes { found, needed } => write!(
                f,
                "it has {found} bytes, needed {needed}: it was cut or appended to; read the prompt \
                 again and save it anew"
            ),
            Self::Token { index, token, vocab } => write!(
                f,
                "its token {index} is {token}, the vocabulary ends before {vocab}: the file is \
                 damaged, read the prompt again and save it anew"
            ),
            Self::Reserve => write!(
                f,
                "a reserved field of its header is not zero: the file is damaged, read the prompt \
                 again and save it anew"
            ),
            Self::Checksum { found, stated } => write!(
                f,
                "its checksum is {found:016x}, it states {stated:016x}: the file is damaged, read \
                 the prompt again and save it anew"
            ),
        }
    }
}

/// FNV-1a 64 over words of 8 bytes.
#[derive(Clone, Copy, Debug)]
struct WordHash(u64);

impl WordHash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Of pieces of a whole number of words, but for the last.
    fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// Writes and hashes what goes through it.
struct HashedWriter {
    file: File,
    buffer: Vec<u8>,
    hash: WordHash,
}

impl HashedWriter {
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = BUFFER_BYTES - self.buffer.len();
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = rest;
            if self.buffer.len() == BUFFER_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hash.add(&self.buffer);
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.write_all(&self.hash.0.to_le_bytes())?;
        self.file.sync_all()
    }
}

/// Reads and hashes what goes through it.
struct HashedReader {
    file: File,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken.
    taken: usize,
    /// Bytes of the file behind the buffer, without the checksum.
    left: u64,
    hash: WordHash,
}

impl HashedReader {
    fn take(&mut self, mut place: &mut [u8]) -> io::Result<()> {
        while !place.is_empty() {
            if self.taken == self.buffer.len() {
                self.fill()?;
            }
            let there = &self.buffer[self.taken..];
            let count = there.len().min(place.len());
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            place[..count].copy_from_slice(&there[..count]);
            self.taken += count;
            place = &mut place[count..];
        }
        Ok(())
    }

    fn fill(&mut self) -> io::Result<()> {
        let bytes = self.left.min(BUFFER_BYTES as u64);
        self.left -= bytes;
        self.buffer.resize(usize::try_from(bytes).expect("a buffer is small"), 0);
        self.file.read_exact(&mut self.buffer)?;
        self.hash.add(&self.buffer);
        self.taken = 0;
        Ok(())
    }

    /// The hash of all that was read, and the one that the file states.
    fn finish(mut self) -> io::Result<(u64, u64)> {
        let mut stated = [0; 8];
        self.file.read_exact(&mut stated)?;
        Ok((self.hash.0, u64::from_le_bytes(stated)))
    }
}

impl Engine {
    /// Writes what `sequence` holds, its tokens included, to a file: a temporary one beside `path`
    /// that then takes its name. Rows that wait to be committed must be committed first.
    ///
    /// # Errors
    /// The sequence was released or has rows to commit, or the file cannot be written; then `path`
    /// is what it was.
    pub fn save_sequence(&self, sequence: SlotId, path: &Path) -> Result<(), ReplayError> {
        self.sequences.check_committed(sequence)?;
        let tokens = self.sequences.tokens(sequence)?;
        let (temporary, file) = create_beside(path).map_err(|error| file_error(path, error))?;
        let saved = self.write_sequence(sequence.slot, tokens, file);
        let renamed = saved.and_then(|()| std::fs::rename(&temporary, path));
        renamed.map_err(|error| {
            // What is left of it is of no use to anybody.
            let _ = std::fs::remove_file(&temporary);
            file_error(path, error)
        })
    }

    fn write_sequence(&self, slot: u32, tokens: &[u32], file: File) -> io::Result<()> {
        let header = Header {
            magic: MAGIC,
            format: FORMAT,
            tokens: u32::try_from(tokens.len()).expect("fewer than positions"),
            plan: self.plan.checksum(),
            file_bytes: self.file_bytes(tokens.len()),
            reserved: [0; 4],
        };
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        let mut out = HashedWriter { file, buffer, hash: WordHash::new() };
        out.put(bytemuck::bytes_of(&header))?;
        out.put(bytemuck::cast_slice(tokens))?;
        let memory = self.spaces.states.bytes();
        let pages = tokens.len().div_ceil(self.model().page_tokens as usize);
        for place in self.states.pages(&self.sequences.page_table(slot)[..pages]) {
            out.put(&memory[place])?;
        }
        for place in self.states.values(slot) {
            out.put(&memory[place])?;
        }
        out.finish()
    }

    /// Bytes of the file of a sequence of `tokens` tokens.
    fn file_bytes(&self, tokens: usize) -> u64 {
        let pages = tokens.div_ceil(self.model().page_tokens as usize) as u64;
        let fixed = size_of::<Header>() + 8 + self.states.snapshot_bytes();
        let pages_bytes = pages.saturating_mul(self.states.page_bytes() as u64);
        pages_bytes.saturating_add(fixed as u64 + 4 * tokens as u64)
    }

    /// Starts a sequence that holds what [`Engine::save_sequence`] wrote.
    ///
    /// # Errors
    /// [`ReplayError::StateFile`] if the file is not of this plan or is damaged, and all that
    /// starting a sequence of its length can meet. Nothing has changed then.
    pub fn load_sequence(&mut self, path: &Path) -> Result<SlotId, ReplayError> {
        let fault = |fault| ReplayError::StateFile { path: path.to_owned(), fault };
        let system = |error| file_error(path, error);
        let file = File::open(path).map_err(system)?;
        let found = file.metadata().map_err(system)?.len();
        let mut reader = HashedReader {
            file,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            taken: 0,
            left: found.saturating_sub(8),
            hash: WordHash::new(),
        };
        let mut header = Header::zeroed();
        let least = (size_of::<Header>() + 8) as u64;
        if found < least {
            return Err(fault(StateFault::Bytes { found, needed: least }));
        }
        reader.take(bytemuck::bytes_of_mut(&mut header)).map_err(system)?;
        self.check_header(&header, found).map_err(fault)?;
        let mut tokens = vec![0u32; header.tokens as usize];
        reader.take(bytemuck::cast_slice_mut(&mut tokens)).map_err(system)?;
        let vocab = self.model().vocab;
        if let Some((index, &token)) = (0..).zip(&tokens).find(|(_, token)| **token >= vocab) {
            return Err(fault(StateFault::Token { index, token, vocab }));
        }
        let id = self.sequences.start_with(&tokens)?;
        let read = self.read_states(id, reader).map_err(system);
        let checked = read.and_then(|(found, stated)| {
            if found == stated {
                Ok(())
            } else {
                Err(fault(StateFault::Checksum { found, stated }))
            }
        });
        checked.map(|()| id).inspect_err(|_| self.sequences.release(id))
    }

    fn check_header(&self, header: &Header, found: u64) -> Result<(), StateFault> {
        if header.magic != MAGIC {
            return Err(StateFault::Magic { found: header.magic });
        }
        if header.format != FORMAT {
            return Err(StateFault::Format { found: header.format });
        }
        let needed = self.plan.checksum();
        if header.plan != needed {
            return Err(StateFault::Plan { found: header.plan, needed });
        }
        if header.reserved != [0; 4] {
            return Err(StateFault::Reserve);
        }
        for needed in [header.file_bytes, self.file_bytes(header.tokens as usize)] {
            if found != needed {
                return Err(StateFault::Bytes { found, needed });
            }
        }
        Ok(())
    }

    fn read_states(&mut self, id: SlotId, mut reader: HashedReader) -> io::Result<(u64, u64)> {
        let memory = self.spaces.states.bytes_mut();
        for place in self.states.pages(self.sequences.page_table(id.slot)) {
            reader.take(&mut memory[place])?;
        }
        for place in self.states.values(id.slot) {
            reader.take(&mut memory[place])?;
        }
        reader.finish()
    }
}

fn file_error(path: &Path, error: io::Error) -> ReplayError {
    ReplayError::File { path: path.to_owned(), error }
}

/// A new file with a name of its own in the folder of `path`.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    for attempt in 0..MOST_NAMES {
        let mut name = name.to_owned();
        name.push(format!(".{}-{attempt}.part", std::process::id()));
        let temporary = path.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
