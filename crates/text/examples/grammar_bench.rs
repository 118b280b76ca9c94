//! Times of grammars over a vocabulary of Gemma's size:
//! `cargo run --release -p trine-text --example grammar_bench`.
#![allow(clippy::unwrap_used, reason = "a measurement that fails has nothing to save")]

#[path = "../tests/common/vocabulary.rs"]
mod vocabulary;

use std::sync::Arc;
use std::time::{Duration, Instant};

use trine_text::{GrammarCompiler, GrammarSource};

const SCHEMA: &str = r#"{"type":"object","properties":{
    "name":{"type":"string"},"age":{"type":"integer"},"email":{"type":"string","format":"email"},
    "tags":{"type":"array","items":{"type":"string"},"maxItems":5},
    "address":{"type":"object","properties":{
        "street":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},
        "required":["street","zip"],"additionalProperties":false},
    "kind":{"enum":["person","company","other"]}},
    "required":["name","age","email","tags","address","kind"],"additionalProperties":false}"#;

const REPLY: &str = r#"{"name": "Ada \"L\" Lovelace", "age": 36, "email": "ada@example.org",
 "tags": ["mathematics", "engines", "poetry"],
 "address": {"street": "12 St James's Square, where the windows are", "zip": "12345"},
 "kind": "person"}"#;

/// Resident memory of this process in MiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|number| number.parse::<usize>().ok()).unwrap_or(0)
        / 1024
}

fn show(name: &str, mut times: Vec<Duration>) {
    times.sort();
    println!(
        "{name}: median {:?}, worst {:?} of {}",
        times[times.len() / 2],
        times[times.len() - 1],
        times.len()
    );
}

fn main() {
    let tokenizer = Arc::new(vocabulary::synthetic(262_144));
    let before = resident();
    let start = Instant::now();
    let compiler = GrammarCompiler::new(tokenizer.clone());
    compiler.prepare().unwrap();
    println!("trie of 262,144 tokens: {:?}, {} MiB", start.elapsed(), resident() - before);

    let sources = [
        ("JSON schema", GrammarSource::JsonSchema(SCHEMA.replace('\n', ""))),
        ("JSON object", GrammarSource::JsonObject),
        ("expression", GrammarSource::Regex("(?s:.)*".to_owned())),
    ];
    let ids = tokenizer.encode(&REPLY.replace('\n', ""), trine_text::Specials::AsText).unwrap();
    for (name, source) in sources {
        let start = Instant::now();
        let grammar = compiler.compile(&source).unwrap();
        let took = start.elapsed();
        let start = Instant::now();
        let mut matcher = grammar.matcher().unwrap();
        println!(
            "{name}: compiled in {took:?}, {} KiB, a matcher in {:?}",
            grammar.bytes() >> 10,
            start.elapsed()
        );
        let (mut masks, mut accepts, mut follows) = (Vec::new(), Vec::new(), Vec::new());
        let mut mask = vec![0; matcher.mask_words()];
        for (at, &id) in ids.iter().enumerate() {
            let guesses = &ids[at..ids.len().min(at + 7)];
            let start = Instant::now();
            assert_eq!(matcher.follow(guesses), guesses.len());
            follows.push(start.elapsed());
            let start = Instant::now();
            matcher.allowed(&mut mask).unwrap();
            masks.push(start.elapsed());
            assert_eq!(mask[id as usize / 32] >> (id % 32) & 1, 1);
            let start = Instant::now();
            matcher.accept(id).unwrap();
            accepts.push(start.elapsed());
        }
        assert!(matcher.is_complete());
        show(&format!("{name}, mask"), masks);
        show(&format!("{name}, accept"), accepts);
        show(&format!("{name}, seven guesses"), follows);
    }

    let before = resident();
    let kept: Vec<_> = (0..1000)
        .map(|index| {
            let schema = SCHEMA.replace('\n', "").replace("company", &format!("company{index}"));
            compiler.compile(&GrammarSource::JsonSchema(schema)).unwrap()
        })
        .collect();
    let estimate: usize = kept.iter().map(trine_text::Grammar::bytes).sum();
    println!(
        "1000 compiled schemas: {} MiB, estimated {} MiB",
        resident() - before,
        estimate >> 20
    );
}
