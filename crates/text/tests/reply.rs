//! Replies as text: what [`ReplyDecoder`] joins.
use std::sync::Arc;

use crate::common::{TOKENIZERS, from_json};
use trine_text::{ReplyDecoder, ReplyOptions, Specials, Tokenizer};

const TEXT: &str = "One day a bird flew over a bird and a bird.";

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(from_json(TOKENIZERS[0]))
}

fn stopping_at(stop: &str) -> ReplyOptions {
    ReplyOptions { stops: vec![stop.to_owned()], ..ReplyOptions::default() }
}

/// The text that comes out when the tokens of `text` go in, and the stop text that ended it.
fn decoded(text: &str, options: &ReplyOptions) -> (String, Option<usize>) {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode(text, Specials::Parse).unwrap();
    let mut decoder = ReplyDecoder::new(tokenizer, options.clone());
    let mut whole = String::new();
    for (index, &id) in ids.iter().enumerate() {
        let step = decoder.push(id);
        assert_eq!(decoder.tokens(), index + 1);
        whole.push_str(&step.text);
        if step.stopped.is_some() {
            return (whole, step.stopped);
        }
    }
    whole.push_str(&decoder.finish());
    (whole, None)
}

#[test]
fn a_reply_ends_before_its_stop_text_or_with_it() {
    let mut options = stopping_at(" a bird");
    assert_eq!(decoded(TEXT, &options), ("One day".to_owned(), Some(0)));
    options.include_stop = true;
    assert_eq!(decoded(TEXT, &options), ("One day a bird".to_owned(), Some(0)));
    // What was held back is text where the reply ends first.
    assert_eq!(decoded("One day a bi", &options), ("One day a bi".to_owned(), None));
    options.stops.insert(0, "One".to_owned());
    assert_eq!(decoded(TEXT, &options), ("One".to_owned(), Some(0)));
}

#[test]
fn no_stop_text_begins_in_the_least_tokens() {
    let tokens = |text: &str| tokenizer().encode(text, Specials::AsText).unwrap().len();
    for (min_tokens, expected) in [
        (0, "One day"),
        (tokens("One day a bird"), "One day a bird flew over"),
        (tokens("One day a bird flew over a"), "One day a bird flew over a bird and"),
        (1000, TEXT),
    ] {
        let options = ReplyOptions { min_tokens, ..stopping_at(" a bird") };
        assert_eq!(decoded(TEXT, &options).0, expected, "{min_tokens}");
    }
}

#[test]
fn characters_say_where_the_text_of_the_next_token_begins() {
    let text = "One day a bird \u{2013} \u{fc}ber \u{65e5}\u{672c} \u{1f600} \u{2013} flew away.";
    let tokenizer = tokenizer();
    let characters: Vec<char> = text.chars().collect();
    // Part of it is held back, which does not change where tokens begin.
    let mut decoder = ReplyDecoder::new(Arc::clone(&tokenizer), stopping_at("flew over"));
    for id in tokenizer.encode(text, Specials::AsText).unwrap() {
        let there: String = characters[decoder.characters()..].iter().collect();
        let spelled = tokenizer.decode(&[id], false);
        if !spelled.contains(char::REPLACEMENT_CHARACTER) {
            assert!(there.starts_with(&spelled), "{spelled:?} at {}", decoder.characters());
        }
        decoder.push(id);
    }
    assert_eq!(decoder.characters(), characters.len());
}

#[test]
fn control_tokens_are_text_unless_they_are_left_out() {
    let eos = tokenizer().eos_text().into_owned();
    let text = format!("One{eos} day");
    let mut options = ReplyOptions::default();
    assert_eq!(decoded(&text, &options).0, text);
    options.skip_special = true;
    assert_eq!(decoded(&text, &options).0, "One day");
}

#[test]
fn a_character_that_is_left_incomplete_is_replaced() {
    let tokenizer = tokenizer();
    let first = (0..tokenizer.vocabulary_size() as u32)
        .find(|&id| tokenizer.token_bytes(id).is_some_and(|bytes| *bytes == [0xe6]));
    let mut decoder = ReplyDecoder::new(tokenizer, ReplyOptions::default());
    assert_eq!(decoder.push(first.unwrap()).text, "");
    assert_eq!(decoder.finish(), "\u{fffd}");
}
