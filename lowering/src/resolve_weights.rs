//! Weight names become byte ranges of files, and weights get the element type of what they hold.

use std::collections::BTreeMap;

use strata_graph::{
    DType, Graph, Id, Op, Part, Rebuild, TensorSlice, TensorType, WeightDef, WeightSource,
};
use strata_kernels::spec::WeightFormat;

use crate::error::{LowerError, TensorFault};
use crate::input::{FileEntry, TensorEntry, TensorFormat};
use crate::report::PassReport;

/// The tensors of the checkpoint by name, and the files they are in.
#[derive(Debug)]
pub struct Checkpoint<'a> {
    by_name: BTreeMap<&'a str, &'a TensorEntry>,
    files: &'a [FileEntry],
}

impl<'a> Checkpoint<'a> {
    pub fn new(tensors: &'a [TensorEntry], files: &'a [FileEntry]) -> Self {
        Self { by_name: tensors.iter().map(|t| (t.name.as_str(), t)).collect(), files }
    }

    fn file_name(&self, file: u32) -> String {
        self.files.get(file as usize).map_or_else(|| format!("file {file}"), |f| f.path.clone())
    }

    /// Slices that fit one by one, and together have `outer` rows of the outermost dimension.
    fn wrong_rows(&self, def: &WeightDef, slices: &[TensorSlice], outer: u64) -> LowerError {
        let names: Vec<&str> = slices.iter().map(|s| s.tensor.as_str()).collect();
        let file = names.first().and_then(|name| self.by_name.get(name)).map_or(0, |t| t.file);
        let found = match *def.ty.dims() {
            [_] => format!("[{outer}]"),
            [_, ref inner @ ..] => {
                let inner: Vec<String> = inner.iter().map(u32::to_string).collect();
                format!("[{outer}, {}]", inner.join(", "))
            }
            [] => format!("{outer} elements"),
        };
        LowerError::TensorDims(Box::new(TensorFault {
            weight: def.name.clone(),
            tensor: names.join(" + "),
            file: self.file_name(file),
            found,
            need: format!("{:?}", def.ty.dims()),
        }))
    }

    fn missing(&self, weight: &str, tensor: &str) -> LowerError {
        let near = self.by_name.keys().map(|name| (edit_distance(name, tensor), *name)).min();
        let near = near.filter(|(distance, _)| *distance <= 4).map(|(_, name)| name.to_owned());
        let files: Vec<&str> = self.files.iter().map(|f| f.path.as_str()).collect();
        LowerError::TensorMissing {
            weight: weight.to_owned(),
            tensor: tensor.to_owned(),
            near,
            files: files.join(", "),
        }
    }
}

/// Replaces every [`WeightSource::Named`] by [`WeightSource::Parts`] and fills in element types.
///
/// Parts are in the order of the weight's rows; neighbours in a file are one part. Constants stay.
///
/// # Errors
/// The first tensor that is missing, has other dimensions or an unknown type, or lies outside its
/// file; and the first product whose dimensions no kernel takes.
pub fn resolve_weights(
    graph: &Graph,
    checkpoint: &Checkpoint<'_>,
) -> Result<(Graph, PassReport), LowerError> {
    let mut resolved = Vec::with_capacity(graph.weights().len());
    for def in graph.weights().values() {
        resolved.push(resolve_weight(def, checkpoint)?);
    }
    let (mut parts, mut bytes) = (0, 0);
    for def in &resolved {
        if let WeightSource::Parts(of_weight) = &def.source {
            parts += of_weight.len() as u64;
            bytes += of_weight.iter().map(|p| p.bytes).sum::<u64>();
        }
    }
    check_products(graph, &resolved)?;
    let mut next = Rebuild::with_weights(graph, "resolved", |i, _| resolved[i].clone());
    for node in graph.nodes() {
        next.keep(node);
    }
    let report = PassReport::new("resolve_weights", "")
        .count("weights_count", resolved.len() as u64)
        .count("parts_count", parts)
        .count("stored_bytes", bytes);
    Ok((next.finish().0, report))
}

fn resolve_weight(def: &WeightDef, checkpoint: &Checkpoint<'_>) -> Result<WeightDef, LowerError> {
    let WeightSource::Named(slices) = &def.source else {
        let mut same = def.clone();
        if matches!(def.source, WeightSource::Constant(_)) {
            same.ty = def.ty.with_dtype(DType::F32);
        }
        return Ok(same);
    };
    let mut dtype = None;
    let mut elements: u64 = 0;
    let mut parts: Vec<Part> = Vec::new();
    for slice in slices {
        let (found, piece) = resolve_slice(def, slice, checkpoint)?;
        let first = *dtype.get_or_insert(found);
        if first != found {
            let (tensor, entry) = (&slice.tensor, checkpoint.by_name[slice.tensor.as_str()]);
            return Err(LowerError::MixedFormats(Box::new(TensorFault {
                weight: def.name.clone(),
                tensor: tensor.clone(),
                file: checkpoint.file_name(entry.file),
                found: found.to_string(),
                need: first.to_string(),
            })));
        }
        elements = elements.saturating_add(piece.elements);
        piece.parts.into_iter().for_each(|part| push_merged(&mut parts, part));
    }
    if elements != def.ty.elements() {
        let rows = u64::from(def.ty.dims().first().copied().unwrap_or(1));
        let row_elements = (def.ty.elements() / rows).max(1);
        return Err(checkpoint.wrong_rows(def, slices, elements / row_elements));
    }
    Ok(WeightDef {
        ty: def.ty.with_dtype(dtype.unwrap_or(DType::F32)),
        source: WeightSource::Parts(parts),
        ..def.clone()
    })
}

/// What one slice contributes, and where it is.
struct Piece {
    elements: u64,
    parts: Vec<Part>,
}

fn resolve_slice(
    def: &WeightDef,
    slice: &TensorSlice,
    checkpoint: &Checkpoint<'_>,
) -> Result<(DType, Piece), LowerError> {
    let Some(&entry) = checkpoint.by_name.get(slice.tensor.as_str()) else {
        return Err(checkpoint.missing(&def.name, &slice.tensor));
    };
    let fault = |found: String, need: String| {
        Box::new(TensorFault {
            weight: def.name.clone(),
            tensor: slice.tensor.clone(),
            file: checkpoint.file_name(entry.file),
            found,
            need,
        })
    };
    let dtype = match &entry.format {
        TensorFormat::Known(dtype) if WeightFormat::of(*dtype).is_some() => *dtype,
        TensorFormat::Known(other) => {
            return Err(LowerError::TensorFormat(fault(other.to_string(), supported_formats())));
        }
        TensorFormat::Unknown(other) => {
            return Err(LowerError::TensorFormat(fault(other.clone(), supported_formats())));
        }
    };
    let wrong_dims = || {
        let found = match slice.rows {
            Some((first, end)) => format!("{:?}, cut to rows {first}..{end}", entry.dims),
            None => format!("{:?}", entry.dims),
        };
        LowerError::TensorDims(fault(found, format!("{:?}", def.ty.dims())))
    };
    // A tensor without elements has no bytes that would bound its other dimensions.
    if entry.dims.contains(&0) {
        return Err(wrong_dims());
    }
    check_bytes(entry, dtype, checkpoint)?;
    let piece = cut(def.ty, slice, entry, dtype).ok_or_else(wrong_dims)?;
    Ok((dtype, piece))
}

fn supported_formats() -> String {
    let formats = DType::ALL.iter().filter(|d| WeightFormat::of(**d).is_some());
    formats.map(|d| d.name()).collect::<Vec<_>>().join(", ")
}

fn check_bytes(
    entry: &TensorEntry,
    dtype: DType,
    checkpoint: &Checkpoint<'_>,
) -> Result<(), LowerError> {
    let (inner, outer) = entry.dims.split_last().map_or((1, &[][..]), |(k, outer)| (*k, outer));
    let rows = outer.iter().fold(1, |rows: u64, &d| rows.saturating_mul(d));
    let (block, block_bytes) = dtype.block();
    // Dimensions come from a file: what is too large for u64 is larger than any file.
    let need = rows.saturating_mul(inner.div_ceil(block).saturating_mul(block_bytes));
    let file = checkpoint.file_name(entry.file);
    if entry.bytes != need || !inner.is_multiple_of(block) {
        let tensor = entry.name.clone();
        return Err(LowerError::TensorBytes { tensor, file, found: entry.bytes, need });
    }
    let file_bytes = checkpoint.files.get(entry.file as usize).map_or(0, |f| f.bytes);
    let end_bytes = entry.offset.saturating_add(entry.bytes);
    if end_bytes > file_bytes {
        let tensor = entry.name.clone();
        return Err(LowerError::TensorRange { tensor, file, end_bytes, file_bytes });
    }
    Ok(())
}

/// Fits a tensor, or rows of its matrices, into a weight of type `ty`. `None` if it does not fit.
///
/// A tensor with fewer dimensions than the weight is one outer slice of it: a matrix in a bank. One
/// with more may have dimensions of 1, as published filters do. A slice of float rows may be a part
/// of a weight's row. Its dimensions are not 0 and its bytes are those of its file, see
/// [`check_bytes`].
fn cut(ty: TensorType, slice: &TensorSlice, entry: &TensorEntry, dtype: DType) -> Option<Piece> {
    let rank = ty.dims().len();
    let mut dims = entry.dims.clone();
    while dims.len() > rank {
        dims.remove(dims.iter().position(|&dim| dim == 1)?);
    }
    if rank == 0 {
        return None;
    }
    while dims.len() < rank {
        dims.insert(0, 1);
    }
    let inner = dims[rank - 1];
    let row_bytes = dtype.row_bytes(inner);
    let Some((first, end)) = slice.rows else {
        let fits = dims[1..].iter().zip(&ty.dims()[1..]).all(|(a, b)| *a == u64::from(*b));
        let whole = Part { file: entry.file, offset: entry.offset, bytes: entry.bytes };
        return fits.then(|| Piece { elements: dims.iter().product(), parts: vec![whole] });
    };
    let (first, end) = (u64::from(first), u64::from(end));
    if rank < 2 || first >= end || end > dims[rank - 2] {
        return None;
    }
    let matrices: u64 = dims[..rank - 2].iter().product();
    let matrix_rows = dims[rank - 2];
    dims[rank - 2] = end - first;
    let part_of_row = rank == 2 && dtype.is_float() && end - first == 1;
    let fits = dims[1..].iter().zip(&ty.dims()[1..]).all(|(a, b)| {
        let b = u64::from(*b);
        *a == b || part_of_row && b.is_multiple_of(*a)
    });
    // Before the loop: it has as many turns as the file says.
    if !fits || dims[0] > u64::from(ty.dims()[0]) {
        return None;
    }
    let mut parts = Vec::new();
    for matrix in 0..matrices {
        let offset = entry.offset + (matrix * matrix_rows + first) * row_bytes;
        push_merged(
            &mut parts,
            Part { file: entry.file, offset, bytes: (end - first) * row_bytes },
        );
    }
    Some(Piece { elements: dims.iter().product(), parts })
}

fn push_merged(parts: &mut Vec<Part>, part: Part) {
    match parts.last_mut() {
        Some(last) if last.file == part.file && last.offset + last.bytes == part.offset => {
            last.bytes += part.bytes;
        }
        _ => parts.push(part),
    }
}

/// Products need whole lanes along k, and row groups that kernels can store.
fn check_products(graph: &Graph, weights: &[WeightDef]) -> Result<(), LowerError> {
    for node in graph.nodes() {
        let first_weight = match node.op {
            Op::Matmul { .. } | Op::StreamMatmul { .. } => 1..2,
            Op::ExpertMlp { .. } => 3..6,
            _ => continue,
        };
        for &operand in &node.operands[first_weight] {
            let Some(weight) = graph.weight_of(operand) else { continue };
            let ty = weights[weight.index()].ty;
            let (lanes, need) = match ty.dtype.is_float() {
                true => (16, "a multiple of 16 for float weights"),
                false => (32, "a multiple of 32 for quantised weights"),
            };
            check_multiple(node.name, "the inner dimension", ty.last_dim(), (lanes, need))?;
            if let (Op::StreamMatmul { .. }, false) = (node.op, ty.dtype.is_float()) {
                // Each stream of a row starts a span of 8-bit activations.
                let need = (256, "a multiple of 256 for quantised weights of streams");
                check_multiple(node.name, "the inner dimension", ty.last_dim(), need)?;
            }
            if let Op::ExpertMlp { .. } = node.op {
                let rows = ty.dims()[1];
                check_multiple(node.name, "rows of an expert", rows, (16, "a multiple of 16"))?;
            }
        }
    }
    Ok(())
}

fn check_multiple(
    node: &str,
    what: &'static str,
    found: u32,
    (of, need): (u32, &str),
) -> Result<(), LowerError> {
    if found.is_multiple_of(of) {
        return Ok(());
    }
    Err(LowerError::Shape { node: node.into(), what, found: found.into(), need: need.into() })
}

/// Edits between two names; only small distances matter, so long names are cut.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) =
        (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
