use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;

use super::chains::{LEAST, LONGEST, PLACES, common_end, hash};
use super::earlier::{CONTEXT, GENERATION};
use super::*;
use crate::events::SequenceId;
use crate::sampling::{SamplerState, SamplingParams};

/// No test draws.
static STREAM: LazyLock<SamplerState> =
    LazyLock::new(|| SamplerState::new(SamplingParams::greedy()));

fn ask(id: u64, tokens: &[u32], most: usize) -> Ask<'_> {
    let scope = Scope::default();
    Ask {
        id: SequenceId(id),
        slot: 0,
        scope,
        tokens,
        stop_ids: &[],
        most,
        state: &[],
        sampler: &STREAM,
    }
}

fn guess(lookup: &mut Lookup, ask: &Ask<'_>) -> (Option<LookupHit>, Vec<u32>) {
    let mut guesses = vec![7];
    let found = lookup.guess(ask, &mut guesses);
    assert_eq!(guesses.remove(0), 7, "they are appended");
    assert_eq!(found.is_some(), !guesses.is_empty());
    assert!(guesses.len() <= ask.most);
    (found, guesses)
}

fn own(length: usize) -> Option<LookupHit> {
    Some(LookupHit { source: LookupSource::Own, length })
}

fn earlier(length: usize) -> Option<LookupHit> {
    Some(LookupHit { source: LookupSource::Earlier, length })
}

/// Returns the end and length of the longest match of the end of `tokens`, the latest of several,
/// among the latest places whose hash falls into the same bucket.
fn naive(tokens: &[u32], bucket: impl Fn(&[u32]) -> usize) -> Option<(usize, usize)> {
    let last = tokens.len().checked_sub(LEAST)?;
    let same = |&place: &usize| bucket(&tokens[place..place + LEAST]) == bucket(&tokens[last..]);
    let matches = (0..last).rev().filter(same).take(PLACES).map(|place| {
        let end = place + LEAST;
        let mut length = 0;
        while length < end
            && length < LONGEST
            && tokens[end - 1 - length] == tokens[tokens.len() - 1 - length]
        {
            length += 1;
        }
        (end, length)
    });
    let matches = matches.filter(|(_, length)| *length >= LEAST);
    matches.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

proptest! {
    #[test]
    fn the_longest_latest_match_is_continued(
        tokens in vec(0..3_u32, 1..900),
        pieces in vec(1..40_usize, 1..40),
        most in 1..20_usize,
    ) {
        let mut lookup = Lookup::new(1);
        let mut length = 0;
        for piece in pieces {
            length = (length + piece).min(tokens.len());
            let text = &tokens[..length];
            let (found, guesses) = guess(&mut lookup, &ask(1, text, most));
            let chains = lookup.own[0].chains();
            let expected = naive(text, |gram| chains.bucket(hash(0, gram)));
            prop_assert_eq!(found, expected.and_then(|(_, length)| own(length)));
            let Some((end, _)) = expected else { continue };
            let mut longer = text.to_vec();
            (0..most).for_each(|offset| longer.push(longer[end + offset]));
            prop_assert_eq!(&guesses, &longer[length..]);
        }
    }

    /// In texts of one scope, places are found as a naive search of each text finds them.
    #[test]
    fn earlier_answers_are_searched_within_their_borders(
        texts in vec((vec(0..2_u32, 0..60), 0..60_usize, 0..3_u8), 0..12),
        tokens in vec(0..2_u32, 1..12),
        most in 1..20_usize,
    ) {
        let mut lookup = Lookup::new(1);
        let scope = |name: u8| Scope::default().within(&[name]);
        for (text, answer, name) in &texts {
            lookup.learn(scope(*name), text, *answer);
        }
        let found = lookup.earlier.find(scope(0), &tokens, most);
        let kept = texts.iter().filter(|(text, answer, name)| *name == 0 && *answer < text.len());
        let kept: Vec<&[u32]> =
            kept.map(|(text, answer, _)| &text[answer.saturating_sub(CONTEXT)..]).collect();
        let lengths = kept.iter().flat_map(|text| {
            (LEAST..text.len()).map(|end| common_end(&text[..end], &tokens))
        });
        let longest = lengths.max().filter(|&length| length >= LEAST);
        prop_assert_eq!(found.is_some(), longest.is_some());
        if let Some((length, following)) = found {
            prop_assert!(length <= longest.unwrap_or(0));
            let is_whole = |text: &&[u32], end: usize| {
                text[end..].starts_with(following)
                    && following.len() == most.min(text.len() - end)
                    && common_end(&text[..end], &tokens) == length
            };
            let stands = |text: &&[u32]| (LEAST..text.len()).any(|end| is_whole(text, end));
            prop_assert!(kept.iter().any(stands), "{:?} after {}", following, length);
        }
    }
}

#[test]
fn repetition_goes_on() {
    let mut lookup = Lookup::new(1);
    let tokens = [9, 1, 2, 1, 2, 1, 2];
    assert_eq!(guess(&mut lookup, &ask(1, &tokens, 5)), (own(4), vec![1, 2, 1, 2, 1]));
    let tokens = [5, 5, 5, 5];
    assert_eq!(guess(&mut lookup, &ask(2, &tokens, 3)), (own(3), vec![5, 5, 5]));
}

#[test]
fn nothing_is_found_in_few_or_new_tokens() {
    let mut lookup = Lookup::new(1);
    for length in 1..8 {
        let tokens: Vec<u32> = (0..length).collect();
        assert_eq!(guess(&mut lookup, &ask(1, &tokens, 4)), (None, vec![]));
    }
    assert_eq!(guess(&mut lookup, &ask(2, &[1, 1], 4)), (None, vec![]));
}

#[test]
fn another_sequence_in_the_slot_finds_nothing_of_the_one_before() {
    let mut lookup = Lookup::new(1);
    let text = [1, 2, 3, 4, 5, 6, 1, 2, 3];
    assert_eq!(guess(&mut lookup, &ask(1, &text, 2)), (own(3), vec![4, 5]));
    // As long as the text before it, or longer.
    for (id, length) in [(2, 9), (3, 12)] {
        let other: Vec<u32> = [8, 9, 10, 11, 12, 13, 14, 15, 16, 1, 2, 3][12 - length..].to_vec();
        assert_eq!(guess(&mut lookup, &ask(id, &other, 2)), (None, vec![]));
    }
    lookup.end(0);
    assert_eq!(lookup.own[0].chains().len(), 0);
    assert_eq!(guess(&mut lookup, &ask(4, &text, 2)), (own(3), vec![4, 5]));
}

#[test]
fn scopes_see_nothing_of_one_another() {
    let mut lookup = Lookup::new(1);
    let scopes = [Scope::default(), Scope::default().within(b"a"), Scope::default().within(b"b")];
    let text: Vec<u32> = (0..100).collect();
    for (index, &learns) in scopes.iter().enumerate() {
        lookup.learn(learns, &text, 40);
        for (other, &scope) in scopes.iter().enumerate() {
            let ask = Ask { scope, ..ask(other as u64, &text[..50], 3) };
            let expected =
                if other <= index { (earlier(26), vec![50, 51, 52]) } else { (None, vec![]) };
            assert_eq!(guess(&mut lookup, &ask), expected, "{other} after {index}");
        }
    }
}

#[test]
fn an_answer_is_found_from_its_first_token_on() {
    let mut lookup = Lookup::new(1);
    let text: Vec<u32> = (0..100).collect();
    lookup.learn(Scope::default(), &text, 60);
    assert_eq!(guess(&mut lookup, &ask(1, &text[..60], 2)), (earlier(CONTEXT), vec![60, 61]));
    assert_eq!(guess(&mut lookup, &ask(1, &text[..98], 9)), (earlier(54), vec![98, 99]));
    assert_eq!(guess(&mut lookup, &ask(1, &text, 9)), (None, vec![]), "it ends there");
    assert_eq!(guess(&mut lookup, &ask(1, &text[..40], 2)), (None, vec![]), "of the prompt");
}

#[test]
fn the_longer_match_counts_and_the_sequence_before_earlier_answers() {
    let mut lookup = Lookup::new(1);
    lookup.learn(Scope::default(), &[1, 2, 3, 4, 5, 6], 2);
    let tokens = [2, 3, 4, 9, 0, 2, 3, 4];
    assert_eq!(guess(&mut lookup, &ask(1, &tokens, 1)), (own(3), vec![9]));
    let tokens = [2, 3, 4, 9, 1, 2, 3, 4];
    assert_eq!(guess(&mut lookup, &ask(2, &tokens, 4)), (earlier(4), vec![5, 6]));
}

#[test]
fn texts_join_nowhere() {
    let mut lookup = Lookup::new(1);
    lookup.learn(Scope::default(), &[1, 2, 3, 4], 0);
    lookup.learn(Scope::default(), &[5, 6, 7, 8], 0);
    for tokens in [[2, 3, 4], [3, 4, 5], [9, 4, 5]] {
        assert_eq!(guess(&mut lookup, &ask(1, &tokens, 4)), (None, vec![]));
    }
    assert_eq!(guess(&mut lookup, &ask(1, &[1, 2, 3], 4)), (earlier(3), vec![4]));
    assert_eq!(guess(&mut lookup, &ask(2, &[4, 5, 6, 7], 4)), (earlier(3), vec![8]));
}

#[test]
fn what_cannot_be_found_is_not_kept() {
    let mut lookup = Lookup::new(1);
    let texts: [(&[u32], usize); 5] = [
        (&[], 0),
        (&[2, 3], 0),
        (&[1, 2, 3, 4], 4),
        (&[1, 2, 3, 4], 9),
        (&[1, 2, 3, 4], usize::MAX),
    ];
    for (text, answer) in texts {
        lookup.learn(Scope::default(), text, answer);
    }
    assert_eq!(guess(&mut lookup, &ask(1, &[1, 2, 3], 4)), (None, vec![]));
}

#[test]
fn the_oldest_answers_are_forgotten() {
    let mut lookup = Lookup::new(1);
    let part = GENERATION / 4;
    let text = |number: usize| -> Vec<u32> {
        (0..part as u32).map(|at| at + (number * part) as u32).collect()
    };
    for number in 0..12 {
        lookup.learn(Scope::default(), &text(number), 0);
        let oldest = if number < 4 { 0 } else { number / 4 * 4 - 4 };
        for earlier in 0..=number {
            let tokens = &text(earlier)[..8];
            let (found, _) = guess(&mut lookup, &ask(number as u64, tokens, 4));
            assert_eq!(found.is_some(), earlier >= oldest, "{earlier} after {number}");
        }
    }
    // Of a text that is longer than a generation, the end is kept.
    let long: Vec<u32> = (0..GENERATION as u32 + 100).map(|at| at + 50_000_000).collect();
    lookup.learn(Scope::default(), &long, 0);
    assert_eq!(guess(&mut lookup, &ask(20, &long[..90], 1)), (None, vec![]));
    let before = long.len() - 1;
    let last = vec![long[before]];
    assert_eq!(guess(&mut lookup, &ask(21, &long[..before], 4)), (earlier(LONGEST), last));
}

#[test]
fn matches_are_compared_up_to_a_bound() {
    let mut lookup = Lookup::new(1);
    let repeated: Vec<u32> = (0..1000).flat_map(|_| [1, 2, 3, 4, 5]).collect();
    assert_eq!(guess(&mut lookup, &ask(1, &repeated, 3)), (own(LONGEST), vec![1, 2, 3]));
}

#[test]
fn kinds_are_by_source_and_length() {
    let kinds = |of: fn(usize) -> Option<LookupHit>| {
        [2, 3, 5, 6, 11, 12, LONGEST].map(|length| of(length).map(LookupHit::kind))
    };
    assert_eq!(kinds(own), [0, 1, 1, 2, 2, 3, 3].map(Some));
    assert_eq!(kinds(earlier), [4, 5, 5, 6, 6, 7, 7].map(Some));
    assert_eq!(KINDS, 8);
}
