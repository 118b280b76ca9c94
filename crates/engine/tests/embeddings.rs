//! Embeddings of texts, on a device that checks what it is asked to do and gives its logits for
//! hidden states.

use std::collections::HashMap;

use crate::fake::{Fake, VOCABULARY, next_logits, options, states, vector_of};
use crate::texts::prompt;
use trine_backend::ProgramOptions;
use trine_engine::{
    Engine, EngineError, Event, Finish, Pooling, Request, SequenceId, Service, Statistics, Update,
};

fn fake(options: ProgramOptions) -> Fake {
    Fake::new(options, &[5, 20]).with_states()
}

fn engine(fake: Fake, running: usize) -> Engine {
    Engine::with_running(Box::new(fake), running)
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
            Ok(events) => events.into_iter().for_each(|Event { sequence, update }| match update {
                Update::Embedding(vector) => {
                    assert!(log.vectors.insert(sequence, vector).is_none(), "one each");
                }
                Update::Finished { finish, statistics, .. } => {
                    log.ends.insert(sequence, (finish, statistics));
                }
                Update::Started { .. } | Update::Prefill { .. } => {}
                other => panic!("{other:?}"),
            }),
            Err(_) => log.failures += 1,
        }
        engine.check_integrity().expect("the books agree");
    }
    log
}

fn submit(engine: &mut Engine, prompt: Vec<u32>, pooling: Pooling) -> SequenceId {
    engine.submit(Request::embedding(prompt, pooling)).expect("it is sound")
}

#[test]
fn vectors_are_those_of_the_definition_in_any_pieces_and_company() {
    for pooling in [Pooling::Mean, Pooling::Last] {
        let prompts: Vec<Vec<u32>> = (0..20)
            .map(|index| prompt(index / 2, [1, 3, 33, 64, 65, 90][index as usize % 6]))
            .collect();
        for (sequences, width) in [(1, 1), (1, 7), (3, 16), (20, 64), (20, 2048)] {
            let mut engine = engine(fake(options(100, sequences, width)), sequences);
            let ids: Vec<SequenceId> =
                prompts.iter().map(|prompt| submit(&mut engine, prompt.clone(), pooling)).collect();
            let log = run(&mut engine);
            for (id, prompt) in ids.iter().zip(&prompts) {
                assert_eq!(log.ends[id].0, Finish::Length);
                assert_eq!(log.ends[id].1.prompt_tokens, prompt.len());
                assert_eq!(
                    log.vectors[id],
                    vector_of(prompt, pooling),
                    "{pooling:?}, width {width}"
                );
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

/// The rows of the first text end in a step in which the second, which comes before it in rank,
/// finds no block.
#[test]
fn texts_that_give_way_for_memory_begin_anew() {
    for pooling in [Pooling::Mean, Pooling::Last] {
        let mut options = options(256, 2, 16);
        options.blocks = 5;
        let mut engine = engine(fake(options), 2);
        let first = submit(&mut engine, prompt(1, 150), pooling);
        engine.step().expect("the device works");
        let urgent = Request { priority: -1, ..Request::embedding(prompt(2, 100), pooling) };
        let second = engine.submit(urgent).expect("it is sound");
        let log = run(&mut engine);
        assert_eq!(engine.status().preemptions, 1, "memory was to run out");
        assert_eq!(log.vectors[&first], vector_of(&prompt(1, 150), pooling));
        assert_eq!(log.vectors[&second], vector_of(&prompt(2, 100), pooling));
    }
}

#[test]
fn after_a_failure_texts_are_run_again_once() {
    let mut failing = fake(options(128, 2, 16));
    failing.fails_at = vec![3];
    let mut engine = engine(failing, 2);
    let ids = [40, 50].map(|length| submit(&mut engine, prompt(1, length), Pooling::Mean));
    let log = run(&mut engine);
    assert_eq!(log.failures, 1);
    assert_eq!(log.vectors[&ids[0]], vector_of(&prompt(1, 40), Pooling::Mean));
    assert_eq!(log.vectors[&ids[1]], vector_of(&prompt(1, 50), Pooling::Mean));

    let mut failing = fake(options(128, 2, 16));
    failing.fails_at = (1..100).collect();
    let mut engine = self::engine(failing, 2);
    let id = submit(&mut engine, prompt(1, 40), Pooling::Mean);
    let log = run(&mut engine);
    assert_eq!((log.failures, log.ends[&id].0), (2, Finish::DeviceFailed));
    assert!(log.vectors.is_empty());
}

#[test]
fn hidden_states_that_are_not_finite_end_their_own_text() {
    let mut poisoned = fake(options(128, 2, 64));
    poisoned.poison = Some(7);
    let mut engine = engine(poisoned, 2);
    let bad = submit(&mut engine, vec![1, 7, 2], Pooling::Mean);
    let good = submit(&mut engine, vec![1, 2], Pooling::Mean);
    let log = run(&mut engine);
    assert_eq!(log.ends[&bad].0, Finish::NonFiniteLogits);
    assert_eq!(log.vectors[&good], vector_of(&[1, 2], Pooling::Mean));
    assert_eq!(log.vectors.len(), 1);
}

#[test]
fn a_cancelled_text_leaves_nothing_behind() {
    let mut engine = engine(fake(options(128, 2, 8)), 2);
    let cancelled = submit(&mut engine, prompt(1, 60), Pooling::Mean);
    let other = submit(&mut engine, prompt(2, 60), Pooling::Mean);
    engine.step().expect("the device works");
    engine.cancel(cancelled);
    let log = run(&mut engine);
    assert_eq!(log.ends[&cancelled].0, Finish::Cancelled);
    assert_eq!(log.vectors[&other], vector_of(&prompt(2, 60), Pooling::Mean));
    assert_eq!(engine.status().blocks_running, 0);
}

#[test]
fn requests_are_checked_by_their_job() {
    let mut engine = engine(fake(options(128, 1, 8)), 1);
    assert_eq!(engine.limits().dimensions, Some(states(vec![0.0; VOCABULARY]).len()));
    assert_eq!(engine.vocabulary(), VOCABULARY);
    let embedding = |prompt: Vec<u32>| Request::embedding(prompt, Pooling::Last);
    let refused = engine.submit(embedding(vec![VOCABULARY as u32]));
    assert!(matches!(refused, Err(EngineError::UnknownToken { .. })));
    let refused = engine.submit(embedding(vec![1; 129]));
    assert!(matches!(refused, Err(EngineError::PromptTooLong { .. })));
    for wrong in [
        Request { max_tokens: 1, ..embedding(vec![1]) },
        Request { logprobs: Some(0), ..embedding(vec![1]) },
        Request { prompt_logprobs: Some(0), ..embedding(vec![1]) },
    ] {
        assert!(matches!(engine.submit(wrong), Err(EngineError::BadOption { .. })));
    }
    let mut generating = Engine::from_program(Box::new(Fake::new(options(128, 1, 8), &[5])));
    assert_eq!(generating.limits().dimensions, None);
    let refused = generating.submit(embedding(vec![1]));
    assert!(matches!(refused, Err(EngineError::NoEmbeddings)));
}

/// Both jobs at once, over one cache, in steps of any width and with several in flight: texts and
/// vectors are those of the definition, and neither job waits for the other's end.
#[test]
fn texts_and_embeddings_share_an_engine() {
    for (depth, width) in [(1, 16), (1, 64), (2, 16), (3, 64)] {
        let program = fake(options(256, 8, width)).with_depth(depth);
        let mut engine = engine(program, 6);
        let mut texts = Vec::new();
        let mut vectors = Vec::new();
        for seed in 0..12 {
            let prompt = prompt(seed / 2, 20 + 15 * seed as usize);
            let pooling = [Pooling::Mean, Pooling::Last][seed as usize % 2];
            let text = engine.submit(Request::new(prompt.clone(), 25)).expect("it is sound");
            texts.push((text, prompt.clone()));
            vectors.push((submit(&mut engine, prompt.clone(), pooling), prompt, pooling));
        }
        let (mut tokens, mut found) = (HashMap::<_, Vec<u32>>::new(), HashMap::new());
        let mut running_before_last_vector = false;
        while !engine.is_idle() {
            for Event { sequence, update } in engine.step().expect("the device works") {
                match update {
                    Update::Token { token, .. } => {
                        tokens.entry(sequence).or_default().push(token);
                    }
                    Update::Embedding(vector) => {
                        running_before_last_vector |= !tokens.is_empty();
                        found.insert(sequence, vector);
                    }
                    _ => {}
                }
            }
            engine.check_integrity().expect("the books agree");
        }
        assert!(running_before_last_vector, "the jobs take turns");
        for (id, prompt, pooling) in vectors {
            assert_eq!(found[&id], vector_of(&prompt, pooling), "depth {depth}, width {width}");
        }
        for (id, prompt) in texts {
            assert_eq!(tokens[&id], continued(&prompt, 25), "depth {depth}, width {width}");
        }
    }
}

/// The greedy text by definition.
fn continued(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let logits = next_logits(&text);
        let best = (0..VOCABULARY).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        text.extend(best.map(|token| token as u32));
    }
    text.split_off(prompt.len())
}

#[test]
fn clients_of_a_service_get_their_own_vectors() {
    let engine = engine(fake(options(128, 4, 32)), 4);
    let service = Service::start(engine).expect("there is a thread");
    let generations: Vec<_> = (0..12)
        .map(|seed| {
            service
                .submit(Request::embedding(prompt(seed, 50), Pooling::Mean))
                .expect("there is room")
        })
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
        assert_eq!(found, Some(vector_of(&prompt(seed as u64, 50), Pooling::Mean)));
    }
}
