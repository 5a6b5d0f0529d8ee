//! Imports of made-up checkpoints: each key that a family may have, absent, present and wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, also in its functions")]

mod common;

use std::path::Path;

use common::{EMBEDDING, Key, config, gguf, gqa, imported, published, refused, u32s};
use strata_formats::{ValueType, WriteValue};
use strata_models::{Act, Bias, Block, ChatTemplate, Gated, Head, Layout, Mlp, Pairs, Scaling};

#[test]
fn a_llama_file_with_the_least_keys_takes_the_familys_defaults() {
    let def = imported(&gguf("Llama-Least", "llama", &[], &[]));
    assert_eq!((def.name.as_str(), def.vocab, def.head), ("llama-least", 32, Head::Tied));
    assert_eq!((def.blocks.len(), def.blocks[0].repeat), (1, 4));
    let gqa = gqa(&def.blocks[0]);
    assert_eq!((gqa.heads, gqa.kv_heads, gqa.head_dim), (4, 2, 16));
    assert_eq!((gqa.qk_norm, gqa.bias, gqa.scale, gqa.window), (false, Bias::None, None, None));
    let rope = &gqa.rope;
    assert_eq!((rope.theta, rope.dims, rope.pairing), (10_000.0, None, Pairs::Adjacent));
    assert_eq!(rope.scaling, Scaling::None);
    assert_eq!(def.tokens.eos, Vec::<u32>::new());
    assert_eq!(def.chat_template, ChatTemplate::None);
}

#[test]
fn tensors_say_which_options_a_file_has() {
    let tensors = ["output.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight"];
    let def = imported(&gguf("options", "llama", &[], &tensors));
    assert_eq!(def.head, Head::Untied);
    let first = gqa(&def.blocks[0]);
    assert_eq!((first.bias, first.qk_norm, def.blocks[0].repeat), (Bias::Qkv, true, 1));
    let rest = gqa(&def.blocks[1]);
    assert_eq!((rest.bias, rest.qk_norm, def.blocks[1].repeat), (Bias::None, false, 3));
    let all = imported(&gguf("all", "llama", &[], &["blk.0.attn_output.bias"]));
    assert_eq!(gqa(&all.blocks[0]).bias, Bias::All);
    let qwen2 = imported(&gguf("qwen2", "qwen2", &[], &[]));
    assert_eq!(gqa(&qwen2.blocks[0]).bias, Bias::Qkv);
    assert_eq!(gqa(&qwen2.blocks[0]).rope.pairing, Pairs::Halves);
}

#[test]
fn lists_give_each_layer_its_own_sizes() {
    let keys = [
        ("attention.head_count_kv", u32s(&[2, 4, 2, 4])),
        ("feed_forward_length", u32s(&[96, 128, 96, 128])),
    ];
    let def = imported(&gguf("lists", "llama", &keys, &[]));
    let kv: Vec<u16> = def.blocks.iter().map(|block| gqa(block).kv_heads).collect();
    assert_eq!(kv, [2, 4]);
    let Mlp::Gated(gated) = &def.blocks[1].mlp else { panic!("a dense block") };
    assert_eq!(gated.intermediate, 128);
    let short = gguf("short", "llama", &[("attention.head_count_kv", u32s(&[2]))], &[]);
    let error = refused(&short);
    assert!(error.contains("llama.attention.head_count_kv is a list of 1, needs"), "{error}");
}

#[test]
fn rope_keys_give_partial_scaled_and_divided_angles() {
    let keys = [
        ("rope.dimension_count", WriteValue::U32(8)),
        ("rope.freq_base", WriteValue::F32(5e5)),
        ("rope.scaling.type", WriteValue::Str("linear".into())),
        ("rope.scaling.factor", WriteValue::F32(4.0)),
    ];
    let rope = |name: &str, keys: &[Key<'_>], tensors: &[&str]| {
        gqa(&imported(&gguf(name, "llama", keys, tensors)).blocks[0]).rope.clone()
    };
    let linear = rope("linear", &keys, &[]);
    assert_eq!((linear.theta, linear.dims), (5e5, Some(8)));
    assert_eq!(linear.scaling, Scaling::Linear { factor: 4.0 });
    let divided = rope("divided", &[], &["rope_freqs.weight"]);
    assert_eq!(divided.scaling, Scaling::Divisors(vec![1.0; 8]));
    let yarn = gguf("yarn", "llama", &[("rope.scaling.type", WriteValue::Str("yarn".into()))], &[]);
    let error = refused(&yarn);
    assert!(error.contains("llama.rope.scaling.type is yarn, needs none or linear"), "{error}");
}

#[test]
fn gemma3_patterns_are_implied_or_given_as_a_number_or_as_flags() {
    let window = ("attention.sliding_window", WriteValue::U32(16));
    let pattern = "attention.sliding_window_pattern";
    let runs = |name: &str, extra: &[Key<'_>]| {
        let layers = ("block_count", WriteValue::U32(8));
        let keys: Vec<Key<'_>> =
            [layers, window.clone()].into_iter().chain(extra.to_vec()).collect();
        let def = imported(&gguf(name, "gemma3", &keys, &[]));
        assert!(def.blocks.iter().all(|block| block.post_norms));
        let run = |block: &Block| (block.repeat, gqa(block).window, gqa(block).rope.theta);
        def.blocks.iter().map(run).collect::<Vec<_>>()
    };
    assert_eq!(runs("implied", &[]), [(5, Some(16), 1e4), (1, None, 1e4)]);
    let number = [(pattern, WriteValue::U32(2)), ("rope.freq_base", WriteValue::F32(1e6))];
    assert_eq!(runs("number", &number), [(1, Some(16), 1e4), (1, None, 1e6)]);
    let flags = [true, true, true, false, true, true, true, false].map(WriteValue::Bool);
    let flags = [
        (pattern, WriteValue::Array(ValueType::Bool, flags.to_vec())),
        ("rope.freq_base_swa", WriteValue::F32(2e4)),
    ];
    assert_eq!(runs("flags", &flags), [(3, Some(16), 2e4), (1, None, 1e4)]);
}

#[test]
fn only_global_gemma3_layers_are_scaled_and_only_27b_scales_by_its_width() {
    let keys = [
        ("block_count", WriteValue::U32(62)),
        ("attention.sliding_window", WriteValue::U32(16)),
        ("attention.key_length", WriteValue::U32(32)),
        ("attention.value_length", WriteValue::U32(32)),
        ("rope.scaling.factor", WriteValue::F32(8.0)),
    ];
    let def = imported(&gguf("gemma-27b", "gemma3", &keys, &[]));
    let scaling: Vec<&Scaling> = def.blocks.iter().map(|b| &gqa(b).rope.scaling).collect();
    assert_eq!(scaling, [&Scaling::None, &Scaling::Linear { factor: 8.0 }]);
    assert_eq!(gqa(&def.blocks[0]).scale, Some(0.25));
    assert_eq!(def.embed_scale, 8.0);
    let Mlp::Gated(gated) = &def.blocks[0].mlp else { panic!("a dense block") };
    assert_eq!(gated.act, Act::Gelu);
}

#[test]
fn experts_are_counted_and_shared_ones_refused() {
    let keys = [
        ("expert_count", WriteValue::U32(8)),
        ("expert_used_count", WriteValue::U32(2)),
        ("expert_feed_forward_length", WriteValue::U32(48)),
    ];
    let def = imported(&gguf("moe", "qwen3moe", &keys, &[]));
    let Mlp::Moe(moe) = &def.blocks[0].mlp else { panic!("a block of experts") };
    assert_eq!((moe.experts, moe.top_k, moe.intermediate, moe.norm_top_k), (8, 2, 48, true));
    let shared = ("expert_shared_count", WriteValue::U32(1));
    let keys: Vec<Key<'_>> = keys.into_iter().chain([shared]).collect();
    let error = refused(&gguf("shared", "qwen3moe", &keys, &[]));
    assert!(error.contains("qwen3moe.expert_shared_count is 1"), "{error}");
}

#[test]
fn ends_of_turns_are_found_by_key_and_by_text() {
    let words = ["<unk>", "<s>", "</s>", "<end_of_turn>", "a", "<|im_end|>"];
    let keys = [
        ("tokenizer.ggml.model", WriteValue::Str("llama".into())),
        ("tokenizer.ggml.tokens", WriteValue::strs(words)),
        ("tokenizer.ggml.bos_token_id", WriteValue::U32(1)),
        ("tokenizer.ggml.eos_token_id", WriteValue::U32(2)),
        ("tokenizer.ggml.eot_token_id", WriteValue::U32(3)),
        ("tokenizer.chat_template", WriteValue::Str("{{ messages }}".into())),
    ];
    let def = imported(&gguf("tokens", "llama", &keys, &[]));
    assert_eq!((def.tokens.bos, def.tokens.eos), (Some(1), vec![2, 3, 5]));
    assert!(def.tokens.add_bos, "SentencePiece models begin with a BOS");
    assert_eq!(def.chat_template, ChatTemplate::SameAsTokenizer);
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    let text = WriteValue::Str("four".into());
    let wrong = gguf("wrong", "llama", &[("block_count", text)], &[]);
    assert!(refused(&wrong).contains("llama.block_count"), "{}", refused(&wrong));
    let zero = gguf("zero", "llama", &[("attention.head_count", WriteValue::U32(0))], &[]);
    assert!(refused(&zero).contains("llama.attention.head_count is 0"), "{}", refused(&zero));
    let many = gguf("many", "llama", &[("attention.head_count", WriteValue::U32(70_000))], &[]);
    assert!(refused(&many).contains("70000, needs at most 65535"), "{}", refused(&many));
    let huge = gguf("huge", "llama", &[("block_count", WriteValue::U32(u32::MAX))], &[]);
    assert!(refused(&huge).contains("block_count is 4294967295"), "{}", refused(&huge));
    let error = refused(Path::new("no/such/file.gguf"));
    assert!(error.contains("no/such/file.gguf"), "{error}");
}

#[test]
fn older_rope_keys_of_llama3_are_read() {
    let more = r#", "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        "bos_token_id": 1, "eos_token_id": [2, 3], "tie_word_embeddings": true"#;
    let tokenizer = r#"{"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
        {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}]}}"#;
    let others = [("tokenizer.json", tokenizer), ("tokenizer_config.json", "{}")];
    let path = published("Llama-Old", &config("llama", more), &[EMBEDDING], &others);
    let def = imported(&path);
    assert_eq!((def.name.as_str(), def.head), ("llama-old", Head::Tied));
    assert_eq!(def.weights.layout, Layout::Hf);
    let rope = &gqa(&def.blocks[0]).rope;
    assert_eq!((rope.theta, rope.pairing), (5e5, Pairs::Halves));
    let llama3 = Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original_context: 8192 };
    assert_eq!(rope.scaling, llama3);
    assert_eq!((def.tokens.bos, def.tokens.eos), (Some(1), vec![2, 3]));
    assert!(def.tokens.add_bos, "the post-processor begins with a special token");
}

#[test]
fn a_model_with_a_vision_part_gives_its_text_part() {
    let text = config(
        "gemma3_text",
        r#", "head_dim": 32, "sliding_window": 16, "query_pre_attn_scalar": 64,
        "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 20000.0,
        "rope_theta": 1000000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 2"#,
    );
    let root =
        format!(r#"{{"model_type": "gemma3", "eos_token_id": [1, 5], "text_config": {text}}}"#);
    let others = [
        ("generation_config.json", r#"{"bos_token_id": 2, "eos_token_id": [1, 6]}"#),
        ("tokenizer_config.json", r#"{"add_bos_token": true, "chat_template": "{{ messages }}"}"#),
    ];
    let tensors = ["language_model.model.embed_tokens.weight", "lm_head.weight"];
    let def = imported(&published("vision", &root, &tensors, &others));
    assert_eq!(def.weights.prefix, "language_model.model.");
    assert!(def.norm.zero_centred());
    let [local, global] = [gqa(&def.blocks[0]), gqa(&def.blocks[1])];
    assert_eq!((local.window, local.rope.theta), (Some(16), 2e4));
    assert_eq!(local.rope.scaling, Scaling::None);
    assert_eq!((global.window, global.rope.theta), (None, 1e6));
    assert_eq!(global.rope.scaling, Scaling::Linear { factor: 8.0 });
    assert_eq!(global.scale, Some(0.125));
    assert_eq!((def.tokens.bos, def.tokens.eos), (Some(2), vec![1, 6]));
    assert!(def.tokens.add_bos);
    assert_eq!(def.chat_template, ChatTemplate::SameAsTokenizer);
}

/// As the 4B one is published: what is the default of the family is not written.
#[test]
fn a_short_gemma3_configuration_is_filled_with_the_familys_sizes() {
    let text = r#"{"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024}"#;
    let root = format!(r#"{{"model_type": "gemma3", "text_config": {text}}}"#);
    let def = imported(&published("gemma-4b", &root, &[EMBEDDING], &[]));
    assert_eq!((def.vocab, def.norm.eps(), def.context), (262_208, 1e-6, 131_072));
    let [local, global] = [gqa(&def.blocks[0]), gqa(&def.blocks[1])];
    assert_eq!((local.heads, local.kv_heads, local.head_dim), (8, 4, 256));
    assert_eq!((local.window, local.rope.theta), (Some(1024), 1e4));
    assert_eq!((global.window, global.rope.theta, global.scale), (None, 1e6, None));
    assert_eq!(global.rope.scaling, Scaling::Linear { factor: 8.0 });
    assert_eq!(def.blocks[0].mlp, Mlp::Gated(Gated { intermediate: 10_240, act: Act::Gelu }));
}

#[test]
fn sliding_windows_of_qwen2_are_off_unless_used() {
    let more = |used: bool| {
        let keys = r#""sliding_window": 16, "max_window_layers": 3"#;
        format!(r#", {keys}, "use_sliding_window": {used}"#)
    };
    let runs = |used: bool| {
        let name = format!("qwen2-{used}");
        let def = imported(&published(&name, &config("qwen2", &more(used)), &[EMBEDDING], &[]));
        assert_eq!(gqa(&def.blocks[0]).bias, Bias::Qkv);
        def.blocks.iter().map(|b| (b.repeat, gqa(b).window)).collect::<Vec<_>>()
    };
    assert_eq!(runs(false), [(4, None)]);
    assert_eq!(runs(true), [(3, None), (1, Some(16))]);
}

#[test]
fn dense_layers_among_experts_are_kept_apart() {
    let more = r#", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [0]"#;
    let fused = [EMBEDDING, "model.layers.1.mlp.experts.gate_up_proj"];
    let def = imported(&published("dense", &config("qwen3_moe", more), &fused, &[]));
    assert_eq!(def.weights.layout, Layout::HfFusedExperts);
    assert!(matches!(def.blocks[0].mlp, Mlp::Gated(_)) && def.blocks[0].repeat == 1);
    assert!(matches!(def.blocks[1].mlp, Mlp::Moe(_)) && def.blocks[1].repeat == 3);
}

#[test]
fn configurations_that_are_not_done_here_are_refused_by_key() {
    for (name, model_type, more, need) in [
        ("mlp-bias", "llama", r#", "mlp_bias": true"#, "mlp_bias is true, needs false"),
        ("act", "llama", r#", "hidden_activation": "relu""#, "hidden_activation is relu"),
        ("yarn", "llama", r#", "rope_scaling": {"type": "yarn"}"#, "key type is yarn"),
        ("cap", "gemma3_text", r#", "final_logit_softcapping": 30.0"#, "softcapping is 30"),
        ("types", "llama", r#", "layer_types": ["chunked"]"#, "layer_types[0] is chunked"),
        ("text", "llama", r#", "head_dim": "x""#, "head_dim is \"x\", needs an integer"),
        ("gpt", "gpt2", "", "\"gpt2\" is not known; known are llama, mistral, qwen2"),
    ] {
        let error = refused(&published(name, &config(model_type, more), &[EMBEDDING], &[]));
        assert!(error.contains(need), "{name}: {error}");
    }
    let error = refused(&published("keys", r#"{"model_type": "llama"}"#, &[EMBEDDING], &[]));
    assert!(error.contains("the key hidden_size is missing"), "{error}");
    let error = refused(&published("names", &config("llama", ""), &["a.weight"], &[]));
    assert!(error.contains("the tensor embed_tokens.weight is missing"), "{error}");
}
