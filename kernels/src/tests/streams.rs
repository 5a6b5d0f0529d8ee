//! Ops on streams and gates against their references, bit for bit.

use super::products::runnable;
use super::random::{Random, quantize_rows};
use super::rows::{assert_same, bytes_of, result};
use crate::ops::slots::SlotLayout;
use crate::reference::matmul::decode_row;
use crate::reference::quantize::q8_row_bytes;
use crate::reference::streams;
use crate::run::Buffer;
use crate::spec::{
    Act, Conv1d, F32, GatedAdd, GatedHeadNorm, GroupRmsNorm, HcRead, HcWrite, HcWriteNorm,
    NgramEmbed, NgramGate, NgramRows, ScaledSilu, ShiftRows, StreamConcat, StreamRepeat,
    TailCommit, WeightFormat,
};
use crate::{KernelError, KernelSpec, Target, compile};

/// The rows that `result` runs.
const ROWS: usize = 3;
const EPS: f32 = 1e-6;
/// Streams and elements of each: spans that end inside, at and behind a stream's end.
const SHAPES: [(usize, usize); 5] = [(1, 16), (4, 64), (3, 96), (4, 288), (2, 512)];

/// Runs `spec` and compares with `row(i)`, the f32 elements of each result row, as q8 if asked.
fn check(spec: KernelSpec, operands: &[Buffer], quantize: bool, row: impl Fn(usize) -> Vec<f32>) {
    let want: Vec<f32> = (0..ROWS).flat_map(row).collect();
    let k = want.len() / ROWS;
    let (row_bytes, want) = match quantize {
        true => (q8_row_bytes(k), quantize_rows(&want, k)),
        false => (4 * k, bytes_of(&want)),
    };
    assert_same(spec, &result(spec, operands, row_bytes), &want);
}

/// Whether results of rows that are made of pieces of `k` are quantised: not where they cannot be.
fn kinds(k: usize) -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(move |quantize| !quantize || k.is_multiple_of(32))
}

fn row_of(x: &[f32], row: usize) -> &[f32] {
    let k = x.len() / ROWS;
    &x[row * k..][..k]
}

#[test]
fn streams_are_copies_of_a_row() {
    for (n, k) in SHAPES {
        let x = Random::new(30).floats(ROWS * k);
        let s = StreamRepeat { streams: n as u32, k: k as u32 };
        check(KernelSpec::StreamRepeat(s), &[Buffer::of(&x)], false, |row| {
            row_of(&x, row).repeat(n)
        });
    }
}

#[test]
fn norms_of_groups_equal_the_reference() {
    let mut random = Random::new(31);
    for (n, k) in SHAPES {
        let mut x = random.floats(ROWS * n * k);
        x.iter_mut().enumerate().for_each(|(i, x)| *x *= [1.0, 1e-4, 3e3][i / 32 % 3]);
        x[..k].fill(0.0);
        let gain = random.floats(n * k);
        for quantize in kinds(k) {
            let (groups, k32, eps) = (n as u32, k as u32, F32::from(EPS));
            let s = GroupRmsNorm { groups, k: k32, eps, quantize, keep: false };
            let operands = [Buffer::of(&x), Buffer::of(&gain)];
            check(KernelSpec::GroupRmsNorm(s), &operands, quantize, |row| {
                streams::group_rms_norm(row_of(&x, row), &gain, k, EPS)
            });
        }
    }
}

#[test]
fn scaled_silu_equals_the_reference() {
    for k in [16, 96, 256, 320, 544] {
        let mut x = Random::new(32).floats(ROWS * k);
        x.iter_mut().for_each(|x| *x *= 40.0);
        for quantize in kinds(k) {
            let s = ScaledSilu { k: k as u32, scale: F32::from(0.3), quantize };
            check(KernelSpec::ScaledSilu(s), &[Buffer::of(&x)], quantize, |row| {
                streams::scaled_silu(row_of(&x, row), 0.3)
            });
        }
    }
}

#[test]
fn reads_and_writes_of_streams_equal_the_reference() {
    let mut random = Random::new(33);
    for (n, k) in SHAPES {
        let (a, b) = (random.floats(ROWS * n * k), random.floats(ROWS * n * k));
        let b: Vec<f32> = b.iter().map(|b| b * 20.0).collect();
        let (streams_count, k32) = (n as u32, k as u32);
        for quantize in kinds(k) {
            let s = HcRead { streams: streams_count, k: k32, quantize, keep: false };
            let operands = [Buffer::of(&a), Buffer::of(&b)];
            check(KernelSpec::HcRead(s), &operands, quantize, |row| {
                streams::hc_read(row_of(&a, row), row_of(&b, row), n)
            });
        }
        let (y, inject) = (random.floats(ROWS * k), random.floats(ROWS * n));
        let inject: Vec<f32> = inject.iter().map(|x| x * 30.0).collect();
        let s = HcWrite { streams: streams_count, k: k32 };
        let operands = [Buffer::of(&a), Buffer::of(&y), Buffer::of(&inject)];
        check(KernelSpec::HcWrite(s), &operands, false, |row| {
            streams::hc_write(row_of(&a, row), row_of(&y, row), row_of(&inject, row))
        });
    }
}

/// A write and a norm in one against the references of both, and of the sum before them.
#[test]
fn written_streams_are_normed_as_by_themselves() {
    let mut random = Random::new(42);
    let logits = [-3.0f32, 0.25, 90.0];
    for (n, k) in SHAPES {
        let [x, gain] = [random.floats(ROWS * n * k), random.floats(n * k)];
        let [y, other] = [random.floats(ROWS * k), random.floats(ROWS * k)];
        let inject: Vec<f32> = random.floats(ROWS * n).iter().map(|x| x * 30.0).collect();
        for (shared, quantize) in kinds(k).flat_map(|q| [(false, q), (true, q)]) {
            let row = |row: usize| {
                let y = match shared {
                    true => streams::gated_add(row_of(&y, row), row_of(&other, row), logits[row]),
                    false => row_of(&y, row).to_vec(),
                };
                streams::hc_write(row_of(&x, row), &y, row_of(&inject, row))
            };
            let written: Vec<f32> = (0..ROWS).flat_map(row).collect();
            let normed: Vec<f32> = (0..ROWS)
                .flat_map(|row| streams::group_rms_norm(row_of(&written, row), &gain, k, EPS))
                .collect();
            let (eps, [streams, k]) = (F32::from(EPS), [n, k].map(|x| x as u32));
            let s = HcWriteNorm { streams, k, eps, shared, quantize };
            let kernel = runnable(KernelSpec::HcWriteNorm(s));
            for parts in [1, 3] {
                let mut all = vec![Buffer::step(ROWS as u32), Buffer::of(&x), Buffer::of(&y)];
                all.extend([Buffer::of(&inject), Buffer::of(&gain)]);
                all.extend(
                    shared.then(|| [Buffer::of(&other), Buffer::of(&logits)]).into_iter().flatten(),
                );
                let out = all.len();
                all.extend([(); 2].map(|()| Buffer::zeroed(4 * x.len())));
                let width = x.len() / ROWS;
                all.extend(quantize.then(|| Buffer::zeroed(ROWS * q8_row_bytes(width))));
                kernel.run(&mut all.iter_mut().collect::<Vec<_>>(), parts);
                assert_same(KernelSpec::HcWriteNorm(s), all[out].as_ref(), &bytes_of(&written));
                assert_same(KernelSpec::HcWriteNorm(s), all[out + 1].as_ref(), &bytes_of(&normed));
                if quantize {
                    let want = quantize_rows(&normed, width);
                    assert_same(KernelSpec::HcWriteNorm(s), all[out + 2].as_ref(), &want);
                }
            }
        }
    }
}

/// A residual that is written in place.
#[test]
fn streams_are_written_where_they_were_read() {
    let (n, k, mut random) = (4usize, 272usize, Random::new(34));
    let (old, y, inject) = (random.floats(n * k), random.floats(k), random.floats(n));
    let want = streams::hc_write(&old, &y, &inject);
    let mut buffers = [Buffer::step(1), Buffer::of(&old), Buffer::of(&y), Buffer::of(&inject)];
    let mut table: Vec<u64> = buffers.iter_mut().map(Buffer::address).collect();
    table.push(table[1]);
    let kernel = runnable(KernelSpec::HcWrite(HcWrite { streams: n as u32, k: k as u32 }));
    (0..3).for_each(|part| kernel.run_part(&table, part, 3));
    assert_eq!(bytes_of(buffers[1].as_ref()), bytes_of(&want));
}

/// Results that are kept as f32 beside their q8 rows.
#[test]
fn quantised_rows_can_be_kept() {
    let (n, k, mut random) = (4usize, 96usize, Random::new(35));
    let (x, other) = (random.floats(ROWS * n * k), random.floats(ROWS * n * k));
    let gain = random.floats(n * k);
    let (groups, k32) = (n as u32, k as u32);
    let norm = GroupRmsNorm { groups, k: k32, eps: F32::from(EPS), quantize: true, keep: true };
    let read = HcRead { streams: groups, k: k32, quantize: true, keep: true };
    let rows = |row: &dyn Fn(usize) -> Vec<f32>| (0..ROWS).flat_map(row).collect::<Vec<f32>>();
    let normed = rows(&|row| streams::group_rms_norm(row_of(&x, row), &gain, k, EPS));
    let means = rows(&|row| streams::hc_read(row_of(&x, row), row_of(&other, row), n));
    let cases = [
        (KernelSpec::GroupRmsNorm(norm), &gain, normed),
        (KernelSpec::HcRead(read), &other, means),
    ];
    for (spec, second, want) in cases {
        let width = want.len() / ROWS;
        let mut operands = [
            Buffer::step(ROWS as u32),
            Buffer::of(&x),
            Buffer::of(second),
            Buffer::zeroed(4 * want.len()),
            Buffer::zeroed(ROWS * q8_row_bytes(width)),
        ];
        runnable(spec).run(&mut operands.each_mut(), 2);
        assert_eq!(bytes_of(operands[3].as_ref()), bytes_of(&want), "{spec:?}");
        assert_eq!(operands[4].as_ref::<u8>(), quantize_rows(&want, width), "{spec:?}");
    }
}

#[test]
fn gated_norms_of_heads_equal_the_reference() {
    let mut random = Random::new(36);
    for (heads, dim) in [(1, 16), (6, 64), (3, 128), (2, 288)] {
        let (x, gate) = (random.floats(ROWS * heads * dim), random.floats(ROWS * heads * dim));
        let gate: Vec<f32> = gate.iter().map(|x| x * 9.0).collect();
        let gain = random.floats(dim);
        for act in [Act::Sigmoid, Act::Silu] {
            for quantize in kinds(dim) {
                let (head_dim, eps) = (dim as u32, F32::from(EPS));
                let s = GatedHeadNorm { heads: heads as u32, head_dim, eps, act, quantize };
                let operands = [Buffer::of(&x), Buffer::of(&gain), Buffer::of(&gate)];
                check(KernelSpec::GatedHeadNorm(s), &operands, quantize, |row| {
                    let (x, gate) = (row_of(&x, row), row_of(&gate, row));
                    streams::gated_head_norm(x, &gain, gate, EPS, act)
                });
            }
        }
    }
}

#[test]
fn gated_sums_equal_the_reference() {
    let mut random = Random::new(37);
    for k in [16, 272, 512] {
        let (a, b) = (random.floats(ROWS * k), random.floats(ROWS * k));
        let gate = [-3.0f32, 0.25, 90.0];
        let spec = KernelSpec::GatedAdd(GatedAdd { k: k as u32 });
        let operands = [Buffer::of(&a), Buffer::of(&b), Buffer::of(&gate)];
        check(spec, &operands, false, |row| {
            streams::gated_add(row_of(&a, row), row_of(&b, row), gate[row])
        });
    }
}

#[test]
fn joined_streams_are_rows_of_their_own() {
    let mut random = Random::new(38);
    for (n, k) in SHAPES {
        let (e, h) = (random.floats(ROWS * k), random.floats(ROWS * n * k));
        for quantize in [false, true] {
            let s = StreamConcat { streams: n as u32, k: k as u32, quantize };
            let want: Vec<f32> = (0..ROWS)
                .flat_map(|row| streams::stream_concat(row_of(&e, row), row_of(&h, row)))
                .collect();
            let (row_bytes, want) = match quantize {
                true => (n * q8_row_bytes(2 * k), quantize_rows(&want, 2 * k)),
                false => (n * 8 * k, bytes_of(&want)),
            };
            let spec = KernelSpec::StreamConcat(s);
            let got = result(spec, &[Buffer::of(&e), Buffer::of(&h)], row_bytes);
            assert_same(spec, &got, &want);
        }
    }
}

#[test]
fn gates_of_ngrams_equal_the_reference_also_at_zero() {
    let mut random = Random::new(39);
    for (n, k) in SHAPES {
        let (mut key, query) = (random.floats(ROWS * n * k), random.floats(ROWS * n * k));
        let value = random.floats(ROWS * k);
        // The first row: no score at all, which must open the gate by half.
        key[..k].fill(0.0);
        key[n * k..n * k + k].iter_mut().for_each(|x| *x *= 1e-9);
        let spec = KernelSpec::NgramGate(NgramGate { streams: n as u32, k: k as u32 });
        let operands = [Buffer::of(&key), Buffer::of(&query), Buffer::of(&value)];
        check(spec, &operands, false, |row| {
            streams::ngram_gate(row_of(&key, row), row_of(&query, row), row_of(&value, row))
        });
        let half = streams::ngram_gate(&key[..k], &query[..k], &value[..k]);
        assert!(half.iter().zip(&value).all(|(y, v)| *y == v * 0.5));
    }
}

#[test]
fn rows_of_ngrams_are_decoded_in_every_format() {
    let (table_rows, heads, mut random) = (23usize, 5usize, Random::new(40));
    for format in WeightFormat::ALL {
        let block = format.block().0 as usize;
        let widths: &[usize] = match block {
            1 => &[1, 4, 16, 160, 23],
            32 => &[32, 160],
            _ => &[256, 512],
        };
        for &width in widths {
            let table = random.weights(format, table_rows, width);
            let row_bytes = format.row_bytes(width as u32) as usize;
            let ids: Vec<u32> = (0..ROWS * heads).map(|i| (i * 17 % table_rows) as u32).collect();
            let spec = KernelSpec::NgramEmbed(NgramEmbed {
                format,
                heads: heads as u32,
                width: width as u32,
            });
            check(spec, &[Buffer::of(&ids), Buffer::of(&table)], false, |row| {
                let ids = &ids[row * heads..][..heads];
                let decode = |id: &u32| {
                    let native = &table[*id as usize * row_bytes..][..row_bytes];
                    decode_row(format, native, width)
                };
                ids.iter().flat_map(decode).collect()
            });
        }
    }
}

/// The table is placed so that only rows beyond its first 4 GiB are memory.
#[test]
fn tables_may_be_larger_than_32_bits() {
    let (width, first, mut random) = (160usize, 320_000_000u32, Random::new(41));
    let native = random.weights(WeightFormat::F16, 4, width);
    let mut buffers = [Buffer::step(1), Buffer::of(&[first + 3, first + 1])];
    let (mut rows, mut y) = (Buffer::of(&native), Buffer::zeroed(2 * width * 4));
    let mut table: Vec<u64> = buffers.iter_mut().map(Buffer::address).collect();
    let before = u64::from(first) * 2 * width as u64;
    table.extend([rows.address().wrapping_sub(before), y.address()]);
    let s = NgramEmbed { format: WeightFormat::F16, heads: 2, width: width as u32 };
    runnable(KernelSpec::NgramEmbed(s)).run_part(&table, 0, 1);
    let want = [3, 1].map(|row| decode_row(WeightFormat::F16, &native[row * 2 * width..], width));
    assert_eq!(bytes_of(y.as_ref()), bytes_of(&want.concat()));
}

/// Also for targets that this machine may lack.
#[test]
fn ops_on_streams_and_states_are_made_for_every_target() {
    let (streams, k, eps, act) = (4, 96, F32::from(EPS), Act::Sigmoid);
    let (quantize, keep, pending) = (true, true, true);
    let layout = SlotLayout::tail(9, 4 * 192, 8);
    let formats = WeightFormat::ALL
        .map(|format| KernelSpec::NgramEmbed(NgramEmbed { format, heads: 3, width: 256 }));
    let in_place = [
        KernelSpec::Conv1d(Conv1d { channels: 192, taps: 4, dilation: 3, layout, pending: false }),
        KernelSpec::ShiftRows(ShiftRows { k, layout, pending: false }),
        KernelSpec::NgramRows(NgramRows { ngram: 3, heads_per_ngram: 8, layout, pending: false }),
        KernelSpec::TailCommit(TailCommit { rows: 9, row_bytes: 768, layout }),
    ];
    let others = [
        KernelSpec::StreamRepeat(StreamRepeat { streams, k }),
        KernelSpec::GroupRmsNorm(GroupRmsNorm { groups: streams, k, eps, quantize, keep }),
        KernelSpec::ScaledSilu(ScaledSilu { k, scale: F32::from(0.25), quantize }),
        KernelSpec::HcRead(HcRead { streams, k, quantize, keep }),
        KernelSpec::HcWrite(HcWrite { streams, k }),
        KernelSpec::HcWriteNorm(HcWriteNorm { streams, k, eps, shared: true, quantize }),
        KernelSpec::GatedHeadNorm(GatedHeadNorm { heads: 6, head_dim: k, eps, act, quantize }),
        KernelSpec::GatedAdd(GatedAdd { k }),
        KernelSpec::StreamConcat(StreamConcat { streams, k, quantize }),
        KernelSpec::Conv1d(Conv1d { channels: 192, taps: 4, dilation: 1, layout, pending }),
        KernelSpec::ShiftRows(ShiftRows { k, layout, pending }),
        KernelSpec::NgramRows(NgramRows { ngram: 3, heads_per_ngram: 8, layout, pending }),
        KernelSpec::NgramGate(NgramGate { streams, k }),
    ];
    let specs = [&formats[..], &in_place, &others].concat();
    for target in Target::ALL {
        compile(&specs, target).unwrap_or_else(|e| panic!("{target:?}: {e}"));
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let eps = F32::from(EPS);
    let refused = [
        KernelSpec::StreamRepeat(StreamRepeat { streams: 0, k: 64 }),
        KernelSpec::HcWrite(HcWrite { streams: 4, k: 40 }),
        KernelSpec::HcWriteNorm(HcWriteNorm {
            streams: 4,
            k: 48,
            eps,
            shared: false,
            quantize: true,
        }),
        KernelSpec::HcRead(HcRead { streams: 4, k: 48, quantize: true, keep: false }),
        KernelSpec::HcRead(HcRead { streams: 4, k: 64, quantize: false, keep: true }),
        KernelSpec::GroupRmsNorm(GroupRmsNorm {
            groups: 0,
            k: 64,
            eps,
            quantize: false,
            keep: false,
        }),
        KernelSpec::NgramEmbed(NgramEmbed { format: WeightFormat::Q4_0, heads: 2, width: 48 }),
    ];
    for spec in refused {
        let error = compile(&[spec], Target::X86Avx2).unwrap_err();
        assert!(matches!(error, KernelError::Shape { .. }), "{error}");
    }
}
