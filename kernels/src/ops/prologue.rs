//! Head norms, rope, and the append of keys and values to their pages.

use super::kv::KvKind;
use super::norm::{inverse_rms, sum_of_squares};
use super::pages::{Pages, check_layout, stored};
use super::quantize::{q8_round, q8_scale, sanitize};
use super::require;
use super::rows::{LANES, for_chunks, load_f32, load_index, store_f32};
use crate::builder::{Compare, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::spec::{AttnPrologue, F32, HeadRotate, KernelSpec};

pub(super) fn check(spec: &KernelSpec, s: &AttnPrologue) -> Result<(), KernelError> {
    // Without queries it only appends.
    check_layout(spec, &s.kv, s.heads.max(s.kv.kv_heads as u32))?;
    require(spec, "values", s.kv.values.into(), s.kv.values, "stored values")?;
    let fits = s.rope_dims as usize <= s.kv.head_dim && s.rope_dims.is_multiple_of(2);
    require(spec, "rope_dims", s.rope_dims.into(), fits, "an even number up to head_dim")
}

/// Addresses of the operands.
struct Operands<'c> {
    /// First rows of q, k, v and their strides in elements.
    q: (Val<'c>, u32),
    k: (Val<'c>, u32),
    v: (Val<'c>, u32),
    angles: Option<Val<'c>>,
    positions: Val<'c>,
    slots: Val<'c>,
    pages: Pages<'c>,
    /// Gains of query and key heads.
    gains: Option<[Val<'c>; 2]>,
    out: Val<'c>,
}

impl<'c> Operands<'c> {
    fn new(b: &KernelBuilder<'c>, s: &AttnPrologue) -> Self {
        let (dims, kv_heads) = (s.kv.head_dim as u32, s.kv.kv_heads as u32);
        let (q_len, kv_len) = (s.heads * dims, kv_heads * dims);
        let mut index = 0;
        let mut next = || {
            index += 1;
            b.operand(index)
        };
        let first = next();
        let ((q, k, v), strides) = if s.fused {
            let at = |elements: u32| b.offset(first, i64::from(elements) * 4);
            ((first, at(q_len), at(q_len + kv_len)), [q_len + 2 * kv_len; 3])
        } else {
            ((first, next(), next()), [q_len, kv_len, kv_len])
        };
        let angles = (s.rope_dims > 0).then(&mut next);
        let (positions, slots, table, base) = (next(), next(), next(), next());
        Self {
            q: (q, strides[0]),
            k: (k, strides[1]),
            v: (v, strides[2]),
            angles,
            positions,
            slots,
            pages: Pages { layout: s.kv, pages_per_slot: s.pages_per_slot, table, base },
            gains: s.norm_eps.is_some().then(|| [next(), next()]),
            out: next(),
        }
    }
}

pub(super) fn build(b: &KernelBuilder<'_>, s: AttnPrologue) {
    let operands = Operands::new(b, &s);
    let dims = s.kv.head_dim as u32;
    let scratch = [b.scratch(dims * 4), b.scratch(dims * 4)];
    let heads = b.i64(s.heads.into());
    let heads_a_row = b.add(heads, b.i64(s.kv.kv_heads as i64));
    let (begin, end) = b.share(b.mul(b.step_word(StepWord::Rows), heads_a_row));
    b.for_between(begin, end, |unit| {
        let (row, head) = (b.udiv(unit, heads_a_row), b.urem(unit, heads_a_row));
        let angles = operands.angles.map(|a| b.element(a, row, i64::from(s.rope_dims) * 4));
        let turning = Turning::of(&s);
        let rotation = Rotation { turning, angles, normed: scratch[0] };
        let is_query = b.icmp(Compare::Lt, head, heads);
        b.if_else(
            is_query,
            || {
                let from = head_of(b, operands.q, row, head, dims);
                let to = head_of(b, (operands.out, s.heads * dims), row, head, dims);
                rotation.apply(b, from, to, operands.gains.map(|g| g[0]));
                Vec::new()
            },
            || {
                let kv_head = b.sub(head, heads);
                let k = head_of(b, operands.k, row, kv_head, dims);
                let v = head_of(b, operands.v, row, kv_head, dims);
                let slot = load_index(b, operands.slots, row);
                let position = load_index(b, operands.positions, row);
                let entry = b.sub(position, b.i64(s.first.into()));
                let store = || {
                    rotation.apply(b, k, scratch[1], operands.gains.map(|g| g[1]));
                    append(b, &operands, (slot, entry, kv_head), (scratch[1], v));
                };
                if s.first == 0 {
                    store();
                } else {
                    b.when(b.icmp(Compare::Ge, entry, b.i64(0)), store);
                }
                Vec::new()
            },
        );
    });
}

/// Address of a head's vector in rows of `stride` elements.
fn head_of<'c>(
    b: &KernelBuilder<'c>,
    (base, stride): (Val<'c>, u32),
    row: Val<'c>,
    head: Val<'c>,
    dims: u32,
) -> Val<'c> {
    let row = b.element(base, row, i64::from(stride) * 4);
    b.element(row, head, i64::from(dims) * 4)
}

/// Sizes of what a head goes through.
#[derive(Clone, Copy)]
struct Turning {
    head_dim: u32,
    norm_eps: Option<F32>,
    rope_dims: u32,
    adjacent: bool,
}

impl Turning {
    fn of(s: &AttnPrologue) -> Self {
        let (norm_eps, rope_dims, adjacent) = (s.norm_eps, s.rope_dims, s.adjacent);
        Self { head_dim: s.kv.head_dim as u32, norm_eps, rope_dims, adjacent }
    }
}

pub(super) fn check_rotate(spec: &KernelSpec, s: &HeadRotate) -> Result<(), KernelError> {
    let dims = s.head_dim;
    let fits = (16..=512).contains(&dims) && dims.is_multiple_of(16);
    require(spec, "head_dim", dims.into(), fits, "a multiple of 16 up to 512")?;
    let fits = s.rope_dims <= dims && s.rope_dims.is_multiple_of(2);
    require(spec, "rope_dims", s.rope_dims.into(), fits, "an even number up to head_dim")?;
    require(spec, "heads", s.heads.into(), s.heads > 0, "at least 1")
}

/// See [`HeadRotate`].
pub(super) fn rotate(b: &KernelBuilder<'_>, s: HeadRotate) {
    let (norm_eps, rope_dims, adjacent) = (s.norm_eps, s.rope_dims, s.adjacent);
    let turning = Turning { head_dim: s.head_dim, norm_eps, rope_dims, adjacent };
    let mut index = 0;
    let mut next = || {
        index += 1;
        b.operand(index)
    };
    let x = next();
    let angles = (rope_dims > 0).then(&mut next);
    let gain = norm_eps.is_some().then(&mut next);
    let y = next();
    let normed = b.scratch(s.head_dim * 4);
    let heads = b.i64(s.heads.into());
    let (begin, end) = b.share(b.mul(b.step_word(StepWord::Rows), heads));
    b.for_between(begin, end, |unit| {
        let row = b.udiv(unit, heads);
        let angles = angles.map(|a| b.element(a, row, i64::from(rope_dims) * 4));
        let head = |base| b.element(base, unit, i64::from(s.head_dim) * 4);
        Rotation { turning, angles, normed }.apply(b, head(x), head(y), gain);
    });
}

/// What one head goes through before it is used.
struct Rotation<'c> {
    turning: Turning,
    angles: Option<Val<'c>>,
    /// Scratch of a head.
    normed: Val<'c>,
}

impl<'c> Rotation<'c> {
    /// Norms and rotates the head at `from` into `to`, which may be the same.
    fn apply(&self, b: &KernelBuilder<'c>, from: Val<'c>, to: Val<'c>, gain: Option<Val<'c>>) {
        let dims = self.turning.head_dim;
        let mut from = from;
        if let (Some(eps), Some(gain)) = (self.turning.norm_eps, gain) {
            let r = inverse_rms(b, sum_of_squares(b, from, dims), dims, eps.get());
            for_chunks(b, dims, |at, lanes| {
                let x = b.fmul(load_f32(b, from, at, lanes), r);
                store_f32(b, self.normed, at, b.fmul(x, load_f32(b, gain, at, lanes)));
            });
            from = self.normed;
        }
        if let Some(angles) = self.angles {
            if self.turning.adjacent {
                self.rotate_adjacent(b, from, to, angles);
            } else {
                self.rotate_halves(b, from, to, angles);
            }
        }
        let turned = i64::from(self.turning.rope_dims);
        for_chunks(b, dims - self.turning.rope_dims, |at, lanes| {
            let at = b.add(at, b.i64(turned));
            store_f32(b, to, at, load_f32(b, from, at, lanes));
        });
    }

    fn rotate_halves(&self, b: &KernelBuilder<'c>, from: Val<'c>, to: Val<'c>, angles: Val<'c>) {
        let half = self.turning.rope_dims / 2;
        for_chunks(b, half, |at, lanes| {
            let second = b.add(at, b.i64(half.into()));
            let (x, y) = (load_f32(b, from, at, lanes), load_f32(b, from, second, lanes));
            let cos_sin = (load_f32(b, angles, at, lanes), load_f32(b, angles, second, lanes));
            let (x, y) = turn(b, x, y, cos_sin);
            store_f32(b, to, at, x);
            store_f32(b, to, second, y);
        });
    }

    fn rotate_adjacent(&self, b: &KernelBuilder<'c>, from: Val<'c>, to: Val<'c>, angles: Val<'c>) {
        let half = self.turning.rope_dims / 2;
        for_chunks(b, half, |at, lanes| {
            let second = b.add(at, b.i64(half.into()));
            let pairs = b.add(at, at);
            let both = load_f32(b, from, pairs, 2 * lanes);
            let every_second = |first: u32| {
                let picked: Vec<u32> = (0..lanes).map(|i| 2 * i + first).collect();
                if lanes == 1 { b.extract(both, first) } else { b.shuffle(both, both, &picked) }
            };
            let cos_sin = (load_f32(b, angles, at, lanes), load_f32(b, angles, second, lanes));
            let (x, y) = turn(b, every_second(0), every_second(1), cos_sin);
            if lanes == 1 {
                store_f32(b, to, pairs, x);
                store_f32(b, to, b.add(pairs, b.i64(1)), y);
            } else {
                let woven: Vec<u32> = (0..2 * lanes).map(|i| i / 2 + i % 2 * lanes).collect();
                store_f32(b, to, pairs, b.shuffle(x, y, &woven));
            }
        });
    }
}

/// `x' = fma(x, cos, -(y * sin))`, `y' = fma(y, cos, x * sin)`.
pub(super) fn turn<'c>(
    b: &KernelBuilder<'c>,
    x: Val<'c>,
    y: Val<'c>,
    (cos, sin): (Val<'c>, Val<'c>),
) -> (Val<'c>, Val<'c>) {
    (b.fma(x, cos, b.fneg(b.fmul(y, sin))), b.fma(y, cos, b.fmul(x, sin)))
}

/// Stores one entry's key (rotated) and value of one kv head.
fn append<'c>(
    b: &KernelBuilder<'c>,
    operands: &Operands<'c>,
    (slot, entry, kv_head): (Val<'c>, Val<'c>, Val<'c>),
    (k, v): (Val<'c>, Val<'c>),
) {
    let pages = &operands.pages;
    let layout = pages.layout;
    let page = pages.page(b, pages.table_row(b, slot), entry);
    let head = b.element(page, kv_head, layout.head_bytes() as i64);
    let index = pages.index(b, entry);
    store_key(b, pages, (head, index), k);

    let bytes = layout.kind.element_bytes() as i64;
    let dims = layout.head_dim as u32;
    let scales = b.offset(head, layout.v_scale_offset(0, 0) as i64);
    let inverse = store_scale(b, layout.kind, (v, dims), b.element(scales, index, 4));
    let values = b.offset(head, layout.v_offset(0, 0, 0) as i64);
    let line = b.element(values, index, i64::from(dims) * bytes);
    for_chunks(b, dims, |at, lanes| {
        let packed = pack(b, layout.kind, load_f32(b, v, at, lanes), inverse);
        b.store(b.element(line, at, bytes), packed);
    });
}

/// Stores a key at `index` of a page's part `head`.
pub(super) fn store_key<'c>(
    b: &KernelBuilder<'c>,
    pages: &Pages<'c>,
    (head, index): (Val<'c>, Val<'c>),
    k: Val<'c>,
) {
    let layout = pages.layout;
    let dims = layout.head_dim as u32;
    let scales = b.offset(head, layout.k_scale_offset(0, 0) as i64);
    let inverse = store_scale(b, layout.kind, (k, dims), b.element(scales, index, 4));
    let (key, stride) = (pages.key(b, head, index), pages.key_stride());
    for_chunks(b, dims, |at, lanes| {
        let packed = pack(b, layout.kind, load_f32(b, k, at, lanes), inverse);
        let first = b.element(key, at, stride);
        for lane in 0..lanes {
            b.store(b.offset(first, i64::from(lane) * stride), b.extract(packed, lane));
        }
    });
}

/// Stores the scale of `dims` elements where the kind has one, and gives its inverse.
fn store_scale<'c>(
    b: &KernelBuilder<'c>,
    kind: KvKind,
    (x, dims): (Val<'c>, u32),
    to: Val<'c>,
) -> Val<'c> {
    if kind != KvKind::Int8 {
        return b.f32(1.0);
    }
    let (scale, inverse) = head_scale(b, x, dims);
    b.store(to, scale);
    inverse
}

/// f32 values as they are stored.
fn pack<'c>(b: &KernelBuilder<'c>, kind: KvKind, x: Val<'c>, inverse: Val<'c>) -> Val<'c> {
    match kind {
        KvKind::F32 => x,
        KvKind::F16 => b.ftrunc(x, stored(kind)),
        KvKind::Int8 => b.trunc(q8_round(b, sanitize(b, x), inverse), stored(kind)),
    }
}

/// Scale and inverse over a head of `dims` elements.
fn head_scale<'c>(b: &KernelBuilder<'c>, x: Val<'c>, dims: u32) -> (Val<'c>, Val<'c>) {
    let init = b.splat(b.f32(0.0), LANES);
    let range = (b.i64(0), b.i64(dims.into()));
    let amax = b.for_range(range, LANES.into(), &[init], |at, amax| {
        let x = sanitize(b, load_f32(b, x, at, LANES));
        vec![b.fmax(b.fabs(x), amax[0])]
    });
    q8_scale(b, b.tree_max(amax[0]))
}
