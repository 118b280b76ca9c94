//! Tokenizers and templates of whole models.

use crate::common;

use crate::common::{golden, json, read};
use trine_text::{
    ChatTemplate, GgufVocabulary, Message, RenderOptions, Specials, TextError, Tokenizer,
};
use trine_weights::Checkpoint;
use trine_weights::gguf::{Array, GgufMetadata, StringArray, Value};

#[test]
fn the_vocabulary_in_gguf_files_equals_tokenizer_json() {
    let cases = json("gguf/tokenizer-512/cases.json");
    let reference = common::from_json("gguf/tokenizer-512");
    for model in ["gemma3-f32", "gemma3-qat"] {
        let checkpoint = Checkpoint::open(golden(&format!("gguf/{model}/model.gguf"))).unwrap();
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
        assert_eq!(tokenizer.vocabulary_size(), reference.vocabulary_size());
        assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(2), &[1, 106][..]));
        for id in 0..512 {
            assert_eq!(tokenizer.piece(id), reference.piece(id));
            assert_eq!(tokenizer.is_special(id), reference.is_special(id), "{id}");
        }
        for case in cases.as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let ids = tokenizer.encode(text, Specials::Parse).unwrap();
            assert_eq!(serde_json::json!(ids), case["ids"], "{model} {text:?}");
            assert_eq!(tokenizer.decode(&ids, false), case["decoded"]);
        }
        let template = ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap();
        let messages = [Message::new("user", "Hello")];
        assert_eq!(
            template.render(&messages, &RenderOptions::default()),
            ChatTemplate::gemma().render(&messages, &RenderOptions::default())
        );
    }
}

#[test]
fn a_hugging_face_folder() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| std::fs::write(folder.path().join(to), read(from)).unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        copy(&format!("gemma3-a/{name}"), name);
    }
    let open = || Checkpoint::open(folder.path()).unwrap();
    let missing = Tokenizer::from_checkpoint(&open());
    assert!(matches!(missing, Err(TextError::MissingTokenizer { .. })), "{missing:?}");
    assert!(ChatTemplate::from_checkpoint(&open()).unwrap().is_none());

    copy("tokenizer/tokenizer.json", "tokenizer.json");
    copy("tokenizer/tokenizer_config.json", "tokenizer_config.json");
    let tokenizer = Tokenizer::from_checkpoint(&open()).unwrap();
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(2), &[1, 106][..]));
    let template = ChatTemplate::from_checkpoint(&open()).unwrap().unwrap();
    assert_eq!(template.source().as_bytes(), read("chat_template.jinja"));

    std::fs::write(folder.path().join("chat_template.jinja"), "own").unwrap();
    assert_eq!(ChatTemplate::from_checkpoint(&open()).unwrap().unwrap().source(), "own");
    std::fs::write(folder.path().join("chat_template.jinja"), " ".repeat(1 << 20)).unwrap();
    assert!(matches!(ChatTemplate::from_checkpoint(&open()), Err(TextError::Checkpoint(_))));
    // Reading a pipe would wait for its other end.
    if cfg!(unix) {
        let pipe = folder.path().join("chat_template.jinja");
        std::fs::remove_file(&pipe).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let read = ChatTemplate::from_checkpoint(&open());
        assert!(
            read.as_ref().is_err_and(|error| error.to_string().contains("not a file")),
            "{read:?}"
        );
    }
}

fn strings(items: &[&str]) -> Value {
    let mut array = StringArray::default();
    items.iter().for_each(|item| array.push(item));
    Value::Array(Array::String(array))
}

/// Bad-input list, row 36, in the terms of a GGUF file.
#[test]
fn row_36_metadata_of_the_wrong_type() {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let mut metadata = GgufMetadata::new("model.gguf");
    let missing = GgufVocabulary::from_metadata(&metadata);
    assert!(matches!(missing, Err(TextError::MissingTokenizer { .. })));
    metadata.insert(&key("tokens"), strings(&["<unk>", "a", "aa"]));
    metadata.insert(&key("scores"), Value::Array(Array::F32(vec![0.0, -1.0, 0.0])));
    metadata.insert(&key("eos_token_ids"), Value::Array(Array::U32(vec![1, 2])));
    metadata.insert(&key("padding_token_id"), Value::U32(u32::MAX));
    let vocabulary = GgufVocabulary::from_metadata(&metadata).unwrap();
    assert_eq!((vocabulary.padding, vocabulary.token_types.clone()), (None, None));
    let tokenizer = Tokenizer::from_gguf(vocabulary).unwrap();
    assert_eq!(tokenizer.encode("aaaxa", Specials::Parse).unwrap(), [2, 1, 0, 1]);
    assert_eq!(tokenizer.eos_ids(), [1, 2]);
    let wrong = [
        ("token_type", Value::Array(Array::F32(vec![1.5; 3]))),
        ("tokens", Value::U32(3)),
        ("scores", strings(&["a"])),
        ("merges", Value::Array(Array::F32(vec![1.0]))),
        ("bos_token_id", Value::String("2".into())),
        ("bos_token_id", Value::U64(1 << 40)),
        ("bos_token_id", Value::I32(-2)),
        ("eos_token_ids", Value::Array(Array::U64(vec![1 << 40]))),
        ("add_bos_token", Value::U32(1)),
        ("model", Value::U32(1)),
    ];
    for (name, value) in wrong {
        let mut metadata = metadata.clone();
        metadata.insert(&key(name), value);
        let outcome = GgufVocabulary::from_metadata(&metadata);
        assert!(matches!(outcome, Err(TextError::Checkpoint(_))), "{name}: {outcome:?}");
    }
}
