//! From (space, offset) to addresses: the spaces of a plan in this process's memory.

use std::path::Path;

use strata_plan::Plan;
use strata_plan::layout::{NONE, space};

use crate::error::{MemoryNeeds, ReplayError};
use crate::host::{HugeMemory, MappedFile};

/// What the host itself reads and writes of a plan's memory, and the addresses of all of it.
#[derive(Debug)]
pub(crate) struct Spaces {
    pub weights: HugeMemory,
    pub arena: HugeMemory,
    pub states: HugeMemory,
    pub step: HugeMemory,
    /// Kept for their addresses.
    constants: HugeMemory,
    /// One for each row of FILES that a weight is read from.
    files: Box<[Option<MappedFile>]>,
    /// The packed file, once it is there.
    pack: Option<MappedFile>,
    /// Where each row of SPACES begins.
    bases: Box<[u64]>,
}

impl Spaces {
    /// Reserves memory and maps the weight files.
    pub fn new(plan: &Plan, plan_dir: &Path) -> Result<Self, ReplayError> {
        let reserve = |kind: u32| {
            let bytes = usize::try_from(space_bytes(plan, kind)).unwrap_or(usize::MAX);
            HugeMemory::new(bytes)
                .map_err(|error| ReplayError::System { doing: "reserving memory", error })
        };
        let mut spaces = Self {
            weights: reserve(space::WEIGHTS)?,
            arena: reserve(space::ARENA)?,
            states: reserve(space::STATES)?,
            step: reserve(space::STEP)?,
            constants: reserve(space::CONSTANTS)?,
            files: map_files(plan, plan_dir)?,
            pack: None,
            bases: Box::default(),
        };
        let constants: &[u8] = bytemuck::cast_slice(plan.constants());
        let room = spaces.constants.bytes_mut();
        let count = room.len();
        room.copy_from_slice(&constants[..count]);
        Ok(spaces)
    }

    /// Takes the packed file, if the plan has one, after which all spaces have their addresses.
    /// Unmaps files that were only read to be repacked.
    pub fn finish(&mut self, plan: &Plan, pack: Option<MappedFile>) {
        self.pack = pack;
        for (file, used) in self.files.iter_mut().zip(used_in_place(plan)) {
            if !used {
                *file = None;
            }
        }
        self.bases = plan.spaces().iter().map(|row| self.base(row.kind, row.file)).collect();
    }

    fn base(&self, kind: u32, file: u32) -> u64 {
        match kind {
            space::WEIGHTS => self.weights.address(),
            space::ARENA => self.arena.address(),
            space::STATES => self.states.address(),
            space::STEP => self.step.address(),
            space::CONSTANTS => self.constants.address(),
            space::PACK => self.pack.as_ref().map_or(0, MappedFile::address),
            // A file that nothing is read from in place has no address, and needs none.
            _ => self.files[file as usize].as_ref().map_or(0, MappedFile::address),
        }
    }

    /// Addresses of all rows of ARGS.
    pub fn args(&self, plan: &Plan) -> Box<[u64]> {
        plan.args().iter().map(|arg| self.bases[arg.space as usize] + arg.offset).collect()
    }

    /// What loading works with: where weights go to, the files, and the address of the step block.
    pub fn loading(&mut self) -> (&mut [u8], (&[Option<MappedFile>], u64)) {
        let step = self.step.address();
        (self.weights.bytes_mut(), (&self.files, step))
    }
}

/// Bytes of the space of `kind`; 0 if the plan has none.
pub(crate) fn space_bytes(plan: &Plan, kind: u32) -> u64 {
    plan.spaces().iter().find(|row| row.kind == kind).map_or(0, |row| row.bytes)
}

/// Which files kernels read by address.
fn used_in_place(plan: &Plan) -> Vec<bool> {
    let mut used = vec![false; plan.files().len()];
    for arg in plan.args() {
        let row = &plan.spaces()[arg.space as usize];
        if row.kind == space::FILE && row.file != NONE {
            used[row.file as usize] = true;
        }
    }
    used
}

fn map_files(plan: &Plan, plan_dir: &Path) -> Result<Box<[Option<MappedFile>]>, ReplayError> {
    let mut used = used_in_place(plan);
    for part in plan.parts() {
        used[part.file as usize] = true;
    }
    let map = |(file, used): (&strata_plan::layout::File, bool)| {
        if !used {
            return Ok(None);
        }
        let path = plan.file_path(file, plan_dir);
        let refuse = |error| ReplayError::File { path: path.clone(), error };
        let mapped = MappedFile::open(&path).map_err(refuse)?;
        // The file was measured before; between then and now it may have been replaced.
        if (mapped.bytes().len() as u64) < file.bytes {
            return Err(refuse(std::io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Some(mapped))
    };
    plan.files().iter().zip(used).map(map).collect()
}

/// What `plan` takes of this machine's memory, mapped files not counted, with `snapshots_bytes` for snapshots and
/// `tables_bytes` for what the host remembers of sequences and rows.
pub(crate) fn memory_needs(
    plan: &Plan,
    snapshots_bytes: u64,
    tables_bytes: u64,
    available_bytes: u64,
) -> MemoryNeeds {
    let other = [space::STEP, space::CONSTANTS].map(|kind| space_bytes(plan, kind));
    MemoryNeeds {
        weights_bytes: space_bytes(plan, space::WEIGHTS),
        states_bytes: space_bytes(plan, space::STATES),
        arena_bytes: space_bytes(plan, space::ARENA),
        snapshots_bytes,
        other_bytes: tables_bytes.saturating_add(other[0] + other[1]),
        available_bytes,
    }
}
