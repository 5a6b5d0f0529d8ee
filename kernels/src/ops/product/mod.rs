//! The core of every matrix kernel: 16 output rows times a few rows of activations.

mod avx2;
mod float;
mod vnni;

pub(super) use float::load as load_floats;

use super::require;
use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::formats::{BLOCK, Facts, GROUP_ROWS, SPAN, Scales, block_format, packed_bytes};
use crate::reference::quantize::{
    Q8_SCALES, Q8_SPAN_BYTES, Q8_SUMS_F32, Q8_SUMS_I16, q8_row_bytes,
};
use crate::spec::{KernelSpec, WeightFormat};

/// A weight `[n, k]` in a format.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub format: WeightFormat,
    pub n: u32,
    pub k: u32,
}

/// Refuses shapes that no product can take.
pub(super) fn check(spec: &KernelSpec, p: Product) -> Result<(), KernelError> {
    require(spec, "n", p.n.into(), p.n > 0, "at least 1")?;
    let (step, need) = match p.format.block().0 {
        1 => (16, "a multiple of 16 above 0"),
        32 => (32, "a multiple of 32 above 0"),
        _ => (256, "a multiple of 256 above 0"),
    };
    require(spec, "k", p.k.into(), p.k > 0 && p.k.is_multiple_of(step), need)
}

impl Product {
    pub fn groups(&self) -> u32 {
        self.n.div_ceil(GROUP_ROWS)
    }

    pub fn weight_bytes(&self) -> i64 {
        i64::try_from(packed_bytes(self.format, self.n, self.k)).expect("weights fit memory")
    }

    /// Bytes of a row of activations: q8 for block formats, else f32.
    pub fn input_row_bytes(&self) -> i64 {
        if self.format.is_float() {
            i64::from(self.k) * 4
        } else {
            q8_row_bytes(self.k as usize) as i64
        }
    }

    /// Products of the 16 rows of `group` (i64) of the weight at `weight` with rows `x`: 16 x f32
    /// for each.
    pub fn totals<'c>(
        &self,
        k: &KernelBuilder<'c>,
        weight: Val<'c>,
        group: Val<'c>,
        x: &[Val<'c>],
    ) -> Vec<Val<'c>> {
        match block_format(self.format) {
            None => float::totals(k, *self, (weight, group), x),
            Some(format) => {
                let facts = format.facts();
                let bytes = i64::try_from(facts.group_bytes(self.k)).expect("groups fit memory");
                block_totals(k, facts, self.k, (k.element(weight, group, bytes), x))
            }
        }
    }
}

/// What a span's head holds for the lanes of one register.
struct Head<'c> {
    /// d as f32; none if blocks have their own.
    scale: Option<Val<'c>>,
    /// -dmin as f32.
    negative_min: Option<Val<'c>>,
}

/// The current block of one activation row: addresses of its parts.
struct XBlock<'c> {
    quants: Val<'c>,
    /// d, xs and the pair of sums lie at constant distances from here.
    fields: Val<'c>,
}

impl<'c> XBlock<'c> {
    fn field(&self, k: &KernelBuilder<'c>, elem: Elem, at: usize) -> Val<'c> {
        k.load(elem.scalar(), k.offset(self.fields, at as i64))
    }

    /// d, in one lane.
    fn scale(&self, k: &KernelBuilder<'c>) -> Val<'c> {
        self.field(k, Elem::F32, Q8_SCALES)
    }

    /// d times the sum of the quants, in one lane.
    fn scaled_sum(&self, k: &KernelBuilder<'c>) -> Val<'c> {
        self.field(k, Elem::F32, Q8_SUMS_F32)
    }

    /// Both sums of 16, as the i16 halves of an i32.
    fn sums(&self, k: &KernelBuilder<'c>) -> Val<'c> {
        self.field(k, Elem::I32, Q8_SUMS_I16)
    }

    /// The four quants of a quad in every 32-bit lane, as i8.
    fn quad(&self, k: &KernelBuilder<'c>, quad: u32, lanes: u32) -> Val<'c> {
        let word = k.load(Elem::I32.scalar(), k.offset(self.quants, (4 * quad).into()));
        k.bitcast(k.splat(word, lanes), Elem::I8.x(4 * lanes))
    }
}

/// One block of a group of rows.
struct WBlock<'c> {
    facts: Facts,
    at: Val<'c>,
    /// Rows of one register.
    lanes: u32,
}

impl<'c> WBlock<'c> {
    /// 16-bit floats of this register's rows, as f32.
    fn halves(&self, k: &KernelBuilder<'c>, offset: u32, piece: u32) -> Val<'c> {
        halves(k, k.offset(self.at, offset.into()), self.lanes, piece)
    }

    /// D of this register's rows.
    fn scale(&self, k: &KernelBuilder<'c>, head: &Head<'c>, piece: u32) -> Val<'c> {
        head.scale.unwrap_or_else(|| self.halves(k, 0, piece))
    }

    /// M of this register's rows.
    fn min(&self, k: &KernelBuilder<'c>, head: &Head<'c>, piece: u32) -> Option<Val<'c>> {
        if !self.facts.has_min() {
            return None;
        }
        let Some(negative_min) = head.negative_min else {
            return Some(self.halves(k, 32, piece));
        };
        let at = k.offset(self.at, (16 + piece * self.lanes).into());
        let mn = k.zext(k.load(Elem::I8.x(self.lanes), at), Elem::I32);
        Some(k.fmul(negative_min, k.int_to_float(mn, Elem::F32)))
    }
}

fn halves<'c>(k: &KernelBuilder<'c>, at: Val<'c>, lanes: u32, piece: u32) -> Val<'c> {
    let at = k.offset(at, (2 * lanes * piece).into());
    k.fext(k.load(Elem::F16.x(lanes), at), Elem::F32)
}

fn head<'c>(
    k: &KernelBuilder<'c>,
    facts: Facts,
    at: Val<'c>,
    (lanes, piece): (u32, u32),
) -> Head<'c> {
    let scale = match facts.scales {
        Scales::Block { .. } => None,
        Scales::SpanMin | Scales::SpanHalves => Some(halves(k, at, lanes, piece)),
    };
    let negative_min = match facts.scales {
        Scales::SpanMin => Some(k.fneg(halves(k, k.offset(at, 32), lanes, piece))),
        Scales::Block { .. } | Scales::SpanHalves => None,
    };
    Head { scale, negative_min }
}

/// Spans in order; in a span, blocks in order from zero.
fn block_totals<'c>(
    k: &KernelBuilder<'c>,
    facts: Facts,
    elements: u32,
    (group, x): (Val<'c>, &[Val<'c>]),
) -> Vec<Val<'c>> {
    let lanes = k.facts().lanes;
    let pieces = GROUP_ROWS / lanes;
    let spans = k.i64(elements.div_ceil(SPAN).into());
    let zeros = vec![k.zero(Elem::F32.x(lanes)); pieces as usize * x.len()];
    let totals = k.for_range((k.i64(0), spans), 1, &zeros, |span, totals| {
        let w = k.element(group, span, facts.span_bytes().into());
        let x: Vec<_> = x.iter().map(|&x| k.element(x, span, Q8_SPAN_BYTES as i64)).collect();
        let heads: Vec<_> = (0..pieces).map(|p| head(k, facts, w, (lanes, p))).collect();
        let blocks = blocks_of_span(k, elements, span);
        let first = k.offset(w, facts.head_bytes().into());
        let sums = k.for_range((k.i64(0), blocks), 1, &zeros, |block, sums| {
            let w =
                WBlock { facts, at: k.element(first, block, facts.block_bytes().into()), lanes };
            let x: Vec<_> = x
                .iter()
                .map(|&x| XBlock {
                    quants: k.element(x, block, BLOCK.into()),
                    fields: k.element(x, block, 4),
                })
                .collect();
            if k.facts().vnni {
                vnni::add_block(k, &w, &heads[0], &x, sums)
            } else {
                avx2::add_block(k, &w, &heads, &x, sums)
            }
        });
        totals.iter().zip(&sums).map(|(&total, &sum)| k.fadd(total, sum)).collect()
    });
    (0..x.len())
        .map(|t| match pieces {
            1 => totals[t],
            _ => k.concat(totals[t], totals[x.len() + t]),
        })
        .collect()
}

/// Blocks of a span: 8, but for a short last one.
fn blocks_of_span<'c>(k: &KernelBuilder<'c>, elements: u32, span: Val<'c>) -> Val<'c> {
    let whole = k.i64((SPAN / BLOCK).into());
    match elements % SPAN {
        0 => whole,
        rest => {
            let is_last = k.icmp(Compare::Eq, span, k.i64((elements / SPAN).into()));
            k.select(is_last, k.i64((rest / BLOCK).into()), whole)
        }
    }
}
