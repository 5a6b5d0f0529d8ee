//! A small plan with rows in every section.

use bytemuck::Zeroable;
use strata_plan::PlanImage;
use strata_plan::layout::{
    Arg, Command, Device, File, Kernel, Model, NONE, Output, Part, Provenance, Run, Schedule,
    Space, State, Target, Weight, cpu_feature, device, opcode, schedule, space, state, text, tier,
};

pub fn image() -> PlanImage {
    let mut image = PlanImage::default();
    let name = image.name("cpu");
    image.devices.push(Device { name, kind: device::CPU, ..Device::zeroed() });
    image.constants = vec![1.0, 2.0];
    image.tokens = vec![7, 8];
    files_and_spaces(&mut image);
    code(&mut image);
    weights(&mut image);
    states(&mut image);
    window(&mut image);
    let template = image.text(text::CHAT_TEMPLATE, "chat", "{{ messages }}");
    image.text(text::GRAPH, "base", "; strata graph 1");
    image.model = Model {
        name: image.name("small"),
        vocab: 10,
        hidden: 4,
        layers: 1,
        context_tokens: 60,
        slots: 2,
        page_tokens: 16,
        pages: 8,
        pages_per_slot: 4,
        max_rows: 4,
        max_logit_rows: 2,
        bos: 1,
        add_bos: 1,
        tokenizer_file: 1,
        chat_template: template,
        device_count: 1,
        step_tokens: 64,
        step_positions: 80,
        step_slots: 96,
        step_logit_rows: 112,
        step_page_table: 128,
        step_offsets: 160,
        step_commit_slots: 176,
        step_commit_rows: 184,
        step_bytes: 192,
        stop_tokens: Run { first: 0, count: 2 },
        parameters: 40,
        verify_rows: 4,
        draft_rows: 2,
        reserved: 0,
    };
    image
}

fn files_and_spaces(image: &mut PlanImage) {
    for (name, bytes) in [("model.gguf", 5_000), ("tokenizer.json", 300)] {
        let name = image.name(name);
        image.files.push(File { name, bytes, header_hash: 0, ..File::zeroed() });
    }
    for (kind, name, bytes, file) in [
        (space::WEIGHTS, "weights", 1_024, NONE),
        (space::ARENA, "arena", 2_048, NONE),
        (space::STATES, "states", 4_096, NONE),
        (space::STEP, "step", 192, NONE),
        (space::CONSTANTS, "constants", 8, NONE),
        (space::FILE, "model.gguf", 5_000, 0),
    ] {
        let name = image.name(name);
        image.spaces.push(Space { kind, device: 0, bytes, file, name, reserved: 0 });
    }
}

fn code(image: &mut PlanImage) {
    for (rank, (name, features)) in
        [("avx2", cpu_feature::AVX2), ("avx512", cpu_feature::AVX512F)].into_iter().enumerate()
    {
        let (name, rank) = (image.name(name), rank as u32);
        let first_kernel = image.kernels.len() as u32;
        let row =
            Target { name, features, first_kernel, kernel_count: 2, rank, ..Target::zeroed() };
        image.targets.push(row);
        for kernel in ["matmul", "repack"] {
            let (name, spec) = (image.name(kernel), image.name(&format!("({kernel}: 4)")));
            let (code_offset, code_bytes) = (image.code.len() as u64, 64);
            image.kernels.push(Kernel { name, spec, code_offset, code_bytes, reserved: 0 });
            image.code.resize(image.code.len() + 64, 0xc3);
        }
    }
}

fn weights(image: &mut PlanImage) {
    let rows = [
        ("blk.0.w", tier::RAM, 0, 64, 160, Run { first: 0, count: 2 }),
        ("embed", tier::MAPPED, 5, 1_000, 160, Run { first: 2, count: 0 }),
        ("one", tier::CONSTANT, 4, 4, 4, Run { first: 2, count: 0 }),
    ];
    for (name, tier, space, offset, bytes, parts) in rows {
        let (name, dtype) = (image.name(name), image.name("f32"));
        let (dims, stored_bytes) = ([1, 1, 10, 4], 160);
        let reserved = [0; 4];
        let row =
            Weight { name, dtype, tier, space, offset, bytes, parts, dims, stored_bytes, reserved };
        image.weights.push(row);
    }
    for (kernel, offset, destination) in [(NONE, 4_000, 0), (1, 4_500, 80)] {
        let (bytes, destination_bytes) = (80, 80);
        image.parts.push(Part { file: 0, kernel, offset, bytes, destination, destination_bytes });
    }
}

fn states(image: &mut PlanImage) {
    // Kind, offset, stride, a token's bytes, value, first pending row, pending stride, seed.
    let rows = [
        ("k", state::APPEND, [0, 256, 16], [0, 0, 0], NONE),
        ("delta", state::RECURRENT, [2_048, 512, 0], [200, 256, 64], NONE),
        ("conv", state::TAIL, [3_072, 384, 0], [48, 64, 64], NONE),
        ("draft.conv", state::TAIL, [3_840, 64, 0], [48, 0, 0], 2),
    ];
    for (name, kind, place, slot, seed) in rows {
        let (name, dtype) = (image.name(name), image.name("f16"));
        image.states.push(State {
            name,
            kind,
            dtype,
            tail_rows: u32::from(kind == state::TAIL) * 3,
            space: 2,
            seed,
            offset: place[0],
            stride_bytes: place[1],
            token_bytes: place[2],
            row: [1, 1, 2, 4],
            value_bytes: slot[0],
            pending_bytes: slot[1],
            pending_stride_bytes: slot[2],
            every: 1,
            first: u32::from(kind == state::APPEND),
        });
    }
}

fn window(image: &mut PlanImage) {
    for (space, offset) in [(3, 0), (1, 64), (0, 64), (1, 1_024), (5, 1_000), (1, 1_024)] {
        image.args.push(Arg { space, reserved: 0, offset });
    }
    let launch = Command {
        opcode: opcode::LAUNCH,
        stream: 0,
        row: 0,
        args: Run { first: 0, count: 5 },
        grid: [0, 1, 1],
    };
    let barrier =
        Command { opcode: opcode::BARRIER, args: Run { first: 5, count: 0 }, ..Command::zeroed() };
    for (node, (command, label)) in
        [(launch, "blk.0.q"), (barrier, "blk.0.out"), (launch, "blk.0.out")].into_iter().enumerate()
    {
        image.commands.push(command);
        let op = image.name(if command.opcode == opcode::LAUNCH { "matmul" } else { "barrier" });
        let name = image.name(label);
        image.provenance.push(Provenance { node: node as u32, name, op, reserved: 0 });
    }
    image.schedules.push(Schedule {
        device: 0,
        kind: schedule::VERIFY,
        rows: 4,
        logit_rows: 2,
        commands: Run { first: 0, count: 3 },
        logits: 5,
        launches: 2,
        bytes: 1_500,
        flops: 640,
        arena_bytes: 1_104,
        outputs: Run { first: 0, count: 1 },
    });
    image.schedules.push(Schedule {
        kind: schedule::COMMIT,
        commands: Run { first: 2, count: 1 },
        logits: NONE,
        launches: 1,
        ..Schedule::zeroed()
    });
    image.schedules.push(Schedule {
        kind: schedule::DRAFT,
        rows: 2,
        logit_rows: 2,
        commands: Run { first: 0, count: 1 },
        logits: 5,
        launches: 1,
        ..Schedule::zeroed()
    });
    let (name, dtype) = (image.name("blk.0.router"), image.name("u32"));
    let (arg, dims) = (1, [4, 2, 1, 1]);
    image.outputs.push(Output { name, dtype, arg, rank: 2, dims, bytes: 32, reserved: 0 });
}
