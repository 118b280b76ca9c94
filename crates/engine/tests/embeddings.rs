//! Embeddings of texts, on a device that checks what it is asked to do and gives its logits for hidden states.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use std::collections::HashMap;

use fake::{Fake, VOCABULARY, next_logits, options};
use trine_backend::ProgramOptions;
use trine_engine::{
    Embeddings, Engine, EngineError, Event, Finish, Pooling, Request, SequenceId, Service,
    Statistics, Update,
};
use trine_model::Rows;

/// Token ids of the engine: not as many as hidden states have numbers.
const IDS: usize = VOCABULARY - 8;

fn fake(options: ProgramOptions) -> Fake {
    let mut fake = Fake::new(options, &[5, 20]);
    fake.facts.plan.buffers[0].rows = Rows::Tokens;
    fake
}

/// Sizes of a Program for hidden states.
fn sizes(context: usize, sequences: usize, width: usize) -> ProgramOptions {
    let mut options = options(context, sequences, width);
    options.width.outputs = 0;
    options
}

fn engine(fake: Fake, running: usize, pooling: Pooling) -> Engine {
    Engine::embedding(Box::new(fake), running, IDS, pooling)
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|at| seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(at + seed) / 3) % IDS as u32)
        .collect()
}

/// The vector by definition, without an engine.
fn naive(prompt: &[u32], pooling: Pooling) -> Vec<f32> {
    let first = match pooling {
        Pooling::Mean => 1,
        Pooling::Last => prompt.len(),
    };
    let rows: Vec<Vec<f32>> =
        (first..=prompt.len()).map(|length| next_logits(&prompt[..length])).collect();
    let sum: Vec<f64> =
        (0..VOCABULARY).map(|at| rows.iter().map(|row| f64::from(row[at])).sum()).collect();
    let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
    sum.iter().map(|value| (value / length) as f32).collect()
}

/// Vectors, ends and costs of what was asked for.
#[derive(Default)]
struct Log {
    vectors: HashMap<SequenceId, Vec<f32>>,
    ends: HashMap<SequenceId, (Finish, Statistics)>,
    failures: usize,
}

fn run(engine: &mut Engine) -> Log {
    let mut log = Log::default();
    while !engine.is_idle() {
        match engine.step() {
            Ok(events) => events.into_iter().for_each(|event| match event {
                Event::Embedding { sequence, vector } => {
                    assert!(log.vectors.insert(sequence, vector).is_none(), "one each");
                }
                Event::Finished { sequence, finish, statistics } => {
                    log.ends.insert(sequence, (finish, statistics));
                }
                Event::Started { .. } | Event::Prefill { .. } => {}
                other => panic!("{other:?}"),
            }),
            Err(_) => log.failures += 1,
        }
        engine.check_integrity().expect("the books agree");
    }
    log
}

fn submit(engine: &mut Engine, prompt: Vec<u32>) -> SequenceId {
    engine.submit(Request::embedding(prompt)).expect("it is sound")
}

#[test]
fn vectors_are_those_of_the_definition_in_any_pieces_and_company() {
    for pooling in [Pooling::Mean, Pooling::Last] {
        let prompts: Vec<Vec<u32>> = (0..20)
            .map(|index| prompt(index / 2, [1, 3, 33, 64, 65, 90][index as usize % 6]))
            .collect();
        for (sequences, width) in [(1, 1), (1, 7), (3, 16), (20, 64), (20, 2048)] {
            let mut engine = engine(fake(sizes(100, sequences, width)), sequences, pooling);
            let ids: Vec<SequenceId> =
                prompts.iter().map(|prompt| submit(&mut engine, prompt.clone())).collect();
            let log = run(&mut engine);
            for (id, prompt) in ids.iter().zip(&prompts) {
                assert_eq!(log.ends[id].0, Finish::Length);
                assert_eq!(log.ends[id].1.prompt_tokens, prompt.len());
                assert_eq!(log.vectors[id], naive(prompt, pooling), "{pooling:?}, width {width}");
            }
            let status = engine.status();
            assert_eq!((status.generated_tokens, status.requests), (0, 20));
            match pooling {
                Pooling::Mean => assert_eq!(status.reused_tokens, 0),
                // Alone in its turn each finds what the one before has left.
                Pooling::Last => assert!(sequences > 1 || status.reused_tokens > 0),
            }
            if (pooling, width) == (Pooling::Mean, 2048) {
                assert_eq!(status.steps, 1, "all texts share a step");
            }
        }
    }
}

/// The rows of the first text end in a step in which the second, which comes before it in rank, finds no block.
#[test]
fn texts_that_give_way_for_memory_begin_anew() {
    for pooling in [Pooling::Mean, Pooling::Last] {
        let mut options = sizes(256, 2, 16);
        options.blocks = 5;
        let mut engine = engine(fake(options), 2, pooling);
        let first = submit(&mut engine, prompt(1, 150));
        engine.step().expect("the device works");
        let urgent = Request { priority: -1, ..Request::embedding(prompt(2, 100)) };
        let second = engine.submit(urgent).expect("it is sound");
        let log = run(&mut engine);
        assert_eq!(engine.status().preemptions, 1, "memory was to run out");
        assert_eq!(log.vectors[&first], naive(&prompt(1, 150), pooling));
        assert_eq!(log.vectors[&second], naive(&prompt(2, 100), pooling));
    }
}

#[test]
fn after_a_failure_texts_are_run_again_once() {
    let mut failing = fake(sizes(128, 2, 16));
    failing.fails_at = vec![3];
    let mut engine = engine(failing, 2, Pooling::Mean);
    let ids = [40, 50].map(|length| submit(&mut engine, prompt(1, length)));
    let log = run(&mut engine);
    assert_eq!(log.failures, 1);
    assert_eq!(log.vectors[&ids[0]], naive(&prompt(1, 40), Pooling::Mean));
    assert_eq!(log.vectors[&ids[1]], naive(&prompt(1, 50), Pooling::Mean));

    let mut failing = fake(sizes(128, 2, 16));
    failing.fails_at = (1..100).collect();
    let mut engine = self::engine(failing, 2, Pooling::Mean);
    let id = submit(&mut engine, prompt(1, 40));
    let log = run(&mut engine);
    assert_eq!((log.failures, log.ends[&id].0), (2, Finish::DeviceFailed));
    assert!(log.vectors.is_empty());
}

#[test]
fn hidden_states_that_are_not_finite_end_their_own_text() {
    let mut poisoned = fake(sizes(128, 2, 64));
    poisoned.poison = Some(7);
    let mut engine = engine(poisoned, 2, Pooling::Mean);
    let bad = submit(&mut engine, vec![1, 7, 2]);
    let good = submit(&mut engine, vec![1, 2]);
    let log = run(&mut engine);
    assert_eq!(log.ends[&bad].0, Finish::NonFiniteLogits);
    assert_eq!(log.vectors[&good], naive(&[1, 2], Pooling::Mean));
    assert_eq!(log.vectors.len(), 1);
}

#[test]
fn a_cancelled_text_leaves_nothing_behind() {
    let mut engine = engine(fake(sizes(128, 2, 8)), 2, Pooling::Mean);
    let cancelled = submit(&mut engine, prompt(1, 60));
    let other = submit(&mut engine, prompt(2, 60));
    engine.step().expect("the device works");
    engine.cancel(cancelled);
    let log = run(&mut engine);
    assert_eq!(log.ends[&cancelled].0, Finish::Cancelled);
    assert_eq!(log.vectors[&other], naive(&prompt(2, 60), Pooling::Mean));
    assert_eq!(engine.status().blocks_running, 0);
}

#[test]
fn an_engine_gives_texts_or_embeddings_never_both() {
    let mut embedding = engine(fake(sizes(128, 1, 8)), 1, Pooling::Last);
    let expected = Embeddings { pooling: Pooling::Last, dimensions: VOCABULARY };
    assert_eq!(embedding.limits().embeddings, Some(expected));
    assert_eq!(embedding.vocabulary(), IDS);
    let refused = embedding.submit(Request::new(vec![1], 1));
    assert!(matches!(refused, Err(EngineError::OnlyEmbeddings)));
    let refused = embedding.logits(&[1], 8, &mut |_, _| {});
    assert!(matches!(refused, Err(EngineError::OnlyEmbeddings)));
    let refused = embedding.submit(Request::embedding(vec![IDS as u32]));
    assert!(matches!(refused, Err(EngineError::UnknownToken { .. })));
    let refused = embedding.submit(Request::embedding(vec![1; 129]));
    assert!(matches!(refused, Err(EngineError::PromptTooLong { .. })));
    for wrong in [
        Request { max_tokens: 1, ..Request::embedding(vec![1]) },
        Request { logprobs: Some(0), ..Request::embedding(vec![1]) },
        Request { prompt_logprobs: Some(0), ..Request::embedding(vec![1]) },
    ] {
        assert!(matches!(embedding.submit(wrong), Err(EngineError::BadOption { .. })));
    }
    let mut generating = Engine::from_program(Box::new(Fake::new(options(128, 1, 8), &[5])));
    let refused = generating.submit(Request::embedding(vec![1]));
    assert!(matches!(refused, Err(EngineError::NoEmbeddings)));
}

#[test]
fn clients_of_a_service_get_their_own_vectors() {
    let engine = engine(fake(sizes(128, 4, 32)), 4, Pooling::Mean);
    let service = Service::start(engine).expect("there is a thread");
    let generations: Vec<_> = (0..12)
        .map(|seed| service.submit(Request::embedding(prompt(seed, 50))).expect("there is room"))
        .collect();
    for (seed, mut generation) in generations.into_iter().enumerate() {
        let mut found = None;
        while let Some(update) = generation.blocking_next() {
            match update {
                Update::Embedding(vector) => found = Some(vector),
                Update::Finished { finish, .. } => assert_eq!(finish, Finish::Length),
                _ => {}
            }
        }
        assert_eq!(found, Some(naive(&prompt(seed as u32, 50), Pooling::Mean)));
    }
}
