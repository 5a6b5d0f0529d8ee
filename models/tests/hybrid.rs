//! Hybrid models: recurrent layers, sparse attention, hyper-connections, n-grams and a draft head.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its functions")]

use strata_graph::verify::verify;
use strata_graph::{Graph, Id, Op, StateKind, Transform, WeightSource, Window, WindowKind};
use strata_models::{ModelDef, build, parse, to_ron};

const SMALL: &str = r#"(
    name: "hybrid",
    hidden: 64,
    vocab: 256,
    context: 1022,
    norm: RmsNorm(eps: 1e-6, zero_centred: true),
    residual: HyperConnections(streams: 2, low_rank: 16),
    layers: 2,
    blocks: [
        (
            attention: GatedDelta(
                key_heads: 2,
                value_heads: 6,
                head_dim: 16,
                conv_taps: 4,
                gate: Sigmoid,
            ),
            mlp: Gated(intermediate: 96, act: Silu),
        ),
        (
            attention: Gqa(
                heads: 4,
                kv_heads: 2,
                head_dim: 32,
                qk_norm: true,
                rope: (theta: 1e6, dims: 16),
                gate: true,
                indexer: (heads: 2, head_dim: 16, budget_tokens: 32, block: 4),
            ),
            mlp: Moe(
                experts: 8,
                top_k: 2,
                intermediate: 32,
                norm_top_k: true,
                act: Silu,
                shared: (intermediate: 48, gate: true),
            ),
        ),
    ],
    ngram: (
        layer: 1,
        width: 16,
        ngram_size: 3,
        heads_per_ngram: 2,
        taps: 4,
        eos: 2,
        hash: Derived(base: 500, seed: 1234),
        table_rows: 2176,
        table_tensors: 4,
    ),
    draft: Mtp(
        hidden_norm: Full,
        block: (
            attention: Gqa(
                heads: 4,
                kv_heads: 2,
                head_dim: 32,
                qk_norm: true,
                rope: (theta: 1e4, dims: 16),
                gate: true,
                indexer: (heads: 2, head_dim: 16, budget_tokens: 32, block: 4),
            ),
            mlp: Moe(experts: 8, top_k: 2, intermediate: 32, norm_top_k: true, act: Silu),
        ),
    ),
    head: Untied,
    weights: (layout: HfFusedExperts, prefix: "model.language_model.", files: ["hybrid"]),
    tokens: (eos: [2]),
    tokenizer: SameAsWeights,
    chat_template: None,
)"#;

fn small() -> ModelDef {
    parse(SMALL).unwrap_or_else(|error| panic!("{error}"))
}

fn changed(from: &str, to: &str) -> String {
    let text = SMALL.replacen(from, to, 1);
    assert_ne!(text, SMALL, "{from}");
    text
}

fn built(def: &ModelDef, kind: WindowKind, rows: u32) -> Graph {
    let window = Window { kind, rows, logit_rows: rows.min(2) };
    let graph = build(def, window).unwrap_or_else(|error| panic!("{error}"));
    if let Err(errors) = verify(&graph) {
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        panic!("{}", errors.join("\n"));
    }
    graph
}

fn sources(graph: &Graph, weight: &str) -> Vec<String> {
    let weight = graph.weights().values().find(|def| def.name == weight).unwrap();
    let WeightSource::Named(slices) = &weight.source else { panic!("{} is named", weight.name) };
    let rows = |rows: Option<(u32, u32)>| rows.map_or("all".into(), |(a, b)| format!("{a}..{b}"));
    slices.iter().map(|slice| format!("{} {}", slice.tensor, rows(slice.rows))).collect()
}

/// Nodes and outputs as text.
fn nodes(graph: &Graph) -> String {
    let text = graph.to_string();
    let nodes = text.lines().filter(|line| line.starts_with(' ') || line.starts_with("output"));
    nodes.collect::<Vec<_>>().join("\n")
}

#[test]
fn verify_window() {
    insta::assert_snapshot!(nodes(&built(&small(), WindowKind::Verify, 4)));
}

#[test]
fn draft_window() {
    insta::assert_snapshot!(nodes(&built(&small(), WindowKind::Draft, 2)));
}

#[test]
fn all_windows_declare_the_same_weights_and_states() {
    let verify = built(&small(), WindowKind::Verify, 8);
    for kind in [WindowKind::Prefill, WindowKind::Draft] {
        let other = built(&small(), kind, 16);
        assert_eq!(other.weights(), verify.weights());
        assert_eq!(other.states(), verify.states());
    }
    let states: Vec<String> = verify
        .states()
        .iter()
        .map(|(id, state)| {
            let seed = state.seed.map_or(String::new(), |seed| format!(" seed {}", seed.index()));
            let StateKind::Append = state.kind else {
                return format!("{id} {} {:?} {}{seed}", state.name, state.kind, state.row);
            };
            format!("{id} {} {} every {} first {}", state.name, state.row, state.every, state.first)
        })
        .collect();
    assert_eq!(
        states,
        [
            "s0 conv.0 Tail(3) f32[160]",
            "s1 delta.0 Recurrent f32[6, 16, 16]",
            "s2 ngram.tokens Tail(2) u32[1]",
            "s3 ngram.conv.1 Tail(9) f32[128]",
            "s4 kv.1 f32[2, 32] every 1 first 0",
            "s5 block_tail.1 Tail(3) f32[16]",
            "s6 blocks.1 f32[1, 16] every 4 first 0",
            "s7 mtp.hidden Tail(1) f32[128]",
            "s8 mtp.kv f32[2, 32] every 1 first 1",
            "s9 mtp.block_tail Tail(3) f32[16]",
            "s10 mtp.blocks f32[1, 16] every 4 first 1",
            "s11 draft.hidden Tail(1) f32[128] seed 7",
            "s12 draft.block_tail Tail(3) f32[16] seed 9",
        ]
    );
}

#[test]
fn scores_are_as_wide_as_the_context_has_blocks() {
    let graph = built(&small(), WindowKind::Verify, 1);
    let blocks = graph.nodes().find_map(|node| match *node.op {
        Op::BlockScores { blocks, .. } => Some(blocks),
        _ => None,
    });
    assert_eq!(blocks, Some(256));
}

#[test]
fn gates_are_the_second_half_of_each_heads_query_rows() {
    let graph = built(&small(), WindowKind::Verify, 1);
    let tensor = "model.language_model.layers.1.self_attn.q_proj.weight";
    let rows = |starts: [u32; 4]| starts.map(|at| format!("{tensor} {at}..{}", at + 32)).to_vec();
    assert_eq!(sources(&graph, "blk.1.attn_q.weight"), rows([0, 64, 128, 192]));
    assert_eq!(sources(&graph, "blk.1.attn_q_gate.weight"), rows([32, 96, 160, 224]));
    let gguf = parse(&changed("layout: HfFusedExperts", "layout: Gguf")).unwrap();
    let graph = built(&gguf, WindowKind::Verify, 1);
    assert_eq!(sources(&graph, "blk.1.attn_q_gate.weight")[3], "blk.1.attn_q.weight 224..256");
    assert_eq!(sources(&graph, "blk.1.indexer.k_proj.weight"), ["blk.1.indexer.k_proj.weight all"]);
}

#[test]
fn published_matrices_are_cut_and_joined() {
    let graph = built(&small(), WindowKind::Verify, 1);
    let tensor = "model.language_model.layers.1.self_attn.indexer.index_qk_proj.weight";
    assert_eq!(sources(&graph, "blk.1.indexer.q_proj.weight"), [format!("{tensor} 0..32")]);
    assert_eq!(sources(&graph, "blk.1.indexer.k_proj.weight"), [format!("{tensor} 32..48")]);
    let table = sources(&graph, "per_layer_token_embd.weight");
    assert_eq!(table.len(), 4);
    assert!(table[3].ends_with("layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight all"));
    let join = sources(&graph, "blk.2.nextn.eh_proj.weight");
    assert_eq!(join.len(), 2 * 64);
    assert_eq!(join[..2], ["mtp.fc_embedding.weight 0..1", "mtp.fc_hidden.weight 0..1"]);
    assert_eq!(join[127], "mtp.fc_hidden.weight 63..64");
    let down = sources(&graph, "blk.2.ffn_down_exps.weight");
    assert_eq!(down, ["mtp.layers.0.mlp.experts.down_proj all"]);
    let up = sources(&graph, "blk.1.ffn_up_exps.weight");
    assert_eq!(up, ["model.language_model.layers.1.mlp.experts.gate_up_proj 32..64"]);
}

/// Rows of a key head: query 16, key 16, three values of 16, three gates of 16.
#[test]
fn matrices_by_key_head_are_taken_apart() {
    let text = changed("gate: Sigmoid,", "gate: Silu, projections: FusedByKeyHead,");
    let graph = built(&parse(&text).unwrap(), WindowKind::Verify, 1);
    let tensor = "model.language_model.layers.0.linear_attn.in_proj_qkvz.weight";
    let rows = |rows: &[&str]| rows.iter().map(|r| format!("{tensor} {r}")).collect::<Vec<_>>();
    let qkv = rows(&["0..16", "128..144", "16..32", "144..160", "32..80", "160..208"]);
    assert_eq!(sources(&graph, "blk.0.attn_qkv.weight"), qkv);
    assert_eq!(sources(&graph, "blk.0.attn_gate.weight"), rows(&["80..128", "208..256"]));
    let rule = graph.nodes().find(|node| matches!(node.op, Op::GatedDelta { .. })).unwrap();
    assert!(matches!(rule.op, Op::GatedDelta { interleaved: true, .. }));
    assert_eq!(rule.operands[2], rule.operands[3]);
}

#[test]
fn gains_are_centred_and_rates_are_logarithms_in_published_files_only() {
    for (layout, published) in [("HfFusedExperts", true), ("Gguf", false)] {
        let text = SMALL.replacen("layout: HfFusedExperts", &format!("layout: {layout}"), 1);
        let text = text.replacen("zero_centred: true", &format!("zero_centred: {published}"), 1);
        let graph = built(&parse(&text).unwrap(), WindowKind::Verify, 1);
        for weight in graph.weights().values() {
            let need = match weight.name.as_str() {
                _ if !published => Transform::None,
                "blk.0.ssm_a" => Transform::NegExp,
                "blk.0.ssm_norm.weight" => Transform::None,
                name if name.contains("norm") => Transform::AddOne,
                _ => Transform::None,
            };
            assert_eq!(weight.transform, need, "{}", weight.name);
        }
    }
}

#[test]
fn the_hidden_norm_is_one_or_one_a_stream() {
    let norms = |text: &str| {
        let graph = built(&parse(text).unwrap(), WindowKind::Draft, 1);
        let node = graph.nodes().find(|node| node.name == "blk.2.nextn.hnorm").unwrap();
        node.op.name()
    };
    assert_eq!(norms(SMALL), "rms_norm");
    assert_eq!(norms(&changed("hidden_norm: Full", "hidden_norm: Grouped")), "group_rms_norm");
}

#[test]
fn other_names_of_a_file_are_used() {
    let pair = r#"layout: Gguf, renamed: [("ple_key.", "ngram_key.")]"#;
    let graph =
        built(&parse(&changed("layout: HfFusedExperts", pair)).unwrap(), WindowKind::Verify, 1);
    assert_eq!(sources(&graph, "blk.1.ple_key.weight"), ["blk.1.ngram_key.weight all"]);
    assert_eq!(sources(&graph, "blk.1.ple_value.weight"), ["blk.1.ple_value.weight all"]);
}

#[test]
fn a_draft_window_needs_a_draft_head() {
    let def = ModelDef { draft: None, ..small() };
    let window = Window { kind: WindowKind::Draft, rows: 1, logit_rows: 1 };
    let error = build(&def, window).unwrap_err().to_string();
    assert!(error.contains("hybrid has no draft head"), "{error}");
    let verify = built(&def, WindowKind::Verify, 1);
    assert!(verify.states().values().all(|state| !state.name.starts_with("mtp.")));
}

#[test]
fn a_definition_is_written_as_it_was_read() {
    let given =
        "Given(multipliers: [1, 3, 5], sizes: [500, 501, 502, 503], offsets: [0, 500, 1001, 1503])";
    let text = changed("Derived(base: 500, seed: 1234)", given);
    let text = text.replacen("gate: Sigmoid", "gate: Silu, order: Tiled", 1);
    for def in [small(), parse(&text).unwrap()] {
        assert_eq!(parse(&to_ron(&def)).unwrap(), def);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_by_field() {
    let hash = "Derived(base: 500, seed: 1234)";
    for (from, to, need) in [
        ("streams: 2", "streams: 0", "residual.streams is 0, needs between 1 and"),
        ("value_heads: 6", "value_heads: 5", "blocks[0].attention.value_heads is 5, needs a mult"),
        ("conv_taps: 4", "conv_taps: 1", "blocks[0].attention.conv_taps is 1, needs between 2"),
        ("budget_tokens: 32", "budget_tokens: 30", "indexer.budget_tokens is 30, needs a multiple"),
        ("head_dim: 16, budget", "head_dim: 8, budget", "indexer.head_dim is 8, needs at least"),
        ("gate: true,", "gate: true, bias: Qkv,", "bias is Qkv, needs None, with a gate"),
        ("gate: true,", "gate: true, window: 8,", "blocks[1].attention.indexer is present, needs"),
        ("mlp: Gated", "post_norms: true, mlp: Gated", "blocks[0].post_norms is true, needs false"),
        ("layer: 1,", "layer: 2,", "ngram.layer is 2, needs between 0 and 1"),
        ("eos: 2,", "eos: 256,", "ngram.eos is 256, needs between 0 and 255"),
        ("base: 500", "base: 1", "ngram.hash.base is 1, needs between 2 and"),
        ("table_rows: 2176", "table_rows: 2055", "ngram.hash.sizes is 523 rows from row 1533"),
        (hash, "Given(multipliers: [1, 3], sizes: [], offsets: [])", "multipliers is a list of 2"),
        (
            hash,
            "Given(multipliers: [1, 3, 36170086419038337], sizes: [1, 1, 1, 1], \
             offsets: [0, 0, 0, 0])",
            "multipliers is 36170086419038337, needs at most 36028797018963967",
        ),
        ("HyperConnections(streams: 2, low_rank: 16)", "Plain", "residual is Plain, needs Hyper"),
        ("block: (", "block: (repeat: 2,", "draft.block.repeat is 2"),
    ] {
        let error = parse(&changed(from, to)).expect_err(from).to_string();
        assert!(error.contains(need), "{from} -> {to}: {error}");
    }
}
