//! The kernel of several products of one input.

use strata_graph::Node;
use strata_kernels::KernelSpec;
use strata_kernels::spec::{Projection, Projections};

use super::{KernelChoice, Operand, Selector};

impl Selector<'_> {
    pub(super) fn projections(&self, node: &Node<'_>) -> KernelChoice {
        let is_weight = |value| self.graph.weight_of(value).is_some();
        let mut weights = [None; Projections::MOST];
        let mut places = weights.iter_mut();
        let mut operands = Vec::with_capacity(node.operands.len());
        for &value in node.operands {
            if !is_weight(value) {
                operands.push(Operand::Value(value));
                continue;
            }
            let (weight, format) = self.matrix(value);
            let place = places.next().expect("verify: projections have at most 8 weights");
            *place = Some(Projection { format, n: self.graph.ty(value).dims()[0] });
            operands.push(weight);
        }
        let (k, rows) = (self.width(node.operands[0]), self.row_class(node));
        self.launch_all(node, KernelSpec::Projections(Projections { k, rows, weights }), &operands)
    }
}
