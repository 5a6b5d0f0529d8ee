//! The rows of a plan file. Little-endian, explicit widths, no padding, reserve zero and checked.
//!
//! A plan is a 64-byte [`Header`], a directory of [`Section`] rows, then the sections, each an
//! array of one type here, 64-byte aligned; CODE starts on a page. Compilers write what this crate
//! owns. There is one format number and no migration: a mismatch asks for a new compile.

use bytemuck::{Pod, Zeroable};

pub const MAGIC: [u8; 8] = *b"STRATAPL";
pub const FORMAT: u32 = 2;
pub const SECTION_ALIGN_BYTES: u64 = 64;
pub const CODE_ALIGN_BYTES: u64 = 4096;
/// Begins a packed file.
pub const PACK_MAGIC: [u8; 8] = *b"STRATAPK";
pub const PACK_FORMAT: u32 = 1;
/// Of a packed file, kept for its [`PackHeader`]. Weights begin behind it, on pages of this size.
pub const PACK_HEADER_BYTES: u64 = 4096;
/// "No row" in a row number.
pub const NONE: u32 = u32::MAX;

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident $bytes:literal { $($(#[$fdoc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Pod, Zeroable, PartialEq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
        impl $name {
            /// Name and byte offset of each field, for the format's snapshot.
            pub const FIELDS: &[(&str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
        }
    )*};
}

rows! {
    /// Starts the file. The checksum is FNV-1a 64 over every byte after the header.
    Header 64 {
        magic: [u8; 8],
        format: u32,
        section_count: u32,
        file_bytes: u64,
        checksum: u64,
        reserved: [u64; 4],
    }
    /// One entry of the directory.
    Section 32 {
        /// One of [`section`].
        kind: u32,
        row_bytes: u32,
        offset: u64,
        count: u64,
        reserved: u64,
    }
    /// A run of rows of another section.
    Run 8 {
        first: u32,
        count: u32,
    }
    /// What the plan serves, and its limits. Exactly one row.
    Model 128 {
        name: u32,
        vocab: u32,
        hidden: u32,
        layers: u32,
        /// Positions that a sequence can hold.
        context_tokens: u32,
        /// Sequences that can be live at once.
        slots: u32,
        page_tokens: u32,
        /// Physical pages in the STATES space.
        pages: u32,
        pages_per_slot: u32,
        /// Rows of the largest window.
        max_rows: u32,
        max_logit_rows: u32,
        bos: u32,
        add_bos: u32,
        /// Row of FILES that holds the vocabulary: a GGUF file or a tokenizer.json.
        tokenizer_file: u32,
        /// Row of TEXTS with the chat template, or [`NONE`].
        chat_template: u32,
        device_count: u32,
        /// Layout of the STEP space: byte offsets of its arrays, all of `u32`.
        /// `[0]` rows, `[1]` logit rows and `[2]` commits stand at 0.
        step_tokens: u32,
        /// Position of each row in its sequence.
        step_positions: u32,
        /// Sequence slot of each row.
        step_slots: u32,
        /// Row numbers of which logits are wanted.
        step_logit_rows: u32,
        /// Physical page numbers, `[slots][pages_per_slot]`.
        step_page_table: u32,
        step_bytes: u32,
        /// Rows of TOKENS that end a text.
        stop_tokens: Run,
        parameters: u64,
        /// Number of each row among those of its sequence in the window.
        step_offsets: u32,
        /// Slots of the sequences to commit, `[slots]`.
        step_commit_slots: u32,
        /// Rows of each of them that are accepted, `[slots]`.
        step_commit_rows: u32,
        /// Rows of the largest VERIFY window, 0 if there is none.
        verify_rows: u32,
        /// Rows of the largest DRAFT window, 0 for a model without a draft head.
        draft_rows: u32,
        reserved: u32,
    }
    /// A device that the plan was made for.
    Device 32 {
        /// One of [`device`].
        kind: u32,
        name: u32,
        /// Bytes that the configuration allows, 0 for no limit.
        budget_bytes: u64,
        /// Worker threads wanted, 0 for one a core.
        threads: u32,
        reserved: [u32; 3],
    }
    /// A machine code variant of all kernels. The best one that the machine can run is used.
    Target 32 {
        name: u32,
        device: u32,
        /// Bits of [`cpu_feature`] that must be there.
        features: u64,
        /// Kernel `k` of a command is row `first_kernel + k` of KERNELS.
        first_kernel: u32,
        kernel_count: u32,
        /// Larger is better.
        rank: u32,
        reserved: u32,
    }
    /// A contiguous piece of memory; addresses are (space, offset).
    Space 32 {
        /// One of [`space`].
        kind: u32,
        device: u32,
        bytes: u64,
        /// Row of FILES for a mapped file, else [`NONE`].
        file: u32,
        name: u32,
        reserved: u64,
    }
    /// One schedule: all commands of a device for a window.
    Schedule 64 {
        device: u32,
        /// One of [`schedule`].
        kind: u32,
        rows: u32,
        logit_rows: u32,
        commands: Run,
        /// Where the logits lie, f32 `[logit_rows][vocab]`: a row of ARGS.
        logits: u32,
        launches: u32,
        /// Bytes read and written with all rows live, without attention's own cache traffic.
        bytes: u64,
        flops: u64,
        arena_bytes: u64,
        /// Rows of OUTPUTS: values that can be read behind the window.
        outputs: Run,
    }
    /// A value that stays readable until the next window.
    Output 48 {
        name: u32,
        /// Name of the element type.
        dtype: u32,
        /// Row of ARGS: where it lies, in the arena.
        arg: u32,
        /// Dimensions, 1 to 4.
        rank: u32,
        /// Outermost first, unused ones 1.
        dims: [u32; 4],
        bytes: u64,
        reserved: u64,
    }
    /// One step of a device's schedule, read front to back; the replayer never looks ahead.
    Command 32 {
        /// One of [`opcode`]; `u32` so that the struct has no padding.
        opcode: u32,
        stream: u32,
        /// Kernel, or row of COPIES or EVENTS, as the opcode says.
        row: u32,
        args: Run,
        /// Work groups in x, y, z. On a CPU x is the number of parts at most, 0 for all.
        grid: [u32; 3],
    }
    /// An address: an offset in a space.
    Arg 16 {
        space: u32,
        reserved: u32,
        offset: u64,
    }
    /// One kernel's code for one target.
    Kernel 32 {
        name: u32,
        /// The specification it was generated from, as text in NAMES.
        spec: u32,
        /// In CODE.
        code_offset: u64,
        code_bytes: u64,
        reserved: u64,
    }
    /// A file that the plan reads weights or the vocabulary from.
    File 32 {
        /// Path relative to the plan, or absolute.
        name: u32,
        reserved: u32,
        bytes: u64,
        /// FNV-1a 64 of the file's header; 0 if it has none.
        header_hash: u64,
        reserved2: u64,
    }
    /// A weight and where it goes.
    Weight 80 {
        name: u32,
        /// Name of the stored element type.
        dtype: u32,
        /// One of [`tier`].
        tier: u32,
        space: u32,
        /// Where it begins in its space.
        offset: u64,
        /// Bytes in its space.
        bytes: u64,
        parts: Run,
        /// Outermost first, unused ones 1.
        dims: [u32; 4],
        stored_bytes: u64,
        reserved: [u32; 4],
    }
    /// A piece of a weight in a file, and the kernel that brings it into its place.
    Part 40 {
        file: u32,
        /// Kernel that repacks it, or [`NONE`]: copied as it is.
        kernel: u32,
        /// In the file.
        offset: u64,
        bytes: u64,
        /// Relative to the weight's place.
        destination: u64,
        destination_bytes: u64,
    }
    /// A state of each sequence. A slot of a recurrent state or a tail is its value, then a pending
    /// row for each row of the largest VERIFY window.
    State 96 {
        name: u32,
        /// One of [`state`].
        kind: u32,
        /// Name of the element type it is stored in.
        dtype: u32,
        /// Rows kept, for a tail.
        tail_rows: u32,
        space: u32,
        /// Row of STATES whose value this one takes when drafting begins, or [`NONE`].
        seed: u32,
        /// Where page 0 (append) or slot 0 (the others) begins in its space.
        offset: u64,
        /// Bytes of one page (append) or of one slot (the others).
        stride_bytes: u64,
        /// Bytes that one more position costs; 0 for states of fixed size.
        token_bytes: u64,
        row: [u32; 4],
        /// Bytes of a slot that a snapshot copies; 0 for append.
        value_bytes: u64,
        /// Where pending row 0 begins in a slot; 0 if there are none.
        pending_bytes: u64,
        /// From one pending row to the next; 0 if there are none.
        pending_stride_bytes: u64,
        /// Positions for each stored row of an append state; 1 for the others.
        every: u32,
        /// Position of the first row that an append state stores; 0 for the others.
        first: u32,
    }
    /// What a command came from: a node of the window's graph.
    Provenance 16 {
        node: u32,
        /// Name of the node.
        name: u32,
        /// Name of the op.
        op: u32,
        reserved: u32,
    }
    /// A text kept for people and tools.
    Text 32 {
        /// One of [`text`].
        kind: u32,
        name: u32,
        /// In TEXT_BYTES.
        offset: u64,
        bytes: u64,
        reserved: u64,
    }
    /// A string, in NAME_BYTES.
    Name 8 {
        offset: u32,
        bytes: u32,
    }
    /// Starts a packed file, which lies beside the plan and not in it.
    PackHeader 64 {
        magic: [u8; 8],
        format: u32,
        reserved: u32,
        /// Of the whole file: the bytes of the PACK space.
        file_bytes: u64,
        /// Hash of what is in it and what that was made from.
        contents: u64,
        reserved2: [u64; 3],
        /// FNV-1a 64 over the bytes before it.
        checksum: u64,
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $module:ident { $($name:ident = $value:literal,)* })*) => {$(
        $(#[$doc])*
        pub mod $module {
            $(pub const $name: u32 = $value;)*
            pub const ALL: &[(u32, &str)] = &[$(($value, stringify!($name)),)*];
        }
    )*};
}

codes! {
    section {
        MODEL = 1, DEVICES = 2, TARGETS = 3, SPACES = 4, SCHEDULES = 5, COMMANDS = 6, ARGS = 7,
        KERNELS = 8, CODE = 9, FILES = 10, WEIGHTS = 11, PARTS = 12, STATES = 13, CONSTANTS = 14,
        TOKENS = 15, NAMES = 16, NAME_BYTES = 17, PROVENANCE = 18, TEXTS = 19, TEXT_BYTES = 20,
        OUTPUTS = 21,
    }
    device { CPU = 0, }
    space {
        // Weights in anonymous memory.
        WEIGHTS = 0,
        // A weight file, mapped.
        FILE = 1,
        // Scratch of a window.
        ARENA = 2,
        // Pages and slots of sequences.
        STATES = 3,
        // What varies from window to window.
        STEP = 4,
        // The CONSTANTS section.
        CONSTANTS = 5,
        // The packed file, mapped.
        PACK = 6,
    }
    schedule { PREFILL = 0, VERIFY = 1, COMMIT = 2, DRAFT = 3, }
    opcode {
        // Run kernel `row` over its arguments.
        LAUNCH = 0,
        COPY = 1,
        SIGNAL = 2,
        WAIT = 3,
        // All parts of this device have finished the commands before.
        BARRIER = 4,
    }
    tier {
        // Brought into anonymous memory, repacked where a part says so.
        RAM = 0,
        // Read in place from the mapped file.
        MAPPED = 1,
        // In the plan itself.
        CONSTANT = 2,
        // As RAM, into the packed file, which is mapped.
        PACKED = 3,
    }
    state { APPEND = 0, RECURRENT = 1, TAIL = 2, }
    text { REPORT = 0, GRAPH = 1, CHAT_TEMPLATE = 2, MODEL = 3, CONFIG = 4, }
}

/// CPU features that generated code may need, as bits.
pub mod cpu_feature {
    pub const AVX2: u64 = 1;
    pub const FMA: u64 = 2;
    pub const F16C: u64 = 4;
    pub const BMI2: u64 = 8;
    pub const AVX512F: u64 = 16;
    pub const AVX512BW: u64 = 32;
    pub const AVX512VL: u64 = 64;
    pub const AVX512DQ: u64 = 128;
    pub const AVX512VNNI: u64 = 256;
    pub const AVX512BF16: u64 = 512;
    pub const BMI1: u64 = 1024;
    pub const AVX512CD: u64 = 2048;
    pub const ALL: &[(u64, &str)] = &[
        (AVX2, "avx2"),
        (FMA, "fma"),
        (F16C, "f16c"),
        (BMI2, "bmi2"),
        (AVX512F, "avx512f"),
        (AVX512BW, "avx512bw"),
        (AVX512VL, "avx512vl"),
        (AVX512DQ, "avx512dq"),
        (AVX512VNNI, "avx512vnni"),
        (AVX512BF16, "avx512bf16"),
        (BMI1, "bmi1"),
        (AVX512CD, "avx512cd"),
    ];
}

impl Run {
    pub fn of(range: std::ops::Range<usize>) -> Self {
        let narrow = |n: usize| u32::try_from(n).expect("a section has fewer than 2^32 rows");
        Self { first: narrow(range.start), count: narrow(range.len()) }
    }

    pub fn range(self) -> std::ops::Range<usize> {
        self.first as usize..self.first as usize + self.count as usize
    }
}
