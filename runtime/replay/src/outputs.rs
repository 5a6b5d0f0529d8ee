//! Values that a plan keeps readable behind a window.

use crate::session::{Engine, Ran};

/// A value of the last window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedOutput<'a> {
    pub name: &'a str,
    /// The element type, as graphs write it.
    pub dtype: &'a str,
    /// Elements in each dimension, outermost first. The window's, not the live rows.
    pub dims: &'a [u32],
    /// All elements, of which those of rows that are not live mean nothing.
    pub bytes: &'a [u8],
    /// Live rows of the window.
    pub rows: usize,
}

impl<'a> NamedOutput<'a> {
    /// Bytes of the live rows of a value whose outermost dimension is the window's rows.
    pub fn live(&self) -> &'a [u8] {
        let all = self.dims.first().map_or(1, |&dim| dim.max(1) as usize);
        &self.bytes[..self.bytes.len() / all * self.rows.min(all)]
    }

    /// The live rows of a value of `u32`; empty for other types.
    pub fn words(&self) -> &'a [u32] {
        if self.dtype == "u32" { bytemuck::cast_slice(self.live()) } else { &[] }
    }

    /// The live rows of a value of `f32`; empty for other types.
    pub fn floats(&self) -> &'a [f32] {
        if self.dtype == "f32" { bytemuck::cast_slice(self.live()) } else { &[] }
    }
}

impl Engine {
    /// What the last window left besides its logits, in the order of the plan. Nothing before the
    /// first window.
    pub fn outputs(&self) -> impl Iterator<Item = NamedOutput<'_>> {
        let last = self.last.unwrap_or(Ran { schedule: 0, rows: 0 });
        let run = self.plan.schedules().get(last.schedule).map(|row| row.outputs.range());
        let run = run.filter(|_| self.last.is_some()).unwrap_or(0..0);
        self.plan.outputs()[run].iter().map(move |row| {
            let narrow = |bytes| usize::try_from(bytes).expect("inside the arena");
            let start = narrow(self.plan.args()[row.arg as usize].offset);
            NamedOutput {
                name: self.plan.name(row.name),
                dtype: self.plan.name(row.dtype),
                dims: &row.dims[..row.rank as usize],
                bytes: &self.spaces.arena.bytes()[start..start + narrow(row.bytes)],
                rows: last.rows,
            }
        })
    }
}
