//! The rules of the house that no compiler checks: which room may depend on which, how long a file
//! may be, which words are not names, where unsafe code may stand.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use strata_tests::repository;

/// What each crate may depend on: the edges of docs/ARCHITECTURE.md.
const EDGES: &[(&str, &[&str])] = &[
    ("strata-graph", &[]),
    ("strata-formats", &[]),
    ("strata-plan", &[]),
    ("strata-text", &[]),
    ("strata-models", &["strata-graph", "strata-formats"]),
    ("strata-kernels", &["strata-graph"]),
    ("strata-lowering", &["strata-graph", "strata-kernels", "strata-plan"]),
    ("strata-replay", &["strata-plan", "strata-formats"]),
];

/// These may use every room.
const FREE: &[&str] = &["strata", "strata-tests", "strata-bench"];

const MOST_LINES: usize = 500;

/// Crates and files that may contain `unsafe`, as prefixes of paths.
const UNSAFE_ROOMS: &[&str] = &[
    "kernels/src/builder/",
    "kernels/src/run.rs",
    "models/formats/src/source.rs",
    "runtime/plan/src/open.rs",
    "runtime/replay/src/host",
    "runtime/replay/src/test_plan",
    "tests/cli/alloc.rs",
];

fn files_under(dir: &Path, extension: &str, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "model-files" {
                files_under(&path, extension, out);
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            out.push(path);
        }
    }
}

fn sources() -> Vec<(String, String)> {
    let root = repository();
    let mut paths = Vec::new();
    files_under(&root, "rs", &mut paths);
    assert!(paths.len() > 50, "the walk over the repository found {} files", paths.len());
    paths
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// Crate name and the crates of ours in its `[dependencies]`.
fn edges_of(manifest: &str) -> (String, Vec<String>) {
    let mut name = String::new();
    let mut section = String::new();
    let mut ours = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.to_owned();
        } else if section == "[package]" && line.starts_with("name") {
            name = line.split('"').nth(1).unwrap().to_owned();
        } else if section == "[dependencies]" && line.starts_with("strata-") {
            ours.push(line.split(['.', ' ', '=']).next().unwrap().to_owned());
        }
    }
    (name, ours)
}

#[test]
fn rooms_depend_only_downwards() {
    let root = repository();
    let mut manifests = Vec::new();
    files_under(&root, "toml", &mut manifests);
    let allowed: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    let mut seen = 0;
    for path in manifests.iter().filter(|p| p.ends_with("Cargo.toml")) {
        let (name, ours) = edges_of(&fs::read_to_string(path).unwrap());
        if name.is_empty() || FREE.contains(&name.as_str()) || name.ends_with("-fuzz") {
            continue;
        }
        let may =
            allowed.get(name.as_str()).unwrap_or_else(|| panic!("{name} has no row in EDGES"));
        for dependency in ours {
            assert!(may.contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
        seen += 1;
    }
    assert_eq!(seen, EDGES.len(), "every row of EDGES is a crate");
}

#[test]
fn files_are_short() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{name} has {lines} lines, split it below {MOST_LINES}");
    }
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    for (name, text) in sources() {
        let is_test = name.contains("/tests/") || name.ends_with("tests.rs");
        let allowed = is_test || UNSAFE_ROOMS.iter().any(|room| name.starts_with(room));
        let uses = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or("");
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
        });
        assert!(allowed || !uses, "{name} has unsafe code, which belongs in {UNSAFE_ROOMS:?}");
    }
}

#[test]
fn only_the_builder_sees_the_code_generator() {
    for (name, text) in sources() {
        let sees = text.lines().any(|l| l.contains("inkwell::") || l.contains("use inkwell"));
        let allowed = name.starts_with("kernels/src/builder/") || name.starts_with("tests/");
        assert!(!sees || allowed, "{name} uses inkwell, only kernels/src/builder/ may");
    }
}

#[test]
fn names_use_the_words_of_the_field() {
    let banned = ["ctx", "util", "utils", "helper", "helpers", "manager", "handler"];
    for (name, _) in sources() {
        let stem = Path::new(&name).file_stem().unwrap().to_string_lossy().into_owned();
        assert!(!banned.contains(&stem.as_str()), "{name}: a file called {stem} says nothing");
    }
}

#[test]
fn the_project_names_no_machine() {
    let root = repository();
    let mut texts = Vec::new();
    for extension in ["md", "rs", "sh", "ron", "toml", "py"] {
        files_under(&root, extension, &mut texts);
    }
    let places = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/t", "mp/peer")];
    for path in texts {
        let text = fs::read_to_string(&path).unwrap();
        for place in places {
            assert!(!text.contains(place), "{} names {place}", path.display());
        }
    }
}
