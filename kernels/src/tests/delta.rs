use super::products::{runnable, runnable_for};
use super::random::Random;
use crate::ops::slots::SlotLayout;
use crate::reference::delta::{Factors, Heads, Row, apply, step};
use crate::reference::delta_chunked;
use crate::run::{Buffer, Runnable};
use crate::spec::{DeltaCommit, DeltaFactors, GatedDelta};
use crate::{KernelError, KernelSpec, Target, compile};

const SLOTS: usize = 3;
/// Rows of the largest verify window.
const PENDING: u64 = 8;
const POISON: f32 = 7.5e30;

fn spec(key_heads: u32, value_heads: u32, head_dim: u32) -> GatedDelta {
    let value = 4 * u64::from(value_heads * head_dim * head_dim);
    let factors = DeltaFactors::new(key_heads, value_heads, head_dim).bytes();
    // Longer than it must be, everywhere.
    let layout = SlotLayout::new(value + 64, factors + 64, PENDING);
    let (tiled, interleaved, pending) = (false, false, false);
    GatedDelta { key_heads, value_heads, head_dim, tiled, interleaved, layout, pending }
}

fn heads(s: &GatedDelta) -> Heads {
    Heads {
        key_heads: s.key_heads as usize,
        value_heads: s.value_heads as usize,
        head_dim: s.head_dim as usize,
        tiled: s.tiled,
    }
}

fn commit(s: &GatedDelta) -> KernelSpec {
    let GatedDelta { key_heads, value_heads, head_dim, tiled, layout, .. } = *s;
    KernelSpec::DeltaCommit(DeltaCommit { key_heads, value_heads, head_dim, tiled, layout })
}

/// What is the same in all rows.
struct Layer {
    s: GatedDelta,
    kernel: Runnable,
    a: Vec<f32>,
    dt_bias: Vec<f32>,
}

/// A row's inputs, as the reference takes them.
#[derive(Clone)]
struct Input {
    qkv: Vec<f32>,
    beta: Vec<f32>,
    alpha: Vec<f32>,
}

impl Layer {
    fn new(s: GatedDelta, random: &mut Random) -> Self {
        let count = s.value_heads as usize;
        let a = random.floats(count).iter().map(|x| -0.05 - 2.0 * x.abs()).collect();
        let kernel = runnable(KernelSpec::GatedDelta(s));
        Self { s, kernel, a, dt_bias: random.floats(count) }
    }

    /// The same weights with another specification.
    fn with(&self, s: GatedDelta) -> Self {
        let kernel = runnable(KernelSpec::GatedDelta(s));
        Self { s, kernel, a: self.a.clone(), dt_bias: self.dt_bias.clone() }
    }

    /// Large gates among small ones: softplus both curved and linear, decays near 0 and near 1.
    fn input(&self, random: &mut Random) -> Input {
        let (s, count) = (&self.s, self.s.value_heads as usize);
        let width = ((2 * s.key_heads + s.value_heads) * s.head_dim) as usize;
        let factor = if random.unit() > 0.6 { 30.0 } else { 2.0 };
        let gates = |random: &mut Random| random.floats(count).iter().map(|x| x * factor).collect();
        let (beta, alpha) = (gates(random), gates(random));
        Input { qkv: random.floats(width).iter().map(|x| x * 3.0).collect(), beta, alpha }
    }

    fn row<'a>(&'a self, input: &'a Input) -> Row<'a> {
        let Input { qkv, beta, alpha } = input;
        Row { qkv, beta, alpha, a: &self.a, dt_bias: &self.dt_bias }
    }

    /// Betas and alphas as the kernel takes them.
    fn gates(&self, inputs: &[Input]) -> [Vec<f32>; 2] {
        let flat = |of: fn(&Input) -> &Vec<f32>| inputs.iter().flat_map(of).copied().collect();
        if !self.s.interleaved {
            return [flat(|i| &i.beta), flat(|i| &i.alpha)];
        }
        let group = (self.s.value_heads / self.s.key_heads) as usize;
        let both = |i: &Input| -> Vec<f32> {
            let groups = i.beta.chunks(group).zip(i.alpha.chunks(group));
            groups.flat_map(|(b, a)| b.iter().chain(a).copied().collect::<Vec<_>>()).collect()
        };
        let both: Vec<f32> = inputs.iter().flat_map(both).collect();
        [both.clone(), both]
    }
}

/// Slots with random values; all else is poison.
fn states(s: &GatedDelta, random: &mut Random) -> Vec<f32> {
    let (stride, len) = (s.layout.stride_bytes as usize / 4, heads(s).state_len());
    let mut states = vec![POISON; SLOTS * stride];
    for slot in states.chunks_mut(stride) {
        slot[..len].copy_from_slice(&random.floats(len));
    }
    states
}

fn value_mut<'a>(s: &GatedDelta, states: &'a mut [f32], slot: u32) -> &'a mut [f32] {
    &mut states[s.layout.value_offset(slot.into()) as usize / 4..][..heads(s).state_len()]
}

fn put_factors(s: &GatedDelta, states: &mut [f32], (slot, row): (u32, usize), f: &Factors) {
    let bytes = s.layout.pending_offset(slot.into(), row as u64);
    let all: Vec<f32> = [&f.keys, &f.deltas, &f.decays].into_iter().flatten().copied().collect();
    states[bytes as usize / 4..][..all.len()].copy_from_slice(&all);
}

/// Segments of a window: slot and rows of each.
type Segments<'a> = &'a [(u32, Vec<Input>)];

/// Runs a window; changes the states and returns y.
fn run(layer: &Layer, segments: Segments<'_>, states: &mut [f32], parts: u64) -> Vec<f32> {
    let s = layer.s;
    let inputs: Vec<Input> = segments.iter().flat_map(|(_, rows)| rows.clone()).collect();
    let slots = segments.iter().flat_map(|(slot, rows)| vec![*slot; rows.len()]);
    let offsets = segments.iter().flat_map(|(_, rows)| 0..rows.len() as u32);
    let qkv: Vec<f32> = inputs.iter().flat_map(|i| i.qkv.clone()).collect();
    let [beta, alpha] = layer.gates(&inputs);
    let width = (s.value_heads * s.head_dim) as usize;
    let mut operands = [
        Buffer::step(inputs.len() as u32),
        Buffer::of(&qkv),
        Buffer::of(&beta),
        Buffer::of(&alpha),
        Buffer::of(&layer.a),
        Buffer::of(&layer.dt_bias),
        Buffer::of(&slots.collect::<Vec<u32>>()),
        Buffer::of(&offsets.collect::<Vec<u32>>()),
        Buffer::of(states),
        Buffer::of(&vec![POISON; (inputs.len() + 1) * width]),
    ];
    layer.kernel.run(&mut operands.each_mut(), parts);
    states.copy_from_slice(operands[8].as_ref());
    let y: &[f32] = operands[9].as_ref();
    let (live, dead) = y.split_at(inputs.len() * width);
    assert!(dead.iter().all(|&y| y == POISON), "a dead row was written");
    live.to_vec()
}

/// What [`run`] has to do.
fn expect(layer: &Layer, segments: Segments<'_>, states: &mut [f32]) -> Vec<f32> {
    let (s, heads) = (layer.s, heads(&layer.s));
    let mut y = Vec::new();
    for (slot, rows) in segments {
        let mut value = value_mut(&s, states, *slot).to_vec();
        for (index, input) in rows.iter().enumerate() {
            let mut out = vec![0.0; heads.value_heads * heads.head_dim];
            let factors = step(&heads, &mut value, &layer.row(input), &mut out);
            y.extend(out);
            if s.pending {
                put_factors(&s, states, (*slot, index), &factors);
            }
        }
        if !s.pending {
            value_mut(&s, states, *slot).copy_from_slice(&value);
        }
    }
    y
}

fn assert_bits(found: &[f32], need: &[f32], what: &str) {
    assert_eq!(found.len(), need.len(), "{what}");
    for (i, (f, n)) in found.iter().zip(need).enumerate() {
        assert_eq!(f.to_bits(), n.to_bits(), "{what}: element {i} is {f}, need {n}");
    }
}

fn check_window(layer: &Layer, segments: &[(u32, usize)], parts: u64, random: &mut Random) {
    let rows = |count| (0..count).map(|_| layer.input(random)).collect();
    let mut fill = rows;
    let segments: Vec<_> = segments.iter().map(|&(slot, count)| (slot, fill(count))).collect();
    let mut found = states(&layer.s, &mut Random::new(3));
    let mut need = found.clone();
    let y = run(layer, &segments, &mut found, parts);
    let need_y = expect(layer, &segments, &mut need);
    let what = format!("{:?}, {parts} parts", layer.s);
    assert!(need_y.iter().all(|y| y.is_finite()));
    assert_bits(&y, &need_y, &format!("{what}: results"));
    assert_bits(&found, &need, &format!("{what}: states"));
}

#[test]
fn windows_equal_the_reference() {
    let mut random = Random::new(31);
    let windows: [&[(u32, usize)]; 4] =
        [&[(1, 1)], &[(2, 5)], &[(0, 1), (2, 1), (1, 1)], &[(2, 3), (0, 1), (1, 4)]];
    for (key_heads, value_heads, head_dim) in [(2, 6, 16), (2, 4, 32), (1, 1, 48), (1, 2, 128)] {
        for (tiled, interleaved) in [(false, false), (true, false), (false, true)] {
            let s = spec(key_heads, value_heads, head_dim);
            let s = GatedDelta { tiled, interleaved, ..s };
            for pending in [false, true] {
                let layer = Layer::new(GatedDelta { pending, ..s }, &mut random);
                for (parts, window) in (1..).zip(windows) {
                    check_window(&layer, window, parts, &mut random);
                }
            }
        }
    }
    // Wide strips, of machines with 16 lanes.
    let mut layer = Layer::new(GatedDelta { tiled: true, ..spec(1, 2, 128) }, &mut random);
    layer.kernel = runnable_for(KernelSpec::GatedDelta(layer.s), Target::Avx512TilesInAvx2);
    check_window(&layer, windows[3], 3, &mut random);
    // The largest head, whose strips are narrower.
    let layer = Layer::new(spec(1, 1, 256), &mut random);
    check_window(&layer, windows[1], 2, &mut random);
}

/// Applies the first `rows` pending rows of each slot.
fn run_commit(kernel: &Runnable, entries: &[(u32, u32)], states: &mut [f32], parts: u64) {
    let (slots, rows): (Vec<u32>, Vec<u32>) = entries.iter().copied().unzip();
    let mut step = [0u32; 16];
    step[2] = entries.len() as u32;
    let mut operands =
        [Buffer::of(&step), Buffer::of(&slots), Buffer::of(&rows), Buffer::of(states)];
    kernel.run(&mut operands.each_mut(), parts);
    states.copy_from_slice(operands[3].as_ref());
}

/// Windows of every size over two sequences, verified and then committed in part, against the
/// accepted rows one after another.
#[test]
fn every_accepted_count_gives_the_state_of_the_accepted_rows() {
    let mut random = Random::new(32);
    for (dims, tiled) in [(16, true), (128, false)] {
        let s = GatedDelta { tiled, ..spec(2, 4, dims) };
        let in_place = Layer::new(s, &mut random);
        let verify = in_place.with(GatedDelta { pending: true, ..s });
        let committing = runnable(commit(&s));
        let mut found = states(&s, &mut random);
        let mut need = found.clone();
        let most = if dims == 16 { PENDING as usize } else { 3 };
        for (rows, accepted) in (1..=most).flat_map(|r| (0..=r).map(move |a| (r, a))) {
            let mut inputs = |n| (0..n).map(|_| verify.input(&mut random)).collect::<Vec<_>>();
            let others = most + 1 - rows;
            let mut window = [(2, inputs(rows)), (0, inputs(others))];
            let parts = 1 + rows as u64 % 3;
            let y = run(&verify, &window, &mut found, parts);
            let need_y = expect(&verify, &window, &mut need.clone());
            assert_bits(&y, &need_y, "results of a verify window");
            let entries = [(2, accepted as u32), (1, 0), (0, others.min(2) as u32)];
            run_commit(&committing, &entries, &mut found, parts);

            window[0].1.truncate(accepted);
            window[1].1.truncate(2);
            expect(&in_place, &window, &mut need);
            for slot in 0..SLOTS as u32 {
                let need = value_mut(&s, &mut need, slot).to_vec();
                let what = format!("slot {slot}, {accepted} of {rows} rows accepted");
                assert_bits(value_mut(&s, &mut found, slot), &need, &what);
            }
        }
    }
}

#[test]
fn any_split_into_windows_gives_the_same_rows_and_state() {
    let mut random = Random::new(35);
    let layer = Layer::new(GatedDelta { tiled: true, ..spec(2, 6, 32) }, &mut random);
    let inputs: Vec<Input> = (0..7).map(|_| layer.input(&mut random)).collect();
    let start = states(&layer.s, &mut random);
    let mut need = start.clone();
    let need_y = expect(&layer, &[(1, inputs.clone())], &mut need);
    for split in 0..64u32 {
        let (mut found, mut y, mut window) = (start.clone(), Vec::new(), Vec::new());
        for (index, input) in inputs.iter().enumerate() {
            window.push(input.clone());
            if index == 6 || split >> index & 1 == 1 {
                y.extend(run(&layer, &[(1, std::mem::take(&mut window))], &mut found, 2));
            }
        }
        assert_bits(&y, &need_y, &format!("results of split {split:b}"));
        assert_bits(&found, &need, &format!("states of split {split:b}"));
    }
}

#[test]
fn factors_repeat_a_step() {
    let mut random = Random::new(33);
    let s = GatedDelta { tiled: true, ..spec(2, 6, 16) };
    let (layer, heads) = (Layer::new(s, &mut random), heads(&s));
    let mut state = random.floats(heads.state_len());
    let mut again = state.clone();
    let mut out = vec![0.0; 6 * 16];
    for _ in 0..4 {
        let input = layer.input(&mut random);
        let factors = step(&heads, &mut state, &layer.row(&input), &mut out);
        apply(&heads, &mut again, &factors);
        assert_bits(&again, &state, "state");
    }
}

/// Largest difference of two lists as a part of the largest number in the second.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

#[test]
fn chunks_and_rows_agree() {
    let mut random = Random::new(34);
    for (key_heads, value_heads, dims) in [(1, 3, 32), (1, 1, 128)] {
        let s = GatedDelta { tiled: true, ..spec(key_heads, value_heads, dims) };
        let (layer, heads) = (Layer::new(s, &mut random), heads(&s));
        let inputs: Vec<Input> = (0..300).map(|_| layer.input(&mut random)).collect();
        let rows: Vec<Row<'_>> = inputs.iter().map(|i| layer.row(i)).collect();
        let width = heads.value_heads * heads.head_dim;
        let start = random.floats(heads.state_len());
        let (mut state, mut by_rows) = (start.clone(), vec![0.0; 300 * width]);
        for (row, out) in rows.iter().zip(by_rows.chunks_mut(width)) {
            step(&heads, &mut state, row, out);
        }
        let (mut chunk_state, mut by_chunks) = (start, vec![0.0; 300 * width]);
        delta_chunked::rows(&heads, &mut chunk_state, &rows, &mut by_chunks);
        let far = [distance(&by_chunks, &by_rows), distance(&chunk_state, &state)];
        assert!(far.iter().all(|&d| d < 1e-5), "{far:?}");
        assert!(by_rows.iter().any(|y| y.abs() > 0.1));
    }
}

#[test]
fn both_kernels_are_made_for_every_target() {
    let s = GatedDelta { tiled: true, ..spec(16, 48, 128) };
    let specs = [false, true].map(|pending| KernelSpec::GatedDelta(GatedDelta { pending, ..s }));
    for target in Target::ALL {
        compile(&specs, target).unwrap();
        compile(&[commit(&s)], target).unwrap();
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let s = spec(2, 4, 32);
    let short = SlotLayout { pending_stride_bytes: 64, ..s.layout };
    let bad = [
        GatedDelta { head_dim: 40, ..s },
        GatedDelta { value_heads: 3, ..s },
        GatedDelta { key_heads: 0, ..s },
        GatedDelta { tiled: true, interleaved: true, ..s },
        GatedDelta { layout: short, pending: true, ..s },
        GatedDelta { layout: SlotLayout { pending_bytes: 64, ..s.layout }, ..s },
    ];
    for s in bad {
        let error = compile(&[KernelSpec::GatedDelta(s)], Target::X86Avx2).map(|_| s).unwrap_err();
        assert!(matches!(error, KernelError::Shape { .. }), "{error}");
    }
}
