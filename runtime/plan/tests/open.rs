//! Opening plans: good ones, and each way in which one can be bad.
#![allow(clippy::unwrap_used, reason = "clippy cannot see that these functions only run in tests")]

mod small;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use strata_plan::layout::{Header, NONE, Run, Schedule, Space, opcode, section, space, text, tier};
use strata_plan::{Plan, PlanError, PlanImage, checksum, dump, write_plan_file};

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_written_plan_opens_with_all_its_rows() {
    let (image, path) = (small::image(), folder("written").join("small.plan"));
    write_plan_file(&path, &image).unwrap();
    let plan = Plan::open(&path).unwrap();
    assert_eq!(*plan.model(), image.model);
    assert_eq!(plan.devices(), image.devices);
    assert_eq!(plan.targets(), image.targets);
    assert_eq!(plan.spaces(), image.spaces);
    assert_eq!(plan.schedules(), image.schedules);
    assert_eq!(plan.outputs(), image.outputs);
    assert_eq!(plan.checksum(), checksum(&fs::read(&path).unwrap()[size_of::<Header>()..]));
    assert_eq!(plan.commands(), image.commands);
    assert_eq!(plan.args(), image.args);
    assert_eq!(plan.kernels(), image.kernels);
    assert_eq!(plan.code(), image.code);
    assert_eq!(plan.files(), image.files);
    assert_eq!(plan.weights(), image.weights);
    assert_eq!(plan.parts(), image.parts);
    assert_eq!(plan.states(), image.states);
    assert_eq!(plan.constants(), image.constants);
    assert_eq!(plan.stop_tokens(), [7, 8]);
    assert_eq!(plan.provenance(), image.provenance);
    assert_eq!(plan.name(plan.model().name), "small");
    assert_eq!(plan.name(NONE), "");
    assert_eq!(plan.chat_template(), Some("{{ messages }}"));
    assert_eq!(plan.text_of_kind(text::GRAPH), Some("; strata graph 1"));
    assert_eq!(plan.text_of_kind(text::CONFIG), None);
    assert_eq!(plan.code().as_ptr().addr() % 4096, 0, "CODE starts on a page");
    let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "the temporary file is gone");
}

#[test]
fn a_new_plan_replaces_the_old_one_and_a_failure_keeps_it() {
    let folder = folder("replaced");
    let path = folder.join("a.plan");
    let mut image = small::image();
    write_plan_file(&path, &image).unwrap();
    let old = Plan::open(&path).unwrap();
    image.model.parameters = 41;
    write_plan_file(&path, &image).unwrap();
    assert_eq!(Plan::open(&path).unwrap().model().parameters, 41);
    assert_eq!(old.model().parameters, 40, "what is mapped stays");
    fs::create_dir(folder.join("b.plan")).unwrap();
    assert!(write_plan_file(&folder.join("b.plan"), &image).is_err());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file is left");
}

/// Somebody who knows the name of the temporary file has put a link and a file there.
#[test]
fn planted_temporary_files_are_left_alone() {
    let folder = folder("planted");
    let path = folder.join("a.plan");
    let planted =
        |attempt| folder.join(format!(".a.plan.{}.{attempt}.partial", std::process::id()));
    fs::write(folder.join("victim"), "kept").unwrap();
    symlink(folder.join("victim"), planted(0)).unwrap();
    fs::write(planted(1), "theirs").unwrap();
    write_plan_file(&path, &small::image()).unwrap();
    Plan::open_trusted(&path).unwrap();
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7133, 0);
    assert!(planted(0).is_symlink());
    assert_eq!(fs::read(folder.join("victim")).unwrap(), b"kept");
    assert_eq!(fs::read(planted(1)).unwrap(), b"theirs");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 4);
}

#[test]
fn trust_is_asked_for_with_the_mode() {
    let path = folder("trust").join("small.plan");
    write_plan_file(&path, &small::image()).unwrap();
    Plan::open_trusted(&path).unwrap();
    // The link's own mode, which is 777, says nothing.
    let link = path.with_file_name("link.plan");
    symlink(&path, &link).unwrap();
    Plan::open_trusted(&link).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let error = Plan::open_trusted(&link).unwrap_err().to_string();
    assert!(error.contains("(mode 666)") && error.contains("chmod o-w"), "{error}");
    Plan::open(&path).expect("may be looked at");
}

#[test]
fn files_are_compared_by_size_and_header() {
    let folder = folder("files");
    let mut image = small::image();
    image.files[0].header_hash = 0xabc;
    let plan = Plan::from_bytes(&image.to_bytes()).unwrap();
    let check =
        |hash: u64| plan.check_files(&folder, &mut |_| Ok(hash)).map_err(|error| error.to_string());
    assert!(check(0xabc).unwrap_err().contains("model.gguf: "));
    fs::write(folder.join("model.gguf"), [0; 4_000]).unwrap();
    assert!(
        check(0xabc)
            .unwrap_err()
            .contains("has 4000 bytes, the plan was compiled from one of 5000")
    );
    fs::write(folder.join("model.gguf"), [0; 5_000]).unwrap();
    fs::write(folder.join("tokenizer.json"), [0; 300]).unwrap();
    let error = check(0x123).unwrap_err();
    assert!(error.contains("0000000000000123") && error.contains("0000000000000abc"), "{error}");
    check(0xabc).unwrap();
}

/// What is wrong, and what the message must say of it.
type Fault = (fn(&mut PlanImage), &'static str);

fn shorten_file(image: &mut PlanImage) {
    image.files[0].bytes = 4_000;
    image.spaces[5].bytes = 4_000;
}

/// With an arena and a schedule of its own, as a plan for two devices would have.
fn second_device(image: &mut PlanImage) {
    image.devices.push(image.devices[0]);
    image.model.device_count = 2;
    image.spaces.push(Space { device: 1, ..image.spaces[1] });
    image.schedules.push(Schedule { device: 1, ..image.schedules[0] });
}

/// With its first weight in a packed file called `name`, at `offset`.
fn packed(image: &mut PlanImage, name: &str, offset: u64) {
    let name = image.name(name);
    let (kind, bytes, file) = (space::PACK, 5_000, NONE);
    image.spaces.push(Space { kind, device: 0, bytes, file, name, reserved: 0 });
    let weight = &mut image.weights[0];
    (weight.tier, weight.space, weight.offset) = (tier::PACKED, 6, offset);
}

/// Without a state on pages, no space has to be large enough for them.
fn many_pages(image: &mut PlanImage) {
    image.states.clear();
    image.model.pages = (1 << 26) + 1;
}

const FAULTS: &[Fault] = &[
    (|i| i.model.name = 99, "MODEL[0].name names row 99 of NAMES, which has"),
    (|i| i.model.vocab = 0, "MODEL[0].vocab is 0, needed at least 1"),
    (|i| i.model.context_tokens = 65, "MODEL[0].context_tokens is 65, needed at most 64"),
    (|i| i.model.max_logit_rows = 0, "MODEL[0].max_logit_rows is 0, needed at least 1"),
    (many_pages, "MODEL[0].pages is 67108865, needed at most 67108864"),
    (|i| i.model.bos = 10, "MODEL[0].bos is 10, needed at most 9"),
    (|i| i.model.add_bos = 2, "MODEL[0].add_bos is 2, needed at most 1"),
    (|i| i.model.device_count = 2, "MODEL[0].device_count is 2, needed exactly 1"),
    (|i| i.model.tokenizer_file = 2, "tokenizer_file names row 2 of FILES, which has 2"),
    (|i| i.model.chat_template = 2, "chat_template names row 2 of TEXTS, which has 2"),
    (|i| i.model.stop_tokens.count = 3, "stop_tokens names row 2 of TOKENS, which has 2"),
    (|i| i.model.reserved = 1, "a reserved field of MODEL[0] is not zero"),
    (|i| i.model.step_tokens = 60, "step_tokens is 60, needed at least 64"),
    (|i| i.model.step_slots = 98, "step_slots is 98, no multiple of 4"),
    (|i| i.model.step_positions = 76, "step_positions is 76, needed at least 80"),
    (|i| i.model.step_bytes = 191, "8 bytes at 184 do not lie in the 191 that are there"),
    (|i| i.model.step_offsets = 144, "step_offsets is 144, needed at least 160"),
    (|i| i.model.step_commit_slots = 180, "step_commit_rows is 184, needed at least 188"),
    (|i| i.model.step_commit_rows = 62, "step_commit_rows is 62, no multiple of 4"),
    (|i| i.spaces[3].bytes = 100, "step_bytes is 192, needed at most 100"),
    (second_device, "section DEVICES has 2 rows, needed 1"),
    (|i| i.devices.clear(), "section DEVICES has 0 rows, needed 1"),
    (|i| i.devices[0].kind = 9, "DEVICES[0].kind is 9, no known code"),
    (|i| i.devices[0].reserved[2] = 1, "a reserved field of DEVICES[0]"),
    (|i| i.targets[0].features = 0, "TARGETS[0].features is 0, needed at least 1"),
    (|i| i.targets[1].features = 1 << 40, "TARGETS[1].features is 1099511627776, no known code"),
    (|i| i.targets[1].kernel_count = 1, "TARGETS[1].kernel_count is 1, needed exactly 2"),
    (|i| i.targets[1].first_kernel = 3, "first_kernel + kernel_count is 5, needed at most 4"),
    (|i| i.targets[0].device = 1, "TARGETS[0].device names row 1 of DEVICES, which has 1"),
    (|i| i.kernels[3].code_bytes = 65, "KERNELS[3].code_offset: 65 bytes at 192 do not lie in"),
    (|i| i.kernels[0].code_bytes = 0, "KERNELS[0].code_bytes is 0, needed at least 1"),
    (|i| i.kernels[0].spec = NONE, "KERNELS[0].spec names row 4294967295 of NAMES"),
    (|i| i.spaces[0].kind = 9, "SPACES[0].kind is 9, no known code"),
    (|i| i.spaces[0].bytes = 1 << 47, "SPACES[0].bytes is 140737488355328, needed at most"),
    (|i| i.spaces[0].file = 0, "SPACES[0].file is 0, needed exactly 4294967295"),
    (|i| i.spaces[5].bytes = 5_001, "SPACES[5].bytes is 5001, needed at most 5000"),
    (|i| i.spaces[4].bytes = 9, "SPACES[4].bytes is 9, needed at most 8"),
    (|i| i.spaces[0].kind = space::ARENA, "spaces of this kind is 2, needed exactly 1"),
    (|i| i.states[0].kind = 3, "STATES[0].kind is 3, no known code"),
    (|i| i.states[0].space = 1, "STATES[0].kind of space is 2, needed exactly 3"),
    (|i| i.states[0].stride_bytes = 513, "STATES[0].offset: 4104 bytes at 0 do not lie in"),
    (|i| i.states[0].every = 0, "STATES[0].every is 0, needed at least 1"),
    (|i| i.states[0].every = 3, "STATES[0].page_tokens over every is 16, no multiple of 3"),
    (|i| i.states[0].first = 17, "STATES[0].first is 17, needed at most 16"),
    (|i| i.states[0].seed = 0, "STATES[0].seed is 0, needed exactly 4294967295"),
    (|i| i.states[0].value_bytes = 1, "STATES[0].value_bytes is 1, needed exactly 0"),
    (|i| i.states[0].pending_bytes = 64, "STATES[0].pending_bytes is 64, needed exactly 0"),
    (|i| i.states[0].tail_rows = 1, "STATES[0].tail_rows is 1, needed exactly 0"),
    (|i| i.states[1].tail_rows = 1, "STATES[1].tail_rows is 1, needed exactly 0"),
    (|i| i.states[1].every = 4, "STATES[1].every is 4, needed exactly 1"),
    (|i| i.states[1].first = 1, "STATES[1].first is 1, needed exactly 0"),
    (|i| i.states[1].value_bytes = 0, "STATES[1].value_bytes is 0, needed at least 1"),
    (|i| i.states[1].value_bytes = 257, "STATES[1].pending_bytes is 256, needed at least 257"),
    (|i| i.states[1].value_bytes = 513, "STATES[1].value_bytes is 513, needed at most 512"),
    (|i| i.states[1].pending_bytes = 260, "STATES[1].pending_bytes is 260, no multiple of 64"),
    (|i| i.states[1].pending_bytes = 320, "pending_bytes: 256 bytes at 320 do not lie in the 512"),
    (|i| i.states[1].pending_stride_bytes = 32, "pending_stride_bytes is 32, no multiple of 64"),
    (|i| i.states[1].pending_stride_bytes = 0, "STATES[1].pending_bytes is 256, needed exactly 0"),
    (without_pending, "STATES[1].pending_stride_bytes is 0, needed at least 1"),
    (|i| i.states[1].offset = 2_049, "STATES[1].offset is 2049, no multiple of 64"),
    (|i| i.states[1].stride_bytes = 520, "STATES[1].stride_bytes is 520, no multiple of 64"),
    (|i| i.states[2].tail_rows = 0, "STATES[2].tail_rows is 0, needed at least 1"),
    (|i| i.states[2].tail_rows = 5, "STATES[2].value_bytes is 48, no multiple of 5"),
    (|i| i.states[3].seed = 4, "STATES[3].seed names row 4 of STATES, which has 4"),
    (|i| i.states[3].seed = 1, "STATES[3].kind of seed is 1, needed exactly 2"),
    (|i| i.states[3].seed = 3, "STATES[3].seed of seed is 3, needed exactly 4294967295"),
    (|i| i.states[3].value_bytes = 24, "STATES[3].value_bytes of seed is 48, needed exactly 24"),
    (|i| i.model.draft_rows = 0, "STATES[3].seed: MODEL.draft_rows is 0, needed at least 1"),
    (|i| i.states[2].stride_bytes = u64::MAX, "do not lie in the 4096 that are there"),
    (|i| i.weights[0].tier = 5, "WEIGHTS[0].tier is 5, no known code"),
    (|i| i.weights[0].space = 1, "WEIGHTS[0].kind of space is 2, needed exactly 0"),
    (|i| i.weights[1].offset = 4_900, "WEIGHTS[1].offset: 160 bytes at 4900 do not lie in"),
    (|i| i.weights[0].parts = Run { first: 1, count: 2 }, "parts names row 2 of PARTS"),
    (|i| i.weights[2].reserved[0] = 1, "a reserved field of WEIGHTS[2]"),
    (|i| i.parts[1].destination = 81, "PARTS[1].destination: 80 bytes at 81 do not lie in the 160"),
    (|i| i.parts[1].kernel = 2, "PARTS[1].kernel names row 2 of KERNELS, which has 2"),
    (|i| i.parts[0].destination_bytes = 79, "destination_bytes is 79, needed exactly 80"),
    (|i| i.parts[0].offset = u64::MAX, "PARTS[0].offset: 80 bytes at 18446744073709551615"),
    (
        |i| packed(i, "../small.pack", 4_096),
        "SPACES[6].name is \"../small.pack\", needed the name of a file beside the plan",
    ),
    (
        |i| {
            packed(i, "small.pack", 4_096);
            i.spaces[6].bytes = 64;
        },
        "SPACES[6].bytes is 64, needed at least 4096",
    ),
    (|i| packed(i, "", 4_096), "SPACES[6].name is \"\", needed the name of a file"),
    (|i| packed(i, "small.pack", 4_032), "WEIGHTS[0].offset is 4032, needed at least 4096"),
    (|i| packed(i, "small.pack", 4_850), "WEIGHTS[0].offset: 160 bytes at 4850 do not lie in"),
    (|i| i.weights[0].tier = tier::PACKED, "WEIGHTS[0].kind of space is 0, needed exactly 6"),
    (|i| i.args[0].space = 6, "ARGS[0].space names row 6 of SPACES, which has 6"),
    (|i| i.args[0].offset = 192, "ARGS[0].offset: 1 bytes at 192 do not lie in the 192"),
    (|i| i.commands[0].opcode = 5, "COMMANDS[0].opcode is 5, no known code"),
    (|i| i.commands[0].opcode = opcode::COPY, "COMMANDS[0] is COPY, which a CPU device does not"),
    (|i| i.commands[2].row = 2, "COMMANDS[2].row names row 2 of KERNELS, which has 2"),
    (|i| i.commands[0].args.count = 7, "COMMANDS[0].args names row 6 of ARGS, which has 6"),
    (|i| i.commands[0].args.count = 0, "COMMANDS[0].args.count is 0, needed at least 1"),
    (|i| i.provenance.truncate(2), "section PROVENANCE has 2 rows, needed 3"),
    (|i| i.provenance[0].reserved = 1, "a reserved field of PROVENANCE[0]"),
    (|i| i.schedules[0].kind = 4, "SCHEDULES[0].kind is 4, no known code"),
    (|i| i.schedules[0].rows = 5, "SCHEDULES[0].rows is 5, needed at most 4"),
    (|i| i.schedules[0].logit_rows = 3, "SCHEDULES[0].logit_rows is 3, needed at most 2"),
    (|i| i.schedules[0].commands.first = 1, "commands names row 3 of COMMANDS, which has 3"),
    (|i| i.schedules[0].logits = 2, "kind of space of logits is 0, needed exactly 2"),
    (|i| i.schedules[0].logits = NONE, "SCHEDULES[0].logit_rows is 2, needed exactly 0"),
    (|i| i.schedules[0].outputs.count = 2, "outputs names row 1 of OUTPUTS, which has 1"),
    (|i| i.schedules[1].rows = 1, "SCHEDULES[1].rows is 1, needed exactly 0"),
    (|i| i.schedules[1].logit_rows = 1, "SCHEDULES[1].logit_rows is 1, needed exactly 0"),
    (|i| i.schedules[1].logits = 5, "SCHEDULES[1].logits is 5, needed exactly 4294967295"),
    (|i| i.schedules[1].outputs.count = 1, "SCHEDULES[1].outputs.count is 1, needed exactly 0"),
    (|i| i.schedules[2].logit_rows = 1, "SCHEDULES[2].logit_rows is 1, needed exactly 2"),
    (|i| i.schedules.push(i.schedules[1]), "kind COMMIT is 2, needed at most 1"),
    (
        |i| i.schedules.retain(|row| row.kind != 2),
        "schedules of kind COMMIT is 0, needed at least 1",
    ),
    (|i| i.model.verify_rows = 3, "MODEL[0].verify_rows is 3, needed exactly 4"),
    (|i| i.model.draft_rows = 1, "MODEL[0].draft_rows is 1, needed exactly 2"),
    (|i| i.outputs[0].name = NONE, "OUTPUTS[0].name names row 4294967295 of NAMES"),
    (|i| i.outputs[0].arg = 6, "OUTPUTS[0].arg names row 6 of ARGS, which has 6"),
    (|i| i.outputs[0].arg = 2, "OUTPUTS[0].kind of space is 0, needed exactly 2"),
    (|i| i.outputs[0].rank = 0, "OUTPUTS[0].rank is 0, needed at least 1"),
    (|i| i.outputs[0].rank = 5, "OUTPUTS[0].rank is 5, needed at most 4"),
    (|i| i.outputs[0].rank = 1, "OUTPUTS[0].dims behind rank is 2, needed exactly 1"),
    (|i| i.outputs[0].dims[0] = 0, "OUTPUTS[0].dims is 0, needed at least 1"),
    (|i| i.outputs[0].dims[0] = 3, "OUTPUTS[0].bytes is 32, needed exactly 24"),
    (|i| i.outputs[0].bytes = 1_985, "OUTPUTS[0].arg: 1985 bytes at 64 do not lie in the 2048"),
    (|i| i.outputs[0].reserved = 1, "a reserved field of OUTPUTS[0]"),
    (|i| i.args[1].offset = 66, "OUTPUTS[0].arg is 66, no multiple of 4"),
    (|i| i.args[5].offset = 1_025, "SCHEDULES[0].logits is 1025, no multiple of 4"),
    (|i| i.args[5].offset = 2_000, "SCHEDULES[0].logits: 80 bytes at 2000 do not lie in the 2048"),
    (shorten_file, "PARTS[0].offset: 80 bytes at 4000 do not lie in the 4000"),
];

fn without_pending(image: &mut PlanImage) {
    image.states[1].pending_bytes = 0;
    image.states[1].pending_stride_bytes = 0;
}

#[test]
fn a_packed_file_is_shown_as_mapped() {
    let mut image = small::image();
    packed(&mut image, "small.pack", 4_096);
    let plan = Plan::from_bytes(&image.to_bytes()).unwrap();
    let (with, without) = (dump::Summary::of(&plan), dump::Summary::of(&opened(&small::image())));
    assert_eq!(with.memory_bytes(), without.memory_bytes());
    let text = with.to_string();
    assert!(text.contains("small.pack") && text.contains("packed file"), "{text}");
}

fn opened(image: &PlanImage) -> Plan {
    Plan::from_bytes(&image.to_bytes()).unwrap()
}

#[test]
fn each_fault_of_a_row_is_named() {
    for (spoil, message) in FAULTS {
        let mut image = small::image();
        spoil(&mut image);
        let error = Plan::from_bytes(&image.to_bytes()).expect_err(message).to_string();
        assert!(error.contains(message), "found \"{error}\", needed \"{message}\"");
        assert!(error.contains("compile the model again"), "no remedy: {error}");
    }
}

/// The file with one field of its header or directory changed.
fn patched(offset: usize, bytes: &[u8], sum: bool) -> Vec<u8> {
    let mut file = small::image().to_bytes();
    file[offset..offset + bytes.len()].copy_from_slice(bytes);
    if sum {
        seal(&mut file);
    }
    file
}

fn seal(file: &mut [u8]) {
    let sum = checksum(&file[size_of::<Header>()..]);
    file[24..32].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn each_fault_of_header_and_directory_is_named() {
    let entry = |index: usize, field: usize| 64 + index * 32 + field;
    let word = |value: u64| value.to_le_bytes();
    let faults: &[(Vec<u8>, &str)] = &[
        (b"short".to_vec(), "5 bytes are too few for a plan"),
        (b"STRATAPL1234".to_vec(), "12 bytes are too few for a plan"),
        (b"GGUF\x03\0\0\0 and so on".to_vec(), "it begins with \"GGUF\\x03\\x00\\x00\\x00\""),
        (patched(8, &3u32.to_le_bytes(), true), "plan format 3, this program reads 2"),
        (patched(16, &word(5), true), "bytes, its header states 5"),
        (patched(1_000, &[0xff], false), "checksum "),
        (patched(63, &[1], true), "a reserved field of HEADER[0]"),
        (patched(12, &u32::MAX.to_le_bytes(), true), "its header and directory take 137438953504"),
        (patched(12, &20u32.to_le_bytes(), true), "section OUTPUTS is missing"),
        (patched(entry(0, 0), &22u32.to_le_bytes(), true), "entry 0 has the unknown kind 22"),
        (patched(entry(4, 4), &65u32.to_le_bytes(), true), "SCHEDULES have 65 bytes, needed 64"),
        (patched(entry(2, 8), &word(65), true), "section TARGETS begins at 65, no multiple of 64"),
        (patched(entry(8, 8), &word(8_256), true), "CODE begins at 8256, no multiple of 4096"),
        (
            patched(entry(2, 8), &word(64), true),
            "section TARGETS begins at 64, inside what ends at",
        ),
        (patched(entry(19, 16), &word(u64::MAX), true), "ends after the file's"),
        (
            patched(entry(5, 16), &word(u64::MAX / 2), true),
            "section COMMANDS of 9223372036854775807",
        ),
        (patched(entry(0, 24), &word(1), true), "a reserved field of DIRECTORY[0]"),
        (patched(entry(0, 16), &word(0), true), "section MODEL has 0 rows, needed 1"),
    ];
    for (file, message) in faults {
        let error = Plan::from_bytes(file).expect_err(message).to_string();
        assert!(error.contains(message), "found \"{error}\", needed \"{message}\"");
    }
    // The kind of one section in the entry of another of the same rows.
    let twice = patched(entry(16, 0), &section::TEXT_BYTES.to_le_bytes(), true);
    let error = Plan::from_bytes(&twice).unwrap_err();
    assert!(matches!(error, PlanError::SectionTwice { section: "TEXT_BYTES" }), "{error}");
}

#[test]
fn names_and_texts_must_be_utf8() {
    let file = small::image().to_bytes();
    for (needle, section) in [(&b"tokenizer.json"[..], "NAMES["), (b"messages", "TEXTS[0]")] {
        let mut file = file.clone();
        let at = file.windows(needle.len()).position(|window| window == needle).unwrap();
        file[at] = 0xff;
        seal(&mut file);
        let error = Plan::from_bytes(&file).unwrap_err().to_string();
        assert!(error.contains(section) && error.contains("is not UTF-8"), "{error}");
    }
}

/// Reads everything of a plan that opened.
fn read_all(plan: &Plan) -> usize {
    let mut text = dump::Summary::of(plan).to_string();
    for index in 0..plan.schedules().len() {
        dump::write_schedule(&mut text, plan, index).unwrap();
    }
    let bodies = plan.texts().iter().map(|row| plan.text_body(row).len());
    let weights = plan.weights().iter().map(|row| plan.name(row.name).len());
    text.len() + bodies.sum::<usize>() + weights.sum::<usize>() + plan.stop_tokens().len()
}

#[test]
fn no_bytes_whatever_make_it_panic() {
    let good = small::image().to_bytes();
    assert!(read_all(&Plan::from_bytes(&good).unwrap()) > 0);
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    let (mut opened, mut refused) = (0, 0);
    for round in 0..6_000 {
        let mut file = good.clone();
        for _ in 0..=below(3) {
            let at = below(file.len());
            match below(4) {
                0 => file[at] = 0xff,
                1 => file[at] ^= 1 << below(8),
                2 => file[at] = below(256) as u8,
                _ if round % 16 == 0 => file.truncate(at.max(1)),
                _ => file[at / 4 * 4..].iter_mut().take(4).for_each(|byte| *byte = 0xff),
            }
        }
        if file.len() >= size_of::<Header>() {
            let bytes = file.len() as u64;
            file[16..24].copy_from_slice(&bytes.to_le_bytes());
            seal(&mut file);
        }
        match Plan::from_bytes(&file) {
            Ok(plan) => opened += read_all(&plan).min(1),
            Err(error) => refused += error.to_string().len().min(1),
        }
    }
    assert!(opened > 500 && refused > 500, "{opened} opened, {refused} refused");
}
