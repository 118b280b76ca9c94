//! Stretches against merging as it is defined: the best pair of the whole word first, looked for
//! again after each merge.

use proptest::prelude::*;

use super::*;
use crate::GgufVocabulary;
use crate::bpe::MergeRule;
use crate::pieces::NO_PIECE;

/// Merges a word as the definition says.
fn defined(tokenizer: &Tokenizer, word: &str) -> Vec<(String, u32)> {
    let find = |piece: &str| tokenizer.table.find(piece.as_bytes());
    let mut pieces: Vec<(String, u32)> = word
        .chars()
        .map(|character| (character.to_string(), find(&character.to_string()).unwrap_or(NO_PIECE)))
        .collect();
    loop {
        let pairs = pieces.windows(2).enumerate().filter_map(|(index, pair)| {
            let [left, right] = pair else { unreachable!() };
            let (key, joined) = match &tokenizer.rule {
                MergeRule::Ranks(ranks) => *ranks.get(&(left.1, right.1))?,
                MergeRule::Scores(keys) => {
                    let joined = find(&format!("{}{}", left.0, right.0))?;
                    (keys[joined as usize], joined)
                }
            };
            Some((key, index, joined))
        });
        let Some((_, index, joined)) = pairs.min() else { return pieces };
        let right = pieces.remove(index + 1);
        pieces[index] = (format!("{}{}", pieces[index].0, right.0), joined);
    }
}

/// Encodes a text without pieces to cut out as the definition says.
fn defined_ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut normal = text.to_owned();
    if let Some(space) = &tokenizer.space {
        normal = text.replace(' ', space);
        if tokenizer.prefix_space {
            normal.insert_str(0, space);
        }
    }
    let (mut ids, mut after_unknown, mut rest) = (Vec::new(), false, normal.as_str());
    while !rest.is_empty() {
        let word = first_word(rest, tokenizer.is_gemma4);
        rest = &rest[word.len()..];
        let whole = tokenizer.table.find(word.as_bytes());
        let pieces = match whole.filter(|_| tokenizer.is_gemma4 && word.starts_with('\n')) {
            Some(id) => vec![(word.to_owned(), id)],
            None => defined(tokenizer, word),
        };
        for (spelled, id) in pieces {
            tokenizer.emit(&spelled, id, &mut after_unknown, &mut ids);
        }
    }
    ids
}

/// A vocabulary of some pieces with scores, and either all bytes or an unknown token.
fn vocabulary(pieces: &[(String, u8)], has_bytes: bool) -> Tokenizer {
    let mut vocabulary = GgufVocabulary::default();
    let (mut scores, mut types) = (Vec::new(), Vec::new());
    let mut add = |spelled: &str, score: f32, kind: i32| {
        vocabulary.tokens.push(spelled.as_bytes().to_vec());
        scores.push(score);
        types.push(kind);
    };
    add("<unk>", 0.0, 2);
    add("<bos>", 0.0, 3);
    if has_bytes {
        (0..=255_u8).for_each(|byte| add(&format!("<0x{byte:02X}>"), 0.0, 6));
    }
    for (piece, score) in pieces {
        add(piece, -f32::from(*score), 1);
    }
    vocabulary.scores = Some(scores);
    vocabulary.token_types = Some(types);
    vocabulary.unknown = Some(0);
    Tokenizer::from_gguf(vocabulary).unwrap()
}

/// Encodes in stretches of some bytes, step by step.
fn in_stretches(tokenizer: &Tokenizer, text: &str, stretch_bytes: usize) -> (Vec<u32>, u64) {
    let mut progress = Progress { stretch_bytes, ..Progress::new(false) };
    let mut ids = Vec::new();
    while progress.step(tokenizer, text, &mut ids) {}
    (ids, progress.candidates())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Vocabularies of every order, also such that no training makes: a longer piece may come
    /// before its parts, and many have the same score.
    #[test]
    fn stretches_change_nothing(
        pieces in prop::collection::vec(("[ab\u{2581}\u{4e2d}\n]{1,6}", 0_u8..6), 1..24),
        text in "([ab\u{4e2d} \n]{0,80}|(ab|a|  |aab){0,60})",
        stretch_bytes in 1_usize..40,
        (has_bytes, is_gemma4, has_prefix) in any::<(bool, bool, bool)>(),
    ) {
        let mut tokenizer = vocabulary(&pieces, has_bytes);
        (tokenizer.is_gemma4, tokenizer.prefix_space) = (is_gemma4, has_prefix);
        if !text.is_empty() {
            let expected = defined_ids(&tokenizer, &text);
            prop_assert_eq!(in_stretches(&tokenizer, &text, stretch_bytes).0, expected);
        }
    }
}

/// What comes at the end of this text decides its beginning: each pair has a better one at its
/// right. The stretch grows until it knows.
#[test]
fn a_text_that_is_decided_from_its_end_is_merged_so() {
    let letters: Vec<char> = ('a'..='z').collect();
    let mut pieces: Vec<(String, u8)> =
        letters.iter().map(|letter| (letter.to_string(), 100)).collect();
    for (index, pair) in letters.windows(2).enumerate() {
        pieces.push((pair.iter().collect(), 50 - index as u8));
    }
    let tokenizer = vocabulary(&pieces, true);
    for count in 1..=26 {
        let text: String = letters[..count].iter().collect();
        let expected = defined_ids(&tokenizer, &text);
        for stretch_bytes in 1..8 {
            let (ids, _) = in_stretches(&tokenizer, &text, stretch_bytes);
            assert_eq!(ids, expected, "{text} {stretch_bytes}");
        }
    }
}

/// However long a text is, no more of it is merged at once than a stretch, and little of it twice.
#[test]
fn a_long_text_takes_no_more_than_a_stretch() {
    let letters = ["a", "b", "ab", "abab", "\u{4e2d}"].map(|piece| (piece.to_owned(), 40));
    let run = |score: fn(u8) -> u8| {
        let run = move |length: u8| ("\u{2581}".repeat(length.into()), score(length));
        vocabulary(&(1..32).map(run).chain(letters.clone()).collect::<Vec<_>>(), true)
    };
    // Longer runs after shorter ones, before them, and all at once.
    for tokenizer in [run(|length| length), run(|length| 32 - length), run(|_| 1)] {
        for unit in [" ", "a", "ab", "\u{4e2d}", "\u{1f600}", "\n", "a  b"] {
            let text = unit.repeat((1 << 18) / unit.len());
            let mut progress = Progress::new(false);
            let (mut ids, mut most) = (Vec::new(), 0);
            while progress.step(&tokenizer, &text, &mut ids) {
                most = most.max(progress.stretch.normal.capacity());
            }
            assert!(most <= 16 * STRETCH_BYTES, "{unit:?}: {most}");
            let work = progress.candidates();
            assert!(work <= 1 << 20, "{unit:?}: {work}");
            let decoded = tokenizer.decode(&ids, false);
            assert!(decoded == text, "{unit:?}");
        }
    }
}

/// The ids of an encoder are those of a whole call, with one beginning-of-sequence token.
#[test]
fn an_encoder_gives_the_ids_of_the_whole_text() {
    let mut tokenizer = vocabulary(&[("a".to_owned(), 1), ("aa".to_owned(), 0)], true);
    tokenizer.bos = Some(1);
    for add_bos in [true, false] {
        tokenizer.add_bos = add_bos;
        let shared = Arc::new(std::mem::replace(&mut tokenizer, vocabulary(&[], true)));
        for text in ["", "<bos>", "<bos><bos>", "aaa", "<bos><bos>aaa<bos>a", &"a".repeat(50_000)] {
            for parses in [true, false] {
                let specials = if parses { Specials::Parse } else { Specials::AsText };
                let expected = [
                    shared.encode(text, specials).unwrap(),
                    shared.encode_prompt(text, specials).unwrap(),
                ];
                for (is_prompt, expected) in [false, true].into_iter().zip(expected) {
                    let shared = Arc::clone(&shared);
                    let mut encoder =
                        Encoder::new(shared, text.to_owned(), parses, is_prompt).unwrap();
                    for _ in 0..2 {
                        let mut ids = Vec::new();
                        while encoder.more(&mut ids) {}
                        let what = format!("{:.40} {parses} {is_prompt} {add_bos}", text);
                        assert_eq!(ids, expected, "{what}");
                        encoder.rewind();
                    }
                }
            }
        }
        tokenizer = Arc::into_inner(shared).unwrap();
    }
}
