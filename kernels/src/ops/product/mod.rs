//! The core of every matrix kernel: 16 output rows times a few rows of activations.

mod avx2;
mod float;
mod vnni;

pub(super) use float::load as load_floats;

use super::require;
use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::error::KernelError;
use crate::formats::planes::Planes;
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

    /// Bytes of 16 rows.
    pub fn group_bytes(&self) -> i64 {
        i64::try_from(packed_bytes(self.format, GROUP_ROWS, self.k)).expect("groups fit memory")
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
                block_totals(k, (facts, self.k), (k.element(weight, group, bytes), x))
            }
        }
    }
}

/// How far ahead of a block weights are asked for: a page, where hardware stops by itself.
const PREFETCH_BYTES: i64 = 4096;

/// What a span's head holds for the rows of one register.
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

    /// The four quants of quad `2 * pair + i` in every 32-bit lane, as i8.
    fn quad(&self, k: &KernelBuilder<'c>, (pair, i): (Val<'c>, usize), lanes: u32) -> Val<'c> {
        let at = k.offset(k.element(self.quants, pair, 8), 4 * i as i64);
        let word = k.load(Elem::I32.scalar(), at);
        k.bitcast(k.splat(word, lanes), Elem::I8.x(4 * lanes))
    }
}

/// The rows of one register in the lines of a group.
#[derive(Clone, Copy)]
struct Lanes<'c> {
    count: u32,
    /// Number of the first row.
    first: Val<'c>,
}

impl<'c> Lanes<'c> {
    /// These rows' elements of a line of one `elem` a row.
    fn load(&self, k: &KernelBuilder<'c>, elem: Elem, line: Val<'c>) -> Val<'c> {
        k.load(elem.x(self.count), self.at(k, line, elem.bytes()))
    }

    /// Address of these rows in a line of some bytes a row.
    fn at(&self, k: &KernelBuilder<'c>, line: Val<'c>, bytes: u32) -> Val<'c> {
        k.element(line, self.first, bytes.into())
    }

    fn halves(&self, k: &KernelBuilder<'c>, line: Val<'c>) -> Val<'c> {
        k.fext(self.load(k, Elem::F16, line), Elem::F32)
    }

    fn head(&self, k: &KernelBuilder<'c>, facts: Facts, at: Val<'c>) -> Head<'c> {
        let scale = match facts.scales {
            Scales::Block { .. } => None,
            Scales::SpanMin | Scales::SpanHalves => Some(self.halves(k, at)),
        };
        let negative_min = match facts.scales {
            Scales::SpanMin => Some(k.fneg(self.halves(k, k.offset(at, 32)))),
            Scales::Block { .. } | Scales::SpanHalves => None,
        };
        Head { scale, negative_min }
    }
}

/// One block of a group, as the rows of one register see it.
struct WBlock<'c> {
    facts: Facts,
    at: Val<'c>,
    lanes: Lanes<'c>,
}

impl<'c> WBlock<'c> {
    fn planes(&self, k: &KernelBuilder<'c>) -> Planes<'c> {
        let first = k.offset(self.at, self.facts.scale_bytes().into());
        let ty = Elem::I8.x(4 * self.lanes.count);
        // A dot product of unsigned bytes takes signed ones with 128 added.
        let bias = if k.facts().vnni { 0x80 } else { 0 };
        let codebook = self.facts.codebook.map(|c| c.map(|v| v.cast_unsigned() ^ bias));
        Planes { at: self.lanes.at(k, first, 4), bits: self.facts.bits, codebook, ty }
    }

    /// D.
    fn scale(&self, k: &KernelBuilder<'c>, head: &Head<'c>) -> Val<'c> {
        head.scale.unwrap_or_else(|| self.lanes.halves(k, self.at))
    }

    /// M.
    fn min(&self, k: &KernelBuilder<'c>, head: &Head<'c>) -> Option<Val<'c>> {
        if !self.facts.has_min() {
            return None;
        }
        let Some(negative_min) = head.negative_min else {
            return Some(self.lanes.halves(k, k.offset(self.at, 32)));
        };
        let mn = k.zext(self.lanes.load(k, Elem::I8, k.offset(self.at, 16)), Elem::I32);
        Some(k.fmul(negative_min, k.int_to_float(mn, Elem::F32)))
    }
}

/// Products of the group at `group` with rows `x`: spans in order.
fn block_totals<'c>(
    k: &KernelBuilder<'c>,
    (facts, elements): (Facts, u32),
    (group, x): (Val<'c>, &[Val<'c>]),
) -> Vec<Val<'c>> {
    let spans = k.i64(elements.div_ceil(SPAN).into());
    let zeros = vec![k.zero(Elem::F32.x(GROUP_ROWS)); x.len()];
    k.for_range((k.i64(0), spans), 1, &zeros, |span, totals| {
        let w = k.element(group, span, facts.span_bytes().into());
        let x: Vec<_> = x.iter().map(|&x| k.element(x, span, Q8_SPAN_BYTES as i64)).collect();
        let sums = span_sums(k, facts, (w, blocks_of_span(k, elements, span)), &x);
        totals.iter().zip(&sums).map(|(&total, &sum)| k.fadd(total, sum)).collect()
    })
}

/// Sums of the blocks of the span at `w`, in order from zero.
fn span_sums<'c>(
    k: &KernelBuilder<'c>,
    facts: Facts,
    (w, blocks): (Val<'c>, Val<'c>),
    x: &[Val<'c>],
) -> Vec<Val<'c>> {
    let count = k.facts().lanes;
    let pieces: Vec<_> = (0..GROUP_ROWS / count)
        .map(|p| Lanes { count, first: k.i64((p * count).into()) })
        .collect();
    let heads: Vec<_> = pieces.iter().map(|lanes| lanes.head(k, facts, w)).collect();
    let first = k.offset(w, facts.head_bytes().into());
    let zeros = vec![k.zero(Elem::F32.x(count)); pieces.len() * x.len()];
    let sums = k.for_range((k.i64(0), blocks), 1, &zeros, |block, sums| {
        let at = k.element(first, block, facts.block_bytes().into());
        for line in (0..facts.block_bytes()).step_by(64) {
            k.prefetch(k.offset(at, PREFETCH_BYTES + i64::from(line)));
        }
        let w: Vec<_> = pieces.iter().map(|&lanes| WBlock { facts, at, lanes }).collect();
        let x: Vec<_> = x
            .iter()
            .map(|&x| XBlock {
                quants: k.element(x, block, BLOCK.into()),
                fields: k.element(x, block, 4),
            })
            .collect();
        let integers = match k.facts().vnni {
            true => vnni::integer_sums(k, &w[0], &x),
            false => avx2::integer_sums(k, &w, &x),
        };
        let mut next = Vec::with_capacity(sums.len());
        for (w, head) in w.iter().zip(&heads) {
            let (scale, min) = (w.scale(k, head), w.min(k, head));
            for x in &x {
                let integer = k.int_to_float(integers[next.len()], Elem::F32);
                let sum = k.fma(k.fmul(scale, x.scale(k)), integer, sums[next.len()]);
                next.push(min.map_or(sum, |min| k.fma(min, x.scaled_sum(k), sum)));
            }
        }
        next
    });
    match pieces.len() {
        1 => sums,
        _ => (0..x.len()).map(|t| k.concat(sums[t], sums[x.len() + t])).collect(),
    }
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
