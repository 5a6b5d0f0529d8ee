//! Graphs as text. A line at fault carries what is expected of it: `; error: MESSAGE`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use strata_graph::parse::parse;
use strata_graph::verify::{Place, verify};

type Messages = BTreeMap<usize, Vec<String>>;

/// Messages by line, counted from 1.
fn expected(text: &str) -> Messages {
    let mut messages = Messages::new();
    for (number, line) in (1..).zip(text.lines()) {
        let found: Vec<String> =
            line.split("; error: ").skip(1).map(|message| message.trim().to_owned()).collect();
        if !found.is_empty() {
            messages.insert(number, found);
        }
    }
    messages
}

/// The text without its expectations.
fn plain(text: &str) -> String {
    text.lines()
        .map(|line| line.split("; error: ").next().unwrap_or("").to_owned() + "\n")
        .collect()
}

/// The line of the `index`-th row that starts with `prefix`.
fn line_of(text: &str, prefix: &str, index: usize) -> usize {
    let rows = (1..).zip(text.lines());
    let mut rows = rows.filter(|(_, line)| line.trim_start().starts_with(prefix));
    rows.nth(index).expect("a row of the text").0
}

#[test]
fn verify_reports_each_fault_at_its_row() {
    use strata_graph::Id;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/verify");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let graph = parse(&plain(&text)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let again = graph.to_string();
        assert_eq!(parse(&again).unwrap(), graph, "{}", path.display());
        let mut found = Messages::new();
        for error in verify(&graph).unwrap_err() {
            let line = match &error.place {
                Place::Graph => 1,
                Place::Node { id, .. } => line_of(&text, "%", id.index()),
                Place::Weight { id, .. } => line_of(&text, "w", id.index()),
                Place::State { id, .. } => line_of(&text, "s", id.index()),
            };
            let message = format!("{}: {}", error.fault.rule(), error.fault);
            assert!(error.to_string().ends_with(&message), "{error}");
            found.entry(line).or_default().push(message);
        }
        assert_eq!(found, expected(&text), "{}", path.display());
    }
}

#[test]
fn verify_names_the_node() {
    let text = include_str!("cases/verify/rows.graph");
    let errors = verify(&parse(&plain(text)).unwrap()).unwrap_err();
    let first = "n3 rope \"late_rope\": rows: angles has 4 rows, needs 2";
    assert_eq!(errors[0].to_string(), first);
}

#[test]
fn parse_refuses_the_line_at_fault() {
    let all = include_str!("cases/parse/cases.graphs");
    for case in all.split("\n\n") {
        let messages = expected(case);
        assert_eq!(messages.len(), 1, "{case}");
        let (&line, message) = messages.first_key_value().unwrap();
        let error = parse(&plain(case)).unwrap_err();
        assert_eq!((error.line, error.fault.to_string()), (line, message[0].clone()), "{case}");
        // The rest is sound: without the line at fault, and what follows it, it is a graph.
        let before: Vec<&str> = case.lines().take(line - 1).collect();
        parse(&before.join("\n")).unwrap();
    }
}

#[test]
fn parse_refuses_other_headers() {
    let need = "needs `; strata graph 1 | MODEL | verify ROWS (logits ROWS) | STAGE`";
    for text in [
        "",
        "\n\n",
        "w0 = weight \"a\" : f32[2]",
        "; strata graph 2 | m | verify 2 | base",
        "; strata graph 11 | m | verify 2 | base",
        "; strata graph 1 | m | verify 2",
        "; strata graph 1 | m | decode 2 | base",
        "; strata graph 1 | \\x | verify 2 | base",
        "; strata plan 1 | m | verify 2 | base",
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(message.ends_with(need), "{text}: {message}");
    }
    for rows in ["-1", "4294967296", "x", "2 (logits x)", "2 (logits 2", "2 rows"] {
        assert!(parse(&format!("; strata graph 1 | m | verify {rows} | base")).is_err(), "{rows}");
    }
}

#[test]
fn text_by_hand_may_be_short() {
    let text = "
; strata graph 1 | m | prefill 32 | base

w0 = weight \"table\" : f32[8, 16] ; no source
w1 = weight \"unused\" : ?[8]
%7 = embed(w0) scale=2 : f32[32, 16] ; no device, no name
%3=silu(%7):f32[32,16] @d2
output %3";
    let graph = parse(text).unwrap();
    let dump = graph.to_string();
    assert_eq!(
        dump.lines().skip(3).map(str::trim_end).collect::<Vec<_>>(),
        [
            "  %2 = embed(w0) scale=2.0                               : f32[32, 16] @d0 \"\"",
            "  %3 = silu(%2)                                          : f32[32, 16] @d2 \"\"",
            "output %3",
        ]
    );
    assert_eq!(parse(&dump).unwrap(), graph);
}
