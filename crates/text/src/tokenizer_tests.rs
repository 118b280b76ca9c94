//! Bounds on work. They are counted in heap entries, which do not depend on the speed of the
//! machine.

use super::*;
use crate::GgufVocabulary;

/// Creates a tokenizer with the pieces `a`, `aa`, `aaaa` ... `a`*512, a space, spaces, and all
/// bytes.
fn hostile_tokenizer() -> Tokenizer {
    let mut vocabulary = GgufVocabulary::default();
    let (mut scores, mut types) = (Vec::new(), Vec::new());
    let mut add = |spelled: Vec<u8>, score: f32, kind: i32| {
        vocabulary.tokens.push(spelled);
        scores.push(score);
        types.push(kind);
    };
    add(b"<unk>".to_vec(), 0.0, 2);
    add(b"<bos>".to_vec(), 0.0, 3);
    for byte in 0..=255_u8 {
        add(format!("<0x{byte:02X}>").into_bytes(), 0.0, 6);
    }
    for power in 0..10 {
        add("a".repeat(1 << power).into_bytes(), -(power as f32), 1);
        if power < 8 {
            add("\u{2581}".repeat(1 << power).into_bytes(), -(power as f32), 1);
        }
    }
    vocabulary.scores = Some(scores);
    vocabulary.token_types = Some(types);
    Tokenizer::from_gguf(vocabulary).unwrap()
}

fn candidates(tokenizer: &Tokenizer, text: &str) -> u64 {
    tokenizer.encode_counted(text, Specials::Parse).unwrap().candidates
}

/// Bad-input list, row 38.
#[test]
fn row_38_work_grows_with_the_length_of_the_text() {
    let tokenizer = hostile_tokenizer();
    for unit in ["a", " ", "\u{1F468}\u{200D}\u{1F469}", "\u{0}\u{7f}", "a ", "aaa\u{e9}"] {
        let text = |bytes: usize| unit.repeat(bytes / unit.len());
        let small = candidates(&tokenizer, &text(1 << 18));
        let large = candidates(&tokenizer, &text(1 << 20));
        // Where a stretch ends, some is merged again.
        assert!(large <= 13 << 18, "{unit:?}: {large}");
        assert!(large <= small * 4 + small / 16 + 64, "{unit:?}: {small} {large}");
    }
}

/// Bad-input list, row 39: no count of tokens can pass 2^31.
#[test]
fn row_39_a_text_beyond_the_limit_is_refused() {
    let tokenizer = hostile_tokenizer();
    let text = "a".repeat(MAX_TEXT_BYTES + 1);
    assert_eq!(
        tokenizer.encode(&text, Specials::Parse),
        Err(TextError::TextTooLong { bytes: MAX_TEXT_BYTES + 1, limit: MAX_TEXT_BYTES })
    );
    const { assert!(MAX_TEXT_BYTES < 1 << 31) };
}

#[test]
fn splitting_before_spaces_changes_nothing() {
    let tokenizer = hostile_tokenizer();
    let mut unsplit = hostile_tokenizer();
    unsplit.before_space = None;
    for text in ["a a  a   a", " ", "  aaaa  ", "aaa \u{2581} a", "\u{e9} \u{e9}"] {
        assert_eq!(
            tokenizer.encode(text, Specials::Parse),
            unsplit.encode(text, Specials::Parse),
            "{text:?}"
        );
        let normal = text.replace(' ', "\u{2581}");
        let joined: String = tokenizer.parts(&normal).map(|part| &normal[part]).collect();
        assert_eq!(joined, normal);
    }
}
