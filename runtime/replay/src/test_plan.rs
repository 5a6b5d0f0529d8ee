//! A small plan for tests, made by hand. Its kernels are functions of this process, which the
//! plan's code jumps to; they are as simple as can be, and touch every space.
//!
//! The logits behind a row are f32 numbers that a test can compute from the row's tokens:
//! `[hash of all tokens, hash kept by the recurrent state, token, parts, copied weight of the token,
//! repacked weight, mapped weight, constant]`.
#![allow(unsafe_code, reason = "kernels take addresses")]
#![allow(clippy::unwrap_used, reason = "clippy cannot see that these functions only run in tests")]

use std::path::{Path, PathBuf};

use strata_plan::layout::{
    Arg, Command, Device, File, Kernel, Model, NONE, Part, Provenance, Run, Schedule, Space, State,
    Target, Weight, cpu_feature, device, opcode, schedule, space, state, tier,
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

/// Words of the step block.
const TOKENS: usize = 16;
const POSITIONS: usize = TOKENS + MAX_ROWS;
const ROW_SLOTS: usize = POSITIONS + MAX_ROWS;
const LOGIT_ROWS: usize = ROW_SLOTS + MAX_ROWS;
const TABLE: usize = LOGIT_ROWS + MAX_LOGIT_ROWS;
const STEP_WORDS: usize = TABLE + SLOTS * PAGES_PER_SLOT;

/// The pages of the first state, those of the second, then one word a slot.
const SECOND: usize = PAGES * PAGE_TOKENS * 4;
const FIXED: usize = 2 * SECOND;

/// Row of the kernel that writes its number of parts to each part's word of the arena.
pub const STORE_PARTS: u32 = 5;

/// What a token adds to a hash; hashes stay exact in f32.
pub fn mix(hash: u32, token: u32) -> u32 {
    (hash * 31 + token + 1) % (1 << 20)
}

type Kernels = unsafe extern "C" fn(*const u64, u64, u64);

fn share(count: usize, part: u64, parts: u64) -> std::ops::Range<usize> {
    let (part, parts) = (part as usize, parts as usize);
    count * part / parts..count * (part + 1) / parts
}

fn at<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Args: step, first state, second state. Appends each row's token.
unsafe extern "C" fn append(args: *const u64, part: u64, parts: u64) {
    // SAFETY: called by the replayer with the operands that the plan below names.
    unsafe {
        let step: *const u32 = at(*args);
        for row in share(*step as usize, part, parts) {
            let position = *step.add(POSITIONS + row) as usize;
            let slot = *step.add(ROW_SLOTS + row) as usize;
            let page = *step.add(TABLE + slot * PAGES_PER_SLOT + position / PAGE_TOKENS) as usize;
            let index = page * PAGE_TOKENS + position % PAGE_TOKENS;
            let token = *step.add(TOKENS + row);
            *at::<u32>(*args.add(1)).add(index) = token;
            *at::<u32>(*args.add(2)).add(index) = token;
        }
    }
}

/// Args: step, recurrent state, arena. Each row's hash goes to the arena.
unsafe extern "C" fn recur(args: *const u64, _: u64, _: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for row in 0..*step as usize {
            let hash = at::<u32>(*args.add(1)).add(*step.add(ROW_SLOTS + row) as usize);
            *hash = mix(*hash, *step.add(TOKENS + row));
            *at::<u32>(*args.add(2)).add(row) = *hash;
        }
    }
}

/// Args: step, first state, second state, hashes, copied, repacked, mapped, constants, logits.
unsafe extern "C" fn attend(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        let step: *const u32 = at(*args);
        for logit_row in share(*step.add(1) as usize, part, parts) {
            let row = *step.add(LOGIT_ROWS + logit_row) as usize;
            let slot = *step.add(ROW_SLOTS + row) as usize;
            let token = *step.add(TOKENS + row);
            let mut hash = 0;
            for position in 0..=*step.add(POSITIONS + row) as usize {
                let table = TABLE + slot * PAGES_PER_SLOT + position / PAGE_TOKENS;
                let index = *step.add(table) as usize * PAGE_TOKENS + position % PAGE_TOKENS;
                let stored = [1, 2].map(|state| *at::<u32>(*args.add(state)).add(index));
                hash = if stored[0] == stored[1] { mix(hash, stored[0]) } else { u32::MAX };
            }
            let of_token = |arg: usize| *at::<f32>(*args.add(arg)).add(token as usize);
            let kept = *at::<u32>(*args.add(3)).add(row);
            let logits = at::<f32>(*args.add(8)).add(logit_row * VOCAB);
            let values = [hash as f32, kept as f32, token as f32, parts as f32];
            for (index, value) in values.into_iter().enumerate() {
                *logits.add(index) = value;
            }
            for index in 4..VOCAB {
                *logits.add(index) = of_token(index);
            }
        }
    }
}

/// Args: step, f32 of a file, destination. Doubles a weight.
unsafe extern "C" fn double(args: *const u64, part: u64, parts: u64) {
    // SAFETY: as above.
    unsafe {
        for index in share(VOCAB, part, parts) {
            *at::<f32>(*args.add(2)).add(index) = *at::<f32>(*args.add(1)).add(index) * 2.0;
        }
    }
}

/// `mov rax, address; jmp rax`
fn jump_to(kernel: Kernels) -> Vec<u8> {
    let mut code = vec![0x48, 0xb8];
    code.extend_from_slice(&(kernel as usize as u64).to_le_bytes());
    code.extend_from_slice(&[0xff, 0xe0]);
    code
}

/// In the order of their rows. The last is
/// `mov rax, [rdi + 8]; mov [rax + rsi * 4], edx; ret`, the first `ret`.
fn code_of_kernels() -> [Vec<u8>; 6] {
    [
        vec![0xc3],
        jump_to(append),
        jump_to(recur),
        jump_to(attend),
        jump_to(double),
        vec![0x48, 0x8b, 0x47, 0x08, 0x89, 0x14, 0xb0, 0xc3],
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
        space::STATES => FIXED + SLOTS * 8,
        space::STEP => STEP_WORDS * 4,
        space::CONSTANTS => VOCAB * 4,
        _ => return file_bytes,
    };
    bytes as u64
}

fn small(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

/// The plan; with a recurrent state and a tail if `recurrent`.
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
    let dtype = image.name("u32");
    let page = PAGE_TOKENS * 4;
    let mut states =
        vec![("first", state::APPEND, 0, page), ("second", state::APPEND, SECOND, page)];
    if recurrent {
        states.push(("hash", state::RECURRENT, FIXED, 4));
        states.push(("last", state::TAIL, FIXED + SLOTS * 4, 4));
    }
    for (name, kind, offset, stride) in states {
        let name = image.name(name);
        image.states.push(State {
            name,
            kind,
            dtype,
            space: 2,
            offset: offset as u64,
            stride_bytes: stride as u64,
            token_bytes: 4,
            row: [1; 4],
            ..bytemuck::Zeroable::zeroed()
        });
    }
}

fn add_window(image: &mut PlanImage, rows: u32, logit_rows: u32, recurrent: bool) {
    let first = image.commands.len();
    let row_bytes = VOCAB as u64 * 4;
    let (fixed, second) = (FIXED as u64, SECOND as u64);
    launch(image, 1, 0, &[(3, 0), (2, 0), (2, second)]);
    if recurrent {
        launch(image, 2, 1, &[(3, 0), (2, fixed), (1, 0)]);
    }
    launch(image, opcode::BARRIER, 0, &[]);
    let logits_offset = 1024;
    let weights = [(0, 0), (0, 64), (5, 2 * row_bytes), (4, 0)];
    let mut operands = vec![(3, 0), (2, 0), (2, second), (1, 0)];
    operands.extend_from_slice(&weights);
    operands.push((1, logits_offset));
    launch(image, 3, 0, &operands);
    launch(image, STORE_PARTS, 2, &[(3, 0), (1, 2048)]);
    let logits = small(image.args.len() - 3);
    image.schedules.push(Schedule {
        kind: if logit_rows == 1 && rows > 4 { schedule::PREFILL } else { schedule::VERIFY },
        rows,
        logit_rows,
        commands: Run::of(first..image.commands.len()),
        logits,
        launches: 3,
        arena_bytes: 4096,
        ..bytemuck::Zeroable::zeroed()
    });
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

/// As [`write()`], with a recurrent state and a tail if `recurrent`.
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
