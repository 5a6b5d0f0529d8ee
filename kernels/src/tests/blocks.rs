use super::products::{runnable, runnable_for};
use super::random::Random;
use super::rows::{assert_same, bytes_of};
use super::sequence::{KINDS, Window};
use crate::ops::kv::{KvKind, KvLayout};
use crate::ops::slots::SlotLayout;
use crate::reference::attention::{Pages, append_key};
use crate::reference::blocks::{Pooling, pooled_key, scores, top};
use crate::run::Buffer;
use crate::spec::{BlockKeys, BlockScores, BlockTop, F32};
use crate::{KernelError, KernelSpec, Target, compile};

/// Keys of a page.
const PAGE: usize = 16;
const SLOTS: u32 = 3;
const VERIFY_ROWS: u64 = 8;

fn layout(kind: KvKind, dim: u32) -> KvLayout {
    KvLayout::keys_only(kind, dim as usize, PAGE)
}

/// A window's page table: of pages as long as [`PAGE`] blocks.
fn window(rows: &[(u32, u32)], block: u32) -> Window {
    Window::new(rows, &KvLayout::new(KvKind::F32, 1, 16, PAGE * block as usize))
}

fn block_keys(kind: KvKind, dim: u32, block: u32, pending: bool) -> BlockKeys {
    BlockKeys {
        dim,
        rope_dims: dim / 2,
        block,
        eps: F32::from(1e-6),
        first: 0,
        keys: layout(kind, dim),
        pages_per_slot: 0,
        layout: SlotLayout::tail(u64::from(block) - 1, u64::from(dim) * 4, VERIFY_ROWS),
        pending,
    }
}

/// Sequences as a test keeps them: all raw keys so far.
struct Sequences {
    s: BlockKeys,
    raw: [Vec<Vec<f32>>; SLOTS as usize],
    pages: Vec<u8>,
    state: Vec<u8>,
    gain: Vec<f32>,
    inv_freq: Vec<f32>,
}

impl Sequences {
    fn new(s: BlockKeys, pages: usize, random: &mut Random) -> Self {
        let inv_freq = (0..s.rope_dims / 2).map(|i| 1e4f32.powf(-(i as f32) / 8.0)).collect();
        Self {
            s,
            raw: Default::default(),
            pages: vec![0x55; pages],
            state: vec![0; (s.layout.stride_bytes * u64::from(SLOTS)) as usize],
            gain: random.floats(s.dim as usize),
            inv_freq,
        }
    }

    /// What a row leaves behind when all rows before it are in `raw`.
    fn take_row(&mut self, slot: u32, offset: u64, table: &[u32]) {
        let s = &self.s;
        let raw = &self.raw[slot as usize];
        let entries = raw.len().saturating_sub(s.first as usize);
        let block = s.block as usize;
        if entries > 0 && entries.is_multiple_of(block) {
            let pooling = Pooling { gain: &self.gain, eps: s.eps.get(), inv_freq: &self.inv_freq };
            let start = raw.len() - block;
            let key = pooled_key(&raw[start..], &pooling, start as u32);
            let id = entries / block - 1;
            let page = table[id / s.keys.page_tokens] as usize * s.keys.page_bytes();
            let page = &mut self.pages[page..][..s.keys.page_bytes()];
            append_key(page, &s.keys, (0, id % s.keys.page_tokens), &key);
        }
        if s.pending {
            let at = s.layout.pending_offset(slot.into(), offset) as usize;
            let row = bytes_of(raw.last().unwrap());
            self.state[at..at + row.len()].copy_from_slice(&row);
        }
    }

    /// Makes the value of a slot's tail that of its last rows.
    fn settle(&mut self, slot: u32) {
        let raw = &self.raw[slot as usize];
        let (n, dim) = (self.s.block as usize - 1, self.s.dim as usize);
        let zero = vec![0.0; dim];
        let row = |i: usize| (raw.len() + i).checked_sub(n).map_or(&zero, |i| &raw[i]);
        let tail: Vec<u8> = (0..n).flat_map(|i| bytes_of(row(i))).collect();
        let at = self.s.layout.value_offset(slot.into()) as usize;
        self.state[at..at + tail.len()].copy_from_slice(&tail);
    }
}

/// Windows of segments (slot, rows); of pending rows all but the last `rejected` are accepted.
fn check_keys(s: BlockKeys, windows: &[&[(u32, u32)]], rejected: usize, random: &mut Random) {
    let last = window(&[(0, 300)], s.block);
    let s = BlockKeys { pages_per_slot: last.pages_per_slot as u32, ..s };
    let spec = KernelSpec::BlockKeys(s);
    let kernel = runnable(spec);
    let mut sequences = Sequences::new(s, last.bytes(&s.keys), random);
    for segments in windows {
        let before = (sequences.pages.clone(), sequences.state.clone());
        let (mut x, mut positions, mut slots, mut offsets) = (vec![], vec![], vec![], vec![]);
        for &(slot, rows) in *segments {
            for offset in 0..rows {
                let row = random.floats(s.dim as usize);
                x.extend_from_slice(&row);
                positions.push(sequences.raw[slot as usize].len() as u32);
                slots.push(slot);
                offsets.push(offset);
                sequences.raw[slot as usize].push(row);
                sequences.take_row(slot, offset.into(), last.table_of(slot));
            }
            if !s.pending {
                sequences.settle(slot);
            }
        }
        for parts in [1, 3] {
            let mut operands = vec![Buffer::step(slots.len() as u32), Buffer::of(&x)];
            operands.extend([&sequences.gain, &sequences.inv_freq].map(|x| Buffer::of(x)));
            operands.extend([&positions, &slots, &offsets, &last.table].map(|x| Buffer::of(x)));
            operands.extend([&before.0, &before.1].map(|x| Buffer::of(x)));
            kernel.run(&mut operands.iter_mut().collect::<Vec<_>>(), parts);
            assert_same(spec, operands[8].as_ref::<u8>(), &sequences.pages);
            assert_same(spec, operands[9].as_ref::<u8>(), &sequences.state);
        }
        if s.pending {
            for &(slot, rows) in *segments {
                let raw = &mut sequences.raw[slot as usize];
                raw.truncate(raw.len() - rejected.min(rows as usize));
                sequences.settle(slot);
            }
        }
    }
}

#[test]
fn pooled_keys_and_their_tails_equal_the_reference() {
    let mut random = Random::new(40);
    let windows: [&[(u32, u32)]; 7] = [
        &[(0, 1)],
        &[(0, 2), (1, 9)],
        &[(2, 1), (0, 1), (1, 3)],
        &[(1, 8), (2, 2)],
        &[(0, 4), (2, 130)],
        &[(1, 1), (2, 1), (0, 1)],
        &[(0, 3), (1, 5), (2, 4)],
    ];
    for kind in KINDS {
        for (dim, block) in [(32, 4), (272, 4), (48, 8)] {
            for first in [0, 1] {
                let s = BlockKeys { first, ..block_keys(kind, dim, block, false) };
                check_keys(s, &windows, 0, &mut random);
            }
        }
    }
}

#[test]
fn windows_that_may_be_rejected_leave_the_tail_and_write_pending_rows() {
    let mut random = Random::new(41);
    let windows: [&[(u32, u32)]; 6] = [
        &[(0, 8)],
        &[(0, 2), (1, 6)],
        &[(1, 8)],
        &[(2, 1), (1, 3), (0, 4)],
        &[(1, 4), (2, 4)],
        &[(0, 3), (2, 5)],
    ];
    for kind in KINDS {
        for rejected in [0, 1, 3] {
            let s = BlockKeys { first: 1, ..block_keys(kind, 128, 4, true) };
            check_keys(s, &windows, rejected, &mut random);
        }
    }
}

const ROWS: [(u32, u32); 7] = [(0, 2), (1, 3), (0, 67), (1, 300), (2, 1000), (0, 1022), (0, 1023)];

fn check_scores(s: BlockScores, target: Target, random: &mut Random) {
    let window = window(&ROWS, s.block);
    let s = BlockScores { pages_per_slot: window.pages_per_slot as u32, ..s };
    let visible = |position: u32| ((position + 1).saturating_sub(s.first) / s.block) as usize;
    // What no row may read is not a number.
    let mut pages = vec![0xff; window.bytes(&s.keys)];
    for slot in 0..SLOTS {
        let of_slot = ROWS.iter().filter(|r| r.0 == slot).map(|r| visible(r.1));
        for id in 0..of_slot.max().unwrap() {
            let page = window.table_of(slot)[id / s.keys.page_tokens] as usize;
            let page = &mut pages[page * s.keys.page_bytes()..][..s.keys.page_bytes()];
            let key = random.floats(s.dim as usize);
            append_key(page, &s.keys, (0, id % s.keys.page_tokens), &key);
        }
    }
    let width = (s.heads * s.dim) as usize;
    let mut queries = random.floats(ROWS.len() * width);
    queries[2 * width..3 * width].fill(0.0);
    let mut want = vec![0xccu8; ROWS.len() * s.blocks as usize * 4];
    for ((&(slot, position), q), want) in
        ROWS.iter().zip(queries.chunks(width)).zip(want.chunks_mut(s.blocks as usize * 4))
    {
        let keys = Pages { layout: s.keys, bytes: &pages, table: window.table_of(slot) };
        let found = bytes_of(&scores(q, &keys, visible(position)));
        want[..found.len()].copy_from_slice(&found);
    }
    let spec = KernelSpec::BlockScores(s);
    let kernel = runnable_for(spec, target);
    for parts in [1, 3, 64] {
        let mut operands = vec![Buffer::step(ROWS.len() as u32), Buffer::of(&queries)];
        operands.extend([&window.positions, &window.slots, &window.table].map(|x| Buffer::of(x)));
        operands.extend([Buffer::of(&pages), Buffer::of(&vec![0xccu8; want.len()])]);
        kernel.run(&mut operands.iter_mut().collect::<Vec<_>>(), parts);
        assert_same(spec, operands.last().unwrap().as_ref::<u8>(), &want);
    }
}

#[test]
fn scores_equal_the_reference_and_touch_complete_blocks_only() {
    let mut random = Random::new(42);
    for kind in KINDS {
        for (heads, dim, block, first) in [(4, 128, 4, 0), (1, 32, 4, 1), (6, 48, 4, 0)] {
            let keys = layout(kind, dim);
            let s = BlockScores { heads, dim, block, blocks: 257, first, keys, pages_per_slot: 0 };
            check_scores(s, Target::of_this_machine().unwrap(), &mut random);
            if kind == KvKind::F16 {
                check_scores(s, Target::Avx512TilesInAvx2, &mut random);
            }
        }
    }
}

#[test]
fn the_best_blocks_are_selected_lower_ids_first_among_equals() {
    let mut random = Random::new(43);
    let positions = [0u32, 3, 31, 34, 38, 100, 2049, 2051, 2052, 2600, 2799];
    for (keep, first, levels) in
        [(8, 0, 4.0), (8, 1, 1e6), (512, 0, 30.0), (512, 1, 1e6), (1, 0, 1.0)]
    {
        let s = BlockTop { block: 4, keep, blocks: 701, first };
        let blocks = s.blocks as usize;
        let rough = |x: f32| (x.max(-0.2) * levels).round().max(0.0) / levels;
        let mut all: Vec<f32> =
            random.floats(positions.len() * blocks).into_iter().map(rough).collect();
        // A row of equals, one with infinities, one of numbers that differ in their last bits.
        all[6 * blocks..7 * blocks].fill(0.0);
        all[8 * blocks..8 * blocks + 20].fill(f32::INFINITY);
        for (i, x) in all[9 * blocks..10 * blocks].iter_mut().enumerate() {
            *x = f32::from_bits(0x3f80_0000 + (i as u32 * 37) % 701);
        }
        let spec = KernelSpec::BlockTop(s);
        let kernel = runnable(spec);
        for parts in [1, 3] {
            let words = keep as usize + 2;
            let mut found = Buffer::of(&vec![u32::MAX; positions.len() * words]);
            let mut step = Buffer::step(positions.len() as u32);
            let mut operands = [Buffer::of(&all), Buffer::of(&positions)];
            let [scores, at] = &mut operands;
            kernel.run(&mut [&mut step, scores, at, &mut found], parts);
            let rows = found.as_ref::<u32>().chunks(words);
            for ((row, scores), position) in rows.zip(all.chunks(blocks)).zip(positions) {
                let entries = (position + 1).saturating_sub(first);
                let scores = &scores[..(entries / 4) as usize];
                let want = top(scores, entries, (4, keep as usize));
                assert_eq!(row[..want.len()], want, "{s:?} position {position}");
            }
        }
    }
}

#[test]
fn shapes_that_blocks_cannot_take_are_refused() {
    let s = block_keys(KvKind::F16, 32, 4, false);
    let wrong = [
        KernelSpec::BlockKeys(BlockKeys { block: 3, ..s }),
        KernelSpec::BlockKeys(BlockKeys { dim: 48, ..s }),
        KernelSpec::BlockKeys(BlockKeys { layout: SlotLayout::tail(1, 128, 0), ..s }),
        KernelSpec::BlockTop(BlockTop { block: 4, keep: 0, blocks: 8, first: 0 }),
    ];
    for spec in wrong {
        let error = compile(&[spec], Target::X86Avx2).unwrap_err();
        assert!(matches!(error, KernelError::Shape { .. }), "{error}");
    }
}
