//! From the path of a plan to an engine: refusals first, then memory, then weights.

use std::io;
use std::path::Path;

use strata_formats::{FileBytes, Gguf, Safetensors, fnv1a_64};
use strata_plan::layout::{Schedule, Target, device, schedule, tier};
use strata_plan::{Plan, PlanError};

use crate::bind::{Spaces, memory_needs};
use crate::error::ReplayError;
use crate::host::{Code, HugeMemory, Pool, available_bytes, cpu_features, missing_features};
use crate::load::Loader;
use crate::pack::open_pack;
use crate::sequences::{Row, Sequences};
use crate::session::{Engine, Window};
use crate::state::States;
use crate::step::StepLayout;

/// How to open an engine.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Threads, the caller's included; if not given the plan's number, or one for each core that
    /// the process is allowed and has time for.
    pub threads: Option<u32>,
    /// Snapshots that can be held at once.
    pub snapshots: u32,
    /// Bytes that the engine may take; what the system has available, if not given.
    pub memory_bytes: Option<u64>,
    /// For finding faults: fills the arena with NaN before each window, so that a kernel that reads
    /// what none has written shows itself.
    pub poison_arena: bool,
}

impl Engine {
    /// Opens the plan at `path`, takes all memory it needs and loads its weights. `progress` is told
    /// bytes of the weight files done, and all of them. If the plan has a packed file that is not
    /// there yet, it is made beside the plan.
    ///
    /// The calling thread becomes part 0 of the pool; it is kept on one core until the engine is
    /// dropped or runs on another thread. Threads that it starts meanwhile inherit that core, see
    /// [`use_all_cores`](crate::use_all_cores).
    ///
    /// # Errors
    /// The plan or a file of it is refused, this CPU runs none of its code, there is too little
    /// memory, or the packed file cannot be made. Nothing is left allocated then.
    pub fn open(
        path: &Path,
        options: &EngineOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, ReplayError> {
        let plan = Plan::open_trusted(path)?;
        check_files(&plan, path)?;
        let target = *choose_target(&plan, cpu_features())?;
        let states = States::new(&plan);
        let snapshots_bytes = states.snapshot_bytes().saturating_mul(options.snapshots as usize);
        check_memory(&plan, snapshots_bytes as u64, options)?;

        let threads = options.threads.or_else(|| wanted_threads(&plan));
        let system = |doing| move |error: io::Error| ReplayError::System { doing, error };
        let mut pool = Pool::new(threads).map_err(system("starting the threads of the pool"))?;
        let code = Code::load(&plan, &target).map_err(system("mapping the plan's code"))?;
        let mut spaces = Spaces::new(&plan, folder_of(path))?;
        let saved = HugeMemory::new(snapshots_bytes).map_err(system("reserving snapshots"))?;
        let (weights, sources) = spaces.loading();
        let mut loader = Loader::new(&plan, sources, code.entries(), &mut pool, progress);
        loader.expect(tier::RAM);
        let pack = open_pack(path, &mut loader)?;
        loader.load(tier::RAM, weights);
        spaces.finish(&plan, pack);

        let model = plan.model();
        let windows = windows(&plan);
        let largest = windows.iter().map(|window| window.rows).max();
        let longest = plan.schedules().iter().map(|row| row.commands.count as usize).max();
        Ok(Self {
            args: spaces.args(&plan),
            step: StepLayout::new(model),
            sequences: Sequences::new(model, options.snapshots, states.reach()),
            positions: vec![0; model.max_rows as usize].into_boxed_slice(),
            rows: Vec::with_capacity(largest.unwrap_or(0)),
            nanoseconds: vec![0; longest.unwrap_or(0)].into_boxed_slice(),
            target: plan.targets().iter().position(|row| *row == target).unwrap_or(0),
            poison_arena: options.poison_arena,
            last_window_ns: 0,
            commit: plan.schedules().iter().position(|row| row.kind == schedule::COMMIT),
            last: None,
            saved,
            windows,
            states,
            spaces,
            code,
            pool,
            plan,
        })
    }
}

/// Compares the files that `plan`, at `path`, names with those it was compiled from.
///
/// # Errors
/// Names the first file that is missing or different.
pub fn check_files(plan: &Plan, path: &Path) -> Result<(), PlanError> {
    plan.check_files(folder_of(path), &mut header_hash)
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// FNV-1a 64 of everything before the tensors of a model file.
fn header_hash(path: &Path) -> io::Result<u64> {
    let refuse = |error: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, error.to_string())
    };
    let bytes = FileBytes::map(path).map_err(|error| refuse(&error))?;
    if bytes.starts_with(b"GGUF") {
        let file = Gguf::read(bytes).map_err(|error| refuse(&error))?;
        return Ok(fnv1a_64(file.header()));
    }
    let file = Safetensors::read(bytes).map_err(|error| refuse(&error))?;
    Ok(fnv1a_64(file.header()))
}

/// The best variant of the code that a CPU with `features` runs.
pub(crate) fn choose_target(plan: &Plan, features: u64) -> Result<&Target, ReplayError> {
    let device = cpu_device(plan);
    let own = || plan.targets().iter().filter(|target| Some(target.device) == device);
    let best = own().filter(|row| row.features & !features == 0).max_by_key(|row| row.rank);
    best.ok_or_else(|| {
        let lacking = |row: &Target| {
            (plan.name(row.name).to_owned(), missing_features(row.features, features))
        };
        ReplayError::NoTarget { lacking: own().map(lacking).collect() }
    })
}

fn cpu_device(plan: &Plan) -> Option<u32> {
    let found = plan.devices().iter().position(|row| row.kind == device::CPU)?;
    u32::try_from(found).ok()
}

fn wanted_threads(plan: &Plan) -> Option<u32> {
    let threads = plan.devices().iter().find(|row| row.kind == device::CPU)?.threads;
    (threads > 0).then_some(threads)
}

fn check_memory(plan: &Plan, saved: u64, options: &EngineOptions) -> Result<(), ReplayError> {
    let available = available_bytes().unwrap_or(u64::MAX);
    let available = options.memory_bytes.map_or(available, |limit| limit.min(available));
    let model = plan.model();
    let rows = u64::from(model.max_rows) * (size_of::<Row>() + size_of::<u32>()) as u64;
    let tables = Sequences::bytes(model, options.snapshots).saturating_add(rows);
    let needs = memory_needs(plan, saved, tables, available);
    if needs.total_bytes() > available {
        return Err(ReplayError::Memory(needs));
    }
    Ok(())
}

/// Windows that rows can be run in, smallest first.
fn windows(plan: &Plan) -> Box<[Window]> {
    let usable = |(_, row): &(usize, &Schedule)| row.kind != schedule::COMMIT;
    let window = |(schedule, row): (usize, &Schedule)| Window {
        schedule,
        kind: row.kind,
        rows: row.rows as usize,
        logit_rows: row.logit_rows as usize,
    };
    let mut windows: Box<[Window]> =
        plan.schedules().iter().enumerate().filter(usable).map(window).collect();
    windows.sort_by_key(|window| (window.rows, window.logit_rows));
    windows
}
