//! Whole compilations of a small model, and what a plan must keep.

mod common;

use std::sync::OnceLock;

use common::{DENSE, FLOAT, MOE, Shape, base_graph, facts, tensors};
use strata_graph::{DType, Rebuild, TensorSlice, TensorType, WeightDef, WeightSource};
use strata_lowering::{
    BudgetShortfall, Checkpoint, CodeWorker, CompileInput, Compiled, Config, DeviceConfig, Form,
    LowerError, OtherBytes, PassReport, Placement, TargetName, TensorFormat, Tier, TierPolicy,
    Watch, WeightPlaces, WindowsConfig, compile, compute_lifetimes, pack_arena, place_experts,
    resolve_weights,
};
use strata_plan::Plan;
use strata_plan::layout::{opcode, space, tier};

fn small_config() -> Config {
    let cpu = DeviceConfig::Cpu { threads: 2, budget_mib: None, targets: vec![TargetName::Avx2] };
    let verify_rows = vec![1, 4];
    Config {
        devices: vec![cpu],
        windows: WindowsConfig { verify_rows, prefill_rows: vec![32], prefill_logit_rows: 4 },
        ..Config::default()
    }
}

fn run(
    shape: Shape,
    config: &Config,
    stop_after: Option<&str>,
) -> Result<Option<Compiled>, LowerError> {
    run_with(shape, config, stop_after, |_| {})
}

fn run_with(
    shape: Shape,
    config: &Config,
    stop_after: Option<&str>,
    change: impl Fn(&mut Vec<strata_lowering::TensorEntry>),
) -> Result<Option<Compiled>, LowerError> {
    watched(shape, config, stop_after, change, &mut |_, _| {})
}

fn watched(
    shape: Shape,
    config: &Config,
    stop_after: Option<&str>,
    change: impl Fn(&mut Vec<strata_lowering::TensorEntry>),
    on_phase: &mut dyn FnMut(&str, &str),
) -> Result<Option<Compiled>, LowerError> {
    let graphs: Vec<_> = config.windows(false).into_iter().map(|w| base_graph(shape, w)).collect();
    let (mut entries, files) = tensors(&graphs[0], shape.matrices);
    change(&mut entries);
    let input = CompileInput {
        model: facts(),
        graphs,
        tensors: &entries,
        files: &files,
        config,
        pack_file: "tiny.pack".into(),
        worker: CodeWorker::InProcess { threads: 2 },
    };
    let mut watch = Watch { stop_after, on_phase, on_kernel: &|_, _| {} };
    compile(&input, &mut watch)
}

/// The dense model, compiled once for all tests, and each phase's name and text.
fn dense_and_phases() -> &'static (Compiled, Vec<(String, String)>) {
    static DENSE_PLAN: OnceLock<(Compiled, Vec<(String, String)>)> = OnceLock::new();
    DENSE_PLAN.get_or_init(|| {
        let mut phases = Vec::new();
        let mut keep = |pass: &str, text: &str| phases.push((pass.to_owned(), text.to_owned()));
        let compiled = watched(DENSE, &small_config(), None, |_| {}, &mut keep);
        (compiled.expect("compiles").expect("to the end"), phases)
    })
}

fn dense() -> &'static Compiled {
    &dense_and_phases().0
}

/// The model with experts, compiled once for all tests.
fn moe() -> &'static Compiled {
    static MOE_PLAN: OnceLock<Compiled> = OnceLock::new();
    MOE_PLAN.get_or_init(|| run(MOE, &small_config(), None).expect("compiles").expect("to the end"))
}

#[test]
fn a_plan_opens_and_two_compilations_give_the_same_bytes() {
    let bytes = dense().image.to_bytes();
    let second = run(DENSE, &small_config(), None).unwrap().unwrap();
    assert!(bytes == second.image.to_bytes(), "two compilations differ");
    let plan = Plan::from_bytes(&bytes).unwrap();
    assert_eq!(plan.schedules().len(), 3);
    assert_eq!(plan.model().vocab, common::VOCAB);
    // The tied table is there twice: native rows in the file, packed rows in RAM.
    let tiers: Vec<u32> = plan
        .weights()
        .iter()
        .filter(|w| plan.name(w.name) == "token_embd")
        .map(|w| w.tier)
        .collect();
    assert_eq!(tiers, [tier::MAPPED, tier::RAM]);
}

fn report_of<'c>(compiled: &'c Compiled, pass: &str, window: &str) -> &'c PassReport {
    let found = compiled.reports.iter().find(|r| r.pass == pass && r.window == window);
    found.unwrap_or_else(|| panic!("no report of {pass} for {window}"))
}

#[test]
fn a_layer_takes_eight_launches_and_eight_barriers() {
    let report = report_of(dense(), "emit_schedule", "verify 1");
    // embed, angles, 2 layers of 8, gather, norm + quantise, head.
    assert_eq!(report.get("launches_count"), Some(2 + 2 * 8 + 3));
    assert_eq!(report.get("barriers_count"), Some(2 * 8 + 3));
}

/// Attention takes five, experts five: norm, router, route + dispatch, gated, sum.
#[test]
fn a_layer_of_experts_takes_ten_launches_for_few_rows() {
    let compiled = moe();
    for window in ["verify 1", "verify 4"] {
        let report = report_of(compiled, "emit_schedule", window);
        assert_eq!(report.get("launches_count"), Some(2 + 2 * 10 + 3), "{window}");
        assert_eq!(report.get("barriers_count"), Some(2 * 10 + 3), "{window}");
    }
    // Many rows are routed, dispatched, multiplied and summed by all threads one after another.
    let report = report_of(compiled, "emit_schedule", "prefill 32");
    assert_eq!(report.get("launches_count"), Some(2 + 2 * 12 + 3));
}

/// Files of mixed quantisation may hold the gate and the up projection in two formats.
#[test]
fn a_gate_and_an_up_projection_of_two_formats_compile() {
    let narrow_gates = |entries: &mut Vec<strata_lowering::TensorEntry>| {
        for entry in entries.iter_mut().filter(|entry| entry.name.ends_with("ffn_gate")) {
            entry.format = TensorFormat::Known(DType::Q4K);
            entry.bytes = TensorType::new(DType::Q4K, &[common::WIDE, common::HIDDEN]).bytes();
        }
    };
    let shape = Shape { matrices: DType::Q6K, ..DENSE };
    let compiled = run_with(shape, &small_config(), None, narrow_gates).unwrap().unwrap();
    let plan = Plan::from_bytes(&compiled.image.to_bytes()).unwrap();
    let specs: Vec<&str> = plan.kernels().iter().map(|k| plan.name(k.spec)).collect();
    assert!(specs.contains(&"ActMul((act:Silu,k:512,quantize:true))"), "{specs:?}");
    let report = report_of(&compiled, "emit_schedule", "verify 1");
    // The two products in one launch and their gate, which also quantises, for one gated product.
    assert_eq!(report.get("launches_count"), Some(2 + 2 * 9 + 3));
}

/// Replays a window's commands over address ranges: between two barriers no launch may touch what
/// another one of the same run writes.
#[test]
fn no_launch_between_barriers_touches_what_another_writes() {
    for image in [&dense().image, &moe().image] {
        let bytes = image.to_bytes();
        let plan = Plan::from_bytes(&bytes).unwrap();
        let name = |row| plan.name(row);
        let in_arena =
            |arg: &strata_plan::layout::Arg| image.spaces[arg.space as usize].kind == space::ARENA;
        for schedule in &image.schedules {
            let mut written: Vec<u64> = Vec::new();
            let rows = schedule.commands.range();
            let commands = image.commands[rows.clone()].iter().zip(&image.provenance[rows]);
            for (command, provenance) in commands {
                if command.opcode == opcode::BARRIER {
                    written.clear();
                    continue;
                }
                let args = &image.args[command.args.range()];
                assert!(args.iter().all(|arg| !in_arena(arg) || !written.contains(&arg.offset)));
                let results = match name(provenance.op) {
                    "route_dispatch" => 3,
                    // Queries, keys and values.
                    "projections" => 3,
                    "route" | "rms_norm_both" => 2,
                    _ => 1,
                };
                let results = args.iter().rev().take(results);
                written.extend(results.filter(|arg| in_arena(arg)).map(|arg| arg.offset));
            }
        }
    }
}

#[test]
fn a_small_budget_is_refused_with_numbers() {
    let mut config = small_config();
    config.devices = vec![DeviceConfig::Cpu {
        threads: 0,
        budget_mib: Some(1),
        targets: vec![TargetName::Avx2],
    }];
    let error = run(DENSE, &config, Some("place_experts")).unwrap_err();
    let LowerError::Budget(short) = &error else { panic!("{error}") };
    assert_eq!(short.budget, 1 << 20);
    assert!(short.short() > 0 && short.weights > 0 && short.other.states > 0);
    let text = error.to_string();
    assert!(text.contains("short") && text.contains("raise budget_mib by"), "{text}");
}

/// The arena of the graphs that run counts, not that of graphs before fusion.
#[test]
fn a_plan_that_fits_after_fusion_is_not_refused() {
    let mib = 1 << 20;
    let with_budget = |budget_mib| {
        let mut config = small_config();
        config.windows.prefill_rows = vec![1024];
        // Nothing may leave RAM to make room.
        config.weights = TierPolicy::Ram;
        let targets = vec![TargetName::Avx2];
        config.devices = vec![DeviceConfig::Cpu { threads: 2, budget_mib, targets }];
        config
    };
    let compiles_with = |budget| run(DENSE, &with_budget(Some(budget)), Some("emit_schedule"));
    // Enough for all but the arena, so that the refusal gives what is needed in the end.
    let LowerError::Budget(early) = compiles_with(1).unwrap_err() else { panic!("not the budget") };
    assert_eq!(early.other.arena, None);
    assert!(early.to_string().contains("arena not known yet"), "{early}");
    let refusal = compiles_with(early.need().div_ceil(mib)).unwrap_err();
    let LowerError::Budget(short) = refusal else { panic!("not the budget") };
    let arena = short.other.arena.unwrap();
    let budget = short.need().div_ceil(mib);
    assert!(compiles_with(budget).unwrap().is_none());

    let base = base_graph(DENSE, with_budget(None).windows(false)[2]);
    let (entries, files) = tensors(&base, DENSE.matrices);
    let (base, _) = resolve_weights(&base, &Checkpoint::new(&entries, &files)).unwrap();
    let unfused = pack_arena(&base, &compute_lifetimes(&base).0).0.bytes;
    assert!(short.need() - arena + unfused > budget * mib, "{unfused} before, {arena} behind");
}

#[test]
fn a_refusal_names_only_changes_that_are_enough() {
    let mib = 1 << 20;
    let remedies = |short: u64, mappable: u64, pages: u32| {
        let other = OtherBytes {
            arena: Some(0),
            page: 2 * mib,
            pages,
            page_tokens: 64,
            ..OtherBytes::default()
        };
        let (budget, weights) = (100 * mib, (100 + short) * mib);
        let mappable = mappable * mib;
        let device = "cpu".into();
        let packable = 0;
        let shortfall = BudgetShortfall { device, budget, weights, mappable, packable, other };
        let text = shortfall.to_string();
        text.split_once("short; ").unwrap().1.to_owned()
    };
    assert_eq!(
        remedies(5, 5, 4),
        "weights: Mapped (frees 5.0 MiB), or sequences.context_tokens of at most 64, or raise \
         budget_mib by 5"
    );
    assert_eq!(
        remedies(7, 4, 4),
        "weights: Mapped (frees 4.0 MiB) with sequences.context_tokens of at most 128, or raise \
         budget_mib by 7"
    );
    assert_eq!(remedies(20, 4, 4), "raise budget_mib by 20");
    assert_eq!(remedies(1, 0, 0), "raise budget_mib by 1");
}

#[test]
fn float_weights_go_to_the_file_when_the_budget_is_short() {
    let graph = base_graph(FLOAT, small_config().windows(false)[0]);
    let (entries, files) = tensors(&graph, FLOAT.matrices);
    let (graph, _) = resolve_weights(&graph, &Checkpoint::new(&entries, &files)).unwrap();
    let other = OtherBytes { states: 1000, arena: Some(2000), step: 3000, ..OtherBytes::default() };
    let place = |policy, budget| place_experts(&[&graph], policy, budget, other).unwrap().0;
    let all = place(TierPolicy::Ram, None);
    assert!(all.rows.iter().all(|p| p.tier != Tier::Mapped));
    // One byte less than all weights and the rest need: one matrix goes to the file.
    let table = place(TierPolicy::Auto, None);
    let budget = table.ram_bytes + 6000;
    let fits = place(TierPolicy::Auto, Some(budget));
    assert_eq!(fits.ram_bytes, table.ram_bytes);
    let short = place(TierPolicy::Auto, Some(budget - 1));
    let mapped =
        |places: &WeightPlaces| places.rows.iter().filter(|p| p.tier == Tier::Mapped).count();
    assert_eq!(mapped(&short), mapped(&fits) + 1);
    assert!(short.ram_bytes < fits.ram_bytes);
    // Only gains stay in RAM.
    let least = place(TierPolicy::Mapped, None);
    assert!(least.rows.iter().all(|p| (p.tier == Tier::Mapped) == (p.form == Form::Native)));
    let error = place_experts(&[&graph], TierPolicy::Mapped, Some(least.ram_bytes + 5999), other);
    let LowerError::Budget(short) = error.unwrap_err() else { panic!("not the budget") };
    assert_eq!((short.need(), short.short()), (least.ram_bytes + 6000, 1));
}

#[test]
fn banks_of_experts_are_the_first_to_be_packed() {
    let graph = base_graph(MOE, small_config().windows(false)[0]);
    let (entries, files) = tensors(&graph, MOE.matrices);
    let (graph, _) = resolve_weights(&graph, &Checkpoint::new(&entries, &files)).unwrap();
    let other = OtherBytes { arena: Some(0), ..OtherBytes::default() };
    let place = |policy, budget| place_experts(&[&graph], policy, budget, other);
    let auto = |budget| place(TierPolicy::Auto, Some(budget)).unwrap().0;
    let is_bank = |p: &Placement| graph.weights()[p.weight].ty.dims().len() == 3;
    let rows = |places: &WeightPlaces, keep: &dyn Fn(&Placement) -> bool| {
        places.rows.iter().filter(|p| keep(p)).count()
    };
    let all = place(TierPolicy::Auto, None).unwrap().0;
    assert_eq!(all.packed_bytes, 0);
    // One byte too few: a float matrix is read from its own file.
    let float = auto(all.ram_bytes - 1);
    assert_eq!((float.packed_bytes, rows(&float, &|p| p.tier == Tier::Packed)), (0, 0));
    let mut places = auto(all.ram_bytes - 2 * 4096 - 1);
    let mut packed = 0;
    let error = loop {
        let in_file = |p: &Placement| p.tier == Tier::Packed;
        assert_eq!(rows(&places, &in_file), packed + 1, "one more than before");
        packed += 1;
        let banks_left = rows(&places, &|p| is_bank(p) && !in_file(p));
        assert_eq!(banks_left, 6usize.saturating_sub(packed), "banks come first");
        assert_eq!(rows(&places, &|p| p.tier == Tier::Ram && p.form == Form::Native), 0);
        let mut end = 4096;
        for place in places.rows.iter().filter(|p| in_file(p)) {
            assert!(place.form == Form::Packed && place.offset.is_multiple_of(4096));
            assert!(place.offset >= end);
            end = place.offset + place.bytes;
        }
        assert_eq!(places.packed_bytes, end);
        match place(TierPolicy::Auto, Some(places.ram_bytes - 1)) {
            Ok((next, _)) => places = next,
            Err(error) => break error,
        }
    };
    assert_eq!(packed, rows(&places, &|p| p.form == Form::Packed));
    let text = error.to_string();
    assert!(text.contains("raise budget_mib") && !text.contains("weights:"), "{text}");
    let text = place(TierPolicy::Mapped, Some(all.ram_bytes / 2)).unwrap_err().to_string();
    assert!(text.contains("weights: Auto (frees ") && text.contains("a packed file"), "{text}");
}

#[test]
fn faults_of_tensors_name_tensor_file_found_and_needed() {
    let config = small_config();
    let fault = |change: fn(&mut Vec<strata_lowering::TensorEntry>)| {
        run_with(DENSE, &config, Some("resolve_weights"), change).unwrap_err().to_string()
    };
    insta::assert_snapshot!(fault(|t| t[1].name = "blk.0.attn_norn".into()));
    insta::assert_snapshot!(fault(|t| t[2].dims[0] = 128));
    insta::assert_snapshot!(fault(|t| {
        t[2].dims[0] = 128;
        t[2].bytes /= 2;
    }));
    insta::assert_snapshot!(fault(|t| t[2].format = TensorFormat::Unknown("iq1_s".into())));
    insta::assert_snapshot!(fault(|t| t[2].format = TensorFormat::Known(DType::Q8)));
    insta::assert_snapshot!(fault(|t| t[2].offset = 1 << 40));
}

/// A file may say any dimensions as long as their product is its bytes.
#[test]
fn dimensions_that_only_a_hostile_file_has_are_refused() {
    let graph = base_graph(MOE, small_config().windows(false)[0]);
    let (mut entries, files) = tensors(&graph, MOE.matrices);
    let bank = entries.iter().position(|entry| entry.name == "blk.0.gate_exps").unwrap();
    // Cut to rows, as from a file that stores gate and up projections together.
    let cut = |_: usize, def: &WeightDef| match def.name.as_str() {
        "blk.0.gate_exps" => {
            let rows = Some((0, common::WIDE));
            let slice = TensorSlice { tensor: def.name.clone(), rows };
            WeightDef { source: WeightSource::Named(vec![slice]), ..def.clone() }
        }
        _ => def.clone(),
    };
    let mut rebuild = Rebuild::with_weights(&graph, "base", cut);
    graph.nodes().for_each(|node| rebuild.keep(node));
    let graph = rebuild.finish().0;
    let mut fault = |dims: [u64; 3], bytes: u64| {
        (entries[bank].dims, entries[bank].bytes) = (dims.to_vec(), bytes);
        resolve_weights(&graph, &Checkpoint::new(&entries, &files)).unwrap_err()
    };
    let wide = u64::from(common::WIDE);
    for dims in [[1 << 40, wide, 0], [0, wide, 1 << 40], [1 << 40, 0, 1 << 62]] {
        assert!(matches!(fault(dims, 0), LowerError::TensorDims(_)), "{dims:?}");
    }
    let huge = fault([1 << 40, wide, 1 << 62], 0);
    let LowerError::TensorBytes { need, .. } = huge else { panic!("{huge}") };
    assert_eq!(need, u64::MAX);
}

#[test]
fn the_default_configuration_is_the_file() {
    let text = include_str!("../../configs/default.ron");
    let config: Config = ron::from_str(text).unwrap();
    assert_eq!(config, Config::default());
    assert!(ron::from_str::<Config>("(windwos: ())").is_err());
}

#[test]
fn every_configuration_file_is_read_and_checked() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let config: Config = ron::from_str(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(Some(config.name.as_str()), path.file_stem().and_then(|s| s.to_str()));
        config.cpu().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        count += 1;
    }
    assert!(count >= 2, "{count} files in {folder}");
}

#[test]
fn limits_of_a_configuration_are_checked() {
    let fault = |change: fn(&mut Config)| {
        let mut config = small_config();
        change(&mut config);
        run(DENSE, &config, Some("resolve_weights")).unwrap_err().to_string()
    };
    assert_eq!(
        fault(|c| c.kv.page_tokens = 48),
        "configuration: kv.page_tokens is 48, needs a power of two from 16 to 256"
    );
    assert_eq!(
        fault(|c| c.sequences.slots = 0),
        "configuration: sequences.slots is 0, needs 1 to 4096"
    );
    assert_eq!(
        fault(|c| c.devices = vec![]),
        "configuration: devices is 0 devices, needs exactly one, Cpu(..)"
    );
    assert!(fault(|c| c.windows.verify_rows = vec![0]).contains("needs 1 to 8192 rows"));
    let unknown = run(DENSE, &small_config(), Some("fuse")).unwrap_err().to_string();
    assert!(unknown.starts_with("no pass is called fuse; there are resolve_weights, "));
}

#[test]
fn every_named_pass_runs_in_the_order_of_the_names_and_shows_its_text() {
    let (_, phases) = dense_and_phases();
    let shown: Vec<&str> = phases.iter().map(|(pass, _)| pass.as_str()).collect();
    assert_eq!(shown, strata_lowering::PASSES);
    assert!(phases.iter().all(|(_, text)| !text.is_empty()));
}

#[test]
fn every_pass_can_be_the_last() {
    let config = small_config();
    // Generating code takes the most time, so that only the end is looked at behind it.
    for pass in strata_lowering::PASSES.iter().filter(|pass| **pass != "generate_code") {
        let mut last = (String::new(), String::new());
        let mut keep = |pass: &str, text: &str| last = (pass.to_owned(), text.to_owned());
        let compiled = watched(MOE, &config, Some(pass), |_| {}, &mut keep);
        assert!(compiled.unwrap().is_none(), "{pass} did not stop");
        assert_eq!(last.0, *pass);
        let shown = match *pass {
            "compute_lifetimes" => "; strata lifetimes 1 | tiny | verify 1 | ",
            "load_weights" => "bytes  Repack((format:Q8_0,n:2048,k:256))",
            "write_plan" => "tiny",
            _ => continue,
        };
        assert!(last.1.contains(shown), "{pass} shows {}", last.1);
    }
}
