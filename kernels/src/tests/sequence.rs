use super::products::{runnable, runnable_for};
use super::random::{Random, quantize_rows};
use super::rows::{assert_same, bytes_of, result};
use crate::ops::kv::{KvKind, KvLayout};
use crate::reference::attention::{Pages, View, append, attend, attend_selected};
use crate::reference::matmul::decode_row;
use crate::reference::quantize::q8_row_bytes;
use crate::reference::{norm, rope};
use crate::run::Buffer;
use crate::spec::{Attention, AttnPrologue, Embed, F32, Selected, WeightFormat};
use crate::{KernelSpec, Target};

pub const KINDS: [KvKind; 3] = [KvKind::F32, KvKind::F16, KvKind::Int8];

#[test]
fn embeddings_of_every_format_equal_their_decoded_rows() {
    let (vocabulary, mut random) = (9usize, Random::new(20));
    for format in WeightFormat::ALL {
        let step = format.block().0.max(16) as usize;
        // More than one group of 16 native blocks, the second not full.
        let k = 19 * step;
        let table = random.weights(format, vocabulary, k);
        let row_bytes = format.row_bytes(k as u32) as usize;
        let tokens = [8u32, 0, 3];
        let s = Embed { format, k: k as u32, scale: F32::from(1.7) };
        let spec = KernelSpec::Embed(s);
        let got = result(spec, &[Buffer::of(&tokens), Buffer::of(&table)], 4 * k);
        let row = |t: &u32| decode_row(format, &table[*t as usize * row_bytes..], k);
        let want: Vec<f32> = tokens.iter().flat_map(row).map(|x| x * 1.7).collect();
        assert_same(spec, &got, &bytes_of(&want));
    }
}

/// Rows of a window over two sequences, and pages in no particular order.
pub struct Window {
    pub positions: Vec<u32>,
    pub slots: Vec<u32>,
    pub pages_per_slot: usize,
    pub table: Vec<u32>,
}

impl Window {
    pub fn new(rows: &[(u32, u32)], layout: &KvLayout) -> Self {
        let (slots, positions): (Vec<u32>, Vec<u32>) = rows.iter().copied().unzip();
        let last = *positions.iter().max().unwrap() as usize;
        let pages_per_slot = last / layout.page_tokens + 1;
        let count = 3 * pages_per_slot as u32;
        // A fixed permutation: pages of a sequence are neither adjacent nor ascending.
        let table = (0..count).map(|i| (i * 7 + 5) % count).collect::<Vec<_>>();
        let mut sorted = table.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|w| w[0] < w[1]), "{count} pages need another step");
        Self { positions, slots, pages_per_slot, table }
    }

    pub fn table_of(&self, slot: u32) -> &[u32] {
        &self.table[slot as usize * self.pages_per_slot..][..self.pages_per_slot]
    }

    pub fn bytes(&self, layout: &KvLayout) -> usize {
        self.table.len() * layout.page_bytes()
    }
}

fn layout(kind: KvKind, kv_heads: usize, head_dim: usize) -> KvLayout {
    KvLayout::new(kind, kv_heads, head_dim, 64)
}

/// Pages in which all positions up to the last of each slot are stored, and no other byte is a
/// number: what a kernel must not read is poison.
fn filled_pages(random: &mut Random, window: &Window, layout: &KvLayout) -> Vec<u8> {
    let mut bytes = vec![0xffu8; window.bytes(layout)];
    for slot in 0..3u32 {
        let rows = window.slots.iter().zip(&window.positions);
        let Some(last) = rows.filter(|(s, _)| **s == slot).map(|(_, p)| *p as usize).max() else {
            continue;
        };
        for position in 0..=last {
            let page = window.table_of(slot)[position / layout.page_tokens] as usize;
            let page = &mut bytes[page * layout.page_bytes()..][..layout.page_bytes()];
            for head in 0..layout.kv_heads {
                let k = random.floats(layout.head_dim);
                let v = random.floats(layout.head_dim);
                append(page, layout, (head, position % layout.page_tokens), (&k, &v));
            }
        }
    }
    bytes
}

/// Blocks that each row selects: `u32[rows, keep + 2]`, and the entries that they hold. A row of
/// few entries selects all, others blocks here and there; unused words are poison.
fn selections(
    rows: &[(u32, u32)],
    s: &Attention,
    random: &mut Random,
) -> (Vec<u32>, Vec<Vec<usize>>) {
    let Some(Selected { block, keep }) = s.selection else {
        return (Vec::new(), vec![Vec::new(); rows.len()]);
    };
    let (mut words, mut attended) = (Vec::new(), Vec::new());
    for &(_, position) in rows {
        let entries = (position + 1).saturating_sub(s.first);
        let mut ids: Vec<u32> = (0..entries / block).collect();
        while ids.len() > keep as usize {
            ids.remove(random.word() as usize % ids.len());
        }
        ids.extend((!entries.is_multiple_of(block)).then_some(entries / block));
        let of = |id: &u32| id * block..entries.min((id + 1) * block);
        let seen: Vec<usize> = ids.iter().flat_map(of).map(|j| j as usize).collect();
        words.push(seen.len() as u32);
        words.extend(&ids);
        words.resize(words.len() + keep as usize + 1 - ids.len(), u32::MAX);
        attended.push(seen);
    }
    (words, attended)
}

pub fn check_attention(rows: &[(u32, u32)], s: Attention, random: &mut Random) {
    let window = Window::new(rows, &s.kv);
    let s = Attention { pages_per_slot: window.pages_per_slot as u32, ..s };
    let pages = filled_pages(random, &window, &s.kv);
    let (heads, dims) = (s.heads as usize, s.kv.head_dim);
    let q: Vec<f32> = random.floats(rows.len() * heads * dims).iter().map(|x| x * 3.0).collect();
    let (words, attended) = selections(rows, &s, random);
    let mut want = vec![0.0; q.len()];
    for (i, out) in want.chunks_mut(dims).enumerate() {
        let (slot, position) = rows[i / heads];
        let view = View {
            kv_head: i % heads / (heads / s.kv.kv_heads),
            entries: (position + 1).saturating_sub(s.first) as usize,
            window: s.window as usize,
            scale: s.scale.get(),
        };
        let seen = Pages { layout: s.kv, bytes: &pages, table: window.table_of(slot) };
        let q = &q[i * dims..][..dims];
        if s.selection.is_some() {
            attend_selected(q, &seen, &view, &attended[i / heads], out);
        } else {
            attend(q, &seen, &view, out);
        }
    }
    assert!(want.iter().all(|x| x.is_finite()));
    let k = heads * dims;
    let want = if s.quantize { quantize_rows(&want, k) } else { bytes_of(&want) };
    let spec = KernelSpec::Attention(s);
    let wide = s.selection.is_some() && s.kv.kind == KvKind::F16;
    let targets = [Target::of_this_machine().unwrap(), Target::Avx512TilesInAvx2];
    let kernels = targets.map(|t| (wide || t != targets[1]).then(|| runnable_for(spec, t)));
    for (kernel, parts) in kernels.iter().flatten().flat_map(|k| [1, 3].map(|parts| (k, parts))) {
        let row_bytes = if s.quantize { q8_row_bytes(k) } else { 4 * k };
        let mut operands = vec![Buffer::step(rows.len() as u32), Buffer::of(&q)];
        operands.extend([&window.positions, &window.slots, &window.table].map(|x| Buffer::of(x)));
        operands.push(Buffer::of(&pages));
        operands.extend(s.selection.map(|_| Buffer::of(&words)));
        operands.push(Buffer::zeroed(row_bytes * rows.len()));
        kernel.run(&mut operands.iter_mut().collect::<Vec<_>>(), parts);
        assert_same(spec, operands.last().unwrap().as_ref::<u8>(), &want);
    }
}

pub fn attention(kind: KvKind, (heads, kv_heads): (u32, usize), head_dim: usize) -> Attention {
    Attention {
        heads,
        kv: layout(kind, kv_heads, head_dim),
        pages_per_slot: 0,
        scale: F32::from((head_dim as f32).sqrt().recip()),
        window: 0,
        quantize: false,
        first: 0,
        selection: None,
    }
}

#[test]
fn attention_equals_the_reference_across_pages_and_spans() {
    let mut random = Random::new(21);
    let rows = [(1, 0), (0, 63), (0, 64), (1, 255), (1, 256), (0, 700)];
    for kind in KINDS {
        check_attention(&rows, attention(kind, (4, 2), 32), &mut random);
        check_attention(&rows[4..], attention(kind, (6, 1), 64), &mut random);
    }
}

#[test]
fn attention_takes_every_group_of_heads() {
    let mut random = Random::new(22);
    for (heads, kv_heads) in [(1, 1), (3, 1), (7, 1), (9, 3), (18, 2)] {
        let s = attention(KvKind::F16, (heads, kv_heads), 48);
        check_attention(&[(2, 70), (0, 300)], s, &mut random);
    }
    for dims in [16, 80, 256] {
        let s = attention(KvKind::F16, (4, 1), dims);
        check_attention(&[(0, 130), (2, 17)], s, &mut random);
    }
}

#[test]
fn sliding_windows_hide_what_lies_before_them() {
    let mut random = Random::new(23);
    let rows = [(0, 3), (1, 63), (0, 300), (1, 520)];
    for kind in KINDS {
        let more: &[u32] = if kind == KvKind::F16 { &[1, 1000] } else { &[] };
        for &window in [24, 257].iter().chain(more) {
            let s = Attention { window, ..attention(kind, (4, 1), 32) };
            check_attention(&rows, s, &mut random);
        }
    }
}

#[test]
fn attention_can_quantise_its_result() {
    let mut random = Random::new(24);
    let s = Attention { quantize: true, ..attention(KvKind::F16, (9, 3), 64) };
    check_attention(&[(0, 5), (1, 90)], s, &mut random);
}

#[test]
fn prologue_norms_rotates_and_appends_as_the_reference() {
    let mut random = Random::new(25);
    let rows = [(0, 0), (1, 63), (1, 64), (0, 200)];
    for kind in KINDS {
        for (dims, rope_dims, adjacent, fused) in [
            (32, 32, true, false),
            (64, 64, false, true),
            (48, 20, true, true),
            (128, 0, false, true),
        ] {
            let s = AttnPrologue {
                heads: 4,
                kv: layout(kind, 2, dims),
                pages_per_slot: 0,
                fused,
                norm_eps: (dims != 128 && fused).then(|| F32::from(1e-6)),
                rope_dims,
                adjacent,
                first: 0,
            };
            check_prologue(&rows, s, &mut random);
        }
    }
}

#[test]
fn a_cache_may_begin_behind_position_zero_and_group_its_keys() {
    let mut random = Random::new(26);
    let rows = [(0, 0), (1, 1), (1, 64), (1, 65), (0, 200)];
    for kind in KINDS {
        let s = AttnPrologue {
            heads: 2,
            kv: layout(kind, 2, 48).grouped(4),
            pages_per_slot: 0,
            fused: true,
            norm_eps: Some(F32::from(1e-6)),
            rope_dims: 20,
            adjacent: false,
            first: 1,
        };
        check_prologue(&rows, s, &mut random);
        let s = attention(kind, (6, 2), 48);
        let s = Attention { first: 1, kv: s.kv.grouped(4), ..s };
        check_attention(&rows, s, &mut random);
        check_attention(&rows, Attention { window: 24, ..s }, &mut random);
    }
}

#[test]
fn selected_blocks_equal_the_reference() {
    let mut random = Random::new(27);
    let rows = [(0, 0), (1, 35), (1, 36), (2, 37), (0, 300), (1, 700)];
    for kind in KINDS {
        for (heads, dims, first, group) in
            [((4, 2), 32, 0, 4), ((5, 1), 48, 1, 4), ((1, 1), 64, 0, 64)]
        {
            for keep in [8, 100] {
                let s = attention(kind, heads, dims);
                let selection = Some(Selected { block: 4, keep });
                let s = Attention { first, selection, kv: s.kv.grouped(group), ..s };
                check_attention(&rows, s, &mut random);
            }
        }
    }
}

#[test]
fn real_heads_and_larger_blocks_can_be_selected() {
    let mut random = Random::new(28);
    let s = Attention { quantize: true, ..attention(KvKind::F16, (24, 2), 256) };
    let selection = Some(Selected { block: 4, keep: 100 });
    let s = Attention { selection, kv: s.kv.grouped(4), ..s };
    check_attention(&[(0, 401), (1, 520)], s, &mut random);
    for block in [8, 16] {
        let selection = Some(Selected { block, keep: 7 });
        let s = Attention { selection, kv: layout(KvKind::Int8, 2, 256).grouped(16), ..s };
        check_attention(&[(0, 90), (1, 520)], s, &mut random);
    }
}

/// A selection that leaves out only the last entry takes the way of selected blocks, and the same
/// row one position earlier without a selection takes the other: both give the same bits.
#[test]
fn what_is_selected_and_what_is_dense_are_computed_alike() {
    let mut random = Random::new(29);
    for kind in KINDS {
        let kv = layout(kind, 2, 32).grouped(4);
        let s = Attention { pages_per_slot: 10, kv, ..attention(kind, (8, 2), 32) };
        let window = Window::new(&[(0, 639)], &kv);
        let pages = filled_pages(&mut random, &window, &kv);
        let q = random.floats(8 * 32);
        let run = |s: Attention, position: u32| {
            let selection: Vec<u32> = std::iter::once(600).chain(0..200).collect();
            let mut operands = vec![Buffer::step(1), Buffer::of(&q), Buffer::of(&[position])];
            operands.extend([&[0u32][..], &window.table].map(Buffer::of));
            operands.push(Buffer::of(&pages));
            operands.extend(s.selection.map(|_| Buffer::of(&selection)));
            operands.push(Buffer::zeroed(4 * q.len()));
            runnable(KernelSpec::Attention(s)).run(&mut operands.iter_mut().collect::<Vec<_>>(), 1);
            operands.last().unwrap().as_ref::<u8>().to_vec()
        };
        let selection = Some(Selected { block: 4, keep: 199 });
        let chosen = Attention { selection, ..s };
        let dense = run(s, 599);
        assert_eq!(run(chosen, 600), dense, "{kind:?}: the way of selected blocks");
        assert_eq!(run(chosen, 599), dense, "{kind:?}: the way of all entries");
    }
}

fn check_prologue(rows: &[(u32, u32)], s: AttnPrologue, random: &mut Random) {
    let window = Window::new(rows, &s.kv);
    let s = AttnPrologue { pages_per_slot: window.pages_per_slot as u32, ..s };
    let (dims, heads, kv_heads) = (s.kv.head_dim, s.heads as usize, s.kv.kv_heads);
    let gains = [random.floats(dims), random.floats(dims)];
    let parts = [heads, kv_heads, kv_heads].map(|h| random.floats(rows.len() * h * dims));
    let angles = random.floats(rows.len() * s.rope_dims as usize);
    let mut q = parts[0].clone();
    let mut pages = vec![0x55u8; window.bytes(&s.kv)];
    for (row, &(slot, position)) in rows.iter().enumerate() {
        let angles = &angles[row * s.rope_dims as usize..][..s.rope_dims as usize];
        let turned = |head: &[f32], gain: &[f32]| {
            let mut y = head.to_vec();
            if let Some(eps) = s.norm_eps {
                norm::rms_norm(head, gain, eps.get(), &mut y);
            }
            rope::rotate(&mut y, angles, s.adjacent);
            y
        };
        for q in q[row * heads * dims..][..heads * dims].chunks_mut(dims) {
            q.copy_from_slice(&turned(q, &gains[0]));
        }
        let Some(entry) = position.checked_sub(s.first).map(|e| e as usize) else {
            continue;
        };
        let page = window.table_of(slot)[entry / s.kv.page_tokens] as usize;
        let page = &mut pages[page * s.kv.page_bytes()..][..s.kv.page_bytes()];
        for head in 0..kv_heads {
            let at = (row * kv_heads + head) * dims;
            let k = turned(&parts[1][at..at + dims], &gains[1]);
            let v = &parts[2][at..at + dims];
            append(page, &s.kv, (head, entry % s.kv.page_tokens), (&k, v));
        }
    }
    run_prologue(&s, &window, (&parts, &angles, &gains), (&bytes_of(&q), &pages));
}

type Inputs<'a> = (&'a [Vec<f32>; 3], &'a [f32], &'a [Vec<f32>; 2]);

fn run_prologue(
    s: &AttnPrologue,
    window: &Window,
    (parts, angles, gains): Inputs<'_>,
    (q, pages): (&[u8], &[u8]),
) {
    let rows = window.slots.len();
    let mut operands = vec![Buffer::step(rows as u32)];
    if s.fused {
        let row =
            |i| parts.iter().flat_map(move |p| p[i * p.len() / rows..][..p.len() / rows].iter());
        let fused: Vec<f32> = (0..rows).flat_map(row).copied().collect();
        operands.push(Buffer::of(&fused));
    } else {
        operands.extend(parts.iter().map(|p| Buffer::of(p)));
    }
    operands.extend((s.rope_dims > 0).then(|| Buffer::of(angles)));
    operands.extend([&window.positions, &window.slots, &window.table].map(|x| Buffer::of(x)));
    let pages_at = operands.len();
    operands.push(Buffer::of(&vec![0x55u8; pages.len()]));
    if s.norm_eps.is_some() {
        operands.extend(gains.iter().map(|g| Buffer::of(g)));
    }
    operands.push(Buffer::zeroed(q.len()));
    let kernel = runnable(KernelSpec::AttnPrologue(*s));
    kernel.run(&mut operands.iter_mut().collect::<Vec<_>>(), 3);
    let spec = KernelSpec::AttnPrologue(*s);
    assert_same(spec, operands.last().unwrap().as_ref::<u8>(), q);
    assert_same(spec, operands[pages_at].as_ref::<u8>(), pages);
}

#[test]
fn a_page_is_covered_once_by_keys_values_and_scales() {
    for kind in KINDS {
        let whole = layout(kind, 3, 16);
        for layout in [whole, whole.grouped(4), KvLayout::keys_only(kind, 16, 64).grouped(8)] {
            let mut uses = vec![0u8; layout.page_bytes()];
            let mut take =
                |at: usize, bytes: usize| uses[at..at + bytes].iter_mut().for_each(|u| *u += 1);
            for (head, index) in (0..layout.kv_heads).flat_map(|h| (0..64).map(move |i| (h, i))) {
                for dim in 0..16 {
                    take(layout.k_offset(head, dim, index), kind.element_bytes());
                    if layout.values {
                        take(layout.v_offset(head, index, dim), kind.element_bytes());
                    }
                }
                if kind == KvKind::Int8 {
                    take(layout.k_scale_offset(head, index), 4);
                    if layout.values {
                        take(layout.v_scale_offset(head, index), 4);
                    }
                }
            }
            assert!(uses.iter().all(|&u| u == 1), "{layout:?}");
        }
    }
}
