//! KV pages and causal attention over them.

use half::f16;

use super::math::exp;
use super::quantize::{q8_round, q8_scale, sanitize};
use super::{PARTIALS, SPAN, dot_unspanned, tree};
use crate::ops::kv::{KvKind, KvLayout};

/// The pages of one layer as one sequence sees them.
pub struct Pages<'a> {
    pub layout: KvLayout,
    /// All physical pages of the layer, [`KvLayout::page_bytes`] each.
    pub bytes: &'a [u8],
    /// Physical page of each logical page of the sequence.
    pub table: &'a [u32],
}

impl Pages<'_> {
    fn at(&self, position: usize) -> (usize, usize) {
        let page = self.table[position / self.layout.page_tokens] as usize;
        (page * self.layout.page_bytes(), position % self.layout.page_tokens)
    }

    fn element(&self, at: usize) -> f32 {
        match self.layout.kind {
            KvKind::F32 => self.scale(at),
            KvKind::F16 => f16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]).to_f32(),
            KvKind::Int8 => f32::from(self.bytes[at].cast_signed()),
        }
    }

    fn scale(&self, at: usize) -> f32 {
        let b = &self.bytes[at..at + 4];
        f32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    /// Stored key of one position and kv head, and its scale (1 for f16).
    pub(super) fn key(&self, head: usize, position: usize) -> (Vec<f32>, f32) {
        let (page, index) = self.at(position);
        let l = &self.layout;
        let dims = 0..l.head_dim;
        let key = dims.map(|d| self.element(page + l.k_offset(head, d, index))).collect();
        let scale = match l.kind {
            KvKind::F32 | KvKind::F16 => 1.0,
            KvKind::Int8 => self.scale(page + l.k_scale_offset(head, index)),
        };
        (key, scale)
    }

    /// Stored value of one position and kv head, and its scale (1 for f16).
    fn value(&self, head: usize, position: usize) -> (Vec<f32>, f32) {
        let (page, index) = self.at(position);
        let l = &self.layout;
        let dims = 0..l.head_dim;
        let value = dims.map(|d| self.element(page + l.v_offset(head, index, d))).collect();
        let scale = match l.kind {
            KvKind::F32 | KvKind::F16 => 1.0,
            KvKind::Int8 => self.scale(page + l.v_scale_offset(head, index)),
        };
        (value, scale)
    }
}

/// Stores one position's key and value of one kv head in its physical `page`.
pub fn append(page: &mut [u8], layout: &KvLayout, at: (usize, usize), kv: (&[f32], &[f32])) {
    let (head, index) = at;
    let (k, v) = kv;
    append_key(page, layout, at, k);
    let stored = Stored::new(layout.kind, v);
    for (d, &v) in v.iter().enumerate() {
        stored.put(page, layout.v_offset(head, index, d), v);
    }
    if layout.kind == KvKind::Int8 {
        let scale = layout.v_scale_offset(head, index);
        page[scale..scale + 4].copy_from_slice(&stored.scale.to_le_bytes());
    }
}

/// Stores one position's key of one kv head in its physical `page`.
pub fn append_key(page: &mut [u8], layout: &KvLayout, (head, index): (usize, usize), k: &[f32]) {
    let stored = Stored::new(layout.kind, k);
    for (d, &k) in k.iter().enumerate() {
        stored.put(page, layout.k_offset(head, d, index), k);
    }
    if layout.kind == KvKind::Int8 {
        let scale = layout.k_scale_offset(head, index);
        page[scale..scale + 4].copy_from_slice(&stored.scale.to_le_bytes());
    }
}

/// How the elements of one vector are stored: the scale is taken over all of it.
struct Stored {
    kind: KvKind,
    scale: f32,
    inverse: f32,
}

impl Stored {
    fn new(kind: KvKind, x: &[f32]) -> Self {
        let amax = x.iter().fold(0.0f32, |m, &v| m.max(sanitize(v).abs()));
        let (scale, inverse) = q8_scale(amax);
        Self { kind, scale, inverse }
    }

    fn put(&self, page: &mut [u8], at: usize, x: f32) {
        match self.kind {
            KvKind::F32 => page[at..at + 4].copy_from_slice(&x.to_le_bytes()),
            KvKind::F16 => page[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
            KvKind::Int8 => page[at] = q8_round(x, self.inverse).cast_unsigned(),
        }
    }
}

/// What one query head looks at.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub kv_head: usize,
    /// Entries up to the row's own, which is the last.
    pub entries: usize,
    /// Entries visible, the row's own included; 0 for all.
    pub window: usize,
    /// Factor of q.k.
    pub scale: f32,
}

impl View {
    /// First visible entry.
    pub fn first(&self) -> usize {
        if self.window == 0 { 0 } else { self.entries.saturating_sub(self.window) }
    }
}

/// One query head of one row. `q`, `out`: `f32[head_dim]`.
///
/// Keys are taken in spans of 256 entries aligned at 0, ascending; a span with no visible key is
/// skipped. Softmax is rescaled by span. Where nothing is visible the result is zero.
pub fn attend(q: &[f32], pages: &Pages<'_>, view: &View, out: &mut [f32]) {
    let visible: Vec<(usize, usize)> = (view.first()..view.entries).map(|j| (j, j)).collect();
    attend_numbered(q, pages, view, &visible, out);
}

/// [`attend`] over the `attended` entries alone, which ascend: each is numbered by its place among
/// them, and spans are of these numbers.
pub fn attend_selected(
    q: &[f32],
    pages: &Pages<'_>,
    view: &View,
    attended: &[usize],
    out: &mut [f32],
) {
    let numbered: Vec<(usize, usize)> = attended.iter().copied().enumerate().collect();
    attend_numbered(q, pages, view, &numbered, out);
}

/// Keys as (number, entry).
fn attend_numbered(
    q: &[f32],
    pages: &Pages<'_>,
    view: &View,
    keys: &[(usize, usize)],
    out: &mut [f32],
) {
    let (mut max, mut total) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    for span in keys.chunk_by(|a, b| a.0 / SPAN == b.0 / SPAN) {
        let scores = span.iter().map(|&(_, j)| score(q, pages, view, j)).collect::<Vec<_>>();
        let new_max = scores.iter().fold(max, |m, &s| if s > m { s } else { m });
        let correction = exp(max - new_max);
        let mut partials = [0.0f32; PARTIALS];
        let mut sums = vec![0.0f32; out.len()];
        for (&(number, j), s) in span.iter().zip(scores) {
            let p = exp(s - new_max);
            partials[number % PARTIALS] += p;
            let (value, scale) = pages.value(view.kv_head, j);
            let weight = if pages.layout.kind == KvKind::Int8 { p * scale } else { p };
            for (a, v) in sums.iter_mut().zip(value) {
                *a = weight.mul_add(v, *a);
            }
        }
        total = total.mul_add(correction, tree(partials));
        for (o, a) in out.iter_mut().zip(sums) {
            *o = o.mul_add(correction, a);
        }
        max = new_max;
    }
    if keys.is_empty() {
        return;
    }
    let inverse = 1.0 / total;
    for o in out.iter_mut() {
        *o *= inverse;
    }
}

fn score(q: &[f32], pages: &Pages<'_>, view: &View, j: usize) -> f32 {
    let (key, scale) = pages.key(view.kv_head, j);
    let dot = dot_unspanned(q, &key);
    let dot = if pages.layout.kind == KvKind::Int8 { dot * scale } else { dot };
    dot * view.scale
}
