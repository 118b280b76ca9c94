//! Random walks over allowed tokens end in documents that satisfy their schema.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/vocabulary.rs"]
mod vocabulary;

use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use trine_text::{
    Grammar, GrammarCompiler, GrammarSource, ReplyPart, Tokenizer, ToolChoice, Tools,
};

const SCHEMAS: [&str; 6] = [
    r#"{"type":"object","properties":{"name":{"type":"string","minLength":1,"maxLength":20},"age":{"type":"integer","minimum":0,"maximum":130},"tags":{"type":"array","items":{"enum":["a","b c","é"]},"minItems":1,"maxItems":3}},"required":["name","tags"],"additionalProperties":false}"#,
    r#"{"type":"array","items":{"type":"object","properties":{"x":{"type":"number"},"ok":{"type":"boolean"}},"required":["x"],"additionalProperties":false},"minItems":1,"maxItems":4}"#,
    r##"{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"value":{"type":"string","pattern":"^[a-z]{1,5}$"},"left":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["value","left"],"additionalProperties":false}}}"##,
    r#"{"type":"object","additionalProperties":{"type":"integer"},"minProperties":1}"#,
    r#"{"anyOf":[{"type":"string","format":"date"},{"type":"integer","multipleOf":5,"maximum":100000,"minimum":-100000},{"const":{"a":[1,null]}}]}"#,
    r#"{"type":"object"}"#,
];

struct World {
    tokenizer: Arc<Tokenizer>,
    schemas: Vec<(Grammar, jsonschema::Validator)>,
    tools: Tools,
    calls: Vec<Grammar>,
}

fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let tokenizer = Arc::new(vocabulary::synthetic(4000));
        let compiler = GrammarCompiler::new(tokenizer.clone());
        let schemas = SCHEMAS.iter().map(|text| {
            let grammar = compiler.compile(&GrammarSource::JsonSchema((*text).to_owned())).unwrap();
            let options = jsonschema::options().should_validate_formats(true);
            (grammar, options.build(&serde_json::from_str(text).unwrap()).unwrap())
        });
        let parameters: serde_json::Value = serde_json::from_str(SCHEMAS[0]).unwrap();
        let tools = Tools::from_openai(&serde_json::json!([
            {"type": "function", "function": {"name": "f", "parameters": parameters}},
            {"type": "function", "function": {"name": "f2"}},
        ]))
        .unwrap();
        let choices = [
            (ToolChoice::Required, true),
            (ToolChoice::Required, false),
            (ToolChoice::Named("f".into()), true),
            (ToolChoice::Auto, true),
        ];
        let calls = choices
            .iter()
            .map(|(choice, parallel)| {
                compiler.compile(&tools.grammar(choice, *parallel, None).unwrap()).unwrap()
            })
            .collect();
        World { schemas: schemas.collect(), tokenizer, tools, calls }
    })
}

/// A generator of Lehmer's kind, so that a walk is decided by its seed.
fn next(seed: &mut u64) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize
}

/// Walks until the end token; after some steps it takes what closes, so that it ends.
fn walk(grammar: &Grammar, tokenizer: &Tokenizer, mut seed: u64) -> Vec<u32> {
    let mut matcher = grammar.matcher().unwrap();
    let mut mask = vec![0; matcher.mask_words()];
    let mut ids = Vec::new();
    let free = next(&mut seed) % 60;
    for step in 0..3000 {
        matcher.allowed(&mut mask).unwrap();
        let allowed: Vec<u32> = (0..mask.len() as u32 * 32)
            .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect();
        let end = allowed.iter().copied().find(|id| tokenizer.eos_ids().contains(id));
        assert_eq!(end.is_some(), matcher.is_complete());
        let chosen = if step < free || end.is_none() && step % 3 == 0 {
            allowed[next(&mut seed) % allowed.len()]
        } else {
            let closing = |id: &&u32| {
                let bytes = tokenizer.token_bytes(**id).unwrap_or_default();
                matches!(
                    &bytes[..],
                    b"\"" | b"}" | b"]" | b"\"}" | b"\"]" | b"]}" | b"}}" | b"n" | b"null}"
                )
            };
            end.or_else(|| allowed.iter().find(closing).copied())
                .unwrap_or(allowed[next(&mut seed) % allowed.len()])
        };
        matcher.accept(chosen).unwrap();
        if tokenizer.eos_ids().contains(&chosen) {
            return ids;
        }
        ids.push(chosen);
    }
    panic!("no end: {}", tokenizer.decode(&ids, false));
}

/// Every prefix is accepted by a fresh matcher, whose mask has its next token.
fn replay(grammar: &Grammar, ids: &[u32]) {
    let mut matcher = grammar.matcher().unwrap();
    let mut mask = vec![0; matcher.mask_words()];
    for &id in ids {
        matcher.allowed(&mut mask).unwrap();
        assert_eq!(mask[id as usize / 32] >> (id % 32) & 1, 1);
        matcher.accept(id).unwrap();
    }
    assert!(matcher.is_complete());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn documents_satisfy_their_schema(seed: u64, which in 0..SCHEMAS.len()) {
        let world = world();
        let (grammar, validator) = &world.schemas[which];
        let ids = walk(grammar, &world.tokenizer, seed);
        replay(grammar, &ids);
        let text = world.tokenizer.decode(&ids, false);
        let document: serde_json::Value = match serde_json::from_str(&text) {
            Ok(document) => document,
            // JSON bounds no exponent, the parser does.
            Err(error) if error.to_string().contains("number out of range") => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(format!("{error}: {text}"))),
        };
        prop_assert!(validator.is_valid(&document), "{text}");
    }

    #[test]
    fn replies_are_calls_that_satisfy_their_schema(seed: u64, which in 0..4_usize, cut in 1..20_usize) {
        let world = world();
        let ids = walk(&world.calls[which], &world.tokenizer, seed);
        let text = world.tokenizer.decode(&ids, false);
        let mut parser = world.tools.parser(true);
        let characters: Vec<char> = text.chars().collect();
        let mut parts: Vec<ReplyPart> =
            characters.chunks(cut).flat_map(|piece| parser.push(&piece.iter().collect::<String>())).collect();
        parts.extend(parser.finish());
        let mut calls = 0;
        for part in &parts {
            match part {
                ReplyPart::Call(call) => {
                    calls += 1;
                    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
                    match call.name.as_str() {
                        "f" => prop_assert!(world.schemas[0].1.is_valid(&arguments), "{text}"),
                        name => prop_assert_eq!((name, arguments), ("f2", serde_json::json!({}))),
                    }
                }
                ReplyPart::Text(_) => prop_assert_eq!(which, 3, "{}", text),
            }
        }
        prop_assert!(which == 3 || calls > 0);
        prop_assert!(!matches!(which, 1 | 2) || calls == 1);
    }
}
