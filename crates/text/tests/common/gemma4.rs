//! A vocabulary like Gemma 4's, made up: its control tokens at their places, bytes, printable
//! characters, newlines, and pieces that cross the borders of calls.

use trine_text::GgufVocabulary;

/// Control tokens with their ids in the family's vocabularies.
pub(crate) const CONTROL: [(usize, &str); 19] = [
    (0, "<pad>"),
    (1, "<eos>"),
    (2, "<bos>"),
    (4, "<mask>"),
    (46, "<|tool>"),
    (47, "<tool|>"),
    (48, "<|tool_call>"),
    (49, "<tool_call|>"),
    (50, "<|tool_response>"),
    (51, "<tool_response|>"),
    (52, "<|\"|>"),
    (98, "<|think|>"),
    (100, "<|channel>"),
    (101, "<channel|>"),
    (105, "<|turn>"),
    (106, "<turn|>"),
    (110, "<|image|>"),
    (111, "<|audio|>"),
    (112, "<|video|>"),
];

/// Pieces of two characters and more, each made of a pair before it or of single characters.
const MERGES: [(&str, &str); 30] = [
    ("<", "|"),
    ("|", ">"),
    ("\"", "|"),
    ("<|", "\"|"),
    ("{", "\""),
    ("}", ","),
    ("}", "}"),
    (":", "["),
    ("]", "}"),
    (",", "\""),
    ("t", "h"),
    ("th", "e"),
    ("▁", "the"),
    ("i", "n"),
    ("in", "g"),
    ("c", "a"),
    ("ca", "l"),
    ("cal", "l"),
    ("call", ":"),
    ("<", "/"),
    ("</", "s"),
    ("</s", ">"),
    ("\n", "\n"),
    ("\n\n", "\n"),
    ("a", "\n"),
    ("1", "2"),
    ("0", "."),
    ("t", "r"),
    ("u", "e"),
    ("tr", "ue"),
];

/// The vocabulary. `typed` is the type of the tokens for tools and channels: early files have 4.
pub(crate) fn vocabulary(typed: i32) -> GgufVocabulary {
    let mut tokens: Vec<Vec<u8>> =
        (0..213).map(|id| format!("<unused{id}>").into_bytes()).collect();
    let mut types = vec![3; tokens.len()];
    for (id, name) in CONTROL {
        tokens[id] = name.as_bytes().to_vec();
        if (48..=52).contains(&id) || (100..=101).contains(&id) {
            types[id] = typed;
        }
    }
    (tokens[3], types[3]) = (b"<unk>".to_vec(), 2);
    for (id, run) in [(107, "\n"), (108, "\n\n"), (109, "\n\n\n")] {
        (tokens[id], types[id]) = (run.as_bytes().to_vec(), 1);
    }
    // Early files type it as a control token.
    tokens[212] = b"</s>".to_vec();
    tokens.extend((0..=255).map(|byte: u32| format!("<0x{byte:02X}>").into_bytes()));
    types.resize(tokens.len(), 6);
    tokens.extend((b'!'..=b'~').map(|byte| vec![byte]));
    tokens.extend(["▁", "é", "ж", "の"].map(|piece| piece.as_bytes().to_vec()));
    for (left, right) in MERGES {
        let piece = format!("{left}{right}").into_bytes();
        if !tokens.contains(&piece) {
            tokens.push(piece);
        }
    }
    types.resize(tokens.len(), 1);
    GgufVocabulary {
        model: "gemma4".to_owned(),
        scores: Some(vec![-1000.0; tokens.len()]),
        tokens,
        token_types: Some(types),
        merges: Some(MERGES.map(|(left, right)| format!("{left} {right}")).to_vec()),
        bos: Some(2),
        eos: vec![106, 212],
        unknown: Some(3),
        padding: Some(0),
        add_bos: false,
        ..GgufVocabulary::default()
    }
}
