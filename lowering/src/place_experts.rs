//! Every weight gets its form, its tier and its place. With one CPU the tiers are RAM, the mapped
//! file, the packed file and the plan itself. A window reads few experts of a bank, so banks are the
//! first matrices that leave RAM when they have to be repacked.

use std::collections::{BTreeMap, BTreeSet};

use strata_graph::{DType, Graph, Id, Op, Part, Transform, WeightDef, WeightId, WeightSource};
use strata_kernels::formats::packed_bytes;
use strata_kernels::spec::WeightFormat;
use strata_plan::layout::PACK_HEADER_BYTES;

use crate::config::TierPolicy;
use crate::error::{BudgetShortfall, LowerError};
use crate::report::PassReport;

/// Weights begin on a cache line.
pub const WEIGHT_ALIGN_BYTES: u64 = 64;

/// In the packed file they begin on a page, so that no page is read for two of them.
const PACK_ALIGN_BYTES: u64 = 4096;

/// The form in which kernels read a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Rows as the file has them: tables of embeddings and float matrices.
    Native,
    /// Groups of 16 rows of a block format, side by side.
    Packed,
    /// f32 elements: gains, biases, frequencies.
    Vector,
}

/// Where a weight lies while the plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Ram,
    Mapped,
    Constant,
    /// In the packed file, in the form in which it would lie in RAM.
    Packed,
}

/// A weight in one form. A tied table has two: native rows to look up, packed rows to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    pub weight: WeightId,
    pub form: Form,
    pub tier: Tier,
    /// In WEIGHTS, in CONSTANTS, in PACK, or in the file.
    pub offset: u64,
    pub bytes: u64,
    /// The file, where the tier is [`Tier::Mapped`].
    pub file: u32,
}

/// Bytes that are needed beside the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherBytes {
    pub states: u64,
    /// `None` while passes may still change it: then the rest is a lower bound of what is needed.
    pub arena: Option<u64>,
    pub step: u64,
    /// Of `states`, one page of every sequence.
    pub page: u64,
    /// Pages of one sequence.
    pub pages: u32,
    pub page_tokens: u32,
}

/// All placements, in the order of weights and forms.
#[derive(Clone, Debug, Default)]
pub struct WeightPlaces {
    pub rows: Vec<Placement>,
    index: BTreeMap<(WeightId, Form), usize>,
    /// Bytes of the WEIGHTS space.
    pub ram_bytes: u64,
    pub mapped_bytes: u64,
    /// Bytes of the PACK space, its header included; 0 if nothing lies there.
    pub packed_bytes: u64,
    /// Words of the CONSTANTS section.
    pub constants: Vec<u32>,
    /// Of `ram_bytes`, what could be read from the file instead.
    mappable_bytes: u64,
    /// Of `ram_bytes`, what could lie in the packed file instead.
    packable_bytes: u64,
}

impl WeightPlaces {
    pub fn get(&self, weight: WeightId, form: Form) -> Option<&Placement> {
        self.index.get(&(weight, form)).map(|&row| &self.rows[row])
    }

    /// Appends to the constants, on a line of their own; their offset in bytes.
    fn push_constants(&mut self, words: impl Iterator<Item = u32>) -> u64 {
        let lines = self.constants.len().next_multiple_of(16);
        self.constants.resize(lines, 0);
        self.constants.extend(words);
        4 * lines as u64
    }

    /// Checks that the plan fits the budget.
    ///
    /// # Errors
    /// What is needed by class, and by how much it falls short.
    pub fn check_budget(&self, budget: Option<u64>, other: OtherBytes) -> Result<(), LowerError> {
        let Some(budget) = budget else { return Ok(()) };
        let shortfall = BudgetShortfall {
            device: "cpu".into(),
            budget,
            weights: self.ram_bytes,
            mappable: self.mappable_bytes,
            packable: self.packable_bytes,
            other,
        };
        match shortfall.short() {
            0 => Ok(()),
            _ => Err(LowerError::Budget(Box::new(shortfall))),
        }
    }
}

/// Decides form, tier and place of every weight that a node of `graphs` reads. They have the same
/// weights.
///
/// Float matrices are read as they are: from RAM, or from the mapped file where the budget or the
/// policy asks for it. Block-quantised matrices are repacked, so they go to RAM; where the budget
/// does not hold all, to the packed file, the largest first, all banks of experts before the others.
/// Tables of embeddings stay in the file, since a window touches few of their rows.
///
/// # Errors
/// The budget, if weights, states, arena and step together do not fit it; an arena that is not
/// known yet counts as nothing, so that only a plan that cannot fit is refused.
pub fn place_experts(
    graphs: &[&Graph],
    policy: TierPolicy,
    budget: Option<u64>,
    other: OtherBytes,
) -> Result<(WeightPlaces, PassReport), LowerError> {
    let uses = weight_uses(graphs);
    let graph = graphs[0];
    let mut rows: Vec<Placement> = uses
        .iter()
        .map(|(&(weight, form), use_)| first_choice(graph, weight, form, *use_, policy))
        .collect();
    let mut places = assign_offsets(graph, rows.clone());
    if policy == TierPolicy::Auto {
        while places.check_budget(budget, other).is_err() {
            let Some((row, tier)) = next_to_leave(graph, &rows) else { break };
            rows[row].tier = tier;
            places = assign_offsets(graph, rows.clone());
        }
    }
    places.check_budget(budget, other)?;
    let report = PassReport::new("place_experts", "")
        .count("ram_bytes", places.ram_bytes)
        .count("mapped_bytes", places.mapped_bytes)
        .count("packed_bytes", places.packed_bytes)
        .count("constant_bytes", 4 * places.constants.len() as u64)
        .count("states_bytes", other.states)
        .count("arena_bytes", other.arena.unwrap_or(0))
        .count("step_bytes", other.step)
        .count("budget_bytes", budget.unwrap_or(0));
    Ok((places, report))
}

/// How a weight is read in one form.
#[derive(Clone, Copy, Debug, Default)]
struct WeightUse {
    /// Whole, by every window; else a few rows of it.
    streamed: bool,
}

/// Weights of projections from operand 1 on, of which the first ones may be inputs.
const PROJECTIONS: [(usize, bool); 9] = {
    let mut all = [(0, true); 9];
    let mut i = 0;
    while i < all.len() {
        all[i].0 = i + 1;
        i += 1;
    }
    all
};

/// Which operands of an op are weights, and whether they are matrices.
fn weight_operands(op: &Op) -> &'static [(usize, bool)] {
    match *op {
        Op::Matmul { bias: false, .. } => &[(1, true)],
        Op::Matmul { bias: true, .. } => &[(1, true), (2, false)],
        Op::GatedMatmul { .. } => &[(1, true), (2, true)],
        Op::Projections { count, floats, quantised } => {
            let inputs = usize::from(floats) + usize::from(quantised);
            PROJECTIONS.get(inputs - 1..inputs - 1 + usize::from(count)).unwrap_or(&[])
        }
        Op::StreamMatmul { .. } => &[(1, true)],
        Op::Conv1d { .. } => &[(2, false)],
        Op::GatedDelta { .. } => &[(4, false), (5, false)],
        Op::BlockKeys { .. } => &[(3, false), (4, false)],
        Op::HcWriteNorm { .. } => &[(3, false)],
        Op::GroupRmsNorm { .. }
        | Op::GroupRmsNormQuantize { .. }
        | Op::GatedHeadNorm { .. }
        | Op::GatedHeadNormQuantize { .. }
        | Op::NgramRows { .. } => &[(1, false)],
        Op::ExpertMlp { .. } => &[(3, true), (4, true), (5, true)],
        Op::ExpertGated { .. } => &[(2, true), (3, true)],
        Op::ExpertDown {} => &[(2, true)],
        Op::RopeAngles { .. } => &[(0, false)],
        Op::RmsNorm { .. }
        | Op::HeadNorm { .. }
        | Op::RmsNormQuantize { .. }
        | Op::RmsNormBoth { .. }
        | Op::RmsNormAdd { .. } => &[(1, false)],
        Op::AttentionPrologue { norm: true, .. } => &[(5, false), (6, false)],
        _ => &[],
    }
}

/// The table of which an op looks up rows.
fn table_operand(op: &Op) -> Option<usize> {
    match op {
        Op::Embed { .. } => Some(0),
        Op::NgramEmbed {} => Some(1),
        _ => None,
    }
}

fn weight_uses(graphs: &[&Graph]) -> BTreeMap<(WeightId, Form), WeightUse> {
    let mut uses: BTreeMap<(WeightId, Form), WeightUse> = BTreeMap::new();
    for (graph, node) in graphs.iter().flat_map(|graph| graph.nodes().map(move |n| (graph, n))) {
        let table = table_operand(node.op).and_then(|i| graph.weight_of(node.operands[i]));
        if let Some(table) = table {
            uses.entry((table, Form::Native)).or_default();
        }
        for &(operand, matrix) in weight_operands(node.op) {
            let Some(weight) = graph.weight_of(node.operands[operand]) else { continue };
            let quantised = graph.weights()[weight].ty.dtype.is_block_quantised();
            let form = match (matrix, quantised) {
                (true, true) => Form::Packed,
                (true, false) => Form::Native,
                (false, _) => Form::Vector,
            };
            uses.entry((weight, form)).or_default().streamed = true;
        }
    }
    uses
}

/// The one part of a weight, if it lies in one piece and aligned to its elements.
fn mappable_part(def: &WeightDef) -> Option<Part> {
    let WeightSource::Parts(parts) = &def.source else { return None };
    let [part] = parts.as_slice() else { return None };
    let (block, bytes) = def.ty.dtype.block();
    let align = if block == 1 { bytes } else { 1 };
    (part.offset.is_multiple_of(align) && def.transform == Transform::None).then_some(*part)
}

fn first_choice(
    graph: &Graph,
    weight: WeightId,
    form: Form,
    use_: WeightUse,
    policy: TierPolicy,
) -> Placement {
    let def = &graph.weights()[weight];
    let part = mappable_part(def);
    let tier = match (form, &def.source) {
        (Form::Vector, WeightSource::Constant(_) | WeightSource::Integers(_)) => Tier::Constant,
        (Form::Native, _) if part.is_some() => match policy {
            TierPolicy::Ram => Tier::Ram,
            TierPolicy::Mapped => Tier::Mapped,
            TierPolicy::Auto if use_.streamed => Tier::Ram,
            TierPolicy::Auto => Tier::Mapped,
        },
        _ => Tier::Ram,
    };
    let file = part.map_or(0, |p| p.file);
    Placement { weight, form, tier, offset: 0, bytes: placed_bytes(def, form), file }
}

/// Bytes of a weight in a form.
pub fn placed_bytes(def: &WeightDef, form: Form) -> u64 {
    match form {
        Form::Native => def.ty.bytes(),
        Form::Vector if def.ty.dtype == DType::U64 => 8 * def.ty.elements(),
        Form::Vector => 4 * def.ty.elements(),
        Form::Packed => {
            let format = WeightFormat::of(def.ty.dtype).expect("resolve_weights checked formats");
            let (matrices, rows) = match *def.ty.dims() {
                [experts, n, _] => (u64::from(experts), n),
                _ => (1, def.ty.dims()[0]),
            };
            matrices * packed_bytes(format, rows, def.ty.last_dim())
        }
    }
}

/// Whether a weight that is in RAM could be read from the file.
fn could_be_mapped(graph: &Graph, place: &Placement) -> bool {
    let one_piece = mappable_part(&graph.weights()[place.weight]).is_some();
    place.tier == Tier::Ram && place.form == Form::Native && one_piece
}

/// Whether a weight that is in RAM could lie in the packed file: matrices and tables that cannot be
/// read from their own file.
fn could_be_packed(graph: &Graph, place: &Placement) -> bool {
    let stored = matches!(graph.weights()[place.weight].source, WeightSource::Parts(_));
    let vector = place.form == Form::Vector;
    place.tier == Tier::Ram && stored && !vector && !could_be_mapped(graph, place)
}

/// The next weight that has to leave RAM, and where it goes.
fn next_to_leave(graph: &Graph, rows: &[Placement]) -> Option<(usize, Tier)> {
    // Of equal ones the first, so that the same input gives the same plan.
    let all = || rows.iter().enumerate().map(|(i, p)| ((p.bytes, std::cmp::Reverse(i)), i, p));
    let mapped = all().filter(|(_, _, p)| could_be_mapped(graph, p)).max_by_key(|(key, ..)| *key);
    if let Some((_, row, _)) = mapped {
        return Some((row, Tier::Mapped));
    }
    let is_bank = |p: &Placement| graph.weights()[p.weight].ty.dims().len() == 3;
    let packed = all().filter(|(_, _, p)| could_be_packed(graph, p));
    let packed = packed.max_by_key(|(key, _, p)| (is_bank(p), *key));
    packed.map(|(_, row, _)| (row, Tier::Packed))
}

fn assign_offsets(graph: &Graph, mut rows: Vec<Placement>) -> WeightPlaces {
    let mut places = WeightPlaces::default();
    let mut files: BTreeSet<(u32, u64, u64)> = BTreeSet::new();
    for row in &mut rows {
        let def = &graph.weights()[row.weight];
        match (row.tier, &def.source) {
            (Tier::Mapped, _) => {
                let part = mappable_part(def).expect("only weights in one piece are mapped");
                (row.offset, row.file) = (part.offset, part.file);
                files.insert((part.file, part.offset, part.bytes));
            }
            (Tier::Packed, _) => {
                let end = places.packed_bytes.max(PACK_HEADER_BYTES);
                row.offset = end.next_multiple_of(PACK_ALIGN_BYTES);
                places.packed_bytes = row.offset + row.bytes;
            }
            (Tier::Constant, WeightSource::Constant(values)) => {
                row.offset = places.push_constants(values.iter().map(|value| value.to_bits()));
            }
            (Tier::Constant, WeightSource::Integers(values)) => {
                let halves = |value: &u64| [*value as u32, (*value >> 32) as u32];
                row.offset = places.push_constants(values.iter().flat_map(halves));
            }
            _ => {
                row.offset = places.ram_bytes.next_multiple_of(WEIGHT_ALIGN_BYTES);
                places.ram_bytes = row.offset + row.bytes;
            }
        }
    }
    let mappable = rows.iter().filter(|p| could_be_mapped(graph, p));
    places.mappable_bytes = mappable.map(|p| p.bytes).sum();
    let packable = rows.iter().filter(|p| could_be_packed(graph, p));
    places.packable_bytes = packable.map(|p| p.bytes).sum();
    places.mapped_bytes = files.iter().map(|(_, _, bytes)| bytes).sum();
    places.index = rows.iter().enumerate().map(|(i, p)| ((p.weight, p.form), i)).collect();
    debug_assert!(rows.iter().all(|p| p.weight.index() < graph.weights().len()));
    places.rows = rows;
    places
}
