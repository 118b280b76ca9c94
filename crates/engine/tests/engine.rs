//! The engine on a device that checks what it is asked to do.

mod fake;

use std::collections::HashMap;

use fake::{Fake, VOCABULARY, next_logits, options};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_engine::{
    Engine, EngineError, Event, Finish, Request, Sampler, SamplingParams, SequenceId,
};

const WINDOWS: [usize; 2] = [5, 20];

fn engine(context: usize, sequences: usize, width: usize) -> Engine {
    Engine::from_program(Box::new(Fake::new(options(context, sequences, width), &WINDOWS)))
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        sampling: SamplingParams::greedy(),
        max_tokens,
        stop_ids: Vec::new(),
        ignore_stop: false,
    }
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 0.9,
        top_k: 20,
        top_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        seed,
        ..SamplingParams::greedy()
    }
}

fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|at| {
            seed.wrapping_mul(31).wrapping_add(at.wrapping_mul(at + seed) / 3) % VOCABULARY as u32
        })
        .collect()
}

/// What a request gives by definition, without an engine.
fn naive(request: &Request, context: usize) -> (Vec<u32>, Finish) {
    let mut sampler = Sampler::new(request.sampling.clone());
    let mut tokens = request.prompt.clone();
    let mut answer = Vec::new();
    if request.max_tokens == 0 {
        return (answer, Finish::Length);
    }
    loop {
        let token =
            sampler.sample(&mut next_logits(&tokens), &tokens).expect("the logits are finite");
        answer.push(token);
        if !request.ignore_stop && request.stop_ids.contains(&token) {
            return (answer, Finish::Stop);
        }
        if answer.len() == request.max_tokens {
            return (answer, Finish::Length);
        }
        if tokens.len() == context {
            return (answer, Finish::Context);
        }
        tokens.push(token);
    }
}

/// Answers so far, and ends.
#[derive(Default)]
struct Log {
    tokens: HashMap<SequenceId, Vec<u32>>,
    ends: HashMap<SequenceId, Finish>,
    prefill: HashMap<SequenceId, usize>,
}

impl Log {
    fn note(&mut self, events: &[Event]) {
        for event in events {
            let id = event.sequence();
            assert!(!self.ends.contains_key(&id), "{event:?} after the end");
            match *event {
                Event::Token { token, .. } => self.tokens.entry(id).or_default().push(token),
                Event::Prefill { done, total, .. } => {
                    let before = self.prefill.insert(id, done).unwrap_or(0);
                    assert!(before < done && done <= total, "{event:?} after {before}");
                }
                Event::Finished { .. } => {}
            }
            if let Some(finish) = event.finish() {
                self.ends.insert(id, finish);
            }
        }
    }

    fn answer(&self, id: SequenceId) -> (Vec<u32>, Finish) {
        (self.tokens.get(&id).cloned().unwrap_or_default(), self.ends[&id])
    }
}

fn step(engine: &mut Engine, log: &mut Log) {
    let events = engine.step().expect("the device works");
    log.note(&events);
    engine.check_integrity().expect("the books agree");
}

fn finish(engine: &mut Engine, log: &mut Log) {
    for _ in 0..10_000 {
        if engine.is_idle() {
            return;
        }
        step(engine, log);
    }
    panic!("it does not come to an end");
}

fn run_one(engine: &mut Engine, request: Request) -> (SequenceId, (Vec<u32>, Finish)) {
    let mut log = Log::default();
    let id = engine.submit(request).expect("the request is sound");
    finish(engine, &mut log);
    (id, log.answer(id))
}

#[test]
fn width_and_company_do_not_change_the_text() {
    let requests: Vec<Request> = (0..9)
        .map(|index| {
            let sampling = if index % 3 == 0 { sampled(index) } else { SamplingParams::greedy() };
            let prompt = prompt(index as u32, [1, 2, 31, 32, 33, 7, 90, 140, 64][index as usize]);
            Request { sampling, ..request(prompt, 25) }
        })
        .collect();
    let expected: Vec<_> = requests.iter().map(|request| naive(request, 256)).collect();
    for width in [1, 7, 32, 512] {
        for sequences in [1, 3, 9] {
            let mut engine = engine(256, sequences, width);
            let mut log = Log::default();
            let mut ids = Vec::new();
            for request in &requests {
                let id = loop {
                    match engine.submit(request.clone()) {
                        Ok(id) => break id,
                        Err(EngineError::NoFreeSequence { sequences: found }) => {
                            assert_eq!(found, sequences)
                        }
                        Err(error) => panic!("{error}"),
                    }
                    step(&mut engine, &mut log);
                };
                ids.push(id);
            }
            finish(&mut engine, &mut log);
            for (id, expected) in ids.iter().zip(&expected) {
                assert_eq!(&log.answer(*id), expected, "width {width}, {sequences} sequences");
            }
        }
    }
}

#[test]
fn the_context_is_a_border() {
    let mut engine = engine(40, 2, 16);
    for length in [1, 39, 40] {
        let request = request(prompt(3, length), 1000);
        let expected = naive(&request, 40);
        assert_eq!(expected.0.len(), 41 - length);
        assert_eq!(expected.1, Finish::Context);
        assert_eq!(run_one(&mut engine, request).1, expected);
    }
    let error = engine.submit(request(prompt(3, 41), 1)).unwrap_err().to_string();
    assert!(error.contains("41") && error.contains("40"), "{error}");
    let last = request(prompt(3, 40), 1);
    assert_eq!(run_one(&mut engine, last).1.1, Finish::Length);
}

#[test]
fn stop_ids_end_a_text_unless_ignored() {
    let mut plain = request(prompt(8, 10), 30);
    let (text, _) = naive(&plain, 256);
    plain.stop_ids = vec![47, text[4]];
    let expected = naive(&plain, 256);
    assert_eq!((expected.0.last(), expected.1), (Some(&text[4]), Finish::Stop));
    let mut engine = engine(256, 1, 32);
    assert_eq!(run_one(&mut engine, plain.clone()).1, expected);
    plain.ignore_stop = true;
    assert_eq!(run_one(&mut engine, plain).1, (text, Finish::Length));
}

#[test]
fn a_prompt_alone_fills_the_cache() {
    let mut engine = engine(256, 1, 16);
    let (id, answer) = run_one(&mut engine, request(prompt(5, 50), 0));
    assert_eq!(answer, (Vec::new(), Finish::Length));
    let statistics = engine.statistics(id).unwrap();
    assert_eq!((statistics.prefill_steps, statistics.generated_tokens), (4, 0));
    assert_eq!(statistics.first_token_seconds, None);
    let longer = request(prompt(5, 60), 3);
    let expected = naive(&longer, 256);
    let (id, answer) = run_one(&mut engine, longer);
    assert_eq!(answer, expected);
    assert_eq!(engine.statistics(id).unwrap().reused_tokens, 50);
    let (id, _) = run_one(&mut engine, request(prompt(5, 60), 0));
    assert_eq!(engine.statistics(id).unwrap().reused_tokens, 59, "the last token is always run");
}

#[test]
fn a_chat_costs_only_its_new_tokens() {
    let mut engine = engine(256, 2, 16);
    let mut history = prompt(2, 20);
    let mut in_cache = 0;
    for turn in 0..5 {
        let request = Request { sampling: sampled(turn), ..request(history.clone(), 12) };
        let expected = naive(&request, 256);
        let (id, answer) = run_one(&mut engine, request);
        assert_eq!(answer, expected);
        let statistics = engine.statistics(id).unwrap();
        assert_eq!((statistics.prompt_tokens, statistics.reused_tokens), (history.len(), in_cache));
        assert_eq!(statistics.generated_tokens, 12);
        assert_eq!(statistics.decode_steps, 11);
        assert!(statistics.first_token_seconds.is_some() && statistics.decode_rate().is_some());
        // The last token was sampled but not run.
        in_cache = history.len() + 11;
        history.extend(&answer.0);
        history.extend(prompt(turn as u32 + 50, 9));
    }
    engine.forget();
    engine.check_integrity().unwrap();
    let (id, _) = run_one(&mut engine, request(history, 1));
    assert_eq!(engine.statistics(id).unwrap().reused_tokens, 0);
}

/// The fake device fails the test if a ring is asked for what it has overwritten.
#[test]
fn going_back_is_limited_by_the_rings() {
    // Rings of 32 positions for a window of 20 and steps of 4 rows.
    let long = prompt(6, 100);
    for back in 0..60 {
        let mut engine = engine(256, 1, 4);
        run_one(&mut engine, request(long.clone(), 0));
        let mut changed = long[..100 - back].to_vec();
        changed.extend([1, 2, 3, 4, 5].map(|token| (token + long[99]) % VOCABULARY as u32));
        let same = changed.iter().zip(&long).take_while(|(a, b)| a == b).count();
        let request = request(changed, 6);
        let expected = naive(&request, 256);
        let (id, answer) = run_one(&mut engine, request);
        assert_eq!(answer, expected, "{back} back");
        // Going on from p needs p - 19 and later; 68 and later are there.
        let reused = if same >= 68 + 19 { same } else { 0 };
        assert_eq!(engine.statistics(id).unwrap().reused_tokens, reused, "{back} back");
    }
}

#[test]
fn cancelling_at_any_moment_frees_the_sequence() {
    for moment in 0..24 {
        let mut engine = engine(256, 2, 6);
        let mut log = Log::default();
        let stays = request(prompt(1, 30), 15);
        let goes = request(prompt(9, 40), 15);
        let kept = engine.submit(stays.clone()).unwrap();
        let cancelled = engine.submit(goes.clone()).unwrap();
        (0..moment).for_each(|_| step(&mut engine, &mut log));
        engine.cancel(cancelled);
        engine.cancel(cancelled);
        engine.check_integrity().unwrap();
        let done = log.tokens.get(&cancelled).map_or(0, Vec::len);
        assert!(done < 15);
        let again = engine.submit(goes.clone()).unwrap();
        finish(&mut engine, &mut log);
        assert_eq!(log.ends[&cancelled], Finish::Cancelled);
        assert_eq!(log.answer(kept), naive(&stays, 256));
        assert_eq!(log.answer(again), naive(&goes, 256), "cancelled after {moment} steps");
        engine.cancel(again);
        assert!(engine.is_idle(), "an ended sequence cannot be cancelled");
        assert_eq!(engine.step().unwrap(), []);
    }
}

#[test]
fn hostile_requests_are_refused_and_change_nothing() {
    let mut engine = engine(64, 1, 8);
    let base = request(prompt(1, 8), 4);
    let mut refuse = |request: Request, expected: &str| {
        let message = engine.submit(request).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        engine.check_integrity().unwrap();
        assert!(engine.is_idle());
    };
    refuse(request(Vec::new(), 1), "prompt is empty");
    refuse(request(vec![0; 65], 1), "65 tokens, more than the context of 64");
    refuse(request(vec![0, 48], 1), "token id 48 at index 1");
    refuse(request(vec![u32::MAX], 1), "vocabulary of 48");
    let nan = SamplingParams { temperature: f32::NAN, ..SamplingParams::greedy() };
    refuse(Request { sampling: nan, ..base.clone() }, "temperature is NaN");
    let bias = SamplingParams { logit_bias: vec![(48, 1.0)], ..SamplingParams::greedy() };
    refuse(Request { sampling: bias, ..base.clone() }, "logit_bias");
    refuse(Request { stop_ids: vec![1; 100_000], ..base.clone() }, "stop_ids is 100000 ids");
    let endless = Request { max_tokens: usize::MAX, ..base.clone() };
    let id = engine.submit(endless.clone()).unwrap();
    assert!(matches!(engine.submit(base), Err(EngineError::NoFreeSequence { sequences: 1 })));
    let mut log = Log::default();
    finish(&mut engine, &mut log);
    assert_eq!(log.answer(id), naive(&endless, 64));
}

#[test]
fn logits_that_are_not_finite_end_one_sequence() {
    let good = request(prompt(4, 12), 20);
    let (text, end) = naive(&good, 256);
    let bad = request(prompt(7, 30), 20);
    let poison = *naive(&bad, 256).0.iter().find(|token| !text.contains(token)).unwrap();
    let mut fake = Fake::new(options(256, 2, 16), &WINDOWS);
    fake.poison = Some(poison);
    let mut engine = Engine::from_program(Box::new(fake));
    let mut log = Log::default();
    let (first, second) = (engine.submit(good).unwrap(), engine.submit(bad.clone()).unwrap());
    finish(&mut engine, &mut log);
    assert_eq!(log.answer(first), (text, end));
    assert_eq!(log.ends[&second], Finish::NonFiniteLogits);
    assert_eq!(log.tokens[&second].last(), Some(&poison));
    let (id, _) = run_one(&mut engine, Request { max_tokens: 0, ..bad });
    assert_eq!(engine.statistics(id).unwrap().reused_tokens, 0, "its cache is not used again");
}

#[test]
fn a_failing_device_ends_everything_and_nothing_is_reused() {
    let mut fake = Fake::new(options(256, 3, 16), &WINDOWS);
    fake.fails_at = Some(6);
    let mut engine = Engine::from_program(Box::new(fake));
    run_one(&mut engine, request(prompt(3, 20), 1));
    let a = request(prompt(1, 40), 10);
    let ids =
        [engine.submit(a.clone()).unwrap(), engine.submit(request(prompt(2, 40), 10)).unwrap()];
    let mut log = Log::default();
    let error = loop {
        match engine.step() {
            Ok(events) => log.note(&events),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, EngineError::Backend(_)), "{error}");
    engine.check_integrity().unwrap();
    assert!(!engine.is_idle());
    step(&mut engine, &mut log);
    assert!(engine.is_idle());
    assert!(ids.iter().all(|id| log.ends[id] == Finish::DeviceFailed));
    let (id, answer) = run_one(&mut engine, a.clone());
    assert_eq!(answer, naive(&a, 256));
    assert_eq!(engine.statistics(id).unwrap().reused_tokens, 0);
    let (id, _) = run_one(&mut engine, request(prompt(3, 20), 1));
    assert_eq!(engine.statistics(id).unwrap().reused_tokens, 0, "it had ended before the failure");
}

#[test]
fn a_pool_that_is_too_small_ends_a_sequence_and_no_other() {
    let mut options = options(128, 2, 16);
    options.blocks = 5;
    let mut engine = Engine::from_program(Box::new(Fake::new(options, &WINDOWS)));
    let mut log = Log::default();
    let requests = [request(prompt(1, 60), 60), request(prompt(2, 60), 60)];
    let ids: Vec<_> =
        requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    finish(&mut engine, &mut log);
    let ended = ids.iter().filter(|id| log.ends[id] == Finish::Context).count();
    assert_eq!(ended, 1);
    for (id, request) in ids.iter().zip(&requests) {
        let (answer, _) = log.answer(*id);
        assert_eq!(answer, naive(request, 128).0[..answer.len()]);
    }
}

#[test]
fn logits_of_all_positions_in_pieces() {
    let mut options = options(128, 2, 16);
    options.width.outputs = 9;
    let mut engine = Engine::from_program(Box::new(Fake::new(options, &WINDOWS)));
    let company = request(prompt(9, 20), 30);
    let id = engine.submit(company.clone()).unwrap();
    let mut log = Log::default();
    let ids = prompt(4, 128);
    for chunk in [1, 7, 9, 1000] {
        step(&mut engine, &mut log);
        let mut next = 0;
        engine
            .logits(&ids, chunk, &mut |position, logits| {
                assert_eq!(position, next);
                assert_eq!(logits, next_logits(&ids[..=position]));
                next += 1;
            })
            .unwrap();
        assert_eq!(next, ids.len());
        engine.check_integrity().unwrap();
    }
    finish(&mut engine, &mut log);
    assert_eq!(log.answer(id), naive(&company, 128));
    let mut fail = |ids: &[u32], chunk| engine.logits(ids, chunk, &mut |_, _| {}).unwrap_err();
    assert!(matches!(fail(&[], 4), EngineError::EmptyPrompt));
    assert!(matches!(fail(&[1; 129], 4), EngineError::PromptTooLong { prompt: 129, context: 128 }));
    assert!(matches!(fail(&[1, 99], 4), EngineError::UnknownToken { id: 99, index: 1, .. }));
    assert!(matches!(fail(&[1], 0), EngineError::BadOption { option: "chunk", .. }));
}

/// Submissions, continuations, cancellations and steps in random order; every text is the one of the definition.
#[test]
fn random_traffic_gives_the_right_texts() {
    const CONTEXT: usize = 128;
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut below = |end: usize| (random.next_u64() % end as u64) as usize;
    let mut engine = engine(CONTEXT, 4, 10);
    let mut log = Log::default();
    let mut submitted: Vec<(SequenceId, Request)> = Vec::new();
    for _ in 0..4000 {
        match below(12) {
            0..3 => {
                let mut tokens = match submitted.get(submitted.len().wrapping_sub(1 + below(4))) {
                    Some((id, earlier)) if below(3) > 0 => {
                        let mut tokens = earlier.prompt.clone();
                        tokens.extend(log.tokens.get(id).into_iter().flatten());
                        tokens.truncate(tokens.len() - below(tokens.len().min(40)));
                        tokens
                    }
                    _ => Vec::new(),
                };
                tokens.extend(prompt(below(1000) as u32, 1 + below(30)));
                tokens.truncate(CONTEXT);
                let sampling = if below(2) == 0 {
                    SamplingParams::greedy()
                } else {
                    sampled(below(99) as u64)
                };
                let stop_ids = vec![below(VOCABULARY) as u32];
                let request = Request { sampling, stop_ids, ..request(tokens, below(40)) };
                match engine.submit(request.clone()) {
                    Ok(id) => submitted.push((id, request)),
                    Err(error) => {
                        assert!(matches!(error, EngineError::NoFreeSequence { .. }), "{error}")
                    }
                }
            }
            3 if below(4) == 0 && !submitted.is_empty() => {
                engine.cancel(submitted[submitted.len() - 1 - below(submitted.len().min(4))].0);
            }
            _ => {}
        }
        step(&mut engine, &mut log);
    }
    finish(&mut engine, &mut log);
    let mut reasons: HashMap<Finish, usize> = HashMap::new();
    for (id, request) in &submitted {
        let (answer, end) = log.answer(*id);
        *reasons.entry(end).or_default() += 1;
        let (text, expected) = naive(request, CONTEXT);
        if end == Finish::Cancelled {
            assert_eq!(answer, text[..answer.len()]);
        } else {
            assert_eq!((answer, end), (text, expected));
        }
    }
    assert_eq!(reasons.len(), 4, "stop, length, context and cancelled all occur: {reasons:?}");
}
