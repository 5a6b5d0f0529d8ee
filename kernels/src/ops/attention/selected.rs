//! Keys and values of selected blocks: where those of a span lie is looked up once for all heads.
//!
//! Selected keys are numbered in ascending order of their positions, and everything runs over these
//! numbers as it runs over positions where all keys are read. So the result is the same, bit for
//! bit, when every block is selected.

use super::{Body, SPAN, Unit};
use crate::builder::{Elem, KernelBuilder, Val};
use crate::ops::dots::Leaf;
use crate::ops::kv::{KvKind, KvLayout};
use crate::ops::pages::load_pieces;
use crate::ops::rows::{LANES, load_index};
use crate::spec::{Attention, Selected};

/// Scratch of a part: addresses for the keys of the present span.
#[derive(Clone, Copy)]
pub(super) struct Tables<'c> {
    layout: KvLayout,
    block: u32,
    /// `[256 / block]`: dimension 0 of each block's first key.
    keys: Val<'c>,
    /// `[256]`: each key's value.
    values: Val<'c>,
    /// `[256 / block]`: each block's first key scale; int8 only.
    scales: Option<Val<'c>>,
}

/// The blocks that a row selected.
#[derive(Clone, Copy)]
pub(super) struct Selection<'c> {
    /// `u32[]`: ids, ascending.
    ids: Val<'c>,
    /// The list's last index.
    last: Val<'c>,
}

/// The addresses of a tile's keys.
pub(super) struct TileKeys<'c> {
    tables: Tables<'c>,
    blocks: Vec<Val<'c>>,
}

impl<'c> TileKeys<'c> {
    /// Dimension `dim` of the tile's keys, without scales.
    pub fn load(&self, b: &KernelBuilder<'c>, dim: Val<'c>) -> Val<'c> {
        let layout = &self.tables.layout;
        let bytes = b.mul(dim, b.i64((layout.key_group * layout.kind.element_bytes()) as i64));
        let pieces: Vec<Val<'c>> = self.blocks.iter().map(|&key| b.at(key, bytes)).collect();
        load_pieces(b, layout.kind, &pieces, self.tables.block)
    }
}

impl<'c> Selection<'c> {
    /// The list of `attended` keys at `list`, whose word 0 is their count.
    pub fn new(b: &KernelBuilder<'c>, s: Selected, list: Val<'c>, attended: Val<'c>) -> Self {
        let last = b.shr(b.sub(attended, b.i64(1)), b.i64(s.block.ilog2().into()));
        Self { ids: b.offset(list, 4), last }
    }
}

impl<'c> Tables<'c> {
    pub fn new(b: &KernelBuilder<'c>, s: &Attention, block: u32) -> Self {
        let layout = s.kv;
        let blocks = || b.scratch(SPAN / block * 8);
        let scales = (layout.kind == KvKind::Int8).then(blocks);
        Self { layout, block, keys: blocks(), values: b.scratch(SPAN * 8), scales }
    }

    /// Address in a table of what belongs to the block of key number `at`.
    fn of_block(&self, b: &KernelBuilder<'c>, table: Val<'c>, at: Val<'c>) -> Val<'c> {
        let inside = b.and(at, b.i64(i64::from(SPAN) - 1));
        b.element(table, b.shr(inside, b.i64(self.block.ilog2().into())), 8)
    }

    fn pointers(&self, b: &KernelBuilder<'c>, at: Val<'c>, count: u32) -> Vec<Val<'c>> {
        let load = |i: u32| b.load(Elem::Ptr.scalar(), b.offset(at, i64::from(i) * 8));
        (0..count).map(load).collect()
    }

    /// Where the `tile` keys from number `at` on lie.
    pub fn keys_of(&self, b: &KernelBuilder<'c>, at: Val<'c>, tile: u32) -> TileKeys<'c> {
        let first = self.of_block(b, self.keys, at);
        TileKeys { tables: *self, blocks: self.pointers(b, first, tile / self.block) }
    }

    /// Address of the value of key number `at`.
    pub fn value(&self, b: &KernelBuilder<'c>, at: Val<'c>) -> Val<'c> {
        let inside = b.and(at, b.i64(i64::from(SPAN) - 1));
        b.load(Elem::Ptr.scalar(), b.element(self.values, inside, 8))
    }

    /// Scales of `lanes` keys from number `at` on, or of what lies `further` bytes behind them.
    pub fn scales(
        &self,
        b: &KernelBuilder<'c>,
        at: Val<'c>,
        lanes: u32,
        further: i64,
    ) -> Option<Val<'c>> {
        self.scales.map(|table| {
            let first = self.of_block(b, table, at);
            let blocks = self.pointers(b, first, lanes / self.block);
            let blocks: Vec<Val<'c>> = blocks.iter().map(|&at| b.offset(at, further)).collect();
            load_pieces(b, KvKind::F32, &blocks, self.block)
        })
    }

    /// Asks, in one step of a leaf, for a share of the tile's values and of the next tile's keys.
    pub fn fetch(
        &self,
        b: &KernelBuilder<'c>,
        at: Val<'c>,
        tile: u32,
        (leaf, dim): (Leaf<'c>, Val<'c>),
    ) {
        let layout = &self.layout;
        let block_bytes = self.block * (layout.head_dim * layout.kind.element_bytes()) as u32;
        let lines = (block_bytes / 64).max(1);
        // Half of the leaves ask for keys, half for values: four of either, or eight.
        let steps = layout.head_dim as u32 / LANES;
        let wanted = (tile / self.block * lines).div_ceil(4 * steps);
        let leaves = wanted.clamp(1, 2);
        let count = wanted.div_ceil(leaves);
        let is_key = leaf.number < 2;
        // Keys of larger groups lie a line each: too many to ask for.
        let scattered = is_key && layout.key_group != self.block as usize;
        if scattered || leaf.number % 2 >= leaves {
            return;
        }
        let turn = b.add(b.mul(leaf.i, b.i64(leaves.into())), b.i64((leaf.number % 2).into()));
        let step = b.add(b.mul(turn, b.i64(steps.into())), b.shr(dim, b.i64(4)));
        let line = b.mul(step, b.i64(count.into()));
        let lines = b.i64(lines.into());
        let (block, line) = (b.udiv(line, lines), b.urem(line, lines));
        let number = b.mul(block, b.i64(self.block.into()));
        let from = if is_key {
            let last = b.or(at, b.i64(i64::from(SPAN - tile)));
            let next = b.add(b.imin(b.add(at, b.i64(tile.into())), last), number);
            b.load(Elem::Ptr.scalar(), self.of_block(b, self.keys, next))
        } else {
            self.value(b, b.add(at, number))
        };
        let line = b.element(from, line, 64);
        for i in 0..i64::from(count) {
            b.prefetch(b.offset(line, 64 * i));
        }
    }
}

impl<'c> Body<'c> {
    /// Fills the tables for key numbers `begin..end` of one span, and for the rest of the last tile
    /// and a tile behind it with what lies there: its lanes are computed, or fetched, and not used.
    pub(super) fn look_up(
        &self,
        b: &KernelBuilder<'c>,
        unit: &Unit<'c>,
        (tables, selection): (&Tables<'c>, Selection<'c>),
        (begin, end): (Val<'c>, Val<'c>),
    ) {
        let layout = self.s.kv;
        let tile = i64::from(self.tile(b, unit.heads));
        let end = b.and(b.add(end, b.i64(2 * tile - 1)), b.i64(-tile));
        let end = b.imin(end, b.add(begin, b.i64(SPAN.into())));
        let line_bytes = (layout.head_dim * layout.kind.element_bytes()) as i64;
        b.for_range((begin, end), tables.block.into(), &[], |at, _| {
            let block = b.shr(at, b.i64(tables.block.ilog2().into()));
            let id = load_index(b, selection.ids, b.imin(block, selection.last));
            let position = b.mul(id, b.i64(tables.block.into()));
            let head = self.head_in_page(b, unit, position);
            let index = self.pages.index(b, position);
            b.store(tables.of_block(b, tables.keys, at), self.pages.key(b, head, index));
            if let Some(scales) = tables.scales {
                let first = b.offset(head, layout.k_scale_offset(0, 0) as i64);
                b.store(tables.of_block(b, scales, at), b.element(first, index, 4));
            }
            let values = b.offset(head, layout.v_offset(0, 0, 0) as i64);
            let first = b.element(values, index, line_bytes);
            let inside = b.and(at, b.i64(i64::from(SPAN) - 1));
            let table = b.element(tables.values, inside, 8);
            for i in 0..i64::from(tables.block) {
                b.store(b.offset(table, 8 * i), b.offset(first, i * line_bytes));
            }
            Vec::new()
        });
    }
}
