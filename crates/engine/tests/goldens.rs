//! The engine on the scalar reference: whole models continue a prompt as another implementation
//! does, however the work is split and whoever else is in the batch.

use std::path::Path;

use trine_backend::reference::ReferenceDevice;
use trine_engine::{Engine, EngineOptions, Event, Request, SequenceId, Update};
use trine_model::{KvType, Model};
use trine_weights::SafetensorsFile;

/// The 64-bit integers of a tensor, as token ids.
fn ids(file: &SafetensorsFile, name: &str) -> Vec<u32> {
    let entry = file.entry(name).expect("the golden has it");
    assert_eq!(entry.format, "I64");
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    file.bytes(entry).chunks_exact(8).map(|bytes| number(bytes) as u32).collect()
}

fn submit(engine: &mut Engine, prompt: &[u32], max_tokens: usize) -> SequenceId {
    engine.submit(Request::new(prompt.to_vec(), max_tokens)).expect("the request is sound")
}

/// Runs everything; the tokens of one sequence.
fn text(engine: &mut Engine, id: SequenceId) -> Vec<u32> {
    let mut tokens = Vec::new();
    while !engine.is_idle() {
        for Event { sequence, update } in engine.step().expect("the device works") {
            match update {
                Update::Token { token, .. } if sequence == id => tokens.push(token),
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    tokens
}

fn check(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(folder);
    let gguf = folder.join("model.gguf");
    let model = Model::open(if gguf.exists() { &gguf } else { &folder }).expect("the model opens");
    let golden =
        SafetensorsFile::open(&folder.join("goldens.safetensors")).expect("the golden opens");
    let (prompt, greedy) = (ids(&golden, "input_ids"), ids(&golden, "greedy_ids"));
    for prefill in [1, 7, 512] {
        let options = EngineOptions {
            context: Some(prompt.len() + greedy.len()),
            kv: KvType::F32,
            sequences: 2,
            further: 0,
            kept: 1,
            prefill,
            further_rows: 0,
            outputs: 0,
            kv_memory: None,
            embeds: false,
        };
        let mut engine =
            Engine::new(&model, &ReferenceDevice::new(), options).expect("the model loads");
        // Half the prompt's length behind, and shorter: both mixtures of prompts and decoding
        // occur.
        submit(&mut engine, &prompt[..prompt.len() / 2], 9);
        let id = submit(&mut engine, &prompt, greedy.len());
        assert_eq!(text(&mut engine, id), greedy, "steps of {prefill} rows");
        // The continuation is a prefix to be reused, or a ring has forgotten it; the text is the
        // same.
        let again = submit(&mut engine, &[&prompt[..], &greedy[..greedy.len() - 5]].concat(), 5);
        assert_eq!(
            text(&mut engine, again),
            greedy[greedy.len() - 5..],
            "steps of {prefill} rows, again"
        );
    }
}

#[test]
fn flat_checkpoint() {
    check("gemma3-a");
}

#[test]
fn nested_checkpoint() {
    check("gemma3-b");
}

#[test]
fn sharded_checkpoint() {
    check("gemma3-c");
}

#[test]
fn gguf() {
    check("gguf/gemma3-f32");
}

#[test]
fn the_context_is_chosen_where_none_is_given() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gemma3-a");
    let model = Model::open(&folder).expect("the model opens");
    let options = EngineOptions { prefill: 16, ..EngineOptions::default() };
    let engine = Engine::new(&model, &ReferenceDevice::new(), options).expect("the model loads");
    assert!((512..=8192).contains(&engine.context()), "{}", engine.context());
    assert_eq!(engine.vocabulary(), model.config().vocabulary);
    let long = EngineOptions { context: Some(model.config().context + 1), ..options };
    let error = Engine::new(&model, &ReferenceDevice::new(), long)
        .err()
        .expect("it is too long")
        .to_string();
    assert!(error.contains("32769") && error.contains("32768"), "{error}");
}
