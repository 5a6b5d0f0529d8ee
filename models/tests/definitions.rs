//! The released definitions parse and build; small ones show the graph and every refusal.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its functions")]

use std::fs;
use std::path::{Path, PathBuf};

use strata_graph::verify::verify;
use strata_graph::{Graph, Op, StateKind, WeightSource, Window, WindowKind};
use strata_models::{
    Attention, Block, Draft, Hash, Head, ModelDef, Norm, Pairs, ValueHeads, build, hash_constants,
    open, parse, to_ron,
};

/// Two layers with all that a block can have: a local one with biases and post norms, a global one
/// with experts.
const SMALL: &str = r#"(
    name: "small",
    hidden: 64,
    vocab: 256,
    context: 1024,
    norm: RmsNorm(eps: 1e-6, zero_centred: true),
    embed_scale: 8.0,
    layers: 2,
    blocks: [
        (
            attention: Gqa(
                heads: 4,
                kv_heads: 2,
                head_dim: 32,
                bias: All,
                rope: (theta: 10000.0, dims: 16, pairing: Adjacent),
                scale: 0.25,
                window: 128,
            ),
            post_norms: true,
            mlp: Gated(intermediate: 96, act: Gelu),
        ),
        (
            attention: Gqa(
                heads: 4,
                kv_heads: 2,
                head_dim: 32,
                qk_norm: true,
                rope: (theta: 1e6, scaling: Linear(factor: 8.0)),
            ),
            mlp: Moe(experts: 4, top_k: 2, intermediate: 32, norm_top_k: true, act: Silu),
        ),
    ],
    head: Tied,
    weights: (layout: Hf, files: ["small"]),
    tokens: (bos: 1, eos: [2, 3], add_bos: true),
    tokenizer: SameAsWeights,
    chat_template: File("chat.jinja"),
)"#;

fn window(kind: WindowKind, rows: u32, logit_rows: u32) -> Window {
    Window { kind, rows, logit_rows }
}

fn small() -> ModelDef {
    parse(SMALL).unwrap_or_else(|error| panic!("{error}"))
}

fn built(def: &ModelDef, window: Window) -> Graph {
    let graph = build(def, window).unwrap_or_else(|error| panic!("{}: {error}", def.name));
    if let Err(errors) = verify(&graph) {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("{}: {}", def.name, errors.join("\n"));
    }
    graph
}

fn released() -> Vec<PathBuf> {
    let entries = fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "ron"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 12, "{paths:?}");
    paths
}

#[test]
fn released_definitions_build_for_one_row_and_for_a_prefill_chunk() {
    for path in released() {
        let def = open(&path).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(parse(&to_ron(&def)).unwrap(), def, "{}", path.display());
        let verify = built(&def, window(WindowKind::Verify, 1, 1));
        let prefill = built(&def, window(WindowKind::Prefill, 512, 1));
        assert_eq!(verify.node_count(), prefill.node_count());
        assert_eq!(verify.weights(), prefill.weights());
        assert_eq!(verify.states(), prefill.states());
        assert!(verify.states().len() >= def.layers as usize);
        let logits = prefill.ty(prefill.outputs()[0]);
        assert_eq!(logits.dims(), [1, def.vocab]);
    }
}

/// What a layout may change is how rows are paired, how gains are stored and whether the output
/// table is stored twice.
#[test]
fn the_layouts_of_a_model_describe_the_same_blocks() {
    let plain_block = |block: &mut Block| match &mut block.attention {
        Attention::Gqa(gqa) => gqa.rope.pairing = Pairs::Halves,
        Attention::GatedDelta(delta) => delta.order = ValueHeads::Grouped,
    };
    let plain = |path: &Path| {
        let mut def = open(path).unwrap();
        def.blocks.iter_mut().for_each(plain_block);
        if let Some(Draft::Mtp(mtp)) = &mut def.draft {
            plain_block(&mut mtp.block);
        }
        if let Some(ngram) = &mut def.ngram {
            ngram.hash = Hash::Given(hash_constants(ngram, def.vocab));
            ngram.table_tensors = 1;
        }
        def.norm = Norm::RmsNorm { eps: def.norm.eps(), zero_centred: false };
        def.head = Head::Tied;
        def
    };
    let gguf: Vec<PathBuf> =
        released().into_iter().filter(|p| p.to_string_lossy().ends_with(".gguf.ron")).collect();
    assert!(gguf.len() >= 6);
    for path in gguf {
        let published = path.with_extension("").with_extension("ron");
        let weights = plain(&published).weights;
        assert_eq!(ModelDef { weights, ..plain(&path) }, plain(&published), "{}", path.display());
    }
}

#[test]
fn small_graph() {
    let graph = built(&small(), window(WindowKind::Verify, 4, 2));
    insta::assert_snapshot!(graph);
}

#[test]
fn logit_rows_are_gathered_before_the_last_norm() {
    let graph = built(&small(), window(WindowKind::Prefill, 32, 3));
    let names: Vec<&str> = graph.nodes().map(|node| node.name).collect();
    let tail = &names[names.len() - 4..];
    assert_eq!(tail, ["blk.1.ffn_residual", "logit_rows", "output_norm", "output"]);
    let gathered = graph.nodes().find(|node| matches!(node.op, Op::GatherRows {})).unwrap();
    assert_eq!(graph.ty(gathered.result()).dims(), [3, 64]);
}

#[test]
fn a_tied_head_reads_the_embedding_table() {
    let graph = built(&small(), window(WindowKind::Verify, 1, 1));
    let table = graph.nodes().find(|node| matches!(node.op, Op::Embed { .. })).unwrap().operands[0];
    let head = graph.nodes().last().unwrap();
    assert_eq!(head.operands[1], table);
    let named = graph.weights().values().filter(|weight| weight.name == "token_embd.weight");
    assert_eq!(named.count(), 1);
}

#[test]
fn equal_frequencies_share_their_angles() {
    let count = |text: &str| {
        let graph = built(&parse(text).unwrap(), window(WindowKind::Verify, 1, 1));
        graph.nodes().filter(|node| matches!(node.op, Op::RopeAngles { .. })).count()
    };
    assert_eq!(count(SMALL), 2);
    let first = "theta: 10000.0, dims: 16, pairing: Adjacent";
    let second = "theta: 1e6, scaling: Linear(factor: 8.0)";
    assert_eq!(count(&SMALL.replace(second, "theta: 10000.0, dims: 16")), 1);
    assert_eq!(count(&SMALL.replace(first, second)), 1);
}

#[test]
fn only_gains_of_zero_centred_norms_add_one() {
    let graph = built(&small(), window(WindowKind::Verify, 1, 1));
    for weight in graph.weights().values() {
        let adds = weight.transform == strata_graph::Transform::AddOne;
        assert_eq!(adds, weight.name.contains("norm"), "{}", weight.name);
    }
}

#[test]
fn each_layer_appends_to_its_own_keys_and_values() {
    let graph = built(&small(), window(WindowKind::Verify, 2, 1));
    let names: Vec<&str> = graph.states().values().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["kv.0", "kv.1"]);
    for state in graph.states().values() {
        assert_eq!(state.kind, StateKind::Append);
        assert_eq!(state.row.dims(), [2, 32]);
    }
}

#[test]
fn experts_are_one_bank_from_each_layout() {
    let slices = |layout: &str| {
        let def = parse(&SMALL.replace("layout: Hf", &format!("layout: {layout}"))).unwrap();
        let graph = built(&def, window(WindowKind::Verify, 1, 1));
        let named = |name: &str| {
            let weight = graph.weights().values().find(|weight| weight.name == name).unwrap();
            assert_eq!(weight.ty.dims()[0], 4, "{name}");
            let WeightSource::Named(slices) = &weight.source else { panic!("{name} is named") };
            let text = |s: &strata_graph::TensorSlice| format!("{} {:?}", s.tensor, s.rows);
            slices.iter().map(text).collect::<Vec<_>>().join(", ")
        };
        ["gate", "up", "down"].map(|part| named(&format!("blk.1.ffn_{part}_exps.weight")))
    };
    assert_eq!(slices("Gguf")[1], "blk.1.ffn_up_exps.weight None");
    let tensor = |expert| format!("model.layers.1.mlp.experts.{expert}.up_proj.weight None");
    assert_eq!(slices("Hf")[1], [0, 1, 2, 3].map(tensor).join(", "));
    assert_eq!(
        slices("HfFusedExperts"),
        [
            "model.layers.1.mlp.experts.gate_up_proj Some((0, 32))",
            "model.layers.1.mlp.experts.gate_up_proj Some((32, 64))",
            "model.layers.1.mlp.experts.down_proj None",
        ]
    );
}

#[test]
fn a_prefix_stands_before_all_names_but_the_heads() {
    let text = SMALL
        .replace("layout: Hf,", "layout: Hf, prefix: \"model.language_model.\",")
        .replace("Tied", "Untied");
    let graph = built(&parse(&text).unwrap(), window(WindowKind::Verify, 1, 1));
    for weight in graph.weights().values() {
        let WeightSource::Named(slices) = &weight.source else { continue };
        for slice in slices {
            let head = slice.tensor == "lm_head.weight";
            assert!(head || slice.tensor.starts_with("model.language_model."), "{}", slice.tensor);
        }
    }
}

#[test]
fn a_definition_is_written_as_it_was_read() {
    let def = small();
    assert_eq!(parse(&to_ron(&def)).unwrap(), def);
    let odd = ModelDef { name: "a \"b\" \\ \n\u{7f} ü".into(), ..def };
    assert_eq!(parse(&to_ron(&odd)).unwrap(), odd);
}

#[test]
fn syntax_errors_name_line_and_column() {
    for (from, to, need) in [
        ("    vocab: 256,", "    vocabulary: 256,", "4:"),
        ("head_dim: 32,", "head_dim: thirty,", "14:"),
        ("heads: 4,", "heads: 70000,", "12:"),
        ("window: 128,", "windows: 128,", "18:"),
        ("act: Gelu", "act: Relu", "21:"),
        ("bias: All", "bias: Some", "15:"),
        ("experts: 4, ", "", "31:"),
        ("add_bos: true", "add_eos: true", "36:"),
    ] {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "{from}");
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(&format!(" {need}")), "{from} -> {to}: {error}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_field() {
    for (from, to, need) in [
        ("hidden: 64", "hidden: 0", "hidden is 0, needs between 1 and"),
        ("layers: 2", "layers: 1", "blocks[1].repeat is 1, needs runs of at most 1 layers"),
        ("layers: 2", "layers: 9999", "layers is 9999"),
        ("eps: 1e-6", "eps: 0.0", "norm.eps is 0, needs a finite number above 0"),
        ("kv_heads: 2", "kv_heads: 3", "blocks[0].attention.kv_heads is 3, needs a divisor of"),
        ("dims: 16", "dims: 15", "blocks[0].attention.rope.dims is 15, needs an even number"),
        ("dims: 16", "dims: 34", "blocks[0].attention.rope.dims is 34"),
        ("window: 128", "window: 0", "blocks[0].attention.window is 0"),
        ("Linear(factor: 8.0)", "Linear(factor: -1.0)", "rope.scaling.factor is -1"),
        ("Linear(factor: 8.0)", "Divisors([1.0])", "is a list of 1, needs 16 numbers"),
        (
            "Linear(factor: 8.0)",
            "Llama3(factor: 8.0, low: 4.0, high: 1.0, original_context: 64)",
            "scaling.low is 4, needs less than high, which is 1",
        ),
        ("top_k: 2", "top_k: 5", "blocks[1].mlp.top_k is 5, needs between 1 and 4"),
        ("files: [\"small\"]", "files: []", "weights.files is []"),
        ("eos: [2, 3]", "eos: [2, 256]", "tokens.eos is 256, needs between 0 and 255"),
        ("bos: 1, ", "", "tokens.bos is absent"),
    ] {
        let text = SMALL.replacen(from, to, 1);
        assert_ne!(text, SMALL, "{from}");
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(need), "{from} -> {to}: {error}");
    }
}

#[test]
fn a_changed_definition_is_checked_again_on_building() {
    let def = ModelDef { blocks: Vec::new(), ..small() };
    let error = build(&def, window(WindowKind::Verify, 1, 1)).unwrap_err().to_string();
    assert!(error.contains("blocks is [], needs at least one block"), "{error}");
}

#[test]
fn windows_without_rows_or_with_too_many_logits_are_refused() {
    for (rows, logit_rows) in [(0, 0), (4, 0), (4, 5)] {
        let error = build(&small(), window(WindowKind::Verify, rows, logit_rows)).unwrap_err();
        assert!(error.to_string().contains(&format!("a window of {rows} rows")), "{error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = open(Path::new("no/such/model.ron")).unwrap_err().to_string();
    assert!(error.contains("model.ron"), "{error}");
}
