//! Random walks over allowed tokens end in documents that satisfy their schema.
use crate::vocabulary;

use std::sync::{Arc, OnceLock};

use proptest::prelude::*;
use trine_text::{
    Course, Grammar, GrammarCompiler, GrammarError, GrammarSource, Matcher, Outlook, ReplyPart,
    ThoughtMarks, Thoughts, Tokenizer, ToolChoice, Tools,
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

/// Returns tokens that may follow: mostly the text that `matcher` allows, some at random.
fn guesses(matcher: &Matcher, fresh: &Grammar, before: &[u32], seed: &mut u64) -> Vec<u32> {
    let mut copy = fresh.matcher().unwrap();
    before.iter().for_each(|&id| copy.accept(id).unwrap());
    let mut mask = vec![0; matcher.mask_words()];
    let mut guesses = Vec::new();
    for _ in 0..next(seed) % 9 {
        let vocabulary = mask.len() * 32;
        let chosen = if copy.allowed(&mut mask).is_ok() && !next(seed).is_multiple_of(8) {
            let from = next(seed) % vocabulary;
            let is_allowed = |id: &usize| mask[id / 32] >> (id % 32) & 1 == 1;
            (from..vocabulary).chain(0..from).find(is_allowed).unwrap()
        } else {
            next(seed) % (vocabulary + 100)
        };
        guesses.push(chosen as u32);
        let _ = copy.accept(chosen as u32);
    }
    guesses
}

/// Signs that the vocabulary has only the bytes of come one token at a time, and there is no other.
#[test]
fn tokens_that_have_to_come_are_looked_at_ahead() {
    let compiler = GrammarCompiler::new(world().tokenizer.clone());
    let source = GrammarSource::Gbnf("root ::= \"語文\" [ab]".to_owned());
    let grammar = compiler.compile(&source).unwrap();
    let mut outlook = Outlook::new(Course::start(Some(&grammar), None).unwrap().unwrap());
    let words = outlook.mask_words();
    let bytes: Vec<u32> = "語文".bytes().map(|byte| 6 + u32::from(byte)).collect();
    let known = |outlook: &Outlook, tokens: &[u32]| {
        (0..=tokens.len())
            .filter(|&count| outlook.allowed_after(&tokens[..count], words, &mut Vec::new()))
            .count()
    };
    outlook.look(&[], || false);
    assert_eq!(known(&outlook, &bytes), 1);
    outlook.look(&[], || true);
    assert_eq!(known(&outlook, &bytes), 7);
    assert_eq!(outlook.follow(&[&bytes[..], &[5]].concat()), 6);
    assert_eq!(outlook.follow(&[bytes[0], 5]), 1);
    for &token in &bytes {
        assert_eq!(outlook.accept(5), Err(GrammarError::TokenRefused { token: 5 }));
        outlook.accept(token).unwrap();
        assert!(outlook.is_known(&[]));
    }
    let mut mask = Vec::new();
    outlook.allowed(words, &mut mask).unwrap();
    assert_eq!(
        mask.iter().map(|word| word.count_ones()).sum::<u32>(),
        4,
        "two letters, as bytes too"
    );
}

proptest! {
    #![proptest_config(
        ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() }
    )]

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
    fn guesses_are_followed_and_change_nothing(seed: u64, which in 0..SCHEMAS.len() + 4) {
        let world = world();
        let grammar = match world.schemas.get(which) {
            Some((grammar, _)) => grammar,
            None => &world.calls[which - SCHEMAS.len()],
        };
        let mut seed = seed;
        let ids = walk(grammar, &world.tokenizer, seed);
        let mut end = world.tokenizer.eos_ids().to_vec();
        end.truncate(1);
        let mut plain = grammar.matcher().unwrap();
        let mut guessed = grammar.matcher().unwrap();
        let (mut mask, mut other) = (vec![0; plain.mask_words()], vec![0; plain.mask_words()]);
        for (at, &id) in ids.iter().chain(&end).enumerate().take(60) {
            for _ in 0..next(&mut seed) % 3 {
                let guesses = if next(&mut seed).is_multiple_of(2) {
                    guesses(&plain, grammar, &ids[..at], &mut seed)
                } else {
                    ids[at..].iter().chain(&end).chain(&end).take(9).copied().collect()
                };
                let mut copy = grammar.matcher().unwrap();
                ids[..at].iter().for_each(|&id| copy.accept(id).unwrap());
                let taken = guesses.iter().take_while(|&&id| copy.accept(id).is_ok()).count();
                prop_assert_eq!(guessed.follow(&guesses), taken, "{:?} at {}", guesses, at);
            }
            plain.allowed(&mut mask).unwrap();
            guessed.allowed(&mut other).unwrap();
            prop_assert_eq!(&mask, &other);
            plain.accept(id).unwrap();
            guessed.accept(id).unwrap();
            prop_assert_eq!(plain.is_complete(), guessed.is_complete());
        }
        if ids.len() < 60 {
            prop_assert_eq!(guessed.follow(&end), 0, "after the end");
        }
    }

    #[test]
    fn masks_ahead_are_those_of_courses_that_have_come_there(seed: u64,
        which in 0..SCHEMAS.len() + 4) {
        let world = world();
        let grammar = match world.schemas.get(which) {
            Some((grammar, _)) => grammar,
            None => &world.calls[which - SCHEMAS.len()],
        };
        let mut seed = seed;
        // It thinks first, in control tokens that mean nothing else.
        let marks = ThoughtMarks { open: 4, close: 0 };
        let budget = next(&mut seed) % 4;
        let thoughts = Thoughts { marks, allowed: true, budget: Some(budget), is_open: true };
        let mut tokens = vec![400; budget];
        tokens.push(marks.close);
        tokens.extend(walk(grammar, &world.tokenizer, seed));
        tokens.push(world.tokenizer.eos_ids()[0]);
        let start = || Course::start(Some(grammar), Some(thoughts)).unwrap().unwrap();
        let (mut plain, mut outlook) = (start(), Outlook::new(start()));
        let words = plain.mask_words();
        let (mut expected, mut found) = (vec![0; words], Vec::new());
        for at in 0..tokens.len().min(30) {
            let right = next(&mut seed) % 4;
            let mut guesses: Vec<u32> = tokens[at..].iter().copied().take(right).collect();
            guesses.extend((0..next(&mut seed) % 2).map(|_| (next(&mut seed) % 4000) as u32));
            let follows = outlook.follow(&guesses);
            let mut other = start();
            let before = tokens[..at].iter().chain(&guesses[..follows]);
            before.for_each(|&token| other.accept(token).unwrap());
            if !next(&mut seed).is_multiple_of(4) {
                outlook.look(&guesses, || true);
                for count in 1..=guesses.len() {
                    found.clear();
                    if outlook.allowed_after(&guesses[..count], words, &mut found) {
                        let mut other = start();
                        let before = tokens[..at].iter().chain(&guesses[..count]);
                        before.for_each(|&token| other.accept(token).unwrap());
                        other.allowed(&mut expected).unwrap();
                        prop_assert_eq!(&found, &expected, "{} of {:?} at {}", count, guesses, at);
                    } else {
                        let is_end = world.tokenizer.eos_ids().contains(&guesses[count - 1]);
                        prop_assert!(count > follows || is_end || outlook.follow(&guesses) < count);
                    }
                }
            }
            found.clear();
            prop_assert_eq!(plain.allowed(&mut expected), outlook.allowed(words, &mut found));
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(plain.accept(tokens[at]), outlook.accept(tokens[at]));
        }
        found.clear();
        prop_assert_eq!(plain.allowed(&mut expected), outlook.allowed(words, &mut found));
    }

    #[test]
    fn replies_are_calls_that_satisfy_their_schema(seed: u64, which in 0..4_usize,
        cut in 1..20_usize) {
        let world = world();
        let ids = walk(&world.calls[which], &world.tokenizer, seed);
        let text = world.tokenizer.decode(&ids, false);
        let mut parser = world.tools.parser(true);
        let characters: Vec<char> = text.chars().collect();
        let mut parts: Vec<ReplyPart> = characters
            .chunks(cut)
            .flat_map(|piece| parser.push(&piece.iter().collect::<String>()))
            .collect();
        parts.extend(parser.finish());
        let mut calls = 0;
        for part in &parts {
            match part {
                ReplyPart::Call(call) => {
                    calls += 1;
                    let arguments: serde_json::Value =
                        serde_json::from_str(&call.arguments).unwrap();
                    match call.name.as_str() {
                        "f" => prop_assert!(world.schemas[0].1.is_valid(&arguments), "{text}"),
                        name => prop_assert_eq!((name, arguments), ("f2", serde_json::json!({}))),
                    }
                }
                ReplyPart::Text(_) | ReplyPart::Thought(_) => prop_assert_eq!(which, 3, "{}", text),
            }
        }
        prop_assert!(which == 3 || calls > 0);
        prop_assert!(!matches!(which, 1 | 2) || calls == 1);
    }
}
