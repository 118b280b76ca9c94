//! Broken and hostile tokenizer files (bad-input list, rows 34 to 37).

use crate::common::{as_gguf, json, read};
use fastrand::Rng;
use serde_json::{Value, json};
use trine_text::{GgufVocabulary, Specials, TextError, Tokenizer};

fn golden() -> Value {
    json("gguf/tokenizer-512/tokenizer.json")
}

fn load(file: &Value) -> Result<Tokenizer, TextError> {
    Tokenizer::from_json_bytes(&serde_json::to_vec(file).unwrap())
}

/// Loads the golden file with one change; the error must name `place`.
#[track_caller]
fn refused(place: &str, change: impl FnOnce(&mut Value)) {
    let mut file = golden();
    change(&mut file);
    let error = load(&file).expect_err("a broken file was accepted");
    assert!(error.to_string().contains(place), "{error}");
}

#[test]
fn row_34_merges_beyond_the_vocabulary() {
    refused("merges[2]", |f| f["model"]["merges"][2] = json!(["a", "never seen together"]));
    refused("merges[0]", |f| f["model"]["merges"][0] = json!(["a".repeat(500), "b"]));
    refused("merges[0]", |f| f["model"]["merges"][0] = json!(["", ""]));
    // Both sides exist and the joined piece does not.
    refused("merges[0]", |f| f["model"]["merges"][0] = json!(["S", "j"]));
}

#[test]
fn row_35_components_that_make_other_readers_panic() {
    refused("truncation", |f| {
        f["truncation"] =
            json!({"max_length": 4, "stride": 4, "strategy": "LongestFirst", "direction": "Right"});
    });
    refused("post_processor", |f| {
        f["post_processor"]["single"][0]["SpecialToken"]["id"] = json!("<absent>")
    });
    refused("post_processor", |f| {
        f["post_processor"]["special_tokens"]["<bos>"]["ids"] = json!([100_000]);
    });
    refused("decoder", |f| {
        f["decoder"] = json!({"type": "Strip", "content": " ", "start": 9, "stop": 9})
    });
    refused("pre_tokenizer", |f| f["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0}));
    refused("padding", |f| f["padding"] = json!({"strategy": {"Fixed": 0}}));
    refused("normalizer", |f| {
        f["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    });
}

#[test]
fn row_36_malformed_entries() {
    refused("pair", |f| f["model"]["merges"][0] = json!("a"));
    refused("two tokens", |f| f["model"]["merges"][0] = json!(["a"]));
    refused("two tokens", |f| f["model"]["merges"][0] = json!(["a", "b", "c"]));
    refused("pair", |f| f["model"]["merges"][0] = json!("a b c"));
    refused("tokenizer.json", |f| f["model"]["vocab"]["a"] = json!(-1));
    refused("tokenizer.json", |f| f["model"]["vocab"]["a"] = json!(1.5));
    refused("unk_token", |f| f["model"]["unk_token"] = json!("<absent>"));
    refused("another token", |f| f["model"]["vocab"]["a"] = json!(5));
    refused("added_tokens[0]", |f| f["added_tokens"][0]["id"] = json!(7));

    let good = as_gguf("gguf/tokenizer-512");
    let gguf_refused = |change: fn(&mut GgufVocabulary), words: &str| {
        let mut vocabulary = good.clone();
        change(&mut vocabulary);
        let error = Tokenizer::from_gguf(vocabulary).expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
    };
    gguf_refused(|v| v.bos = Some(512), "id 512");
    gguf_refused(|v| v.eos = vec![1, 4_000_000], "id 4000000");
    gguf_refused(|v| v.padding = Some(512), "padding");
    gguf_refused(|v| v.unknown = Some(u32::MAX), "unknown");
    gguf_refused(|v| v.scores.as_mut().unwrap().truncate(511), "511 scores");
    gguf_refused(|v| v.token_types.as_mut().unwrap().push(1), "513 token types");
    gguf_refused(|v| v.token_types.as_mut().unwrap()[400] = 0, "type 0");
    gguf_refused(|v| v.token_types.as_mut().unwrap()[400] = 6, "byte");
    gguf_refused(|v| v.scores.as_mut().unwrap()[400] = f32::NAN, "not a number");
    gguf_refused(|v| (v.scores, v.merges) = (None, Some(vec!["ab".to_owned()])), "pair");
    gguf_refused(|v| (v.scores, v.merges) = (None, None), "neither");
    gguf_refused(|v| v.tokens.clear(), "0 tokens");
    gguf_refused(|v| v.tokens[400] = vec![b'a'; 2000], "2000 bytes");
    gguf_refused(|v| v.tokens[400] = vec![0xff], "UTF-8");
}

#[test]
fn row_37_an_enormous_id_claims_no_memory() {
    for id in [1_u64 << 22, 1 << 31, (1 << 32) - 1, u64::MAX] {
        refused("limit", |f| f["model"]["vocab"]["a"] = json!(id));
        refused("added_tokens[3]", |f| {
            f["added_tokens"][3]["id"] = json!(id);
            f["added_tokens"][3]["content"] = json!("<unheard of>");
        });
    }
}

#[test]
fn row_38_patterns_are_never_compiled() {
    refused("pre_tokenizer", |f| {
        f["pre_tokenizer"] = json!({
            "type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false
        });
    });
    refused("normalizer", |f| f["normalizer"]["pattern"] = json!({"Regex": "(a|a)*b"}));
}

#[test]
fn other_kinds_of_tokenizer_are_named() {
    refused("Unigram", |f| f["model"]["type"] = json!("Unigram"));
    refused("dropout", |f| f["model"]["dropout"] = json!(0.5));
    refused("end_of_word_suffix", |f| f["model"]["end_of_word_suffix"] = json!("</w>"));
    refused("ByteLevel", |f| f["pre_tokenizer"] = json!({"type": "ByteLevel"}));
    refused("decoder", |f| f["decoder"] = Value::Null);
    refused("lstrip", |f| f["added_tokens"][4]["lstrip"] = json!(true));
    refused("empty", |f| f["added_tokens"][4]["content"] = json!(""));
    let byte_level = GgufVocabulary {
        model: "gpt2".to_owned(),
        tokens: vec![b"a".to_vec(), "\u{120}a".into()],
        merges: Some(vec![]),
        ..GgufVocabulary::default()
    };
    assert!(matches!(
        Tokenizer::from_gguf(byte_level),
        Err(TextError::UnsupportedTokenizer { .. })
    ));
}

#[test]
fn merges_may_be_written_as_text() {
    let mut file = golden();
    for merge in file["model"]["merges"].as_array_mut().unwrap() {
        *merge = json!(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
    }
    let (old, new) = (load(&file).unwrap(), load(&golden()).unwrap());
    let text = "Once upon a time  there was\n\n\na little girl";
    assert_eq!(old.encode(text, Specials::Parse), new.encode(text, Specials::Parse));
}

#[test]
fn a_merge_cannot_make_a_control_token() {
    let mut file = golden();
    file["model"]["vocab"]["Sj"] = json!(512);
    let merges = file["model"]["merges"].as_array_mut().unwrap();
    merges.insert(0, json!(["S", "j"]));
    file["added_tokens"].as_array_mut().unwrap().push(json!({
        "id": 512, "content": "Sj", "special": true, "normalized": false,
        "single_word": false, "lstrip": false, "rstrip": false
    }));
    let tokenizer = load(&file).unwrap();
    assert_eq!(tokenizer.encode("Sj", Specials::Parse).unwrap(), [512]);
    assert!(!tokenizer.encode("Sj", Specials::AsText).unwrap().contains(&512));
}

const SAMPLE: &str = "<bos><start_of_turn>user\n  Once upon a \u{1F600}\u{2581}\u{2581} \
    time<end_of_turn>\n\n\n\u{0}";

/// Whatever was accepted must also work.
fn exercise(tokenizer: &Tokenizer) {
    for specials in [Specials::Parse, Specials::AsText, Specials::ParseGuarded] {
        let ids = tokenizer.encode_prompt(SAMPLE, specials).unwrap();
        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocabulary_size()));
        let _ = tokenizer.decode(&ids, true);
    }
    let every: Vec<u32> = (0..tokenizer.vocabulary_size().min(2_000) as u32).collect();
    let _ = tokenizer.decode(&every, false);
}

#[test]
fn mutated_bytes_of_tokenizer_json() {
    let original = read("gguf/tokenizer-512/tokenizer.json");
    let mut random = Rng::with_seed(0x9E37_79B9_7F4A_7C15);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..600 {
        let mut bytes = original.clone();
        for _ in 0..=random.usize(..3) {
            let place = random.usize(..bytes.len());
            match random.usize(..5) {
                0 => bytes[place] = random.u8(..),
                1 => bytes[place] = b"0123456789\"{}[],:-e."[random.usize(..20)],
                2 => drop(bytes.drain(place..(place + random.usize(..40)).min(bytes.len()))),
                3 => bytes.truncate(place.max(1)),
                _ => {
                    let piece = bytes[place..(place + 30).min(bytes.len())].to_vec();
                    let to = random.usize(..bytes.len());
                    bytes.splice(to..to, piece);
                }
            }
        }
        match Tokenizer::from_json_bytes(&bytes) {
            Ok(tokenizer) => {
                accepted += 1;
                exercise(&tokenizer);
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 2_000, "{error}");
            }
        }
    }
    assert!(accepted > 10 && refused > 100, "{accepted} {refused}");
}

/// Every place in a JSON value, as a path.
fn places(value: &Value, path: &str, all: &mut Vec<String>) {
    all.push(path.to_owned());
    match value {
        Value::Array(items) => {
            // The first few of many alike are enough.
            for (index, item) in items.iter().take(6).enumerate() {
                places(item, &format!("{path}/{index}"), all);
            }
        }
        Value::Object(map) => {
            for (key, item) in map.iter().take(20) {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(item, &format!("{path}/{key}"), all);
            }
        }
        _ => {}
    }
}

#[test]
fn mutated_structure_of_tokenizer_json() {
    let original = golden();
    let mut all = Vec::new();
    places(&original, "", &mut all);
    let values = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(3),
        json!(4_294_967_296_u64),
        json!(1e300),
        json!(""),
        json!(" "),
        json!("<bos>"),
        json!("BPE"),
        json!("a".repeat(5_000)),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"type": "Sequence"}),
        json!({"String": ""}),
    ];
    let mut accepted = 0;
    for path in &all {
        for value in &values {
            let mut file = original.clone();
            *file.pointer_mut(path).unwrap() = value.clone();
            if let Ok(tokenizer) = load(&file) {
                accepted += 1;
                exercise(&tokenizer);
            }
        }
    }
    assert!(all.len() * values.len() > 2_000 && accepted > 0, "{} {accepted}", all.len());
}

#[test]
fn mutated_gguf_vocabularies() {
    let original = as_gguf("gguf/tokenizer-512");
    let mut random = Rng::with_seed(7);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..400 {
        let mut vocabulary = original.clone();
        for _ in 0..=random.usize(..3) {
            let id = random.usize(..vocabulary.tokens.len());
            match random.usize(..9) {
                0 => {
                    vocabulary.tokens[id] = (0..random.usize(..6)).map(|_| random.u8(..)).collect()
                }
                1 => vocabulary.tokens[id] = vocabulary.tokens[random.usize(..512)].clone(),
                2 => vocabulary.token_types.as_mut().unwrap()[id] = random.usize(..9) as i32 - 1,
                3 => vocabulary.scores.as_mut().unwrap()[id] = f32::from_bits(random.u32(..)),
                4 => vocabulary.model = "gpt2".to_owned(),
                5 => vocabulary.unknown = Some(random.usize(..600) as u32),
                6 => vocabulary.bos = Some(random.usize(..600) as u32),
                7 => vocabulary.add_space_prefix = true,
                _ => {
                    vocabulary.merges.as_mut().unwrap()[random.usize(..100)] =
                        "a b".repeat(random.usize(..3))
                }
            }
        }
        match Tokenizer::from_gguf(vocabulary) {
            Ok(tokenizer) => {
                accepted += 1;
                exercise(&tokenizer);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(accepted > 50 && refused > 50, "{accepted} {refused}");
}
