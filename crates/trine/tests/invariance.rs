//! A request's tokens and a text's embedding are the same alone and among others.

use std::collections::HashMap;
use std::path::Path;

use trine_backend::Device;
use trine_backend::reference::ReferenceDevice;
use trine_cpu::CpuDevice;
use trine_engine::{
    Engine, EngineOptions, Event, Finish, Logprobs, Pooling, Request, SamplingParams, SequenceId,
    Status, Update,
};
use trine_model::{KvType, Model};

const REQUESTS: u32 = 32;

/// Short and long prompts, some that begin alike; greedy and drawn.
fn request(index: u32, vocabulary: u32) -> Request {
    let length = [1, 5, 40, 64, 65, 90, 130, 200][index as usize % 8];
    let family = if index.is_multiple_of(3) { 7 } else { index };
    let prompt = (0..length)
        .map(|at| {
            let seed = if at < 70 { family } else { index };
            (at * at * 31 + at * (seed + 5) + seed * 977 + 3) % vocabulary
        })
        .collect();
    let mut sampling = SamplingParams::greedy();
    if index % 4 == 3 {
        sampling = SamplingParams { temperature: 0.8, top_k: 40, seed: index.into(), ..sampling };
    }
    Request { sampling, ..Request::new(prompt, 24) }
}

const OPTIONS: EngineOptions = EngineOptions {
    context: Some(256),
    kv: KvType::F16,
    sequences: REQUESTS as usize,
    further: 0,
    kept: 8,
    prefill: 160,
    further_rows: 0,
    outputs: 0,
    kv_memory: None,
    embeds: false,
};

fn cpu() -> CpuDevice {
    CpuDevice::new(Some(2), None).expect("there are threads")
}

fn engine(model: &Model) -> Engine {
    Engine::new(model, &cpu(), OPTIONS).expect("the model loads")
}

fn run(engine: &mut Engine, requests: impl Iterator<Item = Request>) -> Vec<Vec<u32>> {
    let ids: Vec<SequenceId> =
        requests.map(|request| engine.submit(request).expect("it is sound")).collect();
    let mut tokens: HashMap<SequenceId, Vec<u32>> = HashMap::new();
    while !engine.is_idle() {
        for Event { sequence, update } in engine.step().expect("the device works") {
            if let Update::Token { token, .. } = update {
                tokens.entry(sequence).or_default().push(token);
            }
        }
    }
    ids.iter().map(|id| tokens[id].clone()).collect()
}

fn golden(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gguf").join(name);
    Model::open(&folder.join("model.gguf")).expect("the model opens")
}

#[test]
fn tokens_are_the_same_alone_and_among_31_others() {
    let model = golden("gemma3-qat");
    let vocabulary = model.config().vocabulary as u32;
    let mut lone = engine(&model);
    assert!(lone.program().facts().is_invariant);
    let alone: Vec<Vec<u32>> = (0..REQUESTS)
        .flat_map(|index| {
            lone.forget();
            run(&mut lone, std::iter::once(request(index, vocabulary)))
        })
        .collect();
    let mut crowd = engine(&model);
    let together = run(&mut crowd, (0..REQUESTS).map(|index| request(index, vocabulary)));
    assert!(crowd.status().reused_tokens > 64, "some share their beginnings");
    for (index, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert_eq!((alone, together.len()), (together, 24), "request {index}");
    }
    let mut backwards =
        run(&mut crowd, (0..REQUESTS).rev().map(|index| request(index, vocabulary)));
    backwards.reverse();
    assert_eq!(backwards, alone, "with all prompts in the cache");
}

/// A quarter of the memory that all requests' whole contexts take is enough for all of them, one
/// after the other or side by side.
#[test]
fn a_quarter_of_the_memory_answers_everybody() {
    let model = golden("gemma3-qat");
    let vocabulary = model.config().vocabulary as u32;
    let mut full = engine(&model);
    let expected = run(&mut full, (0..REQUESTS).map(|index| request(index, vocabulary)));
    let all = full.status();
    let options = EngineOptions { kv_memory: Some(all.kv_bytes / 4), ..OPTIONS };
    let mut scarce = Engine::new(&model, &cpu(), options).expect("the model loads");
    let status = scarce.status();
    assert!(status.kv_bytes <= all.kv_bytes / 4, "{} of {}", status.kv_bytes, all.kv_bytes);
    assert!(status.blocks < all.blocks && status.sequences > 1, "{status:?}");
    let ids: Vec<SequenceId> = (0..REQUESTS)
        .map(|index| scarce.submit(request(index, vocabulary)).expect("it is sound"))
        .collect();
    let mut tokens: HashMap<SequenceId, Vec<u32>> = HashMap::new();
    while !scarce.is_idle() {
        for Event { sequence, update } in scarce.step().expect("the device works") {
            match update {
                Update::Token { token, .. } => {
                    tokens.entry(sequence).or_default().push(token);
                }
                Update::Finished { finish, .. } => assert_eq!(finish, Finish::Length),
                _ => {}
            }
        }
        let Status { kv_bytes, blocks, blocks_running, blocks_kept, .. } = scarce.status();
        assert_eq!(kv_bytes, status.kv_bytes, "nothing grows");
        assert!(blocks_running + blocks_kept <= blocks);
    }
    let found: Vec<_> = ids.iter().map(|id| tokens[id].clone()).collect();
    assert_eq!(found, expected);
}

/// Tokens without any pattern.
fn text(seed: u32, length: u32, vocabulary: u32) -> Vec<u32> {
    (0..length).map(|at| (at * at * 31 + at * (seed + 5) + seed * 977 + 3) % vocabulary).collect()
}

/// What follows a prompt and how likely it is, and how much of the prompt came from the cache.
fn follow(engine: &mut Engine, prompt: &[u32], tokens: usize) -> (Vec<Logprobs>, usize) {
    let request = Request { logprobs: Some(20), ..Request::new(prompt.to_vec(), tokens) };
    engine.submit(request).expect("it is sound");
    let (mut found, mut shared) = (Vec::new(), 0);
    while !engine.is_idle() {
        for event in engine.step().expect("the device works") {
            match event.update {
                Update::Started { reused, .. } => shared = reused,
                Update::Token { logprobs, .. } => found.push(*logprobs.expect("it was asked for")),
                _ => {}
            }
        }
    }
    (found, shared)
}

/// With quantised weights the rows of long prompts are computed otherwise than those of short ones:
/// neither takes what the other left of its prompt.
#[test]
fn logits_do_not_depend_on_the_prompts_in_the_cache() {
    let model = golden("gemma3-qat");
    let vocabulary = model.config().vocabulary as u32;
    let (long, other) = (text(1, 200, vocabulary), text(2, 120, vocabulary));
    let with = |beginning: &[u32], seed: u32, more: u32| {
        [beginning, &text(seed, more, vocabulary)].concat()
    };
    let prompts = [
        long[..130].to_vec(),
        with(&long[..100], 3, 60),
        long[..50].to_vec(),
        with(&long[..50], 4, 10),
        with(&long[..64], 5, 1),
        long.clone(),
        other[..40].to_vec(),
        other.clone(),
        other[..64].to_vec(),
        long[..65].to_vec(),
    ];
    let (mut warm, mut cold) = (engine(&model), engine(&model));
    let mut reused = 0;
    for (number, prompt) in prompts.iter().enumerate() {
        cold.forget();
        let (alone, nothing) = follow(&mut cold, prompt, 8);
        let (found, shared) = follow(&mut warm, prompt, 8);
        assert_eq!(nothing, 0);
        assert_eq!(found, alone, "prompt {number}, {shared} tokens from the cache");
        reused += shared;
    }
    assert!(reused > 300, "{reused} tokens came from the cache");
}

/// An answer that a prompt repeats was computed as an answer. Where the prompt is short that is how
/// its own rows would be, where it is long it is more exact.
#[test]
fn a_prompt_that_repeats_an_answer_is_no_less_exact_with_the_cache() {
    let model = golden("gemma3-qat");
    let vocabulary = model.config().vocabulary as u32;
    let options = EngineOptions { kv: KvType::F32, ..OPTIONS };
    let load = |device: &dyn Device| Engine::new(&model, device, options).expect("it loads");
    let (mut warm, mut cold) = (load(&cpu()), load(&cpu()));
    let mut exact = load(&ReferenceDevice::new());
    let (mut with_cache, mut without) = (0.0, 0.0);
    for seed in 0..12 {
        for (first, is_long) in [(12, false), (60, true)] {
            let beginning = text(100 + seed, first, vocabulary);
            let answer = follow(&mut warm, &beginning, 40).0;
            let answer = answer.iter().map(|token| token.token);
            let prompt: Vec<u32> = beginning.into_iter().chain(answer).chain([7]).collect();
            cold.forget();
            exact.forget();
            let (found, shared) = follow(&mut warm, &prompt, 1);
            let (alone, _) = follow(&mut cold, &prompt, 1);
            assert_eq!(shared, first as usize + 39, "all but the last token of the answer");
            if !is_long {
                assert_eq!(found, alone, "{seed}");
                continue;
            }
            let (truth, _) = follow(&mut exact, &prompt, 1);
            let distance = |found: &[Logprobs]| -> f32 {
                let of = |&(token, exact): &(u32, f32)| {
                    let own = found[0].top.iter().find(|(other, _)| *other == token);
                    own.map(|(_, logprob)| (logprob - exact).abs())
                };
                truth[0].top.iter().filter_map(of).sum()
            };
            with_cache += distance(&found);
            without += distance(&alone);
        }
    }
    println!("{with_cache} from the reference with the cache, {without} without");
    assert!(with_cache < without, "{with_cache} {without}");
}

fn embedder(model: &Model, device: &dyn Device) -> Engine {
    let options = EngineOptions { embeds: true, ..OPTIONS };
    Engine::new(model, device, options).expect("the model loads")
}

fn embed(engine: &mut Engine, prompts: &[Vec<u32>], pooling: Pooling) -> Vec<Vec<f32>> {
    let submit = |prompt: &Vec<u32>| engine.submit(Request::embedding(prompt.clone(), pooling));
    let ids: Vec<SequenceId> =
        prompts.iter().map(submit).map(|id| id.expect("it is sound")).collect();
    let mut vectors = HashMap::new();
    while !engine.is_idle() {
        for Event { sequence, update } in engine.step().expect("the device works") {
            if let Update::Embedding(vector) = update {
                vectors.insert(sequence, vector);
            }
        }
    }
    ids.iter().map(|id| vectors[id].clone()).collect()
}

#[test]
fn embeddings_are_the_same_alone_and_among_31_others() {
    let model = golden("gemma3-qat");
    let vocabulary = model.config().vocabulary as u32;
    let prompts: Vec<Vec<u32>> =
        (0..REQUESTS).map(|index| request(index, vocabulary).prompt).collect();
    for pooling in [Pooling::Mean, Pooling::Last] {
        let mut lone = embedder(&model, &cpu());
        let alone: Vec<Vec<f32>> = prompts
            .chunks(1)
            .flat_map(|prompt| {
                lone.forget();
                embed(&mut lone, prompt, pooling)
            })
            .collect();
        let mut crowd = embedder(&model, &cpu());
        assert_eq!(embed(&mut crowd, &prompts, pooling), alone, "{pooling:?}");
        let mut backwards: Vec<Vec<u32>> = prompts.clone();
        backwards.reverse();
        let mut found = embed(&mut crowd, &backwards, pooling);
        found.reverse();
        assert_eq!(found, alone, "{pooling:?}, with all texts in the cache");
    }
}

/// On a model whose weights and activations stay in f32, so that nothing but the order of sums
/// differs.
#[test]
fn embeddings_are_those_of_the_reference() {
    let model = golden("gemma3-f32");
    let vocabulary = model.config().vocabulary as u32;
    let prompts: Vec<Vec<u32>> =
        (0..REQUESTS).map(|index| request(index, vocabulary).prompt).collect();
    for pooling in [Pooling::Mean, Pooling::Last] {
        let vectors = |device: &dyn Device| {
            let options = EngineOptions { kv: KvType::F32, embeds: true, ..OPTIONS };
            let engine = Engine::new(&model, device, options);
            embed(&mut engine.expect("the model loads"), &prompts, pooling)
        };
        let (found, exact) = (vectors(&cpu()), vectors(&ReferenceDevice::new()));
        for ((found, exact), prompt) in found.iter().zip(&exact).zip(&prompts) {
            let pairs = found.iter().zip(exact);
            let distance = pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
            println!("{pooling:?}, {} tokens: {distance:.1e} from the reference", prompt.len());
            assert!(distance <= 2e-5, "{pooling:?}, {} tokens: {distance}", prompt.len());
        }
    }
}
