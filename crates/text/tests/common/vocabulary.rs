//! A vocabulary like Gemma's, made up: control tokens, bytes, pieces of several JSON characters,
//! words.

use trine_text::{GgufVocabulary, Tokenizer};

/// Pieces that cross the borders of JSON's elements, or of characters.
const PIECES: [&str; 26] = [
    "{\"", "\":", "\",", "\"}", "\"]", "},", "},{", "\"},{\"", "]}", "}}", "[]", "{}", "[{\"",
    "\":\"", "\":[", "\",\"", "true,", "null}", "\n\n", "\n", "1,", "0.", "{\"name", "é\"", "\\\"",
    "\\u00",
];

/// A tokenizer of `count` tokens, at least 600.
pub(crate) fn synthetic(count: usize) -> Tokenizer {
    let mut tokens: Vec<Vec<u8>> =
        ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
            .map(|name| name.as_bytes().to_vec())
            .to_vec();
    let mut types = vec![3; tokens.len()];
    types[3] = 2;
    tokens.extend((0..=255).map(|byte: u32| format!("<0x{byte:02X}>").into_bytes()));
    types.resize(tokens.len(), 6);
    tokens.extend(PIECES.map(|piece| piece.as_bytes().to_vec()));
    tokens.extend(
        (b' '..=b'~').map(|byte| if byte == b' ' { "▁".as_bytes().to_vec() } else { vec![byte] }),
    );
    let syllables = [
        "a", "be", "ti", "on", "er", "st", "lu", "ma", "ne", "is", "ou", "ch", "gra", "sch", "wor",
        "é", "ж", "の", "12", "7",
    ];
    let mut index = 0_usize;
    while tokens.len() < count {
        let mut word = String::from(if index.is_multiple_of(2) { "▁" } else { "" });
        let mut rest = index / 2 + syllables.len();
        while rest > 0 {
            word.push_str(syllables[rest % syllables.len()]);
            rest /= syllables.len();
        }
        tokens.push(word.into_bytes());
        index += 1;
    }
    tokens.truncate(count);
    types.resize(tokens.len(), 1);
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let vocabulary = GgufVocabulary {
        tokens,
        scores: Some(scores),
        token_types: Some(types),
        bos: Some(2),
        eos: vec![1],
        unknown: Some(3),
        padding: Some(0),
        ..GgufVocabulary::default()
    };
    Tokenizer::from_gguf(vocabulary).expect("the vocabulary is well formed")
}
