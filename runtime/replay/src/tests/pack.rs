use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use strata_plan::PlanImage;
use strata_plan::layout::{NONE, Space, space, tier};

use super::{TestPlan, rows};
use crate::test_plan::{LARGE_FLOATS, VOCAB, stored};
use crate::{Engine, EngineOptions, PackFault, ReplayError};

const LARGE: u64 = 8192;
const FILE_BYTES: u64 = LARGE + LARGE_FLOATS as u64 * 4;

/// The repacked and the large weight lie in the packed file.
fn packed(image: &mut PlanImage) {
    let name = image.name("tiny.pack");
    let (kind, bytes, file) = (space::PACK, FILE_BYTES, NONE);
    let pack = image.spaces.len() as u32;
    image.spaces.push(Space { kind, device: 0, bytes, file, name, reserved: 0 });
    for (row, offset) in [(1, 4096), (2, LARGE)] {
        let weight = &mut image.weights[row];
        (weight.tier, weight.space, weight.offset) = (tier::PACKED, pack, offset);
    }
    image.spaces[0].bytes = 64 + 4;
    for arg in image.args.iter_mut().filter(|arg| (arg.space, arg.offset) == (0, 64)) {
        (arg.space, arg.offset) = (pack, 4096);
    }
}

fn plan(name: &str) -> TestPlan {
    TestPlan::edited(&format!("pack-{name}"), &packed)
}

fn pack_of(plan: &TestPlan) -> PathBuf {
    plan.path.with_extension("pack")
}

fn partial_of(plan: &TestPlan) -> PathBuf {
    plan.path.with_file_name(".tiny.pack.partial")
}

fn open(path: &Path) -> Result<Engine, ReplayError> {
    // Less than the large weight takes.
    let memory_bytes = Some(8 << 20);
    let options = EngineOptions { threads: Some(2), memory_bytes, ..Default::default() };
    Engine::open(path, &options, &mut |_, _| {})
}

fn refusal(plan: &TestPlan) -> (PackFault, String) {
    let error = open(&plan.path).unwrap_err();
    let text = error.to_string();
    let ReplayError::Pack { fault, .. } = error else { panic!("{text}") };
    (fault, text)
}

/// Opens the plan and checks what lies in its packed file; returns what tells files apart.
fn check(plan: &TestPlan, repacked: impl Fn(usize) -> f32) -> (u64, i64, i64) {
    let mut engine = open(&plan.path).unwrap();
    let slot = engine.new_sequence().unwrap();
    for token in 0..VOCAB {
        let output = engine.run(&rows(slot, &[token as u32])).unwrap();
        let weights = [stored(0, token), repacked(token), stored(2, token)];
        assert_eq!(output.logits(0)[4..7], weights);
    }
    let bytes = fs::read(pack_of(plan)).unwrap();
    assert_eq!(bytes.len() as u64, FILE_BYTES);
    let large = bytes[LARGE as usize..].chunks_exact(4);
    assert!(large.enumerate().all(|(i, word)| *word == (i as f32).to_le_bytes()));
    assert!(!partial_of(plan).exists());
    let found = fs::metadata(pack_of(plan)).unwrap();
    (found.ino(), found.mtime(), found.mtime_nsec())
}

fn doubled(token: usize) -> f32 {
    2.0 * stored(1, token)
}

#[test]
fn the_first_engine_makes_it_and_later_ones_map_it() {
    let plan = plan("reuse");
    let file_bytes = (2 * VOCAB + LARGE_FLOATS) as u64 * 4;
    for expected in [file_bytes, VOCAB as u64 * 4] {
        let mut last = (0, 0);
        let options = EngineOptions { threads: Some(3), ..Default::default() };
        let engine = Engine::open(&plan.path, &options, &mut |done, total| {
            assert!(done >= last.0 && done <= total && total >= last.1);
            last = (done, total);
        });
        drop(engine.unwrap());
        assert_eq!(last, (expected, expected), "what is there is not loaded");
    }
    let first = check(&plan, doubled);
    assert_eq!(check(&plan, doubled), first);
    let two = std::array::from_fn::<_, 2, _>(|_| open(&plan.path).unwrap());
    drop(two);
    assert_eq!(check(&plan, doubled), first);
}

#[test]
fn a_damaged_file_is_made_again() {
    let plan = plan("damaged");
    let mut last = check(&plan, doubled);
    let path = pack_of(&plan);
    let set_len = |bytes| fs::File::options().write(true).open(&path).unwrap().set_len(bytes);
    for bytes in [0, 5, 8, 63, 64, 4096, FILE_BYTES - 1, FILE_BYTES + 1] {
        set_len(bytes).unwrap();
        let next = check(&plan, doubled);
        assert_ne!(next, last, "{bytes} bytes");
        last = next;
    }
    for byte in [8, 12, 16, 24, 40, 56] {
        let mut bytes = fs::read(&path).unwrap();
        bytes[byte] ^= 1;
        fs::write(&path, bytes).unwrap();
        let next = check(&plan, doubled);
        assert_ne!(next, last, "byte {byte}");
        last = next;
    }
}

#[test]
fn it_is_made_again_when_its_contents_would_differ() {
    let plan = plan("contents");
    let first = check(&plan, doubled);
    // Another file of the same size and header.
    let weights = plan.path.with_file_name("weights.bin");
    let mut bytes = fs::read(&weights).unwrap();
    for token in 0..VOCAB {
        let at = (VOCAB + token) * 4;
        bytes[at..at + 4].copy_from_slice(&(token as f32).to_le_bytes());
    }
    fs::write(&weights, bytes).unwrap();
    let second = check(&plan, |token| 2.0 * token as f32);
    assert_ne!(second, first);
    // Another plan in its place.
    let mut image = crate::test_plan::image(fs::metadata(&weights).unwrap().len(), false);
    packed(&mut image);
    image.weights[2].dims = [1, 1, 1, LARGE_FLOATS as u32];
    strata_plan::write_plan_file(&plan.path, &image).unwrap();
    assert_ne!(check(&plan, |token| 2.0 * token as f32), second);
}

#[test]
fn what_is_somebody_s_is_left_alone() {
    let plan = plan("foreign");
    let path = pack_of(&plan);
    fs::write(&path, "a letter").unwrap();
    let (fault, text) = refusal(&plan);
    assert!(matches!(fault, PackFault::Foreign));
    assert!(text.contains("tiny.pack: ") && text.contains("move it away"), "{text}");
    assert_eq!(fs::read(&path).unwrap(), b"a letter");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(refusal(&plan).0, PackFault::Foreign));
    fs::remove_dir(&path).unwrap();

    // Neither a link nor another name leads to a file that is written to.
    let letter = plan.path.with_file_name("letter");
    fs::write(&letter, "a letter").unwrap();
    std::os::unix::fs::symlink(&letter, partial_of(&plan)).unwrap();
    let (fault, text) = refusal(&plan);
    assert!(matches!(fault, PackFault::Io { .. }), "{text}");
    fs::remove_file(partial_of(&plan)).unwrap();
    fs::hard_link(&letter, partial_of(&plan)).unwrap();
    let (fault, text) = refusal(&plan);
    assert!(matches!(fault, PackFault::Foreign) && text.contains(".partial"), "{text}");
    assert_eq!(fs::read(&letter).unwrap(), b"a letter");
    fs::remove_file(partial_of(&plan)).unwrap();
    check(&plan, doubled);
}

#[test]
fn a_full_disk_is_said_before_anything_is_written() {
    let plan = TestPlan::edited("pack-disk", &|image| {
        packed(image);
        image.spaces[6].bytes = 1 << 46;
    });
    let (fault, text) = refusal(&plan);
    assert!(matches!(fault, PackFault::Disk { needed, stale: 0, .. } if needed == 1 << 46));
    assert!(text.contains("takes 67108864 MiB of the disk") && text.contains("too few"), "{text}");
    assert!(!pack_of(&plan).exists() && !partial_of(&plan).exists());
    fs::write(pack_of(&plan), "STRATAPK of another plan").unwrap();
    let (_, text) = refusal(&plan);
    assert!(text.ends_with("removing it frees 1 MiB"), "{text}");
}

#[test]
fn engines_that_open_at_once_make_it_once() {
    let plan = plan("at-once");
    let total = |path: &Path| {
        let mut last = 0;
        let options = EngineOptions { threads: Some(1), ..Default::default() };
        Engine::open(path, &options, &mut |_, total| last = total).unwrap();
        last
    };
    let totals: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| total(&plan.path))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let small = VOCAB as u64 * 4;
    assert_eq!(totals.iter().filter(|&&total| total > small).count(), 1, "{totals:?}");
    check(&plan, doubled);
}

/// The plan in whose making a process is to be killed.
const KILLED: &str = "STRATA_TEST_PACK_KILLED";

#[test]
fn a_process_that_is_killed_leaves_no_half_file() {
    if let Ok(path) = std::env::var(KILLED) {
        // The code of the plan jumps to functions of the process that wrote it: it is written anew.
        let bytes = fs::metadata(Path::new(&path).with_file_name("weights.bin")).unwrap().len();
        let mut image = crate::test_plan::image(bytes, false);
        packed(&mut image);
        strata_plan::write_plan_file(Path::new(&path), &image).unwrap();
        let options = EngineOptions { threads: Some(1), ..Default::default() };
        let _ = Engine::open(Path::new(&path), &options, &mut |done, total| {
            if done > total / 2 {
                std::process::abort();
            }
        });
        return;
    }
    let plan = plan("killed");
    let own = fs::read(&plan.path).unwrap();
    let name = "tests::pack::a_process_that_is_killed_leaves_no_half_file";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args([name, "--exact"]).env(KILLED, &plan.path).output().unwrap();
    assert!(child.status.code().is_none(), "{child:?}");
    assert!(!pack_of(&plan).exists() && partial_of(&plan).exists());
    fs::write(&plan.path, own).unwrap();
    check(&plan, doubled);
}
