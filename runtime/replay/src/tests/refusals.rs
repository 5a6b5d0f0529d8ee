use std::os::unix::fs::PermissionsExt;

use strata_plan::layout::cpu_feature;
use strata_plan::{Distrust, Plan, PlanError};

use super::{TestPlan, rows};
use crate::open::choose_target;
use crate::test_plan::CONTEXT;
use crate::{Engine, EngineOptions, ReplayError, Row};

fn refusal(plan: &TestPlan, options: &EngineOptions) -> ReplayError {
    Engine::open(&plan.path, options, &mut |_, _| {}).unwrap_err()
}

#[test]
fn the_best_target_that_runs_is_chosen() {
    let plan = TestPlan::edited("targets", &|image| {
        let name = image.name("wide");
        let mut wide = image.targets[0];
        wide.name = name;
        wide.rank = 2;
        wide.features = cpu_feature::AVX2 | cpu_feature::AVX512F;
        image.targets.push(wide);
    });
    let plan = Plan::open(&plan.path).unwrap();
    let name = |features| choose_target(&plan, features).map(|row| plan.name(row.name));
    assert_eq!(name(u64::MAX).unwrap(), "wide");
    assert_eq!(name(cpu_feature::AVX2 | cpu_feature::FMA).unwrap(), "any");
    let error = name(cpu_feature::FMA).unwrap_err().to_string();
    assert!(error.contains("any needs avx2; wide needs avx2, avx512f;"), "{error}");
}

#[test]
fn too_little_memory_is_said_in_numbers() {
    let plan = TestPlan::new("memory");
    let options = EngineOptions { memory_bytes: Some(5 << 20), ..Default::default() };
    let ReplayError::Memory(needs) = refusal(&plan, &options) else { panic!("not refused") };
    assert_eq!(needs.available_bytes, 5 << 20);
    assert!(needs.weights_bytes > 18 << 20);
    let text = ReplayError::Memory(needs).to_string();
    assert!(text.starts_with("the plan takes 19 MiB of memory (weights 19, states 1"), "{text}");
    assert!(text.contains("5 MiB are available: 14 MiB too few"), "{text}");
}

/// A plan may ask for tables of the host that are much larger than its spaces.
#[test]
fn page_tables_and_snapshots_count_as_memory() {
    let plan = TestPlan::edited("tables", &|image| image.model.pages = 1 << 26);
    let plan = Plan::open(&plan.path);
    assert!(
        plan.unwrap_err().to_string().contains("STATES[0].offset"),
        "pages take a state's bytes"
    );
    let plan = TestPlan::edited("tables-only", &|image| {
        image.states.clear();
        image.model.pages = 1 << 26;
    });
    let options = EngineOptions { memory_bytes: Some(64 << 20), ..Default::default() };
    let ReplayError::Memory(needs) = refusal(&plan, &options) else { panic!("not refused") };
    assert!(needs.other_bytes > 512 << 20, "{needs}");
    let plan = TestPlan::new("snapshots");
    let snapshots = 1 << 24;
    let options = EngineOptions { snapshots, ..options };
    let ReplayError::Memory(needs) = refusal(&plan, &options) else { panic!("not refused") };
    assert!(needs.other_bytes > 64 << 24, "{needs}");
}

#[test]
fn a_plan_that_others_can_write_is_refused() {
    let plan = TestPlan::new("trust");
    std::fs::set_permissions(&plan.path, std::fs::Permissions::from_mode(0o646)).unwrap();
    let error = refusal(&plan, &EngineOptions::default());
    let distrust = Distrust::Others { mode: 0o646 };
    assert!(
        matches!(error, ReplayError::Plan(PlanError::Untrusted { distrust: d, .. }) if d == distrust)
    );
    assert!(error.to_string().contains("chmod o-w"), "{error}");
}

#[test]
fn files_that_changed_are_refused() {
    let plan = TestPlan::new("files");
    let weights = plan.path.with_file_name("weights.bin");
    std::fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(10).unwrap();
    let error = refusal(&plan, &EngineOptions::default()).to_string();
    assert!(error.contains("weights.bin has 10 bytes, the plan was compiled from"), "{error}");
    std::fs::remove_file(&weights).unwrap();
    let error = refusal(&plan, &EngineOptions::default());
    assert!(matches!(error, ReplayError::Plan(PlanError::WeightFile { .. })), "{error}");
}

#[test]
fn a_file_with_another_header_is_refused() {
    let header = br#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut contents = (header.len() as u64).to_le_bytes().to_vec();
    contents.extend_from_slice(header);
    contents.extend_from_slice(&[0; 4]);
    let whole = strata_formats::fnv1a_64(&contents[..contents.len() - 4]);
    for (name, found) in [("other", 1), ("same", whole)] {
        let plan = TestPlan::edited(name, &|image| {
            image.files[0].header_hash = found;
            image.files[0].bytes = contents.len() as u64;
            image.spaces[5].bytes = contents.len() as u64;
            image.parts.clear();
            image.weights.clear();
        });
        std::fs::write(plan.path.with_file_name("weights.bin"), &contents).unwrap();
        let opened = Plan::open(&plan.path).unwrap();
        let checked = crate::check_files(&opened, &plan.path);
        assert_eq!(checked.is_ok(), name == "same", "{checked:?}");
    }
}

#[test]
fn a_refused_call_changes_nothing() {
    let plan = TestPlan::new("calls");
    let mut engine = plan.open_with_threads(1);
    let slot = engine.new_sequence().unwrap();
    let message = |result: Result<crate::Output<'_>, ReplayError>| result.unwrap_err().to_string();
    assert!(message(engine.run(&[])).contains("at least one row"));
    let text = message(engine.run(&rows(slot, &[1, 8])));
    assert!(text.contains("row 1 has token 8, the vocabulary ends before 8"), "{text}");
    let text = message(engine.run(&rows(slot, &[1; 9])));
    assert!(text.contains("9 rows with 1 rows of logits"), "{text}");
    assert_eq!(engine.position(slot).unwrap(), 0);

    engine.prefill(slot, &[2; CONTEXT], None).unwrap();
    let free = engine.free_pages();
    let text = message(engine.run(&rows(slot, &[1])));
    assert!(text.contains("slot 0 stands at position 30, 1 more do not fit into 30"), "{text}");
    assert_eq!((engine.position(slot).unwrap(), engine.free_pages()), (30, free));
    let error = engine.truncate(slot, 31).unwrap_err();
    assert!(matches!(error, ReplayError::Truncate { position: 30, asked: 31 }));

    let others = [engine.new_sequence().unwrap(), engine.new_sequence().unwrap()];
    assert!(matches!(engine.new_sequence().unwrap_err(), ReplayError::NoSlot { slots: 3 }));
    engine.release(others[0]);
    engine.release(others[0]);
    let again = engine.new_sequence().unwrap();
    assert_eq!(again.slot(), others[0].slot());
    let row = Row { token: 1, slot: others[0], logits: false };
    assert!(matches!(engine.run(&[row]).unwrap_err(), ReplayError::SlotGone { slot: 1 }));

    let error = engine.snapshot(again, 2).unwrap_err().to_string();
    assert!(error.contains("no snapshot 2, the engine was opened with 2"), "{error}");
    let error = engine.restore(again, 0).unwrap_err().to_string();
    assert!(error.contains("snapshot 0 is empty"), "{error}");
}
