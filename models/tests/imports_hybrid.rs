//! Imports of made-up checkpoints of hybrid models: each group of keys, absent, present and wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its functions")]

mod common;

use common::{EMBEDDING, Key, config, gguf, gqa, imported, published, refused, u32s};
use strata_formats::{Checkpoint, ValueType, WriteValue};
use strata_graph::{Window, WindowKind};
use strata_models::{
    Attention, Block, Draft, GatedDelta, Hash, Layout, Mlp, ModelDef, OutputGate, Projections,
    Residual, Shared, ValueHeads, build, unused_tensors,
};

/// Keys of recurrent layers and experts.
fn keys() -> Vec<Key<'static>> {
    let numbers = [
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 16),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 48),
    ];
    numbers.map(|(key, value)| (key, WriteValue::U32(value))).to_vec()
}

fn with(more: &[Key<'static>]) -> Vec<Key<'static>> {
    let replaced = |key: &str| more.iter().any(|(other, _)| *other == key);
    let kept = keys().into_iter().filter(|(key, _)| !replaced(key));
    kept.chain(more.to_vec()).collect()
}

fn bools(values: &[bool]) -> WriteValue {
    WriteValue::Array(ValueType::Bool, values.iter().map(|&v| WriteValue::Bool(v)).collect())
}

fn delta(block: &Block) -> &GatedDelta {
    match &block.attention {
        Attention::GatedDelta(delta) => delta,
        other => panic!("{other:?}"),
    }
}

/// One letter a layer: `d` for the delta rule, `a` for attention.
fn kinds(def: &ModelDef) -> String {
    let letter = |layer| match def.block(layer).attention {
        Attention::GatedDelta(_) => 'd',
        Attention::Gqa(_) => 'a',
    };
    (0..def.layers).map(letter).collect()
}

#[test]
fn absent_groups_of_keys_leave_a_plain_hybrid() {
    let def = imported(&gguf("plain-hybrid", "qwen4exp", &keys(), &[]));
    assert_eq!(kinds(&def), "ddda");
    assert_eq!((def.residual, &def.ngram, &def.draft), (Residual::Plain, &None, &None));
    let first = delta(&def.blocks[0]);
    assert_eq!((first.key_heads, first.value_heads, first.head_dim), (2, 4, 16));
    assert_eq!((first.order, first.gate), (ValueHeads::Tiled, OutputGate::Sigmoid));
    let attention = gqa(&def.blocks[1]);
    assert!(attention.gate && attention.qk_norm && attention.indexer.is_none());
    let Mlp::Moe(moe) = &def.blocks[0].mlp else { panic!("experts") };
    assert_eq!(moe.shared, None);
    assert!(!def.norm.zero_centred());
}

#[test]
fn qwen3next_files_have_their_own_order_gate_and_names() {
    let tensors = ["blk.0.ffn_gate_shexp.weight", "blk.0.ffn_gate_inp_shexp.weight"];
    let keys = with(&[("expert_shared_feed_forward_length", WriteValue::U32(32))]);
    let def = imported(&gguf("next", "qwen3next", &keys, &tensors));
    let first = delta(&def.blocks[0]);
    assert_eq!((first.order, first.gate), (ValueHeads::Grouped, OutputGate::Silu));
    assert_eq!(first.projections, Projections::FusedByKeyHead);
    assert_eq!(def.weights.renamed, [("ffn_norm.".into(), "post_attention_norm.".into())]);
    let Mlp::Moe(moe) = &def.blocks[0].mlp else { panic!("experts") };
    assert_eq!(moe.shared, Some(Shared { intermediate: 32, gate: true }));
}

#[test]
fn flags_override_the_interval() {
    let interval = ("full_attention_interval", WriteValue::U32(2));
    let def = imported(&gguf("interval", "qwen3next", &with(std::slice::from_ref(&interval)), &[]));
    assert_eq!(kinds(&def), "dada");
    let flags = ("attention.recurrent_layers", bools(&[false, true, true, false]));
    let def = imported(&gguf("flags", "qwen3next", &with(&[interval, flags]), &[]));
    assert_eq!(kinds(&def), "adda");
    let short = with(&[("attention.recurrent_layers", bools(&[true]))]);
    let error = refused(&gguf("flags-short", "qwen3next", &short, &[]));
    assert!(error.contains("recurrent_layers is a list of 1, needs a flag for each"), "{error}");
}

fn sparse(ratios: &[u32]) -> Vec<Key<'static>> {
    vec![
        ("attention.indexer.head_count", WriteValue::U32(2)),
        ("attention.indexer.key_length", WriteValue::U32(16)),
        ("attention.indexer.top_k", WriteValue::U32(64)),
        ("attention.compress_ratios", u32s(ratios)),
    ]
}

#[test]
fn a_ratio_of_0_means_dense_attention() {
    let more = |ratios: &[u32]| {
        let every = ("full_attention_interval", WriteValue::U32(2));
        with(&[sparse(ratios), vec![every]].concat())
    };
    let def = imported(&gguf("ratios", "qwen4exp", &more(&[0, 0, 0, 4]), &[]));
    assert_eq!(gqa(def.block(1)).indexer, None);
    let indexer = gqa(def.block(3)).indexer.unwrap();
    assert_eq!((indexer.heads, indexer.head_dim, indexer.budget_tokens), (2, 16, 64));
    assert_eq!(indexer.block, 4);
    let error = refused(&gguf("ratios-short", "qwen4exp", &more(&[0, 0]), &[]));
    assert!(error.contains("compress_ratios is a list of 2, needs a number for each"), "{error}");
}

const CONNECTIONS: [(&str, WriteValue); 2] = [
    ("hyper_connection.count", WriteValue::U32(2)),
    ("hyper_connection.low_rank", WriteValue::U32(8)),
];

#[test]
fn a_draft_head_is_there_if_its_tensors_are() {
    let more = |drafts: u32| {
        let blocks = ("block_count", WriteValue::U32(4 + drafts));
        let drafts = ("nextn_predict_layers", WriteValue::U32(drafts));
        with(&[sparse(&[0, 0, 0, 4, 0]), vec![blocks, drafts], CONNECTIONS.to_vec()].concat())
    };
    let without = imported(&gguf("draft-none", "qwen4exp", &more(1), &[]));
    assert_eq!((without.layers, without.draft), (4, None));
    let join = "blk.4.nextn.eh_proj.weight";
    let block = |name: &str, tensors: &[&str]| {
        let def = imported(&gguf(name, "qwen4exp", &more(1), tensors));
        let Some(Draft::Mtp(mtp)) = def.draft else { panic!("a draft head") };
        mtp.block
    };
    assert_eq!(gqa(&block("draft-dense", &[join])).indexer, None);
    let sparse = block("draft-sparse", &[join, "blk.4.indexer.k_proj.weight"]);
    assert_eq!(gqa(&sparse).indexer.unwrap().block, 4);
    let error = refused(&gguf("drafts", "qwen4exp", &more(2), &[]));
    assert!(error.contains("nextn_predict_layers is 2, needs at most 1"), "{error}");
}

fn u64s(values: &[u64]) -> WriteValue {
    WriteValue::Array(ValueType::U64, values.iter().map(|&v| WriteValue::U64(v)).collect())
}

fn ngrams(layers: &[u32]) -> Vec<Key<'static>> {
    let numbers = [
        ("ple.ngram_size", 2),
        ("ple.heads_per_ngram", 1),
        ("ple.conv_kernel", 4),
        ("ple.eos_token_id", 3),
        ("embedding_length_per_layer_input", 8),
    ];
    let mut keys = with(&numbers.map(|(key, value)| (key, WriteValue::U32(value))));
    keys.extend(CONNECTIONS.clone());
    keys.push(("ple.layers", u32s(layers)));
    keys.push(("ple.layer_multipliers", u64s(&[5, 7])));
    keys.push(("ple.head_vocab_sizes", u64s(&[8])));
    keys.push(("ple.head_offsets", u64s(&[0])));
    keys
}

#[test]
fn n_grams_need_a_table_and_one_layer() {
    let error = refused(&gguf("ngram-table", "qwen4exp", &ngrams(&[1]), &[]));
    assert!(error.contains("tensor per_layer_token_embd.weight is missing"), "{error}");
    let error = refused(&gguf("ngram-two", "qwen4exp", &ngrams(&[1, 2]), &[]));
    assert!(error.contains("ple.layers is [1, 2], needs at most one layer"), "{error}");
    let none = imported(&gguf("ngram-none", "qwen4exp", &ngrams(&[]), &[]));
    assert_eq!(none.ngram, None);
}

#[test]
fn sizes_that_contradict_each_other_are_refused() {
    for (key, value, need) in [
        ("ssm.inner_size", 65, "ssm.inner_size is 65, needs 64, 4 value heads of 16"),
        ("full_attention_interval", 0, "full_attention_interval is 0, needs at least 1"),
        ("expert_shared_count", 2, "expert_shared_count is 2, needs at most one"),
        ("ssm.time_step_rank", 3, "value_heads is 3, needs a multiple of key_heads"),
    ] {
        let keys = with(&[(key, WriteValue::U32(value))]);
        let error = refused(&gguf(key, "qwen4exp", &keys, &[]));
        assert!(error.contains(need), "{key}: {error}");
    }
}

const HYBRID: &str = r#", "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 32"#;

#[test]
fn a_short_qwen3_next_configuration_is_filled_with_the_familys_values() {
    let def = imported(&published("next", &config("qwen3_next", HYBRID), &[EMBEDDING], &[]));
    assert_eq!(kinds(&def), "ddda");
    assert_eq!(gqa(def.block(3)).rope.dims, Some(4));
    let first = delta(&def.blocks[0]);
    assert_eq!((first.conv_taps, first.gate), (4, OutputGate::Silu));
    let Mlp::Moe(moe) = &def.blocks[0].mlp else { panic!("experts") };
    assert!(moe.norm_top_k && moe.shared == Some(Shared { intermediate: 32, gate: true }));
    assert!(def.norm.zero_centred());
}

#[test]
fn a_flash_next_configuration_gives_its_text_part() {
    let more = format!(
        r#"{HYBRID}, "layer_types": ["linear_attention", "indexed_attention", "linear_attention",
        "full_attention"], "output_gate_type": "sigmoid", "hc_count": 2, "hc_lowrank": 8,
        "indexer_n_heads": 2, "indexer_head_dim": 16, "indexer_budget": 64, "indexer_kv_heads": 1,
        "indexer_compress_ratio": 4, "ple_layer_ids": [2], "ple_embed_dim": 64,
        "heads_per_ngram": 2, "ngram_vocab_size_base": 500, "eos_token_id": 2,
        "mtp_num_hidden_layers": 1"#
    );
    for model_type in ["qwen4_exp", "qwen3_8_flash_next"] {
        let text = config(&format!("{model_type}_text"), &more);
        let root = format!(r#"{{"model_type": "{model_type}", "text_config": {text}}}"#);
        let tensors = [
            "mtp.embed_tokens.weight",
            "model.language_model.embed_tokens.weight",
            "model.language_model.layers.0.mlp.experts.gate_up_proj",
            "model.visual.blocks.0.norm1.weight",
        ];
        let path = published(model_type, &root, &tensors, &[]);
        let def = imported(&path);
        assert_eq!(kinds(&def), "dada");
        assert_eq!(def.weights.prefix, "model.language_model.");
        assert_eq!(def.weights.layout, Layout::HfFusedExperts);
        assert_eq!(delta(&def.blocks[0]).gate, OutputGate::Sigmoid);
        let ngram = def.ngram.as_ref().unwrap();
        assert_eq!((ngram.layer, ngram.width, ngram.eos, ngram.table_rows), (1, 16, 2, 2176));
        assert_eq!(ngram.hash, Hash::Derived { base: 500, seed: 1234 });
        assert_eq!(def.draft, None, "its tensors are not there");
        let window = Window { kind: WindowKind::Verify, rows: 1, logit_rows: 1 };
        let unused =
            unused_tensors(&build(&def, window).unwrap(), &Checkpoint::open(&path).unwrap());
        assert_eq!(unused, ["mtp.embed_tokens.weight", "model.visual.blocks.0.norm1.weight"]);
    }
}

#[test]
fn configurations_that_are_not_done_here_are_refused_by_key() {
    for (name, more, need) in [
        ("gate-type", r#""output_gate_type": "tanh""#, "output_gate_type is tanh, needs sigmoid"),
        ("values", r#""linear_value_head_dim": 32"#, "linear_value_head_dim is 32, needs 16, as"),
        ("kind", r#""layer_types": ["chunked"]"#, "layer_types[0] is chunked, needs linear"),
        ("drafts", r#""mtp_num_hidden_layers": 2"#, "mtp_num_hidden_layers is 2, needs at most 1"),
        ("ids", r#""ple_layer_ids": [0]"#, "ple_layer_ids is [0], needs at most one layer"),
        ("kv", r#""indexer_n_heads": 2, "indexer_kv_heads": 2"#, "indexer_kv_heads is 2, needs 1"),
    ] {
        let hybrid = HYBRID.replace(r#""linear_value_head_dim": 16,"#, "");
        let value = r#""linear_value_head_dim": 16"#;
        let value = if name == "values" { more } else { value };
        let text = config("qwen4_exp", &format!("{hybrid}, {value}, {more}"));
        let text = if name == "values" { text.replacen(&format!("{more}, "), "", 1) } else { text };
        let error = refused(&published(&format!("hybrid-{name}"), &text, &[EMBEDDING], &[]));
        assert!(error.contains(need), "{name}: {error}");
    }
}
