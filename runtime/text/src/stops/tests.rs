use super::*;

/// Streams `text` in pieces of the lengths that the bits of `cuts` give.
fn stream(stops: &[&str], text: &str, cuts: u32) -> (String, Option<usize>) {
    let mut filter = StopFilter::new(stops).unwrap();
    let mut out = String::new();
    let mut start = 0;
    for (count, (at, _)) in text.char_indices().skip(1).enumerate() {
        if cuts >> (count % 32) & 1 == 1 {
            out.push_str(&filter.push(&text[start..at]).text);
            start = at;
        }
    }
    out.push_str(&filter.push(&text[start..]).text);
    out.push_str(&filter.finish());
    (out, filter.stopped())
}

/// The rule of the type, by search over the whole text.
fn reference(stops: &[&str], text: &str) -> (String, Option<usize>) {
    let ends = stops.iter().enumerate().filter_map(|(index, stop)| {
        let start = text.find(stop)?;
        Some((start + stop.len(), start, index))
    });
    match ends.min() {
        Some((_, start, index)) => (text[..start].to_owned(), Some(index)),
        None => (text.to_owned(), None),
    }
}

#[test]
fn every_chunking_gives_the_same_text() {
    let cases: [(&[&str], &str); 9] = [
        (&["own fox"], "The quick brown fox"),
        (&["aab", "ab"], "aaaab"),
        (&["abcd", "bc"], "xabcd"),
        (&["bcd", "abcd"], "xabcdx"),
        (&["abab", "bb"], "aababbx"),
        (&["日本", "\n\n"], "これは日\n本日本語"),
        (&["é", "ee"], "eéxee"),
        (&["<|end|>"], "a<|<|en<|end|>b"),
        (&["zz"], "none of it z"),
    ];
    for (stops, text) in cases {
        let expected = reference(stops, text);
        for cuts in 0..1 << (text.chars().count() - 1).min(12) {
            assert_eq!(stream(stops, text, cuts), expected, "{stops:?} {text:?} {cuts:b}");
            assert_eq!(stream(stops, text, cuts.reverse_bits()), expected);
        }
    }
}

#[test]
fn s1_a_stop_string_over_many_tokens() {
    let (out, stopped) = stream(&["own fox"], "The quick brown fox jumps", !0);
    assert_eq!((out.as_str(), stopped), ("The quick br", Some(0)));
}

#[test]
fn s2_nothing_of_the_stop_string_is_emitted() {
    let mut filter = StopFilter::new(&["DEFGHIJ"]).unwrap();
    let mut out = Vec::new();
    for token in ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K"] {
        let emit = filter.push(token);
        out.push(emit.text);
        if emit.stopped.is_some() {
            break;
        }
    }
    assert_eq!(out, ["A", "B", "C", "", "", "", "", "", "", ""]);
    assert_eq!(filter.finish(), "");
}

#[test]
fn s4_text_before_the_stop_string_is_whole() {
    for text in ["Ask me any question.\n", "What color is the sky on Mars?\nBob"] {
        let (out, _) = stream(&["\n"], text, !0);
        assert_eq!(out, text.split('\n').next().unwrap());
    }
}

#[test]
fn s5_held_text_is_released_at_the_end() {
    let mut filter = StopFilter::new(&["assist"]).unwrap();
    assert_eq!(filter.push("pleas").text, "ple");
    assert_eq!(filter.finish(), "as");
    assert_eq!(filter.stopped(), None);
}

#[test]
fn nothing_comes_after_a_stop() {
    let mut filter = StopFilter::new(&["x"]).unwrap();
    assert_eq!(filter.push("axb"), Emit { text: "a".into(), stopped: Some(0) });
    assert_eq!(filter.push("more"), Emit { text: String::new(), stopped: Some(0) });
    assert_eq!(filter.finish(), "");
}

#[test]
fn no_stop_strings_pass_everything_and_an_empty_one_is_refused() {
    let mut filter = StopFilter::new::<&str>(&[]).unwrap();
    assert_eq!(filter.push("all").text, "all");
    assert_eq!(StopFilter::new(&["a", ""]).err(), Some(StopError::Empty { index: 1 }));
}
