//! A small plan for tests, made by hand. Its kernels are functions of this process, which the
//! plan's code jumps to; they are as simple as can be, and touch every space.
//!
//! The plan with states has a recurrent state, a tail, a state whose entry belongs to the position
//! before its row, a COMMIT schedule and a draft head with a seeded state.
//!
//! The logits behind a row are f32 numbers that a test can compute from the row's tokens:
//! `[hash of all tokens, hash kept by the recurrent state, token, parts, copied weight of the token,
//! repacked weight, mapped weight, constant]`.
#![allow(unsafe_code, reason = "kernels take addresses")]
#![allow(clippy::unwrap_used, reason = "clippy cannot see that these functions only run in tests")]

#[path = "test_plan/kernels.rs"]
mod kernels;

use std::path::{Path, PathBuf};

use strata_plan::layout::{
    Arg, Command, Device, File, Kernel, Model, NONE, Output, Part, Provenance, Run, Schedule,
    Space, State, Target, Weight, cpu_feature, device, opcode, schedule, space, state, tier,
};
use strata_plan::{PlanImage, write_plan_file};

pub const VOCAB: usize = 8;
pub const PAGE_TOKENS: usize = 4;
pub const CONTEXT: usize = 30;
pub const SLOTS: usize = 3;
pub const PAGES: usize = 14;
const PAGES_PER_SLOT: usize = 8;
pub const MAX_ROWS: usize = 8;
pub const MAX_LOGIT_ROWS: usize = 4;

/// Rows and logit rows of the windows.
pub const WINDOWS: [(u32, u32); 3] = [(1, 1), (4, 4), (8, 1)];

/// Rows of the largest VERIFY window.
pub const VERIFY_ROWS: usize = 4;
/// Rows of the DRAFT window.
pub const DRAFT_ROWS: usize = 2;
/// Rows that the tail keeps.
const TAIL_ROWS: usize = 2;

/// Words of the step block.
const TOKENS: usize = 16;
const POSITIONS: usize = TOKENS + MAX_ROWS;
const ROW_SLOTS: usize = POSITIONS + MAX_ROWS;
const OFFSETS: usize = ROW_SLOTS + MAX_ROWS;
const LOGIT_ROWS: usize = OFFSETS + MAX_ROWS;
const COMMIT_SLOTS: usize = LOGIT_ROWS + MAX_LOGIT_ROWS;
const COMMIT_ROWS: usize = COMMIT_SLOTS + SLOTS;
const TABLE: usize = COMMIT_ROWS + SLOTS;
const STEP_WORDS: usize = TABLE + SLOTS * PAGES_PER_SLOT;

/// A slot of a state of fixed size: the value, then pending rows, each on a line of its own.
const PENDING_WORDS: usize = 16;
const SLOT_WORDS: usize = (1 + VERIFY_ROWS) * PENDING_WORDS;

/// In the STATES space: pages of three states, then slots of three.
const SECOND: usize = PAGES * PAGE_TOKENS * 4;
const PAIRS: usize = 2 * SECOND;
const HASH: usize = (3 * SECOND).next_multiple_of(64);
const LAST: usize = HASH + SLOTS * SLOT_WORDS * 4;
const DRAFT_HASH: usize = LAST + SLOTS * SLOT_WORDS * 4;
const STATES_BYTES: usize = DRAFT_HASH + SLOTS * SLOT_WORDS * 4;

/// In the arena: hashes of the rows, logits, words of the parts, tokens before each row.
const LOGITS: u64 = 1024;
const PART_WORDS: u64 = 2048;
const BACK: u64 = 3072;

/// Row of the kernel that writes its number of parts to each part's word of the arena.
pub const STORE_PARTS: u32 = 5;

/// What a token adds to a hash; hashes stay exact in f32.
pub fn mix(hash: u32, token: u32) -> u32 {
    (hash * 31 + token + 1) % (1 << 20)
}

/// `mov rax, address; jmp rax`
fn jump_to(kernel: kernels::Kernel) -> Vec<u8> {
    let mut code = vec![0x48, 0xb8];
    code.extend_from_slice(&(kernel as usize as u64).to_le_bytes());
    code.extend_from_slice(&[0xff, 0xe0]);
    code
}

/// In the order of their rows. Row 5 is `mov rax, [rdi + 8]; mov [rax + rsi * 4], edx; ret`, the
/// first `ret`.
fn code_of_kernels() -> [Vec<u8>; 14] {
    [
        vec![0xc3],
        jump_to(kernels::append),
        jump_to(kernels::recur),
        jump_to(kernels::attend),
        jump_to(kernels::double),
        vec![0x48, 0x8b, 0x47, 0x08, 0x89, 0x14, 0xb0, 0xc3],
        jump_to(kernels::append_pairs),
        jump_to(kernels::recur_pending),
        jump_to(kernels::recur_commit),
        jump_to(kernels::tail),
        jump_to(kernels::tail_pending),
        jump_to(kernels::tail_commit),
        jump_to(kernels::check),
        jump_to(kernels::draft),
    ]
}

const SPACES: [(u32, &str); 6] = [
    (space::WEIGHTS, "weights"),
    (space::ARENA, "arena"),
    (space::STATES, "states"),
    (space::STEP, "step"),
    (space::CONSTANTS, "constants"),
    (space::FILE, "weights.bin"),
];

/// Elements of the large weight, which is only there to be loaded.
pub const LARGE_FLOATS: usize = (9 << 20) / 2 + 3;

fn bytes_of_space(kind: u32, file_bytes: u64) -> u64 {
    let bytes = match kind {
        space::WEIGHTS => 256 + LARGE_FLOATS * 4,
        space::ARENA => 4096,
        space::STATES => STATES_BYTES,
        space::STEP => STEP_WORDS * 4,
        space::CONSTANTS => VOCAB * 4,
        _ => return file_bytes,
    };
    bytes as u64
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

/// The plan; with states of fixed size and a draft head if `recurrent`.
pub fn image(file_bytes: u64, recurrent: bool) -> PlanImage {
    let mut image = PlanImage::default();
    let cpu = image.name("cpu");
    image.devices.push(Device { kind: device::CPU, name: cpu, ..bytemuck::Zeroable::zeroed() });
    for (kind, name) in SPACES {
        let name = image.name(name);
        let file = if kind == space::FILE { 0 } else { NONE };
        let bytes = bytes_of_space(kind, file_bytes);
        image.spaces.push(Space { kind, device: 0, bytes, file, name, reserved: 0 });
    }
    image.constants = (0..VOCAB).map(|token| token as f32 + 0.75).collect();
    add_code(&mut image);
    add_weights(&mut image, file_bytes);
    add_states(&mut image, recurrent);
    for (rows, logit_rows) in WINDOWS {
        add_window(&mut image, rows, logit_rows, recurrent);
    }
    image.model = model(image.name("tiny"));
    image.model.verify_rows = small(VERIFY_ROWS);
    if recurrent {
        add_commit(&mut image);
        add_draft(&mut image);
        image.model.draft_rows = small(DRAFT_ROWS);
    }
    image
}

fn model(name: u32) -> Model {
    let offset = |word: usize| small(word * 4);
    Model {
        name,
        vocab: small(VOCAB),
        hidden: 1,
        layers: 1,
        context_tokens: small(CONTEXT),
        slots: small(SLOTS),
        page_tokens: small(PAGE_TOKENS),
        pages: small(PAGES),
        pages_per_slot: small(PAGES_PER_SLOT),
        max_rows: small(MAX_ROWS),
        max_logit_rows: small(MAX_LOGIT_ROWS),
        tokenizer_file: NONE,
        chat_template: NONE,
        device_count: 1,
        step_tokens: offset(TOKENS),
        step_positions: offset(POSITIONS),
        step_slots: offset(ROW_SLOTS),
        step_logit_rows: offset(LOGIT_ROWS),
        step_page_table: offset(TABLE),
        step_offsets: offset(OFFSETS),
        step_commit_slots: offset(COMMIT_SLOTS),
        step_commit_rows: offset(COMMIT_ROWS),
        step_bytes: offset(STEP_WORDS),
        ..bytemuck::Zeroable::zeroed()
    }
}

fn add_code(image: &mut PlanImage) {
    let name = image.name("any");
    let kernel_count = small(code_of_kernels().len());
    let features = cpu_feature::AVX2;
    image.targets.push(Target {
        name,
        features,
        kernel_count,
        rank: 1,
        ..bytemuck::Zeroable::zeroed()
    });
    for (row, code) in code_of_kernels().into_iter().enumerate() {
        let name = image.name(&format!("kernel {row}"));
        image.code.resize(image.code.len().next_multiple_of(64), 0);
        let (code_offset, code_bytes) = (image.code.len() as u64, code.len() as u64);
        image.kernels.push(Kernel { name, spec: name, code_offset, code_bytes, reserved: 0 });
        image.code.extend_from_slice(&code);
    }
}

/// `[copied | repacked | mapped | large]` in the file; copied, repacked and large in WEIGHTS.
fn add_weights(image: &mut PlanImage, file_bytes: u64) {
    let row_bytes = VOCAB as u64 * 4;
    let name = image.name("weights.bin");
    image.files.push(File { name, bytes: file_bytes, ..bytemuck::Zeroable::zeroed() });
    let large = LARGE_FLOATS as u64 * 4;
    for (name, kernel, (from, to), bytes) in [
        ("copied", NONE, (0, 0), row_bytes),
        ("repacked", 4, (row_bytes, 64), row_bytes),
        ("large", NONE, (3 * row_bytes, 256), large),
    ] {
        let parts = Run::of(image.parts.len()..image.parts.len() + 1);
        image.parts.push(Part {
            file: 0,
            kernel,
            offset: from,
            bytes,
            destination: 0,
            destination_bytes: bytes,
        });
        let (name, dtype) = (image.name(name), image.name("f32"));
        image.weights.push(Weight {
            name,
            dtype,
            tier: tier::RAM,
            space: 0,
            offset: to,
            bytes,
            parts,
            dims: [1, 1, 1, small(VOCAB)],
            stored_bytes: bytes,
            reserved: [0; 4],
        });
    }
}

fn add_states(image: &mut PlanImage, recurrent: bool) {
    let page = PAGE_TOKENS * 4;
    let slot = SLOT_WORDS * 4;
    // Kind, offset, stride, bytes of the value, seed.
    let mut states = vec![
        ("first", state::APPEND, [0, page, 0], NONE),
        ("second", state::APPEND, [SECOND, page, 0], NONE),
    ];
    if recurrent {
        states.push(("pairs", state::APPEND, [PAIRS, page, 0], NONE));
        states.push(("hash", state::RECURRENT, [HASH, slot, 4], NONE));
        states.push(("last", state::TAIL, [LAST, slot, 4 * TAIL_ROWS], NONE));
        states.push(("draft hash", state::RECURRENT, [DRAFT_HASH, slot, 4], 3));
    }
    for (name, kind, [offset, stride, value], seed) in states {
        let (pages, pending) = (kind == state::APPEND, value > 0 && seed == NONE);
        let line = if pending { PENDING_WORDS as u64 * 4 } else { 0 };
        let (first, tail) = (name == "pairs", kind == state::TAIL);
        let (name, dtype) = (image.name(name), image.name("u32"));
        image.states.push(State {
            name,
            kind,
            dtype,
            tail_rows: if tail { small(TAIL_ROWS) } else { 0 },
            space: 2,
            seed,
            offset: offset as u64,
            stride_bytes: stride as u64,
            token_bytes: if pages { 4 } else { 0 },
            row: [1; 4],
            value_bytes: value as u64,
            pending_bytes: line,
            pending_stride_bytes: line,
            every: 1,
            first: u32::from(first),
        });
    }
}

fn add_window(image: &mut PlanImage, rows: u32, logit_rows: u32, recurrent: bool) {
    let first = image.commands.len();
    let row_bytes = VOCAB as u64 * 4;
    let kind = if logit_rows == 1 && rows > 4 { schedule::PREFILL } else { schedule::VERIFY };
    let (second, pairs) = (SECOND as u64, PAIRS as u64);
    launch(image, 1, 0, &[(3, 0), (2, 0), (2, second)]);
    if recurrent {
        let (recur, tail) = if kind == schedule::VERIFY { (7, 10) } else { (2, 9) };
        launch(image, 6, 0, &[(3, 0), (2, pairs)]);
        launch(image, recur, 0, &[(3, 0), (2, HASH as u64), (1, 0)]);
        launch(image, tail, 0, &[(3, 0), (2, LAST as u64), (1, BACK)]);
    }
    launch(image, opcode::BARRIER, 0, &[]);
    let weights = [(0, 0), (0, 64), (5, 2 * row_bytes), (4, 0)];
    let mut operands = vec![(3, 0), (2, 0), (2, second), (1, 0)];
    operands.extend_from_slice(&weights);
    operands.push((1, LOGITS));
    launch(image, 3, 0, &operands);
    if recurrent {
        launch(image, 12, 0, &[(3, 0), (2, 0), (2, pairs), (1, BACK), (1, LOGITS)]);
    }
    launch(image, STORE_PARTS, 2, &[(3, 0), (1, PART_WORDS)]);
    let outputs = if recurrent { hashes(image, rows) } else { Run { first: 0, count: 0 } };
    add_schedule(image, kind, (rows, logit_rows), first);
    let schedule = image.schedules.last_mut().unwrap();
    schedule.outputs = outputs;
}

/// The hashes of the rows as an output.
fn hashes(image: &mut PlanImage, rows: u32) -> Run {
    let first = image.outputs.len();
    let (name, dtype) = (image.name("hashes"), image.name("u32"));
    let arg = argument(image, (1, 0));
    let dims = [rows, 1, 1, 1];
    let bytes = u64::from(rows) * 4;
    image.outputs.push(Output { name, dtype, arg, rank: 1, dims, bytes, reserved: 0 });
    Run::of(first..first + 1)
}

/// A schedule of the commands from `first` on, whose logits lie where they do in all windows.
fn add_schedule(image: &mut PlanImage, kind: u32, (rows, logit_rows): (u32, u32), first: usize) {
    let logits = if kind == schedule::COMMIT { NONE } else { argument(image, (1, LOGITS)) };
    image.schedules.push(Schedule {
        kind,
        rows,
        logit_rows,
        commands: Run::of(first..image.commands.len()),
        logits,
        launches: small(image.commands.len() - first),
        arena_bytes: 4096,
        ..bytemuck::Zeroable::zeroed()
    });
}

fn add_commit(image: &mut PlanImage) {
    let first = image.commands.len();
    launch(image, 8, 0, &[(3, 0), (2, HASH as u64)]);
    launch(image, 11, 0, &[(3, 0), (2, LAST as u64)]);
    add_schedule(image, schedule::COMMIT, (0, 0), first);
}

fn add_draft(image: &mut PlanImage) {
    let first = image.commands.len();
    launch(image, 6, 0, &[(3, 0), (2, PAIRS as u64)]);
    launch(image, 2, 0, &[(3, 0), (2, DRAFT_HASH as u64), (1, 0)]);
    launch(image, opcode::BARRIER, 0, &[]);
    launch(image, 13, 0, &[(3, 0), (2, PAIRS as u64), (1, 0), (1, LOGITS)]);
    let rows = small(DRAFT_ROWS);
    add_schedule(image, schedule::DRAFT, (rows, rows), first);
}

fn argument(image: &mut PlanImage, (space, offset): (u32, u64)) -> u32 {
    image.args.push(Arg { space, reserved: 0, offset });
    small(image.args.len() - 1)
}

/// Adds a launch of kernel `row`, or a barrier if it has no operands.
fn launch(image: &mut PlanImage, row: u32, parts: u32, operands: &[(u32, u64)]) {
    let first = image.args.len();
    image.args.extend(operands.iter().map(|&(space, offset)| Arg { space, reserved: 0, offset }));
    let opcode = if operands.is_empty() { opcode::BARRIER } else { opcode::LAUNCH };
    let args = Run::of(first..image.args.len());
    image.commands.push(Command { opcode, stream: 0, row, args, grid: [parts, 1, 1] });
    let name = image.name(&format!("node {row}"));
    image.provenance.push(Provenance { node: row, name, op: name, reserved: 0 });
}

/// Weight `row` (copied, repacked as stored, mapped) of `token` in the file.
pub fn stored(row: usize, token: usize) -> f32 {
    row as f32 * 100.0 + token as f32 + 0.5
}

/// The weight file's bytes.
pub fn file_contents() -> Vec<u8> {
    let rows = (0..3).flat_map(|row| (0..VOCAB).map(move |token| stored(row, token)));
    let all = rows.chain((0..LARGE_FLOATS).map(|index| index as f32));
    all.flat_map(f32::to_le_bytes).collect()
}

/// Writes a plan and its weight file into a new folder called `name` in `parent`.
pub fn write(parent: &Path, name: &str, edit: &dyn Fn(&mut PlanImage)) -> PathBuf {
    write_kind(parent, name, false, edit)
}

/// As [`write()`], with states of fixed size and a draft head if `recurrent`.
pub fn write_kind(
    parent: &Path,
    name: &str,
    recurrent: bool,
    edit: &dyn Fn(&mut PlanImage),
) -> PathBuf {
    let folder = parent.join(format!("strata-replay-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let contents = file_contents();
    std::fs::write(folder.join("weights.bin"), &contents).unwrap();
    let mut image = image(contents.len() as u64, recurrent);
    edit(&mut image);
    let path = folder.join("tiny.plan");
    write_plan_file(&path, &image).unwrap();
    path
}
