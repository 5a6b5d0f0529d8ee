//! Ops with tails: windows of several sequences, in place and pending, and their commits.

use super::products::runnable;
use super::random::Random;
use super::rows::bytes_of;
use crate::KernelSpec;
use crate::ops::slots::SlotLayout;
use crate::reference::states::{NgramHash, conv1d, shift_rows, tail_after};
use crate::run::{Buffer, Plain};
use crate::spec::{Conv1d, NgramRows, ShiftRows, TailCommit};
use serde::Deserialize;
use std::fmt::Debug;

const SLOTS: usize = 4;
/// Pending rows of a slot.
const VERIFY_ROWS: u64 = 8;

/// Segments of a window: a slot and its rows, and how many of them are accepted.
struct Window {
    pending: bool,
    segments: &'static [(u32, usize, usize)],
}

/// In place and pending windows, shorter and longer than tails; slots in no order, rows refused.
const SCRIPT: [Window; 6] = [
    Window { pending: false, segments: &[(2, 5, 5), (0, 1, 1), (3, 12, 12)] },
    Window { pending: true, segments: &[(0, 3, 2), (2, 8, 0), (1, 1, 1)] },
    Window { pending: true, segments: &[(2, 8, 8), (3, 2, 1), (1, 4, 3)] },
    Window { pending: false, segments: &[(1, 1, 1), (0, 2, 2)] },
    Window { pending: false, segments: &[(0, 9, 9)] },
    Window { pending: true, segments: &[(0, 1, 1), (1, 2, 2)] },
];

impl Window {
    fn rows(&self) -> usize {
        self.segments.iter().map(|s| s.1).sum()
    }

    fn slots(&self) -> Buffer {
        let slots = self.segments.iter().flat_map(|&(slot, rows, _)| vec![slot; rows]);
        Buffer::of(&slots.collect::<Vec<u32>>())
    }

    fn offsets(&self) -> Buffer {
        let offsets = self.segments.iter().flat_map(|&(_, rows, _)| 0..rows as u32);
        Buffer::of(&offsets.collect::<Vec<u32>>())
    }
}

/// The tails of all slots, as a kernel's state and as they should be.
struct Tails<T> {
    rows: usize,
    width: usize,
    layout: SlotLayout,
    state: Buffer,
    want: Vec<Vec<T>>,
}

impl<T: Plain + PartialEq + Debug> Tails<T> {
    fn new(rows: usize, width: usize) -> Self {
        let row_bytes = (width * size_of::<T>()) as u64;
        let layout = SlotLayout::tail(rows as u64, row_bytes, VERIFY_ROWS);
        let state = Buffer::zeroed(layout.stride_bytes as usize * SLOTS);
        Self { rows, width, layout, state, want: vec![vec![T::default(); rows * width]; SLOTS] }
    }

    fn at(&self, bytes: u64, count: usize) -> &[T] {
        &self.state.as_ref::<T>()[bytes as usize / size_of::<T>()..][..count]
    }

    fn assert_values(&self, what: &str) {
        for (slot, want) in self.want.iter().enumerate() {
            let found = self.at(self.layout.value_offset(slot as u64), want.len());
            assert_eq!(found, want, "{what}: slot {slot}");
        }
    }

    /// Each segment's slot and the elements of its rows.
    fn segments<'a>(&self, window: &Window, x: &'a [T]) -> Vec<(usize, &'a [T])> {
        let mut rest = x;
        let take = |&(slot, rows, _): &(u32, usize, usize)| {
            let (own, others) = rest.split_at(rows * self.width);
            rest = others;
            (slot as usize, own)
        };
        window.segments.iter().map(take).collect()
    }

    /// Checks what a window left behind, of which `x` are the rows, and commits it.
    fn finish(&mut self, window: &Window, x: &[T]) {
        let segments: Vec<_> = self.segments(window, x);
        if window.pending {
            self.assert_values("a pending window changes no value");
            for &(slot, rows) in &segments {
                for (i, row) in rows.chunks(self.width).enumerate() {
                    let at = self.layout.pending_offset(slot as u64, i as u64);
                    assert_eq!(self.at(at, self.width), row, "pending row {i} of slot {slot}");
                }
            }
            self.commit(window);
        }
        for ((slot, rows), (_, _, accepted)) in segments.iter().zip(window.segments) {
            let accepted = &rows[..accepted * self.width];
            self.want[*slot] = tail_after(&self.want[*slot], accepted);
        }
        self.assert_values("after the window");
    }

    fn commit(&mut self, window: &Window) {
        let mut step = Buffer::step(0);
        step.as_mut::<u32>()[2] = window.segments.len() as u32;
        let (slots, accepted): (Vec<u32>, Vec<u32>) =
            window.segments.iter().map(|s| (s.0, s.2 as u32)).unzip();
        let row_bytes = (self.width * size_of::<T>()) as u32;
        let s = TailCommit { rows: self.rows as u32, row_bytes, layout: self.layout };
        let (mut slots, mut accepted) = (Buffer::of(&slots), Buffer::of(&accepted));
        let mut operands = [&mut step, &mut slots, &mut accepted, &mut self.state];
        runnable(KernelSpec::TailCommit(s)).run(&mut operands, 3);
    }
}

/// Runs a kernel with operands `first`, slots, offsets, `between`, the state and `bytes` of
/// results, in as many parts as the window has segments.
fn run<T: Plain + PartialEq + Debug>(
    spec: KernelSpec,
    window: &Window,
    tails: &mut Tails<T>,
    (first, between): (&mut [Buffer], &mut [Buffer]),
    bytes: usize,
) -> Buffer {
    let mut step = Buffer::step(window.rows() as u32);
    let (mut slots, mut offsets) = (window.slots(), window.offsets());
    let mut y = Buffer::zeroed(bytes);
    let mut operands = vec![&mut step];
    operands.extend(first);
    operands.extend([&mut slots, &mut offsets]);
    operands.extend(between);
    operands.extend([&mut tails.state, &mut y]);
    runnable(spec).run(&mut operands, window.segments.len() as u64);
    y
}

#[test]
fn convolutions_equal_the_reference_in_every_window() {
    for (channels, taps, dilation) in [(16, 4, 1), (48, 2, 1), (128, 4, 3), (80, 3, 2)] {
        let mut random = Random::new(50);
        let weight = random.floats(channels * taps);
        let mut tails = Tails::<f32>::new((taps - 1) * dilation, channels);
        for window in &SCRIPT {
            let s = Conv1d {
                channels: channels as u32,
                taps: taps as u32,
                dilation: dilation as u32,
                layout: tails.layout,
                pending: window.pending,
            };
            let x: Vec<f32> =
                random.floats(window.rows() * channels).iter().map(|x| x * 4.0).collect();
            let want: Vec<f32> = tails
                .segments(window, &x)
                .iter()
                .flat_map(|(slot, x)| conv1d(&tails.want[*slot], x, &weight, taps, dilation))
                .collect();
            let mut first = [Buffer::of(&x), Buffer::of(&weight)];
            let spec = KernelSpec::Conv1d(s);
            let y = run(spec, window, &mut tails, (&mut first, &mut []), 4 * x.len());
            assert_eq!(bytes_of(y.as_ref()), bytes_of(&want), "{s:?}");
            tails.finish(window, &x);
        }
    }
}

#[test]
fn shifted_rows_are_the_rows_before() {
    for k in [16, 80, 192] {
        let mut random = Random::new(51);
        let mut tails = Tails::<f32>::new(1, k);
        for window in &SCRIPT {
            let s = ShiftRows { k: k as u32, layout: tails.layout, pending: window.pending };
            let x = random.floats(window.rows() * k);
            let want: Vec<f32> = tails
                .segments(window, &x)
                .iter()
                .flat_map(|(slot, x)| shift_rows(&tails.want[*slot], x))
                .collect();
            let mut first = [Buffer::of(&x)];
            let spec = KernelSpec::ShiftRows(s);
            let y = run(spec, window, &mut tails, (&mut first, &mut []), 4 * x.len());
            assert_eq!(bytes_of(y.as_ref()), bytes_of(&want), "{s:?}");
            tails.finish(window, &x);
        }
    }
}

#[test]
fn ngrams_equal_the_reference_in_every_window() {
    for (ngram, a_ngram) in [(2usize, 1usize), (3, 8), (4, 3)] {
        let mut random = Random::new(52);
        let heads = (ngram - 1) * a_ngram;
        let hash = NgramHash {
            multipliers: (0..ngram).map(|_| random.word() | 1).collect(),
            sizes: (0..heads as u64).map(|i| 101 + 2 * i).collect(),
            offsets: (0..heads as u64).map(|i| 4_000_000_000 + 200 * i).collect(),
            eos: 3,
        };
        let mut tails = Tails::<u32>::new(ngram - 1, 1);
        for window in &SCRIPT {
            let s = NgramRows {
                ngram: ngram as u32,
                heads_per_ngram: a_ngram as u32,
                layout: tails.layout,
                pending: window.pending,
            };
            // Few tokens, so that many windows hold an end of sequence.
            let tokens: Vec<u32> =
                (0..window.rows()).map(|_| (random.word() >> 40) as u32 % 6).collect();
            let want: Vec<u32> = tails
                .segments(window, &tokens)
                .iter()
                .flat_map(|(slot, tokens)| hash.rows(&tails.want[*slot], tokens))
                .collect();
            let (mut first, mut between) = ([Buffer::of(&tokens)], [Buffer::of(&hash.words())]);
            let bytes = 4 * tokens.len() * heads;
            let operands = (&mut first[..], &mut between[..]);
            let y = run(KernelSpec::NgramRows(s), window, &mut tails, operands, bytes);
            assert_eq!(y.as_ref::<u32>(), want, "{s:?}");
            let words: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
            tails.finish(window, &words);
        }
    }
}

/// A hash as it was published, and the table rows of tokens from the start of a sequence.
#[derive(Deserialize)]
struct Published {
    eos: u32,
    multipliers: Vec<u64>,
    sizes: Vec<u64>,
    offsets: Vec<u64>,
    tokens: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

#[test]
fn ngrams_have_the_published_rows() {
    let text = include_str!("../../../tests/oracle/ngram/released.ron");
    let published: Published = ron::from_str(text).unwrap();
    let Published { eos, multipliers, sizes, offsets, tokens, rows } = published;
    let hash = NgramHash { multipliers, sizes, offsets, eos };
    let need = rows.concat();
    assert_eq!(need.len(), 40 * 16);
    assert_eq!(hash.rows(&[0; 2], &tokens), need);
    let all = Window { pending: false, segments: &[(1, 40, 40)] };
    let eight = Window { pending: true, segments: &[(1, 8, 8)] };
    for (window, count) in [(all, 1), (eight, 5)] {
        let mut tails = Tails::<u32>::new(2, 1);
        let (layout, pending) = (tails.layout, window.pending);
        let s = NgramRows { ngram: 3, heads_per_ngram: 8, layout, pending };
        let mut found = Vec::new();
        for tokens in tokens.chunks(40 / count) {
            let (mut first, mut between) = ([Buffer::of(tokens)], [Buffer::of(&hash.words())]);
            let operands = (&mut first[..], &mut between[..]);
            let bytes = 4 * tokens.len() * 16;
            let y = run(KernelSpec::NgramRows(s), &window, &mut tails, operands, bytes);
            found.extend_from_slice(y.as_ref::<u32>());
            let words: Vec<u32> = tokens.iter().map(|token| token + 1).collect();
            tails.finish(&window, &words);
        }
        assert_eq!(found, need);
    }
}

#[test]
fn slots_hold_a_value_and_its_pending_rows() {
    let layout = SlotLayout::tail(3, 40, 2);
    assert_eq!((layout.pending_bytes, layout.pending_stride_bytes), (128, 64));
    assert_eq!(layout.stride_bytes, 256);
    assert_eq!(layout.pending_offset(2, 1), 2 * 256 + 128 + 64);
    assert_eq!(SlotLayout::new(100, 8, 0).stride_bytes, 128);
    let small = SlotLayout { pending_bytes: 64, ..layout };
    let spec = TailCommit { rows: 3, row_bytes: 40, layout: small };
    let error = crate::compile(&[KernelSpec::TailCommit(spec)], crate::Target::X86Avx2);
    assert!(error.unwrap_err().to_string().contains("pending_bytes is 64"));
}
