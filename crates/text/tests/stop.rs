//! Stop strings against a search over the whole text.

use proptest::prelude::*;
use trine_text::StopMatcher;

/// The first stop string to be complete, the longest of those: where it begins, and which it is.
fn search(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    for end in 1..=text.len() {
        let found = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| {
                !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes())
            })
            .max_by(|a, b| a.1.len().cmp(&b.1.len()).then(b.0.cmp(&a.0)));
        if let Some((index, stop)) = found {
            return Some((end - stop.len(), index));
        }
    }
    None
}

fn run(pieces: &[&str], stops: &[String]) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops);
    let (mut text, mut stopped) = (String::new(), None);
    for piece in pieces {
        let step = matcher.push(piece);
        assert!(stopped.is_none() || step.text.is_empty(), "text after the end");
        text.push_str(&step.text);
        stopped = step.stopped;
    }
    text.push_str(&matcher.finish());
    (text, stopped)
}

#[test]
fn only_a_possible_beginning_is_held_back() {
    let mut matcher = StopMatcher::new(["\n\nUser:", "END"]);
    assert_eq!(matcher.push("Hello").text, "Hello");
    assert_eq!(matcher.push(" world\n").text, " world");
    assert_eq!(matcher.push("E").text, "\n");
    assert_eq!(matcher.push("NE").text, "EN");
    let step = matcher.push("ND and more");
    assert_eq!((step.text.as_str(), step.stopped), ("", Some(1)));
    assert_eq!(matcher.push("x").text, "");
    assert_eq!(matcher.finish(), "");
}

#[test]
fn without_stop_strings_everything_passes() {
    for stops in [vec![], vec![String::new()]] {
        assert_eq!(run(&["a", "", "b\u{e9}"], &stops), ("ab\u{e9}".to_owned(), None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn equals_a_search_over_the_whole_text_at_every_cut(
        text in "[ab\u{e9}]{0,24}",
        stops in prop::collection::vec("[ab\u{e9}]{0,5}", 0..4),
    ) {
        let expected = match search(&text, &stops) {
            Some((start, index)) => (text[..start].to_owned(), Some(index)),
            None => (text.clone(), None),
        };
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        prop_assert_eq!(&run(&single, &stops), &expected);
        for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            prop_assert_eq!(&run(&[&text[..cut], &text[cut..]], &stops), &expected);
        }
    }
}
