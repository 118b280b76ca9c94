//! Drafts that read the caches of the model they guess for: they change no token, and are those of
//! another implementation.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::texts::{drafts, run};
use trine_backend::reference::ReferenceDevice;
use trine_engine::{Engine, EngineOptions, ReadingDrafter, Request, SamplingParams};
use trine_model::{Assistant, KvType, Model};
use trine_weights::SafetensorsFile;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

fn integers(file: &SafetensorsFile, name: &str) -> Vec<u32> {
    let entry = file.entry(name).expect("the golden has it");
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    file.bytes(entry).chunks_exact(8).map(|bytes| number(bytes) as u32).collect()
}

fn floats(file: &SafetensorsFile, name: &str) -> Vec<f32> {
    let entry = file.entry(name).expect("the golden has it");
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
    file.bytes(entry).chunks_exact(4).map(number).collect()
}

fn model(name: &str) -> Model {
    let draft = Assistant::open(&folder(name).join("assistant")).expect("the draft opens");
    let model = Model::open(&folder(name)).expect("the model opens");
    model.with_assistant(draft).expect("they belong together")
}

fn engine(model: &Model, embeds: bool, guesses: Option<usize>) -> Engine {
    let options = EngineOptions {
        context: Some(128),
        kv: KvType::F32,
        sequences: 3,
        further: 0,
        kept: 1,
        prefill: 16,
        further_rows: 0,
        outputs: 12,
        kv_memory: None,
        embeds,
    };
    let mut engine = Engine::new(model, &ReferenceDevice::new(), options).expect("it loads");
    if guesses.is_some() {
        let drafter = ReadingDrafter::of(engine.program().facts()).expect("it has a draft");
        engine.set_drafts(drafts(drafter));
        engine.set_guesses(guesses);
    }
    engine
}

/// Runs all requests; the tokens of each in order, and how many tokens were guessed.
fn texts(engine: &mut Engine, requests: Vec<Request>) -> (Vec<Vec<u32>>, u64) {
    let texts = run(engine, requests).into_iter().map(|text| text.tokens).collect();
    (texts, engine.status().drafted_tokens)
}

#[test]
fn they_change_no_token() {
    for name in ["gemma4-e", "gemma4-dense"] {
        let golden = SafetensorsFile::open(&folder(name).join("goldens.safetensors"));
        let golden = golden.expect("the golden opens");
        let (prompt, greedy) = (integers(&golden, "input_ids"), integers(&golden, "greedy_ids"));
        let requests = || {
            let sampled = |seed: u64, length: usize| {
                let sampling =
                    SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() };
                Request { sampling, ..Request::new(prompt[..length].to_vec(), 20) }
            };
            let greedy = Request::new(prompt.clone(), greedy.len());
            vec![greedy, sampled(3, 5), sampled(4, prompt.len() / 2)]
        };
        let model = model(name);
        let (plain, none) = texts(&mut engine(&model, false, None), requests());
        assert_eq!((&plain[0], none), (&greedy, 0), "{name}");
        for (embeds, guesses) in [(false, 1), (true, 3)] {
            let (found, drafted) = texts(&mut engine(&model, embeds, Some(guesses)), requests());
            assert_eq!(found, plain, "{name}, {guesses} guesses");
            assert!(drafted > 20, "{name}: {drafted} guesses");
        }
    }
}

#[test]
fn they_are_those_of_another_implementation() {
    for (name, contexts) in [("gemma4-e", [5, 9, 19, 46]), ("gemma4-dense", [6, 10, 21, 52])] {
        let golden = SafetensorsFile::open(&folder(name).join("goldens.safetensors"));
        let drafter = SafetensorsFile::open(&folder(name).join("drafter.safetensors"));
        let (golden, drafter) =
            (golden.expect("the golden opens"), drafter.expect("the results open"));
        let prompt = integers(&golden, "input_ids");
        let model = model(name);
        for context in contexts {
            let mut engine = engine(&model, false, None);
            let of = |what: &str| format!("window.n{context}.{what}");
            let expected = integers(&drafter, &of("tokens"));
            let (ids, steps) = (&prompt[..context], expected.len());
            let mut all = |_: usize, _: &[f32]| ControlFlow::Continue(());
            let guesses = engine.logits_and_guesses(ids, 7, steps, &mut all);
            let guesses = guesses.expect("the device works");
            let tokens: Vec<u32> = guesses.iter().map(|guess| guess.token).collect();
            assert_eq!(tokens, expected, "{name} after {context}");
            let logits = guesses.iter().flat_map(|guess| &guess.logits);
            let states = guesses.iter().flat_map(|guess| &guess.state);
            for (a, b) in logits.zip(floats(&drafter, &of("logits"))) {
                assert!((a - b).abs() < 5e-4, "{name} after {context}: {a} {b}");
            }
            for (a, b) in states.zip(floats(&drafter, &of("hidden_out"))) {
                assert!((a - b).abs() < 5e-4, "{name} after {context}: {a} {b}");
            }
        }
    }
}

/// Whoever has seen enough logits gets no more, and no guess.
#[test]
fn logits_end_where_nobody_wants_more() {
    let mut engine = engine(&model("gemma4-dense"), false, None);
    let mut seen = 0;
    let mut three = |_: usize, _: &[f32]| {
        seen += 1;
        if seen < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let ids: Vec<u32> = (10..40).collect();
    let guesses = engine.logits_and_guesses(&ids, 2, 4, &mut three);
    assert_eq!((guesses.expect("the device works"), seen), (Vec::new(), 3));
    engine.check_integrity().expect("the books agree");
}
