//! Each `cases/PASS/*.graph` is run through PASS; the result lies beside it as a `.snap`.

use std::fs;

use strata_graph::parse::parse;
use strata_graph::{Graph, verify};
use strata_lowering::{fuse, order_nodes, quantize_activations, split_experts};

fn pass_by_name(name: &str) -> fn(&Graph) -> (Graph, String) {
    macro_rules! rewrite {
        ($pass:expr) => {
            |graph| {
                let (next, rebuilt) = $pass(graph);
                (next, format!("{rebuilt:?}"))
            }
        };
    }
    match name {
        "split_experts" => rewrite!(split_experts),
        "quantize_activations" => rewrite!(quantize_activations),
        "fuse_gate_up" => rewrite!(fuse::fuse_gate_up),
        "fuse_act_mul" => rewrite!(fuse::fuse_act_mul),
        "fuse_gated_quantize" => rewrite!(fuse::fuse_gated_quantize),
        "fuse_expert_quantize" => rewrite!(fuse::fuse_expert_quantize),
        "fuse_norm_add" => rewrite!(fuse::fuse_norm_add),
        "fuse_residual_add" => rewrite!(fuse::fuse_residual_add),
        "fuse_norm_quantize" => rewrite!(fuse::fuse_norm_quantize),
        "fuse_norm_both" => rewrite!(fuse::fuse_norm_both),
        "fuse_hc_write_norm" => rewrite!(fuse::fuse_hc_write_norm),
        "fuse_projections" => rewrite!(fuse::fuse_projections),
        "fuse_expert_sum" => rewrite!(fuse::fuse_expert_sum),
        "fuse_row_quantize" => rewrite!(fuse::fuse_row_quantize),
        "fuse_route_dispatch" => rewrite!(fuse::fuse_route_dispatch),
        "fuse_attention_prologue" => rewrite!(fuse::fuse_attention_prologue),
        "fuse_attention_quantize" => rewrite!(fuse::fuse_attention_quantize),
        "order_nodes" => |graph| {
            let (next, report) = order_nodes(graph);
            (next, report.to_string())
        },
        other => panic!("no pass is called {other}"),
    }
}

#[test]
fn passes() {
    insta::glob!("cases/*/*.graph", |path| {
        let dir = path.parent().unwrap();
        let before = parse(&fs::read_to_string(path).unwrap()).unwrap();
        let pass = pass_by_name(dir.file_name().unwrap().to_str().unwrap());
        let (after, report) = pass(&before);
        assert_eq!(verify::verify(&after), Ok(()));
        let text = after.to_string();
        assert_eq!(parse(&text).unwrap().to_string(), text, "the dump must read back");
        insta::with_settings!({ snapshot_path => dir, prepend_module_to_snapshot => false }, {
            insta::assert_snapshot!(format!("{text}; {report}"));
        });
    });
}
