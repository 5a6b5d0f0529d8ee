use super::products::runnable;
use super::random::{Random, quantize_rows};
use super::rows::{assert_same, bytes_of, result};
use crate::KernelSpec;
use crate::ops::kv::{KvKind, KvLayout};
use crate::reference::attention::{Pages, View, append, attend};
use crate::reference::matmul::decode_row;
use crate::reference::quantize::q8_row_bytes;
use crate::reference::{norm, rope};
use crate::run::Buffer;
use crate::spec::{Attention, AttnPrologue, Embed, F32, WeightFormat};

const KINDS: [KvKind; 3] = [KvKind::F32, KvKind::F16, KvKind::Int8];

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
struct Window {
    positions: Vec<u32>,
    slots: Vec<u32>,
    pages_per_slot: usize,
    table: Vec<u32>,
}

impl Window {
    fn new(rows: &[(u32, u32)], layout: &KvLayout) -> Self {
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

    fn table_of(&self, slot: u32) -> &[u32] {
        &self.table[slot as usize * self.pages_per_slot..][..self.pages_per_slot]
    }

    fn bytes(&self, layout: &KvLayout) -> usize {
        self.table.len() * layout.page_bytes()
    }
}

fn layout(kind: KvKind, kv_heads: usize, head_dim: usize) -> KvLayout {
    KvLayout { kind, kv_heads, head_dim, page_tokens: 64 }
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

fn check_attention(rows: &[(u32, u32)], s: Attention, random: &mut Random) {
    let window = Window::new(rows, &s.kv);
    let s = Attention { pages_per_slot: window.pages_per_slot as u32, ..s };
    let pages = filled_pages(random, &window, &s.kv);
    let (heads, dims) = (s.heads as usize, s.kv.head_dim);
    let q: Vec<f32> = random.floats(rows.len() * heads * dims).iter().map(|x| x * 3.0).collect();
    let mut want = vec![0.0; q.len()];
    for (i, out) in want.chunks_mut(dims).enumerate() {
        let (slot, position) = rows[i / heads];
        let view = View {
            kv_head: i % heads / (heads / s.kv.kv_heads),
            position: position as usize,
            window: s.window as usize,
            scale: s.scale.get(),
        };
        let seen = Pages { layout: s.kv, bytes: &pages, table: window.table_of(slot) };
        attend(&q[i * dims..][..dims], &seen, &view, out);
    }
    assert!(want.iter().all(|x| x.is_finite()));
    let k = heads * dims;
    let want = if s.quantize { quantize_rows(&want, k) } else { bytes_of(&want) };
    let kernel = runnable(KernelSpec::Attention(s));
    for parts in [1, 3] {
        let row_bytes = if s.quantize { q8_row_bytes(k) } else { 4 * k };
        let mut y = Buffer::zeroed(row_bytes * rows.len());
        kernel.run(
            &mut [
                &mut Buffer::step(rows.len() as u32),
                &mut Buffer::of(&q),
                &mut Buffer::of(&window.positions),
                &mut Buffer::of(&window.slots),
                &mut Buffer::of(&window.table),
                &mut Buffer::of(&pages),
                &mut y,
            ],
            parts,
        );
        assert_same(KernelSpec::Attention(s), y.as_ref::<u8>(), &want);
    }
}

fn attention(kind: KvKind, (heads, kv_heads): (u32, usize), head_dim: usize) -> Attention {
    Attention {
        heads,
        kv: layout(kind, kv_heads, head_dim),
        pages_per_slot: 0,
        scale: F32::from((head_dim as f32).sqrt().recip()),
        window: 0,
        quantize: false,
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
            };
            check_prologue(&rows, s, &mut random);
        }
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
        let page = window.table_of(slot)[position as usize / s.kv.page_tokens] as usize;
        let page = &mut pages[page * s.kv.page_bytes()..][..s.kv.page_bytes()];
        for head in 0..kv_heads {
            let at = (row * kv_heads + head) * dims;
            let k = turned(&parts[1][at..at + dims], &gains[1]);
            let v = &parts[2][at..at + dims];
            append(page, &s.kv, (head, position as usize % s.kv.page_tokens), (&k, v));
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
        let layout = layout(kind, 3, 16);
        let mut uses = vec![0u8; layout.page_bytes()];
        let mut take =
            |at: usize, bytes: usize| uses[at..at + bytes].iter_mut().for_each(|u| *u += 1);
        for (head, index) in (0..3).flat_map(|h| (0..64).map(move |i| (h, i))) {
            for dim in 0..16 {
                take(layout.k_offset(head, dim, index), kind.element_bytes());
                take(layout.v_offset(head, index, dim), kind.element_bytes());
            }
            if kind == KvKind::Int8 {
                take(layout.k_scale_offset(head, index), 4);
                take(layout.v_scale_offset(head, index), 4);
            }
        }
        assert!(uses.iter().all(|&u| u == 1), "{kind:?}");
    }
}
