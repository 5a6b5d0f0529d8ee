//! Native rows of a block format to groups of 16 rows.

use super::product::{self, Product};
use super::require;
use crate::builder::{Compare, KernelBuilder, Val};
use crate::error::KernelError;
use crate::formats::native::NativeRows;
use crate::formats::{BLOCK, BlockFormat, GROUP_ROWS, SPAN, block_format, planes};
use crate::spec::{KernelSpec, Repack};

pub(super) fn check(spec: &KernelSpec, s: &Repack) -> Result<(), KernelError> {
    let bits = u64::from(s.format.block().1);
    require(spec, "bytes of a block", bits, !s.format.is_float(), "a block format")?;
    product::check(spec, Product { format: s.format, n: s.n, k: s.k })
}

/// See [`Repack`].
pub(super) fn build(k: &KernelBuilder<'_>, s: Repack) {
    let Some(format) = block_format(s.format) else { return };
    let facts = format.facts();
    let (source, target) = (k.operand(1), k.operand(2));
    let row_bytes = i64::try_from(s.format.row_bytes(s.k)).expect("rows fit memory");
    let group_bytes = i64::try_from(facts.group_bytes(s.k)).expect("groups fit memory");
    // The words of a native block of 16 rows, for formats whose blocks are whole spans.
    let words = k.scratch(if s.format.block().0 == SPAN { 16 * s.format.block().1 } else { 64 });
    let (begin, end) = k.share(k.i64(s.n.div_ceil(GROUP_ROWS).into()));
    k.for_between(begin, end, |group| {
        let first = k.mul(group, k.i64(GROUP_ROWS.into()));
        let last = k.i64(i64::from(s.n) - 1);
        let row = |i: u32| k.imin(k.add(first, k.i64(i.into())), last);
        let rows: Vec<_> = (0..GROUP_ROWS).map(|i| k.element(source, row(i), row_bytes)).collect();
        let group = k.element(target, group, group_bytes);
        k.for_each(k.i64(s.k.div_ceil(SPAN).into()), |span| {
            let at = k.element(group, span, facts.span_bytes().into());
            pack_span(k, format, (s, &rows, words), (span, at));
        });
    });
}

/// Packs one span: one native block of 256, or up to 8 of 32.
fn pack_span<'c>(
    k: &KernelBuilder<'c>,
    format: &dyn BlockFormat,
    (s, rows, words): (Repack, &[Val<'c>], Val<'c>),
    (span, at): (Val<'c>, Val<'c>),
) {
    let facts = format.facts();
    let (elements, bytes) = s.format.block();
    let bytes = i64::from(bytes);
    let blocks = k.offset(at, facts.head_bytes().into());
    let block_at = |block: Val<'c>| k.element(blocks, block, facts.block_bytes().into());
    if elements == SPAN {
        let rows: Vec<_> = rows.iter().map(|&row| k.element(row, span, bytes)).collect();
        let native = NativeRows::gathered(k, rows, words, s.format.block().1);
        format.store_head(k, &native, at);
        for block in 0..SPAN / BLOCK {
            pack_block(k, format, &native, block, block_at(k.i64(block.into())));
        }
        return;
    }
    let first = k.mul(span, k.i64((SPAN / BLOCK).into()));
    let left = k.sub(k.i64((s.k / BLOCK).into()), first);
    let whole = k.i64((SPAN / BLOCK).into());
    let count = k.select(k.icmp(Compare::Lt, left, whole), left, whole);
    k.for_each(count, |block| {
        let index = k.add(first, block);
        let rows = rows.iter().map(|&row| k.element(row, index, bytes)).collect();
        pack_block(k, format, &NativeRows::direct(rows), 0, block_at(block));
    });
}

fn pack_block<'c>(
    k: &KernelBuilder<'c>,
    format: &dyn BlockFormat,
    native: &NativeRows<'c>,
    block: u32,
    at: Val<'c>,
) {
    let facts = format.facts();
    format.store_scales(k, native, block, at);
    let at = k.offset(at, facts.scale_bytes().into());
    planes::store(k, at, facts.bits, |quad| format.native_quad(k, native, block, quad));
}
