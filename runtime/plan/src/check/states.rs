//! Rows of STATES: where they lie, and what stands in a slot.

use super::rows::rows;
use crate::error::{At, PlanError};
use crate::layout::{Model, NONE, State, schedule, space, state};
use crate::open::Plan;

/// Values and pending rows begin on lines of the cache, so that no two slots share one.
const SLOT_ALIGN_BYTES: u64 = 64;

pub(super) fn states(plan: &Plan) -> Result<(), PlanError> {
    let model = plan.model();
    for (at, row) in rows("STATES", plan.states()) {
        at.code("kind", row.kind, state::ALL)?;
        at.name(plan, "name", row.name)?;
        at.name(plan, "dtype", row.dtype)?;
        let space = at.reference("space", row.space, plan.spaces().len(), "SPACES")?;
        let space = &plan.spaces()[space];
        at.equal("kind of space", u64::from(space.kind), u64::from(space::STATES))?;
        at.range("offset", row.offset, state_bytes(row, model), space.bytes)?;
        if row.kind == state::APPEND {
            append(at, row, model)?;
        } else {
            slot(plan, at, row)?;
        }
    }
    Ok(())
}

fn state_bytes(row: &State, model: &Model) -> u64 {
    let places = if row.kind == state::APPEND { model.pages } else { model.slots };
    row.stride_bytes.saturating_mul(u64::from(places))
}

/// Pages hold whole rows, and no slot holds anything.
fn append(at: At, row: &State, model: &Model) -> Result<(), PlanError> {
    at.at_least("every", u64::from(row.every), 1)?;
    at.align("page_tokens over every", u64::from(model.page_tokens), u64::from(row.every))?;
    // A window that begins on a page may write to the one before it, and to no earlier one.
    at.at_most("first", u64::from(row.first), u64::from(model.page_tokens))?;
    at.equal("tail_rows", u64::from(row.tail_rows), 0)?;
    at.equal("value_bytes", row.value_bytes, 0)?;
    at.equal("pending_bytes", row.pending_bytes, 0)?;
    at.equal("pending_stride_bytes", row.pending_stride_bytes, 0)?;
    at.equal("seed", u64::from(row.seed), u64::from(NONE))
}

/// A slot is its value, then `verify_rows` pending rows; a seeded state may have none.
fn slot(plan: &Plan, at: At, row: &State) -> Result<(), PlanError> {
    at.equal("every", u64::from(row.every), 1)?;
    at.equal("first", u64::from(row.first), 0)?;
    at.at_least("value_bytes", row.value_bytes, 1)?;
    at.at_most("value_bytes", row.value_bytes, row.stride_bytes)?;
    if row.kind == state::TAIL {
        at.at_least("tail_rows", u64::from(row.tail_rows), 1)?;
        at.align("value_bytes", row.value_bytes, u64::from(row.tail_rows))?;
    } else {
        at.equal("tail_rows", u64::from(row.tail_rows), 0)?;
    }
    seed(plan, at, row)?;
    if row.pending_stride_bytes == 0 {
        at.equal("pending_bytes", row.pending_bytes, 0)?;
        let verified = row.seed == NONE && plan.model().verify_rows > 0;
        return at.at_least("pending_stride_bytes", 0, u64::from(verified));
    }
    at.align("offset", row.offset, SLOT_ALIGN_BYTES)?;
    at.align("stride_bytes", row.stride_bytes, SLOT_ALIGN_BYTES)?;
    at.align("pending_bytes", row.pending_bytes, SLOT_ALIGN_BYTES)?;
    at.align("pending_stride_bytes", row.pending_stride_bytes, SLOT_ALIGN_BYTES)?;
    at.at_least("pending_bytes", row.pending_bytes, row.value_bytes)?;
    let bytes = row.pending_stride_bytes.saturating_mul(u64::from(plan.model().verify_rows));
    at.range("pending_bytes", row.pending_bytes, bytes, row.stride_bytes)
}

/// A seed is a value of the same form that is not seeded itself.
fn seed(plan: &Plan, at: At, row: &State) -> Result<(), PlanError> {
    let Some(seed) = at.optional("seed", row.seed, plan.states().len(), "STATES")? else {
        return Ok(());
    };
    let source = &plan.states()[seed];
    at.equal("kind of seed", u64::from(source.kind), u64::from(row.kind))?;
    at.equal("value_bytes of seed", source.value_bytes, row.value_bytes)?;
    at.equal("seed of seed", u64::from(source.seed), u64::from(NONE))?;
    at.at_least("seed: MODEL.draft_rows", u64::from(plan.model().draft_rows), 1)
}

/// Whether VERIFY windows leave pending rows, which only a COMMIT schedule can apply.
pub(super) fn has_pending(plan: &Plan) -> bool {
    plan.states().iter().any(|row| row.pending_stride_bytes > 0)
        && plan.schedules().iter().any(|row| row.kind == schedule::VERIFY)
}
