//! The format as it stands: offsets of all fields, and the text forms.

mod small;

use std::fmt::Write;

use strata_plan::layout::*;
use strata_plan::{Plan, dump};

#[test]
fn fields_lie_where_they_did() {
    let mut text = String::new();
    macro_rules! add {
        ($($row:ident)*) => {$(
            writeln!(text, "{} {}", stringify!($row), size_of::<$row>()).unwrap();
            for (name, offset) in $row::FIELDS {
                writeln!(text, "  {offset:>3} {name}").unwrap();
            }
        )*};
    }
    add!(Header Section Run Model Device Target Space Schedule Command Arg Kernel File Weight Part);
    add!(State Provenance Text Name Output);
    insta::assert_snapshot!(text);
}

#[test]
fn feature_bits_are_one_bit_each_and_stay() {
    let bits: Vec<u64> = cpu_feature::ALL.iter().map(|(bit, _)| *bit).collect();
    let powers: Vec<u64> = (0..bits.len()).map(|i| 1 << i).collect();
    assert_eq!(bits, powers, "new features go to the end");
    assert_eq!(cpu_feature::ALL[10..], [(cpu_feature::BMI1, "bmi1"), (2048, "avx512cd")]);
}

#[test]
fn a_schedule_as_text() {
    let plan = Plan::from_bytes(&small::image().to_bytes()).unwrap();
    let mut text = String::new();
    dump::write_schedule(&mut text, &plan, 0).unwrap();
    insta::assert_snapshot!(text);
}

#[test]
fn a_summary_as_text() {
    let plan = Plan::from_bytes(&small::image().to_bytes()).unwrap();
    let summary = dump::Summary::of(&plan);
    assert_eq!(summary.memory_bytes(), 1_024 + 2_048 + 4_096 + 192 + 8);
    assert_eq!(summary.kernels[0].launches, 4);
    assert_eq!(summary.states[1].pending_bytes, 4 * 64);
    assert_eq!(summary.states[0].sequence_bytes, 4 * 256);
    insta::assert_snapshot!(summary.to_string());
}

#[test]
fn weights_of_three_dimensions_are_experts() {
    let mut image = small::image();
    assert_eq!(dump::Summary::of(&Plan::from_bytes(&image.to_bytes()).unwrap()).experts, None);
    image.weights[0].dims = [4, 5, 2, 1];
    let summary = dump::Summary::of(&Plan::from_bytes(&image.to_bytes()).unwrap());
    let wanted = dump::ExpertBytes { count: 4, layers: 1, bytes: 160, expert_bytes: 40 };
    assert_eq!(summary.experts, Some(wanted));
    assert!(summary.to_string().contains("experts: 1 layers of 4, 160 B, 40 B each"));
}

#[test]
fn the_same_image_gives_the_same_bytes() {
    assert_eq!(small::image().to_bytes(), small::image().to_bytes());
}
