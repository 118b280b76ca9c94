//! What the integration tests share.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of tests")]

pub(crate) mod work;

use std::path::PathBuf;

use trine_text::{GgufVocabulary, Tokenizer};

/// A file below the repository's `tests/goldens`.
pub(crate) fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

/// Its content.
pub(crate) fn read(name: &str) -> Vec<u8> {
    let path = golden(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Its content as JSON.
pub(crate) fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&read(name)).unwrap()
}

/// The two golden tokenizers' folders.
pub(crate) const TOKENIZERS: [&str; 2] = ["tokenizer", "gguf/tokenizer-512"];

/// A golden tokenizer, read from its `tokenizer.json`.
pub(crate) fn from_json(folder: &str) -> Tokenizer {
    Tokenizer::from_json_bytes(&read(&format!("{folder}/tokenizer.json"))).unwrap()
}

/// The vocabulary of a golden `tokenizer.json`, written the way a GGUF file has
/// it: a piece's score falls with the rank of the first merge that makes it.
pub(crate) fn as_gguf(folder: &str) -> GgufVocabulary {
    let file = json(&format!("{folder}/tokenizer.json"));
    let vocab = file["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![Vec::new(); vocab.len()];
    for (piece, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = piece.clone().into_bytes();
    }
    let merges: Vec<String> = file["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    let mut scores = vec![-1e6_f32; tokens.len()];
    for (rank, merge) in merges.iter().enumerate().rev() {
        let id = vocab[&merge.replace(' ', "")].as_u64().unwrap() as usize;
        scores[id] = -(rank as f32);
    }
    let mut types = vec![1; tokens.len()];
    for (id, piece) in tokens.iter().enumerate() {
        if piece.starts_with(b"<0x") {
            types[id] = 6;
        }
    }
    for added in file["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        types[id] = match (added["special"].as_bool().unwrap(), &tokens[id][..]) {
            (_, b"<unk>") => 2,
            (true, _) => 3,
            (false, _) => 4,
        };
    }
    GgufVocabulary {
        tokens,
        scores: Some(scores),
        token_types: Some(types),
        merges: Some(merges),
        bos: Some(2),
        eos: vec![1],
        unknown: Some(3),
        padding: Some(0),
        ..GgufVocabulary::default()
    }
}
