//! All that must hold in a plan before one row of it is used.

mod rows;
mod schedules;
mod states;
mod structure;

pub(crate) use rows::contents;
pub(crate) use structure::sections;

use crate::error::{At, PlanError, Relation};
use crate::layout::{NONE, Run};

/// No space, file or section can be larger: addresses of user programs have 47 bits.
const LARGEST_BYTES: u64 = 1 << 46;

/// The checks of one field of the row at `self`.
impl At {
    fn reference(
        self,
        field: &'static str,
        found: u32,
        rows: usize,
        of: &'static str,
    ) -> Result<usize, PlanError> {
        let row = found as usize;
        if row < rows {
            return Ok(row);
        }
        Err(PlanError::Reference { at: self, field, found: u64::from(found), rows, of })
    }

    fn optional(
        self,
        field: &'static str,
        found: u32,
        rows: usize,
        of: &'static str,
    ) -> Result<Option<usize>, PlanError> {
        if found == NONE { Ok(None) } else { self.reference(field, found, rows, of).map(Some) }
    }

    fn run(
        self,
        field: &'static str,
        found: Run,
        rows: usize,
        of: &'static str,
    ) -> Result<(), PlanError> {
        let end = u64::from(found.first) + u64::from(found.count);
        if end <= rows as u64 {
            return Ok(());
        }
        Err(PlanError::Reference { at: self, field, found: end - 1, rows, of })
    }

    fn code(
        self,
        field: &'static str,
        found: u32,
        all: &[(u32, &'static str)],
    ) -> Result<&'static str, PlanError> {
        let known = all.iter().find(|(code, _)| *code == found);
        known.map(|(_, name)| *name).ok_or(PlanError::Code {
            at: self,
            field,
            found: u64::from(found),
        })
    }

    fn range(
        self,
        field: &'static str,
        offset: u64,
        bytes: u64,
        limit: u64,
    ) -> Result<(), PlanError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= limit => Ok(()),
            _ => Err(PlanError::Range { at: self, field, offset, bytes, limit }),
        }
    }

    fn align(self, field: &'static str, found: u64, align_bytes: u64) -> Result<(), PlanError> {
        if found.is_multiple_of(align_bytes) {
            return Ok(());
        }
        Err(PlanError::Align { at: self, field, found, align_bytes })
    }

    fn at_least(self, field: &'static str, found: u64, limit: u64) -> Result<(), PlanError> {
        self.limit(found >= limit, field, found, (Relation::AtLeast, limit))
    }

    fn at_most(self, field: &'static str, found: u64, limit: u64) -> Result<(), PlanError> {
        self.limit(found <= limit, field, found, (Relation::AtMost, limit))
    }

    fn equal(self, field: &'static str, found: u64, needed: u64) -> Result<(), PlanError> {
        self.limit(found == needed, field, found, (Relation::Equal, needed))
    }

    fn limit(
        self,
        good: bool,
        field: &'static str,
        found: u64,
        (relation, limit): (Relation, u64),
    ) -> Result<(), PlanError> {
        if good {
            return Ok(());
        }
        Err(PlanError::Limit { at: self, field, found, relation, limit })
    }

    fn reserve<const N: usize, T: Into<u64>>(self, fields: [T; N]) -> Result<(), PlanError> {
        if fields.into_iter().all(|field| field.into() == 0) {
            return Ok(());
        }
        Err(PlanError::Reserve { section: self.section, row: self.row })
    }
}
