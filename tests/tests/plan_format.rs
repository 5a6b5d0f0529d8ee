//! docs/PLAN_FORMAT.md says what `strata_plan::layout` is.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::fs;

use strata_plan::layout::{self, *};
use strata_tests::repository;

/// A table of the document: its heading, and its rows' cells without back quotes.
struct DocTable {
    heading: String,
    rows: Vec<Vec<String>>,
}

fn doc_tables() -> Vec<DocTable> {
    let text = fs::read_to_string(repository().join("docs/PLAN_FORMAT.md")).unwrap();
    let mut tables: Vec<DocTable> = Vec::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("### ") {
            tables.push(DocTable { heading: heading.to_owned(), rows: Vec::new() });
        } else if line.starts_with("| ")
            && !line.starts_with("| ---")
            && let Some(table) = tables.last_mut()
        {
            let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', ""));
            table.rows.push(cells.collect());
        }
    }
    tables
}

fn table<'t>(tables: &'t [DocTable], heading: &str) -> &'t DocTable {
    let found = tables.iter().find(|table| table.heading == heading);
    found.unwrap_or_else(|| panic!("no table `{heading}` in the document"))
}

macro_rules! structs {
    ($($name:ident)*) => {
        [$((stringify!($name), size_of::<$name>(), $name::FIELDS),)*]
    };
}

#[test]
fn every_row_stands_in_the_document() {
    let tables = doc_tables();
    let structs = structs!(Header Section Run Model Device Target Space Schedule Command Arg Kernel
        File Weight Part State Provenance Text Name Output PackHeader);
    for (name, bytes, fields) in structs {
        let table = table(&tables, &format!("{name}, {bytes} bytes"));
        assert_eq!(table.rows[0][..3], ["offset", "type", "field"], "{name}");
        let documented: Vec<(&str, usize)> =
            table.rows[1..].iter().map(|row| (row[2].as_str(), row[0].parse().unwrap())).collect();
        assert_eq!(documented, fields, "{name}");
        // The width of each type reaches to the next field.
        let ends = fields.iter().map(|field| field.1).skip(1).chain([bytes]);
        for (row, end) in table.rows[1..].iter().zip(ends) {
            let offset: usize = row[0].parse().unwrap();
            assert_eq!(width(&row[1]), end - offset, "{name}.{}: {}", row[2], row[1]);
            assert!(row[3].len() > 3, "{name}.{} has no meaning", row[2]);
        }
    }
    let documented = tables.iter().filter(|table| table.heading.ends_with("bytes")).count();
    assert_eq!(documented, structs.len(), "the document has tables of rows that are gone");
}

/// Bytes of a type as the document writes it.
fn width(ty: &str) -> usize {
    if let Some((element, count)) = ty.trim_matches(['[', ']']).split_once("; ") {
        return width(element) * count.parse::<usize>().unwrap();
    }
    match ty {
        "u8" => 1,
        "u32" => 4,
        "u64" => 8,
        "Run" => size_of::<Run>(),
        _ => panic!("unknown type {ty}"),
    }
}

#[test]
fn every_code_stands_in_the_document() {
    let tables = doc_tables();
    let mut all: Vec<(&str, Vec<(u64, &str)>)> = [
        ("section", layout::section::ALL),
        ("device", device::ALL),
        ("space", space::ALL),
        ("schedule", schedule::ALL),
        ("opcode", opcode::ALL),
        ("tier", tier::ALL),
        ("state", state::ALL),
        ("text", text::ALL),
    ]
    .map(|(name, codes)| (name, codes.iter().map(|&(code, word)| (code.into(), word)).collect()))
    .into();
    all.push(("cpu_feature", cpu_feature::ALL.to_vec()));
    for (name, codes) in all {
        let rows = &table(&tables, name).rows;
        let documented: Vec<(u64, &str)> =
            rows[1..].iter().map(|row| (row[0].parse().unwrap(), row[1].as_str())).collect();
        assert_eq!(documented, codes, "{name}");
    }
}

#[test]
fn the_numbers_of_the_text_are_the_layouts() {
    let text = fs::read_to_string(repository().join("docs/PLAN_FORMAT.md")).unwrap();
    for number in [u64::from(NONE), SECTION_ALIGN_BYTES, CODE_ALIGN_BYTES] {
        assert!(text.contains(&number.to_string()), "{number} is not in the document");
    }
    assert!(text.contains(&format!("format number, {FORMAT} here")));
    assert!(text.contains(std::str::from_utf8(&MAGIC).unwrap()));
    assert!(text.contains(std::str::from_utf8(&PACK_MAGIC).unwrap()));
    assert!(text.contains(&format!("format number, {PACK_FORMAT} here")));
    assert!(text.contains(&format!("from byte {PACK_HEADER_BYTES} on")));
}
