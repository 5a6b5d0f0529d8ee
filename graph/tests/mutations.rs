//! No text makes the parser, the verifier or the dump panic, and what is read reads back.

mod common;

use common::two_layers;
use strata_graph::parse::parse;
use strata_graph::verify::verify;
use strata_graph::{cost, lens};

/// A fixed sequence of numbers (xorshift64), so that a failure comes again.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

const PIECES: &[&str] = &[
    "0",
    "1",
    "9",
    "4294967295",
    "4294967296",
    "18446744073709551616",
    "-1",
    "NaN",
    "w0",
    "s0",
    "%2",
    "%4294967295",
    "state",
    "state[]",
    "f32[]",
    "q8",
    "u32",
    "[",
    "]",
    "(",
    ")",
    "\"",
    "\\",
    "|",
    ";",
    ",",
    ":",
    "=",
    "\n",
    "\r",
    "é",
    "\u{2028}",
    "true",
    "add_one",
    "heads=0",
    " ",
];

fn mutate(bytes: &mut Vec<u8>, sequence: &mut Sequence) {
    let at = sequence.below(bytes.len());
    match sequence.below(6) {
        0 => bytes[at] = (sequence.below(95) + 32) as u8,
        1 => {
            bytes.remove(at);
        }
        2 => bytes[at] ^= 1 << sequence.below(7),
        3 => {
            let piece = PIECES[sequence.below(PIECES.len())];
            bytes.splice(at..at, piece.bytes());
        }
        4 => {
            let end = bytes.len().min(at + sequence.below(12));
            let piece = PIECES[sequence.below(PIECES.len())];
            bytes.splice(at..end, piece.bytes());
        }
        _ => {
            let from = sequence.below(bytes.len());
            let end = bytes.len().min(from + sequence.below(40));
            let copy = bytes[from..end].to_vec();
            bytes.splice(at..at, copy);
        }
    }
}

#[test]
fn mutated_text_never_panics() {
    let cases: Vec<String> = [
        two_layers().to_string(),
        include_str!("cases/verify/rows.graph").to_owned(),
        include_str!("cases/verify/states.graph").to_owned(),
    ]
    .into();
    let mut sequence = Sequence(0x9e37_79b9_7f4a_7c15);
    let mut read = 0;
    for round in 0..6000 {
        let mut bytes = cases[round % cases.len()].clone().into_bytes();
        for _ in 0..=sequence.below(3) {
            mutate(&mut bytes, &mut sequence);
        }
        let text = String::from_utf8_lossy(&bytes);
        let Ok(graph) = parse(&text) else { continue };
        read += 1;
        let dump = graph.to_string();
        let again = parse(&dump).unwrap_or_else(|e| panic!("{e}\n{dump}"));
        assert_eq!(again.to_string(), dump);
        // Whatever it finds; but it must find the same in both.
        assert_eq!(verify(&again), verify(&graph));
        lens::critical_path(&graph, |node| {
            cost(node.op, &graph.operand_types(node), &graph.result_types(node)).bytes
        });
    }
    assert!(read > 500, "only {read} texts were read: the mutations are too coarse to test much");
}

#[test]
fn every_prefix_of_a_dump_is_read_or_refused() {
    let dump = two_layers().to_string();
    for (at, _) in dump.char_indices().step_by(7) {
        let _ = parse(&dump[..at]);
    }
    assert_eq!(parse(dump.trim_end()).unwrap(), two_layers());
}
