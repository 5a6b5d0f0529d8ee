//! The gated delta rule on recurrent states.
//!
//! Lanes are value columns, the key dimension is a loop: nothing is reduced across lanes, and the
//! order of the sums is that of the contract for any width. A unit is a strip of columns of one
//! head: its state stays in near cache from row to row. A window of one row reads the state where
//! it lies, and with pending rows writes nothing of it.

use super::norm::sum_of_squares;
use super::require;
use super::rows::{LANES, f32_row, load_f32, load_index, store_f32};
use super::slots::SlotLayout;
use crate::builder::{Compare, Elem, KernelBuilder, StepWord, Val};
use crate::error::KernelError;
use crate::math;
use crate::reference::delta::{L2_EPS, inverse_root};
use crate::spec::{DeltaCommit, DeltaFactors, GatedDelta, KernelSpec};

/// Registers of one strip's row: as many sums that do not wait for each other.
const STRIP_REGISTERS: u32 = 4;
/// Most scratch of a strip.
const STRIP_BYTES: u32 = 32 << 10;
/// Steps of the key dimension that are written out.
const UNROLL: u32 = 4;

/// What both kernels know of a state.
#[derive(Clone, Copy)]
struct Shape {
    key_heads: u32,
    value_heads: u32,
    head_dim: u32,
    tiled: bool,
    layout: SlotLayout,
}

impl Shape {
    fn check(&self, spec: &KernelSpec, pending: bool) -> Result<(), KernelError> {
        let (keys, values, dims) = (self.key_heads, self.value_heads, self.head_dim);
        let fits = (16..=256).contains(&dims) && dims.is_multiple_of(16);
        require(spec, "head_dim", dims.into(), fits, "a multiple of 16 from 16 to 256")?;
        let fits = keys > 0 && values > 0 && values.is_multiple_of(keys);
        require(spec, "value_heads", values.into(), fits, "a multiple of key_heads above 0")?;
        let state = 4 * u64::from(values) * u64::from(dims) * u64::from(dims);
        let at = self.layout.pending_bytes;
        require(spec, "pending_bytes", at, at >= state, "at least the bytes of a value")?;
        let bytes = self.layout.pending_stride_bytes;
        let fits = !pending || bytes >= self.factors().bytes();
        require(spec, "pending_stride_bytes", bytes, fits, "at least the bytes of the factors")
    }

    fn factors(&self) -> DeltaFactors {
        DeltaFactors::new(self.key_heads, self.value_heads, self.head_dim)
    }

    /// Columns of a strip.
    fn columns(&self, lanes: u32) -> u32 {
        let fits =
            |c: &u32| self.head_dim.is_multiple_of(*c) && 4 * self.head_dim * c <= STRIP_BYTES;
        [STRIP_REGISTERS * lanes, 32].into_iter().find(fits).unwrap_or(LANES)
    }

    fn key_head<'c>(&self, b: &KernelBuilder<'c>, head: Val<'c>) -> Val<'c> {
        match self.tiled {
            true => b.urem(head, b.i64(self.key_heads.into())),
            false => b.udiv(head, b.i64((self.value_heads / self.key_heads).into())),
        }
    }

    /// Whether `head` is the first value head of its key head.
    fn is_first<'c>(&self, b: &KernelBuilder<'c>, head: Val<'c>, key_head: Val<'c>) -> Val<'c> {
        let first = match self.tiled {
            true => key_head,
            false => b.mul(key_head, b.i64((self.value_heads / self.key_heads).into())),
        };
        b.icmp(Compare::Eq, head, first)
    }

    fn row_bytes(&self) -> i64 {
        i64::from(self.head_dim) * 4
    }

    fn strips(&self, columns: u32) -> i64 {
        i64::from(self.value_heads * (self.head_dim / columns))
    }

    /// Splits a unit into head and first column.
    fn strip<'c>(&self, b: &KernelBuilder<'c>, unit: Val<'c>, columns: u32) -> (Val<'c>, Val<'c>) {
        let count = b.i64((self.head_dim / columns).into());
        (b.udiv(unit, count), b.mul(b.urem(unit, count), b.i64(columns.into())))
    }

    fn slot<'c>(&self, b: &KernelBuilder<'c>, states: Val<'c>, slot: Val<'c>) -> Val<'c> {
        b.element(states, slot, self.layout.stride_bytes as i64)
    }

    /// Address of `S[0][column]` of a head.
    fn value<'c>(
        &self,
        b: &KernelBuilder<'c>,
        slot: Val<'c>,
        (head, column): (Val<'c>, Val<'c>),
    ) -> Val<'c> {
        let head = b.element(slot, head, self.row_bytes() * i64::from(self.head_dim));
        b.element(head, column, 4)
    }

    fn pending<'c>(&self, b: &KernelBuilder<'c>, slot: Val<'c>, row: Val<'c>) -> Pending<'c> {
        let rows = b.offset(slot, self.layout.pending_bytes as i64);
        let keys = b.element(rows, row, self.layout.pending_stride_bytes as i64);
        let factors = self.factors();
        Pending {
            keys,
            deltas: b.offset(keys, factors.deltas_at_bytes() as i64),
            decays: b.offset(keys, factors.decays_at_bytes() as i64),
        }
    }

    /// Address of a head's vector in a list of them.
    fn vector<'c>(&self, b: &KernelBuilder<'c>, list: Val<'c>, head: Val<'c>) -> Val<'c> {
        b.element(list, head, self.row_bytes())
    }
}

/// Addresses of the factors in a pending row.
struct Pending<'c> {
    keys: Val<'c>,
    deltas: Val<'c>,
    decays: Val<'c>,
}

fn shape(s: &GatedDelta) -> Shape {
    Shape {
        key_heads: s.key_heads,
        value_heads: s.value_heads,
        head_dim: s.head_dim,
        tiled: s.tiled,
        layout: s.layout,
    }
}

pub(super) fn check(spec: &KernelSpec, s: &GatedDelta) -> Result<(), KernelError> {
    let both = s.tiled && s.interleaved;
    require(spec, "tiled", u64::from(s.tiled), !both, "0 with interleaved gates")?;
    shape(s).check(spec, s.pending)
}

pub(super) fn build(b: &KernelBuilder<'_>, s: GatedDelta) {
    let shape = shape(&s);
    let columns = shape.columns(b.facts().lanes);
    let vector = || b.scratch(4 * s.head_dim);
    let rule = Rule {
        s,
        shape,
        columns,
        key: vector(),
        query: vector(),
        strip: b.scratch(4 * s.head_dim * columns),
        rows: b.step_word(StepWord::Rows),
    };
    let (begin, end) = b.share(b.i64(shape.strips(columns)));
    b.for_between(begin, end, |unit| {
        let at = shape.strip(b, unit, columns);
        b.for_each(rule.rows, |row| rule.row(b, row, at));
    });
}

struct Rule<'c> {
    s: GatedDelta,
    shape: Shape,
    columns: u32,
    /// The row's normalised key, and query.
    key: Val<'c>,
    query: Val<'c>,
    /// The strip between two rows of a sequence.
    strip: Val<'c>,
    rows: Val<'c>,
}

/// Rows of a strip in memory: the first and the distance of two.
#[derive(Clone, Copy)]
struct Place<'c> {
    at: Val<'c>,
    stride: Val<'c>,
}

impl<'c> Place<'c> {
    fn row(&self, b: &KernelBuilder<'c>, index: Val<'c>) -> Val<'c> {
        b.at(self.at, b.mul(index, self.stride))
    }
}

/// A row's numbers for one head: decay and strength of the update, in one lane each.
struct Gates<'c> {
    decay: Val<'c>,
    strength: Val<'c>,
}

impl<'c> Rule<'c> {
    fn row(&self, b: &KernelBuilder<'c>, row: Val<'c>, at: (Val<'c>, Val<'c>)) {
        let (s, shape, (head, column)) = (&self.s, &self.shape, at);
        let (slots, offsets) = (b.operand(6), b.operand(7));
        let offset = load_index(b, offsets, row);
        let slot = shape.slot(b, b.operand(8), load_index(b, slots, row));
        let key_head = shape.key_head(b, head);
        let gates = self.gates(b, row, (head, key_head));
        let heads = i64::from(2 * s.key_heads + s.value_heads);
        let qkv = b.element(b.operand(1), row, shape.row_bytes() * heads);
        let keys = b.offset(qkv, shape.row_bytes() * i64::from(s.key_heads));
        let values = b.offset(keys, shape.row_bytes() * i64::from(s.key_heads));
        let factor = inverse_root(s.head_dim as usize);
        self.normalise(b, (shape.vector(b, qkv, key_head), self.query), Some(factor));
        self.normalise(b, (shape.vector(b, keys, key_head), self.key), None);

        let kept = Place { at: shape.value(b, slot, at), stride: b.i64(shape.row_bytes()) };
        let moving = Place { at: self.strip, stride: b.i64(i64::from(self.columns) * 4) };
        let is_first = b.icmp(Compare::Eq, offset, b.i64(0));
        let source = either(b, is_first, kept, moving);
        let prediction = self.prediction(b, source, gates.decay);
        let value = load_f32(b, shape.vector(b, values, head), column, self.columns);
        let delta = b.fmul(gates.strength, b.fsub(value, prediction));

        let is_last = self.is_last(b, offsets, row);
        let updated = |target| self.update(b, (source, target), gates.decay, delta);
        let result = if s.pending {
            let (discard, keep) = (|| vec![updated(None)], || vec![updated(Some(moving))]);
            b.if_else(is_last, discard, keep)[0]
        } else {
            updated(Some(either(b, is_last, kept, moving)))
        };
        let y = f32_row(b, b.operand(9), row, s.value_heads * s.head_dim);
        store_f32(b, shape.vector(b, y, head), column, result);
        if s.pending {
            let pending = shape.pending(b, slot, offset);
            store_f32(b, shape.vector(b, pending.deltas, head), column, delta);
            b.when(b.icmp(Compare::Eq, column, b.i64(0)), || {
                store_f32(b, pending.decays, head, gates.decay);
                b.when(shape.is_first(b, head, key_head), || {
                    let keys = shape.vector(b, pending.keys, key_head);
                    self.for_vector(b, |i| store_f32(b, keys, i, load_f32(b, self.key, i, LANES)));
                });
            });
        }
    }

    /// Whether no row of the same sequence follows.
    fn is_last(&self, b: &KernelBuilder<'c>, offsets: Val<'c>, row: Val<'c>) -> Val<'c> {
        let next = b.add(row, b.i64(1));
        let ends = b.icmp(Compare::Eq, next, self.rows);
        let readable = b.select(ends, row, next);
        let starts = b.icmp(Compare::Eq, load_index(b, offsets, readable), b.i64(0));
        b.or(ends, starts)
    }

    fn gates(
        &self,
        b: &KernelBuilder<'c>,
        row: Val<'c>,
        (head, key_head): (Val<'c>, Val<'c>),
    ) -> Gates<'c> {
        let heads = self.s.value_heads;
        let (beta, alpha) = if self.s.interleaved {
            // Behind the betas and alphas of the key heads before, and its own betas.
            let group = b.i64((heads / self.s.key_heads).into());
            let at = b.add(head, b.mul(key_head, group));
            let both = |list| f32_row(b, list, row, 2 * heads);
            let alpha = load_f32(b, both(b.operand(3)), b.add(at, group), 1);
            (load_f32(b, both(b.operand(2)), at, 1), alpha)
        } else {
            let of = |list| load_f32(b, f32_row(b, b.operand(list), row, heads), head, 1);
            (of(2), of(3))
        };
        let weight = |list| load_f32(b, b.operand(list), head, 1);
        let step = math::softplus(b, b.fadd(alpha, weight(5)));
        let decay = math::exp(b, b.fmul(weight(4), step));
        Gates { decay, strength: math::sigmoid(b, beta) }
    }

    /// Runs `body` for every 16 elements of a head's vector.
    fn for_vector(&self, b: &KernelBuilder<'c>, body: impl Fn(Val<'c>)) {
        let range = (b.i64(0), b.i64(self.s.head_dim.into()));
        b.for_range(range, LANES.into(), &[], |i, _| {
            body(i);
            Vec::new()
        });
    }

    /// `to = from / length`, times a factor.
    fn normalise(
        &self,
        b: &KernelBuilder<'c>,
        (from, to): (Val<'c>, Val<'c>),
        factor: Option<f32>,
    ) {
        let squares = sum_of_squares(b, from, self.s.head_dim);
        let inverse = b.fdiv(b.f32(1.0), b.sqrt(b.fadd(squares, b.f32(L2_EPS))));
        let inverse = factor.map_or(inverse, |factor| b.fmul(inverse, b.f32(factor)));
        self.for_vector(b, |i| store_f32(b, to, i, b.fmul(load_f32(b, from, i, LANES), inverse)));
    }

    /// Runs `body` over the key dimension with carried sums of a strip's width.
    fn over_keys(
        &self,
        b: &KernelBuilder<'c>,
        body: impl Fn(Val<'c>, Val<'c>) -> Val<'c>,
    ) -> Val<'c> {
        let zero = b.zero(Elem::F32.x(self.columns));
        let range = (b.i64(0), b.i64(self.s.head_dim.into()));
        b.for_range(range, UNROLL.into(), &[zero], |i, sum| {
            let steps = (0..UNROLL).map(|step| b.add(i, b.i64(step.into())));
            vec![steps.fold(sum[0], |sum, i| body(i, sum))]
        })[0]
    }

    fn decayed(
        &self,
        b: &KernelBuilder<'c>,
        (source, i): (Place<'c>, Val<'c>),
        decay: Val<'c>,
    ) -> Val<'c> {
        b.fmul(b.load(Elem::F32.x(self.columns), source.row(b, i)), decay)
    }

    fn prediction(&self, b: &KernelBuilder<'c>, source: Place<'c>, decay: Val<'c>) -> Val<'c> {
        self.over_keys(b, |i, sum| {
            b.fma(load_f32(b, self.key, i, 1), self.decayed(b, (source, i), decay), sum)
        })
    }

    /// Adds the change to the strip, stores it at the target if there is one, and reads it with the
    /// query.
    fn update(
        &self,
        b: &KernelBuilder<'c>,
        (source, target): (Place<'c>, Option<Place<'c>>),
        decay: Val<'c>,
        delta: Val<'c>,
    ) -> Val<'c> {
        self.over_keys(b, |i, sum| {
            let decayed = self.decayed(b, (source, i), decay);
            let state = b.fma(load_f32(b, self.key, i, 1), delta, decayed);
            if let Some(target) = target {
                b.store(target.row(b, i), state);
            }
            b.fma(load_f32(b, self.query, i, 1), state, sum)
        })
    }
}

fn either<'c>(
    b: &KernelBuilder<'c>,
    condition: Val<'c>,
    then: Place<'c>,
    otherwise: Place<'c>,
) -> Place<'c> {
    Place {
        at: b.select(condition, then.at, otherwise.at),
        stride: b.select(condition, then.stride, otherwise.stride),
    }
}

fn commit_shape(s: &DeltaCommit) -> Shape {
    Shape {
        key_heads: s.key_heads,
        value_heads: s.value_heads,
        head_dim: s.head_dim,
        tiled: s.tiled,
        layout: s.layout,
    }
}

pub(super) fn check_commit(spec: &KernelSpec, s: &DeltaCommit) -> Result<(), KernelError> {
    commit_shape(s).check(spec, true)
}

/// See [`DeltaCommit`]. The value is read and written once, whatever the count of rows.
pub(super) fn commit(b: &KernelBuilder<'_>, s: DeltaCommit) {
    let shape = commit_shape(&s);
    let columns = shape.columns(b.facts().lanes);
    let strips = b.i64(shape.strips(columns));
    let (begin, end) = b.share(b.mul(b.step_word(StepWord::Commits), strips));
    b.for_between(begin, end, |unit| {
        let entry = b.udiv(unit, strips);
        let (head, column) = shape.strip(b, b.urem(unit, strips), columns);
        let slot = shape.slot(b, b.operand(3), load_index(b, b.operand(1), entry));
        let rows = load_index(b, b.operand(2), entry);
        let key_head = shape.key_head(b, head);
        let value = shape.value(b, slot, (head, column));
        b.when(b.icmp(Compare::Lt, b.i64(0), rows), || {
            b.for_each(b.i64(s.head_dim.into()), |i| {
                let at = b.element(value, i, shape.row_bytes());
                let state = b.load(Elem::F32.x(columns), at);
                let state = b.for_range((b.i64(0), rows), 1, &[state], |row, state| {
                    let pending = shape.pending(b, slot, row);
                    let decayed = b.fmul(state[0], load_f32(b, pending.decays, head, 1));
                    let delta = shape.vector(b, pending.deltas, head);
                    let delta = load_f32(b, delta, column, columns);
                    let key = load_f32(b, shape.vector(b, pending.keys, key_head), i, 1);
                    vec![b.fma(key, delta, decayed)]
                });
                b.store(at, state[0]);
            });
        });
    });
}
