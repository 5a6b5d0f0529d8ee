//! Faults that text cannot express, because the parser and the builder refuse them.

use super::verify;
use crate::graph::Graph;
use crate::parse::parse;
use crate::table::{Id, NodeId, ValueId};
use crate::types::{DType, TensorType};

fn small() -> Graph {
    parse(
        "\
; strata graph 1 | small | verify 2 (logits 2) | case
w0 = weight \"table\" : f32[8, 16]
  %1 = embed(w0) scale=1.0 : f32[2, 16] @d0 \"table\"
  %2 = silu(%1) : f32[2, 16] @d0 \"gate\"
  %3 = mul(%1, %2) : f32[2, 16] @d0 \"product\"
output %3
",
    )
    .unwrap()
}

fn messages(graph: &Graph) -> Vec<String> {
    verify(graph).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn operands_are_made_before_they_are_read() {
    let mut graph = small();
    graph.break_operand(NodeId::from_index(1), 0, ValueId::from_index(3));
    assert_eq!(messages(&graph), ["n1 silu \"gate\": order: reads %3, needs an earlier value"]);
    graph.break_operand(NodeId::from_index(1), 0, ValueId::from_index(2));
    assert_eq!(messages(&graph), ["n1 silu \"gate\": order: reads %2, needs an earlier value"]);
    graph.break_operand(NodeId::from_index(1), 0, ValueId::from_index(99));
    assert_eq!(messages(&graph), ["n1 silu \"gate\": order: reads %99, needs an earlier value"]);
    graph.break_operand(NodeId::from_index(1), 0, ValueId::from_index(1));
    assert_eq!(verify(&graph), Ok(()));
}

#[test]
fn types_are_what_the_op_gives() {
    let mut graph = small();
    graph.break_type(ValueId::from_index(3), TensorType::new(DType::F32, &[2, 17]));
    let need = "n2 mul \"product\": types: %3 is f32[2, 17], needs f32[2, 16]";
    assert_eq!(messages(&graph), [need]);
    graph.break_type(ValueId::from_index(3), TensorType::new(DType::F32, &[2, 16]));
    graph.break_type(ValueId::from_index(2), TensorType::new(DType::F16, &[2, 16]));
    assert_eq!(
        messages(&graph),
        [
            "n1 silu \"gate\": types: %2 is f16[2, 16], needs f32[2, 16]",
            "n2 mul \"product\": types: mul: the elements of b are f16, needs f32",
        ]
    );
}

#[test]
fn outputs_exist() {
    let mut builder = crate::GraphBuilder::new("none", small().window, "case");
    builder.output(ValueId::from_index(5));
    let need = "graph: outputs: %5 does not exist, needs a value of this graph";
    assert_eq!(messages(&builder.finish()), [need]);
}
