//! Sizes and places of states and of the step block: fixed by the configuration, not by a window.

use strata_graph::{Graph, Id, StateId, StateKind, Table};
use strata_kernels::ops::kv::{KvKind, KvLayout};

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
    pub layout: Option<KvLayout>,
}

/// Where all states lie.
#[derive(Clone, Debug)]
pub struct StatePlaces {
    pub of_state: Table<StateId, StatePlace>,
    pub bytes: u64,
    /// What one more position of every sequence costs.
    pub token_bytes: u64,
}

/// Lays out the states of `graph`: pages for those that grow, one value a slot for the others.
pub fn place_states(graph: &Graph, config: &Config, paging: &Paging) -> StatePlaces {
    let kind = match config.kv.element {
        KvElement::F32 => KvKind::F32,
        KvElement::F16 => KvKind::F16,
        KvElement::Int8 => KvKind::Int8,
    };
    let mut places = StatePlaces { of_state: Table::new(), bytes: 0, token_bytes: 0 };
    for def in graph.states().values() {
        let (stride_bytes, count, layout) = match def.kind {
            StateKind::Append => {
                let dims = def.row.dims();
                let layout = KvLayout {
                    kind,
                    kv_heads: dims[0] as usize,
                    head_dim: def.row.last_dim() as usize,
                    page_tokens: paging.page_tokens as usize,
                };
                (layout.page_bytes() as u64, paging.pages, Some(layout))
            }
            StateKind::Recurrent => (def.row.bytes(), paging.slots, None),
            StateKind::Tail(rows) => (def.row.bytes() * u64::from(rows), paging.slots, None),
        };
        let stride_bytes = stride_bytes.next_multiple_of(64);
        let token_bytes = layout.map_or(0, |_| stride_bytes / u64::from(paging.page_tokens));
        let bytes = stride_bytes * u64::from(count);
        let offset = places.bytes;
        places.of_state.push(StatePlace { offset, stride_bytes, bytes, token_bytes, layout });
        places.bytes += bytes;
        places.token_bytes += token_bytes * u64::from(paging.slots);
    }
    debug_assert_eq!(
        places.of_state.keys().map(Id::index).max().map_or(0, |m| m + 1),
        graph.states().len()
    );
    places
}

/// Byte offsets of the arrays of the step block; all are `u32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLayout {
    pub tokens: u32,
    pub positions: u32,
    pub slots: u32,
    pub logit_rows: u32,
    pub page_table: u32,
    pub bytes: u32,
    pub max_rows: u32,
    pub max_logit_rows: u32,
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
        let page_table = logit_rows + lines(max_logit_rows);
        let bytes = page_table + lines(paging.pages);
        Self { tokens, positions, slots, logit_rows, page_table, bytes, max_rows, max_logit_rows }
    }
}
