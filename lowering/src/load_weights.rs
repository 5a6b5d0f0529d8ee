//! How the bytes of each weight come from the files to their place: pieces, and the kernels that
//! bring them into the form that other kernels read.

use strata_graph::{Graph, Part, Transform, WeightDef, WeightSource};
use strata_kernels::KernelSpec;
use strata_kernels::formats::{GROUP_ROWS, packed_bytes};
use strata_kernels::spec::{Repack, ToF32, WeightFormat};

use crate::error::LowerError;
use crate::place_experts::{Form, Placement, Tier, WeightPlaces};
use crate::report::PassReport;

/// A piece is at most about this large, so that loading needs little memory beside the weights.
const PIECE_BYTES: u64 = 8 << 20;

/// A piece of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadPiece {
    pub file: u32,
    /// In the file.
    pub offset: u64,
    pub bytes: u64,
    /// Relative to the weight's place.
    pub destination: u64,
    pub destination_bytes: u64,
    /// `None`: copied as it is.
    pub spec: Option<KernelSpec>,
}

/// The pieces of every placement, in its order; none for mapped weights and constants.
///
/// # Errors
/// A quantised matrix of several parts whose rows do not fill whole groups.
pub fn load_weights(
    graph: &Graph,
    places: &WeightPlaces,
) -> Result<(Vec<Vec<LoadPiece>>, PassReport), LowerError> {
    let mut all = Vec::with_capacity(places.rows.len());
    for place in &places.rows {
        all.push(pieces_of(&graph.weights()[place.weight], place)?);
    }
    let pieces = all.iter().flatten();
    let repacked = pieces.clone().filter(|p| p.spec.is_some());
    let report = PassReport::new("load_weights", "")
        .count("pieces_count", pieces.clone().count() as u64)
        .count("read_bytes", pieces.clone().map(|p| p.bytes).sum())
        .count("converted_bytes", repacked.map(|p| p.bytes).sum());
    Ok((all, report))
}

/// The pieces of each placement and the kernels that bring them in, for `stop_after`.
pub(crate) fn pieces_text(
    graph: &Graph,
    places: &WeightPlaces,
    pieces: &[Vec<LoadPiece>],
) -> String {
    let count = pieces.iter().map(Vec::len).sum::<usize>();
    let mut lines = vec![format!("; strata loading 1 | {} | {count} pieces", graph.model)];
    for (place, pieces) in places.rows.iter().zip(pieces) {
        let name = &graph.weights()[place.weight].name;
        let (form, tier) = (format!("{:?}", place.form), format!("{:?}", place.tier));
        lines.push(format!(
            "  {name:<28} {form:<7} {tier:<9} {:#010x} {:>10} bytes",
            place.offset, place.bytes
        ));
        for piece in pieces {
            let kernel = piece.spec.map_or_else(|| "copy".into(), |spec| spec.key());
            lines.push(format!(
                "    file{}+{:#010x} {:>10} bytes to +{:#010x} {:>10} bytes  {kernel}",
                piece.file, piece.offset, piece.bytes, piece.destination, piece.destination_bytes,
            ));
        }
    }
    lines.join("\n") + "\n"
}

fn pieces_of(def: &WeightDef, place: &Placement) -> Result<Vec<LoadPiece>, LowerError> {
    let (WeightSource::Parts(parts), Tier::Ram | Tier::Packed) = (&def.source, place.tier) else {
        return Ok(Vec::new());
    };
    let mut pieces: Vec<LoadPiece> = Vec::new();
    let mut destination = 0;
    for part in parts {
        let of_part = match place.form {
            Form::Native => copied(part, destination),
            Form::Vector => vec![vector(def, part, destination)],
            Form::Packed => packed(def, part, destination, parts.len())?,
        };
        destination += of_part.iter().map(|p| p.destination_bytes).sum::<u64>();
        pieces.extend(of_part);
    }
    Ok(pieces)
}

fn copied(part: &Part, destination: u64) -> Vec<LoadPiece> {
    let starts = (0..part.bytes).step_by(PIECE_BYTES as usize);
    let piece = |start: u64| {
        let bytes = PIECE_BYTES.min(part.bytes - start);
        LoadPiece {
            file: part.file,
            offset: part.offset + start,
            bytes,
            destination: destination + start,
            destination_bytes: bytes,
            spec: None,
        }
    };
    starts.map(piece).collect()
}

fn vector(def: &WeightDef, part: &Part, destination: u64) -> LoadPiece {
    let format = WeightFormat::of(def.ty.dtype).expect("resolve_weights checked formats");
    let elements = part.bytes / u64::from(format.block().1) * u64::from(format.block().0);
    let n = u32::try_from(elements).expect("a vector has fewer than 2^32 elements");
    let plain = format == WeightFormat::F32 && def.transform == Transform::None;
    let to_f32 = ToF32 {
        format,
        n,
        add_one: def.transform == Transform::AddOne,
        neg_exp: def.transform == Transform::NegExp,
    };
    LoadPiece {
        file: part.file,
        offset: part.offset,
        bytes: part.bytes,
        destination,
        destination_bytes: 4 * elements,
        spec: (!plain).then_some(KernelSpec::ToF32(to_f32)),
    }
}

/// Equal runs of whole groups of rows, so that few different kernels are needed.
fn packed(
    def: &WeightDef,
    part: &Part,
    destination: u64,
    part_count: usize,
) -> Result<Vec<LoadPiece>, LowerError> {
    let format = WeightFormat::of(def.ty.dtype).expect("resolve_weights checked formats");
    let k = def.ty.last_dim();
    let row_bytes = format.row_bytes(k);
    let rows = u32::try_from(part.bytes / row_bytes).expect("a matrix has fewer than 2^32 rows");
    if part_count > 1 && !rows.is_multiple_of(GROUP_ROWS) {
        return Err(LowerError::Shape {
            node: def.name.clone(),
            what: "rows of one part of a quantised matrix",
            found: rows.into(),
            need: "whole groups of 16".into(),
        });
    }
    let count = u32::try_from(part.bytes.div_ceil(PIECE_BYTES)).expect("files are smaller").max(1);
    let step = rows.div_ceil(count).next_multiple_of(GROUP_ROWS);
    let mut pieces = Vec::new();
    let (mut first, mut at) = (0, destination);
    while first < rows {
        let n = step.min(rows - first);
        let destination_bytes = packed_bytes(format, n, k);
        pieces.push(LoadPiece {
            file: part.file,
            offset: part.offset + u64::from(first) * row_bytes,
            bytes: u64::from(n) * row_bytes,
            destination: at,
            destination_bytes,
            spec: Some(KernelSpec::Repack(Repack { format, n, k })),
        });
        first += n;
        at += destination_bytes;
    }
    Ok(pieces)
}
