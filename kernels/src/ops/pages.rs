//! How kernels find and read KV pages.

use super::kv::{KvKind, KvLayout};
use super::rows::load_index;
use crate::builder::{Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::ops::require;
use crate::spec::KernelSpec;

/// The pages of one layer and the window's page table.
#[derive(Clone, Copy)]
pub(super) struct Pages<'c> {
    pub layout: KvLayout,
    pub pages_per_slot: u32,
    /// `u32[slots, pages_per_slot]`
    pub table: Val<'c>,
    /// Physical page 0.
    pub base: Val<'c>,
}

impl<'c> Pages<'c> {
    /// The slot's row of the page table.
    pub fn table_row(&self, b: &KernelBuilder<'c>, slot: Val<'c>) -> Val<'c> {
        b.element(self.table, slot, i64::from(self.pages_per_slot) * 4)
    }

    /// Address of the page that holds `position`, given the slot's row of the table.
    pub fn page(&self, b: &KernelBuilder<'c>, table_row: Val<'c>, position: Val<'c>) -> Val<'c> {
        let logical = b.shr(position, b.i64(self.layout.page_tokens.ilog2().into()));
        let physical = load_index(b, table_row, logical);
        b.element(self.base, physical, self.layout.page_bytes() as i64)
    }

    /// Index of `position` in its page.
    pub fn index(&self, b: &KernelBuilder<'c>, position: Val<'c>) -> Val<'c> {
        b.and(position, b.i64(self.layout.page_tokens as i64 - 1))
    }

    /// Address of dimension 0 of the key at page index `index`, in the page's part of a head.
    pub fn key(&self, b: &KernelBuilder<'c>, head: Val<'c>, index: Val<'c>) -> Val<'c> {
        let layout = &self.layout;
        let bytes = layout.kind.element_bytes() as i64;
        if layout.key_group == layout.page_tokens {
            return b.element(head, index, bytes);
        }
        let inside = b.and(index, b.i64(layout.key_group as i64 - 1));
        let group = b.element(head, b.sub(index, inside), layout.head_dim as i64 * bytes);
        b.element(group, inside, bytes)
    }

    /// Bytes from one dimension of a key to the next.
    pub fn key_stride(&self) -> i64 {
        (self.layout.key_group * self.layout.kind.element_bytes()) as i64
    }

    /// Dimension `dim` of `lanes` neighbouring keys, the first of them at `key`, without scales.
    pub fn load_keys(
        &self,
        b: &KernelBuilder<'c>,
        key: Val<'c>,
        dim: Val<'c>,
        lanes: u32,
    ) -> Val<'c> {
        let layout = &self.layout;
        let group = layout.key_group as u32;
        let column = b.element(key, dim, self.key_stride());
        if lanes <= group {
            return load_stored(b, layout.kind, column, lanes);
        }
        let bytes = self.key_stride() * layout.head_dim as i64;
        let pieces = (0..i64::from(lanes / group)).map(|i| b.offset(column, i * bytes));
        load_pieces(b, layout.kind, &pieces.collect::<Vec<_>>(), group)
    }
}

/// The element type of stored keys and values.
pub(super) fn stored(kind: KvKind) -> Elem {
    match kind {
        KvKind::F32 => Elem::F32,
        KvKind::F16 => Elem::F16,
        KvKind::Int8 => Elem::I8,
    }
}

/// `lanes` stored elements as f32, without their scale.
pub(super) fn load_stored<'c>(
    b: &KernelBuilder<'c>,
    kind: KvKind,
    address: Val<'c>,
    lanes: u32,
) -> Val<'c> {
    widen(b, kind, b.load(stored(kind).x(lanes), address))
}

/// `lanes` stored elements from each of the addresses (a power of two of them), side by side.
pub(super) fn load_pieces<'c>(
    b: &KernelBuilder<'c>,
    kind: KvKind,
    addresses: &[Val<'c>],
    lanes: u32,
) -> Val<'c> {
    // Joined as words, which every vector unit can do in registers.
    let words = lanes * stored(kind).bytes() / 4;
    let count = addresses.len() as u32;
    let load = |&at: &Val<'c>| b.load(Elem::I32.x(words), at);
    let mut pieces: Vec<Val<'c>> = addresses.iter().map(load).collect();
    if words == 1 {
        let mut joined = b.zero(Elem::I32.x(count));
        for (lane, &piece) in (0..).zip(&pieces) {
            joined = b.insert(joined, piece, lane);
        }
        pieces = vec![joined];
    }
    while pieces.len() > 1 {
        pieces = pieces.chunks(2).map(|pair| b.concat(pair[0], pair[1])).collect();
    }
    widen(b, kind, b.bitcast(pieces[0], stored(kind).x(lanes * count)))
}

fn widen<'c>(b: &KernelBuilder<'c>, kind: KvKind, value: Val<'c>) -> Val<'c> {
    match kind {
        KvKind::F32 => value,
        KvKind::F16 => b.fext(value, Elem::F32),
        KvKind::Int8 => b.int_to_float(b.sext(value, Elem::I32), Elem::F32),
    }
}

/// Refuses layouts that kernels cannot walk.
pub(super) fn check_layout(
    spec: &KernelSpec,
    layout: &KvLayout,
    heads: u32,
) -> Result<(), KernelError> {
    let dims = layout.head_dim;
    let fits = (16..=512).contains(&dims) && dims.is_multiple_of(16);
    require(spec, "head_dim", dims as u64, fits, "a multiple of 16 up to 512")?;
    let page = layout.page_tokens;
    let fits = (16..=256).contains(&page) && page.is_power_of_two();
    require(spec, "page_tokens", page as u64, fits, "a power of two from 16 to 256")?;
    let group = layout.key_group;
    let fits = (4..=page).contains(&group) && group.is_power_of_two();
    require(spec, "key_group", group as u64, fits, "a power of two from 4 to page_tokens")?;
    let kv_heads = layout.kv_heads as u32;
    let fits = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
    require(spec, "heads", heads.into(), fits, "a multiple of the kv heads")
}
