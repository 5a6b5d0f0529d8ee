//! Rules of weights: element types, whole blocks in products, and sources that have their length.

use super::error::{Fault, Place, VerifyError};
use crate::graph::{Graph, WeightDef, WeightSource};
use crate::rules::operand_names;
use crate::table::{Id, Table, WeightId};
use crate::types::DType;

/// Partial sums of a product of floats: a row is whole groups of them.
const FLOAT_GROUP: u64 = 16;

pub(super) fn check(graph: &Graph, errors: &mut Vec<VerifyError>) {
    let in_products = in_products(graph);
    for (id, def) in graph.weights().iter() {
        let mut faults = Vec::new();
        element(def, &mut faults);
        row_blocks(def, in_products[id], &mut faults);
        source(def, &mut faults);
        let place = || Place::Weight { id, name: def.name.clone() };
        errors.extend(faults.into_iter().map(|fault| VerifyError { place: place(), fault }));
    }
}

/// Weights that a matrix product reads.
fn in_products(graph: &Graph) -> Table<WeightId, bool> {
    let mut found: Table<WeightId, bool> = graph.weights().keys().map(|_| false).collect();
    for node in graph.nodes() {
        for (operand, &value) in operand_names(node.op).into_iter().zip(node.operands) {
            let is_matrix = matches!(operand, "weight" | "gate" | "up" | "down");
            // Values out of range are reported with the node that reads them.
            if is_matrix
                && value.index() < graph.value_count()
                && let Some(weight) = graph.weight_of(value)
            {
                found.set(weight, true);
            }
        }
    }
    found
}

fn element(def: &WeightDef, faults: &mut Vec<Fault>) {
    let dtype = def.ty.dtype;
    let integers = matches!(def.source, WeightSource::Integers(_));
    let fits = match integers {
        true => dtype == DType::U64,
        false => dtype.is_float() || dtype.is_block_quantised() || dtype == DType::Unresolved,
    };
    if !fits {
        faults.push(Fault::WeightElement { found: dtype });
    }
    if def.ty.elements() == 0 {
        faults.push(Fault::Empty { found: def.ty });
    }
}

/// A block never spans two rows, and rows of products are whole groups.
fn row_blocks(def: &WeightDef, in_product: bool, faults: &mut Vec<Fault>) {
    let dtype = def.ty.dtype;
    let (block, _) = dtype.block();
    let need = if dtype.is_float() && in_product { FLOAT_GROUP } else { block };
    let found = def.ty.last_dim();
    if !u64::from(found).is_multiple_of(need) {
        faults.push(Fault::BlockMultiple { dtype, found, need });
    }
}

fn source(def: &WeightDef, faults: &mut Vec<Fault>) {
    match &def.source {
        WeightSource::Constant(values) => {
            if def.ty.dtype != DType::F32 {
                faults.push(Fault::WeightElement { found: def.ty.dtype });
            }
            length("constants", values.len() as u64, def.ty.elements(), faults);
        }
        WeightSource::Integers(values) => {
            length("constants", values.len() as u64, def.ty.elements(), faults);
        }
        WeightSource::Parts(parts) if def.ty.dtype != DType::Unresolved => {
            let bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
            length("bytes", bytes, def.ty.bytes(), faults);
        }
        WeightSource::Parts(_) => {}
        WeightSource::Named(slices) => {
            for slice in slices {
                match slice.rows {
                    Some((first, end)) if first >= end => {
                        let tensor = slice.tensor.clone();
                        faults.push(Fault::Slice { tensor, first, end });
                    }
                    _ => {}
                }
            }
        }
    }
}

fn length(unit: &'static str, found: u64, need: u64, faults: &mut Vec<Fault>) {
    if found != need {
        faults.push(Fault::SourceLength { unit, found, need });
    }
}
