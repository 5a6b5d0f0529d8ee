//! Sizes and places of states and of the step block: fixed by the configuration, not by a window.

use strata_graph::{Graph, Id, Op, StateId, StateKind, Table, ValueId, WindowKind};
use strata_kernels::ops::kv::{KvKind, KvLayout};
use strata_kernels::ops::slots::SlotLayout;
use strata_kernels::spec::DeltaFactors;

use crate::config::{Config, KvElement};
use crate::error::LowerError;

/// Words of the step block before its arrays.
pub const STEP_HEADER_BYTES: u32 = 64;

/// Limits of sequences, in tokens and pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paging {
    pub slots: u32,
    pub context_tokens: u32,
    pub page_tokens: u32,
    pub pages_per_slot: u32,
    pub pages: u32,
}

impl Paging {
    /// # Errors
    /// More than 2^26 pages: their table would not fit the step block.
    pub fn new(config: &Config, model_context_tokens: u32) -> Result<Self, LowerError> {
        let slots = config.sequences.slots;
        let page_tokens = config.kv.page_tokens;
        let context_tokens = match model_context_tokens {
            0 => config.sequences.context_tokens,
            limit => config.sequences.context_tokens.min(limit),
        };
        let pages_per_slot = context_tokens.div_ceil(page_tokens);
        let pages = pages_per_slot.checked_mul(slots).filter(|&pages| pages <= 1 << 26);
        let pages = pages.ok_or_else(|| LowerError::Config {
            field: "sequences",
            found: format!("{slots} slots of {context_tokens} positions"),
            need: "at most 2^26 pages together",
        })?;
        Ok(Self { slots, context_tokens, page_tokens, pages_per_slot, pages })
    }
}

/// Rows that a page of pooled keys has at least: kernels read them side by side.
const LEAST_PAGE_ROWS: u32 = 16;

/// Checks that a page holds enough rows of states that keep one row for several positions.
///
/// # Errors
/// Pages that are too short, by the field of the configuration.
pub fn check_pages(graph: &Graph, paging: &Paging) -> Result<(), LowerError> {
    let too_short = |every: u32| paging.page_tokens / every < LEAST_PAGE_ROWS;
    match graph.states().values().find(|def| too_short(def.every)) {
        None => Ok(()),
        Some(def) => Err(LowerError::Config {
            field: "kv.page_tokens",
            found: format!(
                "{}, of which {} keeps a row for every {}",
                paging.page_tokens, def.name, def.every
            ),
            need: "at least 16 rows a page: 64 positions for blocks of 4",
        }),
    }
}

/// Where one state lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePlace {
    /// In STATES, of page 0 or slot 0.
    pub offset: u64,
    /// Of one page or slot.
    pub stride_bytes: u64,
    /// Of all pages or slots.
    pub bytes: u64,
    pub token_bytes: u64,
    pub form: StateForm,
}

/// How kernels find a row or a value of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateForm {
    /// Pages of positions; a state without values holds keys only.
    Pages(KvLayout),
    /// A value a slot, then its pending rows.
    Slots { layout: SlotLayout, value_bytes: u64 },
}

/// Where all states lie.
#[derive(Clone, Debug)]
pub struct StatePlaces {
    pub of_state: Table<StateId, StatePlace>,
    pub bytes: u64,
    /// What one more position of every sequence costs.
    pub token_bytes: u64,
}

/// Lays out the states of `graphs`: pages for those that grow, one value a slot for the others.
///
/// Behind each value there is room for the rows of the largest verify window, which a commit
/// applies; states that only draft windows change have none.
pub fn place_states(graphs: &[Graph], config: &Config, paging: &Paging) -> StatePlaces {
    let mut places = StatePlaces { of_state: Table::new(), bytes: 0, token_bytes: 0 };
    let verify_rows = largest_window(graphs, WindowKind::Verify);
    for (id, def) in graphs[0].states().iter() {
        let (stride_bytes, count, form) = match def.kind {
            StateKind::Append => {
                let layout = pages_of(graphs, id, config, paging);
                (layout.page_bytes() as u64, paging.pages, StateForm::Pages(layout))
            }
            StateKind::Recurrent | StateKind::Tail(_) => {
                let rows = if def.seed.is_some() { 0 } else { verify_rows };
                let form = slots_of(graphs, id, rows.into());
                let StateForm::Slots { layout, .. } = form else { unreachable!("made as slots") };
                (layout.stride_bytes, paging.slots, form)
            }
        };
        let stride_bytes = stride_bytes.next_multiple_of(64);
        let token_bytes = match form {
            StateForm::Pages(_) => stride_bytes / u64::from(paging.page_tokens),
            StateForm::Slots { .. } => 0,
        };
        let bytes = stride_bytes * u64::from(count);
        let offset = places.bytes;
        places.of_state.push(StatePlace { offset, stride_bytes, bytes, token_bytes, form });
        places.bytes += bytes;
        places.token_bytes += token_bytes * u64::from(paging.slots);
    }
    debug_assert_eq!(
        places.of_state.keys().map(Id::index).max().map_or(0, |m| m + 1),
        graphs[0].states().len()
    );
    places
}

/// What `find` makes of an op that takes `state`, in any of the windows: they differ in rows, not in
/// what a state is for.
pub(crate) fn find_op_of<T>(
    graphs: &[Graph],
    state: StateId,
    find: impl Fn(&Op) -> Option<T>,
) -> Option<T> {
    graphs.iter().find_map(|graph| {
        graph.nodes().find_map(|node| {
            let takes = |&value: &ValueId| graph.state_of(value) == Some(state);
            find(node.op).filter(|_| node.operands.iter().any(takes))
        })
    })
}

/// Rows of the largest window of `kind`, 0 if there is none.
fn largest_window(graphs: &[Graph], kind: WindowKind) -> u32 {
    let of_kind = graphs.iter().filter(|graph| graph.window.kind == kind);
    of_kind.map(|graph| graph.window.rows).max().unwrap_or(0)
}

fn pages_of(graphs: &[Graph], id: StateId, config: &Config, paging: &Paging) -> KvLayout {
    let def = &graphs[0].states()[id];
    let keys_only = def.every > 1;
    let kind = match config.kv.element {
        KvElement::F32 => KvKind::F32,
        // A pooled key decides what is read at all, and there are few of them.
        KvElement::Int8 if keys_only => KvKind::F16,
        KvElement::F16 => KvKind::F16,
        KvElement::Int8 => KvKind::Int8,
    };
    let tokens = (paging.page_tokens / def.every) as usize;
    let head_dim = def.row.last_dim() as usize;
    if keys_only {
        return KvLayout::keys_only(kind, head_dim, tokens);
    }
    let layout = KvLayout::new(kind, def.row.dims()[0] as usize, head_dim, tokens);
    match selected_block(graphs, id) {
        Some(block) => layout.grouped(usize::from(block)),
        None => layout,
    }
}

/// Positions that are read together where an op reads some blocks of the state only.
fn selected_block(graphs: &[Graph], id: StateId) -> Option<u16> {
    find_op_of(graphs, id, |op| match *op {
        Op::SparseAttention { block, .. } => Some(block),
        _ => None,
    })
}

fn slots_of(graphs: &[Graph], id: StateId, pending_rows: u64) -> StateForm {
    let def = &graphs[0].states()[id];
    let row_bytes = def.row.bytes();
    match def.kind {
        StateKind::Tail(rows) => {
            let rows = u64::from(rows);
            let layout = SlotLayout::tail(rows, row_bytes, pending_rows);
            StateForm::Slots { layout, value_bytes: rows * row_bytes }
        }
        _ => {
            let layout = SlotLayout::new(row_bytes, factor_bytes(graphs, id), pending_rows);
            StateForm::Slots { layout, value_bytes: row_bytes }
        }
    }
}

/// Bytes of what a delta rule saves of a row: its key, its change and its decay.
fn factor_bytes(graphs: &[Graph], id: StateId) -> u64 {
    let factors = find_op_of(graphs, id, |op| match *op {
        Op::GatedDelta { key_heads, value_heads, head_dim, .. } => {
            Some(DeltaFactors::new(key_heads.into(), value_heads.into(), head_dim.into()))
        }
        _ => None,
    });
    factors.map_or(0, DeltaFactors::bytes)
}

/// Byte offsets of the arrays of the step block; all are `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLayout {
    pub tokens: u32,
    pub positions: u32,
    pub slots: u32,
    pub logit_rows: u32,
    pub page_table: u32,
    pub offsets: u32,
    pub commit_slots: u32,
    pub commit_rows: u32,
    pub bytes: u32,
    pub max_rows: u32,
    pub max_logit_rows: u32,
    /// Rows of the largest verify window and of the largest draft window, 0 without one.
    pub verify_rows: u32,
    pub draft_rows: u32,
}

impl StepLayout {
    /// For the largest of `graphs`' windows.
    pub fn new(graphs: &[Graph], paging: &Paging) -> Self {
        let max = |of: fn(&Graph) -> u32| graphs.iter().map(of).max().unwrap_or(0);
        let max_rows = max(|g| g.window.rows);
        let max_logit_rows = max(|g| g.window.logit_rows);
        let lines = |words: u32| (words * 4).next_multiple_of(64);
        let tokens = STEP_HEADER_BYTES;
        let positions = tokens + lines(max_rows);
        let slots = positions + lines(max_rows);
        let logit_rows = slots + lines(max_rows);
        let offsets = logit_rows + lines(max_logit_rows);
        let commit_slots = offsets + lines(max_rows);
        let commit_rows = commit_slots + lines(paging.slots);
        // Last, since it is by far the largest.
        let page_table = commit_rows + lines(paging.slots);
        let bytes = page_table + lines(paging.pages);
        Self {
            tokens,
            positions,
            slots,
            logit_rows,
            page_table,
            offsets,
            commit_slots,
            commit_rows,
            bytes,
            max_rows,
            max_logit_rows,
            verify_rows: largest_window(graphs, WindowKind::Verify),
            draft_rows: largest_window(graphs, WindowKind::Draft),
        }
    }
}
