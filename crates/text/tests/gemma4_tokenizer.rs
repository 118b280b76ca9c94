//! The rules of Gemma 4's tokenizers, from a GGUF file's vocabulary and from `tokenizer.json`.
use crate::common;
use crate::gemma4;

use serde_json::{Map, Value, json};
use trine_text::{
    ChatTemplate, GgufVocabulary, MAX_SUPPRESSED, Message, Specials, TextError, Tokenizer,
    reply_format,
};
use trine_weights::Checkpoint;

fn from_gguf() -> Tokenizer {
    Tokenizer::from_gguf(gemma4::vocabulary(4)).unwrap()
}

/// The same vocabulary as Hugging Face writes it.
fn from_json() -> Tokenizer {
    let GgufVocabulary { tokens, merges, token_types, .. } = gemma4::vocabulary(4);
    let spelled = |id: usize| String::from_utf8(tokens[id].clone()).unwrap();
    let vocab: Map<String, Value> = (0..tokens.len()).map(|id| (spelled(id), id.into())).collect();
    let types = token_types.unwrap();
    let added = (0..tokens.len()).filter(|&id| matches!(types[id], 2..=4));
    let added =
        added.map(|id| json!({"id": id, "content": spelled(id), "special": types[id] != 4}));
    let merges: Vec<Value> = merges
        .unwrap()
        .iter()
        .map(|merge| merge.split_once(' ').map(|(left, right)| json!([left, right])).unwrap())
        .collect();
    let file = json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "},
            "behavior": "MergedWithPrevious", "invert": false},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>",
            "fuse_unk": true, "byte_fallback": true},
    });
    let config = json!({"bos_token": "<bos>", "eos_token": "<turn|>", "add_bos_token": false});
    // Any model will do: nothing of it but its folder is read here.
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    for name in ["config.json", "model.safetensors"] {
        write(name, &common::read(&format!("gemma3-a/{name}")));
    }
    write("tokenizer.json", file.to_string().as_bytes());
    write("tokenizer_config.json", config.to_string().as_bytes());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let mut tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    tokenizer.add_eos_ids(&[1, 106, 50, 212]);
    tokenizer
}

fn each(check: impl Fn(&Tokenizer)) {
    [from_gguf(), from_json()].iter().for_each(check);
}

#[test]
fn ends_are_known_by_name() {
    each(|tokenizer| assert_eq!(tokenizer.eos_ids(), [1, 50, 106]));
    for id in [46, 47, 48, 49, 50, 51, 52, 98, 100, 101, 105, 106, 110] {
        each(|tokenizer| assert!(tokenizer.is_special(id), "{id}"));
    }
    each(|tokenizer| assert!(!tokenizer.is_special(212)));
}

#[test]
fn a_prompt_begins_with_bos_whatever_the_file_says() {
    each(|tokenizer| {
        assert_eq!(tokenizer.encode_prompt("a", Specials::Parse).unwrap()[0], 2);
        assert_eq!(
            tokenizer.encode_prompt("<bos>a", Specials::Parse),
            tokenizer.encode_prompt("a", Specials::Parse)
        );
    });
}

#[test]
fn runs_of_newlines_are_words_of_their_own() {
    let spelled = |tokenizer: &Tokenizer, text: &str| -> Vec<String> {
        let ids = tokenizer.encode(text, Specials::AsText).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text);
        ids.iter().map(|&id| tokenizer.piece(id).unwrap().into_owned()).collect()
    };
    each(|tokenizer| {
        // The piece "a\n" exists, and no text can reach it.
        assert_eq!(spelled(tokenizer, "a\nb"), ["a", "\n", "b"]);
        assert_eq!(spelled(tokenizer, "a\n\n\n the"), ["a", "\n\n\n", "▁the"]);
        assert_eq!(spelled(tokenizer, "\n\n\n\n\n").concat(), "\n\n\n\n\n");
        assert_eq!(spelled(tokenizer, "\n\n"), ["\n\n"]);
        assert_eq!(spelled(tokenizer, "</s>"), ["</s>"]);
        assert_eq!(spelled(tokenizer, "\u{1F600}"), ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]);
    });
}

#[test]
fn words_of_users_become_no_control_tokens() {
    each(|tokenizer| {
        for (id, name) in gemma4::CONTROL {
            let id = id as u32;
            assert_eq!(tokenizer.encode(name, Specials::Parse).unwrap(), [id]);
            let as_text = tokenizer.encode(name, Specials::AsText).unwrap();
            let message = Message::new("user", format!("a{name}b")).guarded(tokenizer);
            let prompt = format!("<|turn>user\n{}<turn|>", message.content.text());
            let guarded = tokenizer.encode(&prompt, Specials::ParseGuarded).unwrap();
            assert!(!as_text.contains(&id) && !guarded[1..guarded.len() - 1].contains(&id));
            assert_eq!((guarded[0], guarded[guarded.len() - 1]), (105, 106));
            assert_eq!(tokenizer.decode(&as_text, true), name);
        }
    });
}

#[test]
fn a_file_without_merges_is_refused_because_its_scores_say_nothing() {
    let vocabulary = GgufVocabulary { merges: None, ..gemma4::vocabulary(3) };
    let error = Tokenizer::from_gguf(vocabulary).unwrap_err();
    assert!(matches!(error, TextError::InvalidTokenizer { .. }), "{error}");
    assert!(error.to_string().contains("no merges"), "{error}");
}

#[test]
fn merges_that_no_text_leads_to_are_ignored_in_a_gguf_file() {
    let mut vocabulary = gemma4::vocabulary(3);
    let before = Tokenizer::from_gguf(vocabulary.clone()).unwrap();
    let merges = vocabulary.merges.as_mut().unwrap();
    merges.splice(3..3, ["a never".to_owned(), "never a".to_owned(), "x y".to_owned()]);
    let after = Tokenizer::from_gguf(vocabulary).unwrap();
    for text in ["call: the xy a never\n\n\n12", "<|\"|>"] {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, Specials::AsText).unwrap();
        assert_eq!(ids(&before), ids(&after));
    }
}

/// Files with small vocabularies, without a template.
#[test]
fn golden_files_have_tokenizers_and_get_a_template() {
    for (name, is_large) in [("dense", true), ("e", false), ("moe", true)] {
        let path = common::golden(&format!("gguf/gemma4-{name}/model.gguf"));
        let checkpoint = Checkpoint::open(path).unwrap();
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
        assert_eq!(tokenizer.eos_ids(), [1, 50, 106]);
        let text = "the <|turn> and\n\nthe \u{1F600}";
        let ids = tokenizer.encode_prompt(text, Specials::AsText).unwrap();
        assert_eq!((ids[0], tokenizer.decode(&ids[1..], false).as_str()), (2, text));
        let template = ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap();
        assert_eq!(template.source(), ChatTemplate::gemma4(is_large).source());
        assert!(reply_format(&tokenizer, Some(&template)).thoughts().is_some());
    }
}

#[test]
fn suppressed_tokens_are_ids_of_the_vocabulary() {
    let with = |suppressed: Vec<u32>| {
        Tokenizer::from_gguf(GgufVocabulary { suppressed, ..gemma4::vocabulary(3) })
    };
    assert_eq!(with(vec![111, 110]).unwrap().suppressed_ids(), [110, 111]);
    assert!(from_gguf().suppressed_ids().is_empty());
    assert_eq!(with(vec![7; 5000]).unwrap().suppressed_ids(), [7], "each counts once");
    assert!(with(vec![1 << 20]).unwrap_err().to_string().contains("suppressed token"));
}

#[test]
fn suppressed_tokens_leave_some_text() {
    let tokenizer = from_gguf();
    let all = 0..tokenizer.vocabulary_size() as u32;
    let texts: Vec<u32> = all.clone().filter(|&id| !tokenizer.is_special(id)).collect();
    let with = |suppressed: Vec<u32>| {
        Tokenizer::from_gguf(GgufVocabulary { suppressed, ..gemma4::vocabulary(3) })
    };
    with(texts[1..].to_vec()).unwrap();
    for every in [texts, all.collect()] {
        let error = with(every).unwrap_err().to_string();
        assert!(error.contains("the suppressed tokens are all that are text"), "{error}");
    }
}

/// A model that is loaded can be asked.
#[test]
fn more_suppressed_tokens_than_a_request_may_have_are_refused() {
    let with = |suppressed: usize| {
        let mut vocabulary = gemma4::vocabulary(3);
        let first = vocabulary.tokens.len();
        let more = (0..MAX_SUPPRESSED + 1).map(|index| format!("<extra{index}>").into_bytes());
        vocabulary.tokens.extend(more);
        vocabulary.token_types.as_mut().unwrap().resize(vocabulary.tokens.len(), 3);
        vocabulary.scores.as_mut().unwrap().resize(vocabulary.tokens.len(), -1000.0);
        vocabulary.suppressed = (first..first + suppressed).map(|id| id as u32).collect();
        Tokenizer::from_gguf(vocabulary)
    };
    assert_eq!(with(MAX_SUPPRESSED).unwrap().suppressed_ids().len(), MAX_SUPPRESSED);
    let error = with(MAX_SUPPRESSED + 1).unwrap_err().to_string();
    assert!(error.contains("4097 suppressed tokens"), "{error}");
}
