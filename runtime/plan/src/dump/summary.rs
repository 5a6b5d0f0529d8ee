//! What a plan takes and costs, as plain rows.

use std::collections::BTreeSet;

use super::schedule::{count, schedule_name};
use crate::layout::{Model, cpu_feature, opcode, space, state, tier};
use crate::open::Plan;

/// Sums over a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub model: String,
    pub parameters: u64,
    pub layers: u32,
    pub vocab: u32,
    pub context_tokens: u32,
    pub slots: u32,
    pub pages: u32,
    pub page_tokens: u32,
    pub targets: Vec<TargetCode>,
    pub spaces: Vec<SpaceBytes>,
    pub weights: Vec<WeightClass>,
    pub experts: Option<ExpertBytes>,
    pub states: Vec<StateBytes>,
    pub windows: Vec<WindowCost>,
    pub kernels: Vec<KernelCode>,
}

/// The code of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetCode {
    pub name: String,
    pub features: Vec<&'static str>,
    pub kernel_count: u32,
    pub code_bytes: u64,
}

/// One space. Mapped files are not memory that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceBytes {
    pub name: String,
    pub kind: String,
    pub bytes: u64,
    pub mapped: bool,
}

/// All weights of one tier and stored type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightClass {
    pub tier: String,
    pub dtype: String,
    pub weight_count: u32,
    pub bytes: u64,
    /// In the files.
    pub stored_bytes: u64,
}

/// Weights of experts: those that have a dimension more than others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertBytes {
    /// Of one layer.
    pub count: u32,
    pub layers: u32,
    /// Of all experts of all layers.
    pub bytes: u64,
    /// Of one expert of one layer.
    pub expert_bytes: u64,
}

/// One state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateBytes {
    pub name: String,
    pub kind: String,
    pub dtype: String,
    /// Of all sequences.
    pub bytes: u64,
    /// What one more position costs.
    pub token_bytes: u64,
    /// Of one sequence that fills its context.
    pub sequence_bytes: u64,
    /// Of them, rows that wait to be committed.
    pub pending_bytes: u64,
}

/// One window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowCost {
    pub name: String,
    pub rows: u32,
    pub logit_rows: u32,
    pub commands: u32,
    pub launches: u32,
    /// Of nodes of layers, and how many layers these are.
    pub layer_launches: u32,
    pub layers: u32,
    pub barriers: u32,
    pub bytes: u64,
    pub flops: u64,
    pub arena_bytes: u64,
}

/// One kernel of the first target, and how often windows launch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelCode {
    pub name: String,
    pub spec: String,
    pub code_bytes: u64,
    pub launches: u32,
}

impl WindowCost {
    /// Launches of a layer, on average; 0 without layers.
    pub fn launches_per_layer(&self) -> f64 {
        f64::from(self.layer_launches) / f64::from(self.layers.max(1))
    }
}

impl Summary {
    pub fn of(plan: &Plan) -> Self {
        let model = plan.model();
        Self {
            model: plan.name(model.name).to_owned(),
            parameters: model.parameters,
            layers: model.layers,
            vocab: model.vocab,
            context_tokens: model.context_tokens,
            slots: model.slots,
            pages: model.pages,
            page_tokens: model.page_tokens,
            targets: targets(plan),
            spaces: spaces(plan),
            weights: weights(plan),
            experts: experts(plan),
            states: states(plan, model),
            windows: windows(plan),
            kernels: kernels(plan),
        }
    }

    /// Bytes of memory that the plan takes, mapped files not counted.
    pub fn memory_bytes(&self) -> u64 {
        self.spaces.iter().filter(|space| !space.mapped).map(|space| space.bytes).sum()
    }
}

fn word(all: &[(u32, &str)], code: u32) -> String {
    let known = all.iter().find(|(known, _)| *known == code);
    known.map_or_else(|| code.to_string(), |(_, name)| name.to_lowercase())
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("a section has fewer than 2^32 rows")
}

fn targets(plan: &Plan) -> Vec<TargetCode> {
    let code = |row: &crate::layout::Target| {
        let first = row.first_kernel as usize;
        let kernels = &plan.kernels()[first..first + row.kernel_count as usize];
        let has = |(bit, _): &&(u64, &str)| row.features & bit != 0;
        TargetCode {
            name: plan.name(row.name).to_owned(),
            features: cpu_feature::ALL.iter().filter(has).map(|(_, name)| *name).collect(),
            kernel_count: row.kernel_count,
            code_bytes: kernels.iter().map(|kernel| kernel.code_bytes).sum(),
        }
    };
    plan.targets().iter().map(code).collect()
}

fn spaces(plan: &Plan) -> Vec<SpaceBytes> {
    // Plans that fit RAM have an empty one.
    let used = |row: &&crate::layout::Space| row.kind != space::PACK || row.bytes > 0;
    let space = |row: &crate::layout::Space| SpaceBytes {
        name: plan.name(row.name).to_owned(),
        kind: word(space::ALL, row.kind),
        bytes: row.bytes,
        mapped: matches!(row.kind, space::FILE | space::PACK),
    };
    plan.spaces().iter().filter(used).map(space).collect()
}

fn weights(plan: &Plan) -> Vec<WeightClass> {
    let mut classes: Vec<WeightClass> = Vec::new();
    for row in plan.weights() {
        let (tier, dtype) = (word(tier::ALL, row.tier), plan.name(row.dtype));
        let same = |class: &WeightClass| class.tier == tier && class.dtype == dtype;
        let at = classes.iter().position(same).unwrap_or_else(|| {
            let dtype = dtype.to_owned();
            classes.push(WeightClass { tier, dtype, weight_count: 0, bytes: 0, stored_bytes: 0 });
            classes.len() - 1
        });
        classes[at].weight_count += 1;
        classes[at].bytes = classes[at].bytes.saturating_add(row.bytes);
        let stored = &mut classes[at].stored_bytes;
        *stored = stored.saturating_add(row.stored_bytes);
    }
    classes.sort_by_key(|class| std::cmp::Reverse(class.bytes));
    classes
}

/// The layer of a name like "blk.3.attn_q" and what stands behind it.
fn layer_of(name: &str) -> Option<(u32, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

fn experts(plan: &Plan) -> Option<ExpertBytes> {
    let of_experts = |row: &&crate::layout::Weight| row.dims[2] > 1 && row.dims[3] == 1;
    let rows: Vec<_> = plan.weights().iter().filter(of_experts).collect();
    let count = rows.iter().map(|row| row.dims[0]).max()?;
    let layer = |row: &&crate::layout::Weight| layer_of(plan.name(row.name)).map(|(n, _)| n);
    let layers: BTreeSet<u32> = rows.iter().filter_map(layer).collect();
    let layers = narrow(layers.len().max(1));
    let bytes = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
    let expert_bytes = bytes / u64::from(layers) / u64::from(count.max(1));
    Some(ExpertBytes { count, layers, bytes, expert_bytes })
}

fn states(plan: &Plan, model: &Model) -> Vec<StateBytes> {
    let bytes = |row: &crate::layout::State| {
        let (all, one) = match row.kind {
            state::APPEND => (model.pages, model.pages_per_slot),
            _ => (model.slots, 1),
        };
        StateBytes {
            name: plan.name(row.name).to_owned(),
            kind: word(state::ALL, row.kind),
            dtype: plan.name(row.dtype).to_owned(),
            bytes: row.stride_bytes * u64::from(all),
            token_bytes: row.token_bytes,
            sequence_bytes: row.stride_bytes.saturating_mul(u64::from(one)),
            pending_bytes: row.pending_stride_bytes * u64::from(model.verify_rows),
        }
    };
    plan.states().iter().map(bytes).collect()
}

fn windows(plan: &Plan) -> Vec<WindowCost> {
    let cost = |row: &crate::layout::Schedule| {
        let commands = &plan.commands()[row.commands.range()];
        let sources = &plan.provenance()[row.commands.range()];
        let launched = commands.iter().zip(sources).filter(|(c, _)| c.opcode == opcode::LAUNCH);
        let layers = launched.filter_map(|(_, source)| layer_of(plan.name(source.name)));
        let layers: Vec<u32> = layers.map(|(layer, _)| layer).collect();
        WindowCost {
            name: schedule_name(row),
            rows: row.rows,
            logit_rows: row.logit_rows,
            commands: row.commands.count,
            launches: row.launches,
            layer_launches: narrow(layers.len()),
            layers: narrow(layers.iter().collect::<BTreeSet<_>>().len()),
            barriers: narrow(count(commands, opcode::BARRIER)),
            bytes: row.bytes,
            flops: row.flops,
            arena_bytes: row.arena_bytes,
        }
    };
    plan.schedules().iter().map(cost).collect()
}

fn kernels(plan: &Plan) -> Vec<KernelCode> {
    let Some(target) = plan.targets().first() else { return Vec::new() };
    let mut launches = vec![0; target.kernel_count as usize];
    for schedule in plan.schedules() {
        for command in &plan.commands()[schedule.commands.range()] {
            if command.opcode == opcode::LAUNCH {
                launches[command.row as usize] += 1;
            }
        }
    }
    let own = &plan.kernels()[target.first_kernel as usize..];
    let code = |(row, launches): (&crate::layout::Kernel, u32)| KernelCode {
        name: plan.name(row.name).to_owned(),
        spec: plan.name(row.spec).to_owned(),
        code_bytes: row.code_bytes,
        launches,
    };
    own.iter().zip(launches).map(code).collect()
}
