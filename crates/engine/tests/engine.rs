//! The engine on a device that checks what it is asked to do.

use std::collections::HashMap;
use std::ops::ControlFlow;

use crate::fake::{Fake, VOCABULARY, next_logits, options};
use crate::texts::prompt;
use trine_engine::{
    Constraint, Engine, EngineError, Event, Finish, Logprobs, Request, Sampler, SamplingParams,
    Scope, SequenceId, Statistics, Update,
};

const WINDOWS: [usize; 2] = [5, 20];

fn engine(context: usize, sequences: usize, width: usize) -> Engine {
    Engine::from_program(Box::new(Fake::new(options(context, sequences, width), &WINDOWS)))
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request::new(prompt, max_tokens)
}

/// The same request once more.
fn again(request: &Request) -> Request {
    Request {
        sampling: request.sampling.clone(),
        stop_ids: request.stop_ids.clone(),
        ignore_stop: request.ignore_stop,
        ..Request::new(request.prompt.clone(), request.max_tokens)
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
    /// Log-probabilities of prompts.
    known: HashMap<SequenceId, Vec<Logprobs>>,
    statistics: HashMap<SequenceId, Statistics>,
}

impl Log {
    fn note(&mut self, events: &[Event]) {
        for event in events {
            let id = event.sequence;
            assert!(!self.ends.contains_key(&id), "{event:?} after the end");
            match event.update {
                Update::Token { token, .. } => self.tokens.entry(id).or_default().push(token),
                Update::Prefill { done, total } => {
                    let before = self.prefill.insert(id, done).unwrap_or(0);
                    assert!(before < done && done <= total, "{event:?} after {before}");
                }
                Update::Finished { finish, stop, statistics, .. } => {
                    assert_eq!(stop.is_some(), finish == Finish::Stop);
                    self.tokens.entry(id).or_default().extend(stop);
                    self.ends.insert(id, finish);
                    self.statistics.insert(id, statistics);
                }
                Update::PromptLogprobs(ref tokens) => {
                    self.known.entry(id).or_default().extend_from_slice(tokens);
                }
                Update::Started { .. } | Update::Embedding(_) => {}
                Update::Shared(ref step) => panic!("there is no partner: {step:?}"),
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

fn run_one(engine: &mut Engine, request: Request) -> (Statistics, (Vec<u32>, Finish)) {
    let mut log = Log::default();
    let id = engine.submit(request).expect("the request is sound");
    finish(engine, &mut log);
    (log.statistics[&id], log.answer(id))
}

#[test]
fn width_and_company_do_not_change_the_text() {
    let requests: Vec<Request> = (0..9)
        .map(|index| {
            let sampling = if index % 3 == 0 { sampled(index) } else { SamplingParams::greedy() };
            let prompt = prompt(index, [1, 2, 31, 32, 33, 7, 90, 140, 64][index as usize]);
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
                ids.push(engine.submit(again(request)).unwrap());
                step(&mut engine, &mut log);
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
    assert_eq!(run_one(&mut engine, again(&plain)).1, expected);
    plain.ignore_stop = true;
    assert_eq!(run_one(&mut engine, plain).1, (text, Finish::Length));
}

#[test]
fn a_prompt_alone_fills_the_cache() {
    let mut engine = engine(256, 1, 16);
    let (statistics, answer) = run_one(&mut engine, request(prompt(5, 50), 0));
    assert_eq!(answer, (Vec::new(), Finish::Length));
    assert_eq!((statistics.prefill_steps, statistics.generated_tokens), (4, 0));
    assert_eq!(statistics.first_token_seconds, None);
    let longer = request(prompt(5, 60), 3);
    let expected = naive(&longer, 256);
    let (statistics, answer) = run_one(&mut engine, longer);
    assert_eq!(answer, expected);
    assert_eq!(statistics.reused_tokens, 50);
    let (statistics, _) = run_one(&mut engine, request(prompt(5, 60), 0));
    assert_eq!(statistics.reused_tokens, 59, "the last token is always run");
    assert_eq!(engine.status().generated_tokens, 3, "prompts by themselves generate no tokens");
}

#[test]
fn a_chat_costs_only_its_new_tokens() {
    let mut engine = engine(256, 2, 16);
    let mut history = prompt(2, 20);
    let mut in_cache = 0;
    for turn in 0..5 {
        let request = Request { sampling: sampled(turn), ..request(history.clone(), 12) };
        let expected = naive(&request, 256);
        let (statistics, answer) = run_one(&mut engine, request);
        assert_eq!(answer, expected);
        assert_eq!((statistics.prompt_tokens, statistics.reused_tokens), (history.len(), in_cache));
        assert_eq!(statistics.generated_tokens, 12);
        assert_eq!(statistics.decode_steps, 11);
        assert!(statistics.first_token_seconds.is_some() && statistics.decode_rate().is_some());
        // The last token was sampled but not run.
        in_cache = history.len() + 11;
        history.extend(&answer.0);
        history.extend(prompt(turn + 50, 9));
    }
    engine.forget();
    engine.check_integrity().unwrap();
    let (statistics, _) = run_one(&mut engine, request(history, 1));
    assert_eq!(statistics.reused_tokens, 0);
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
        let (statistics, answer) = run_one(&mut engine, request);
        assert_eq!(answer, expected, "{back} back");
        // Going on from p needs p - 19 and later; 68 and later are there.
        let reused = if same >= 68 + 19 { same } else { 0 };
        assert_eq!(statistics.reused_tokens, reused, "{back} back");
    }
}

#[test]
fn cancelling_at_any_moment_frees_the_sequence() {
    for moment in 0..24 {
        let mut engine = engine(256, 2, 6);
        let mut log = Log::default();
        let stays = request(prompt(1, 30), 15);
        let goes = request(prompt(9, 40), 15);
        let kept = engine.submit(again(&stays)).unwrap();
        let cancelled = engine.submit(again(&goes)).unwrap();
        (0..moment).for_each(|_| step(&mut engine, &mut log));
        engine.cancel(cancelled);
        engine.cancel(cancelled);
        engine.check_integrity().unwrap();
        let done = log.tokens.get(&cancelled).map_or(0, Vec::len);
        assert!(done < 15);
        let again = engine.submit(again(&goes)).unwrap();
        finish(&mut engine, &mut log);
        assert_eq!(log.ends[&cancelled], Finish::Cancelled);
        assert_eq!(log.answer(kept), naive(&stays, 256));
        assert_eq!(log.answer(again), naive(&goes, 256), "cancelled after {moment} steps");
        // Fewer than eight positions are not taken over, and the last token of a prompt is always
        // run.
        let cached = log.prefill.get(&cancelled).copied().unwrap_or(0);
        let reused = if cached < 8 { 0 } else { cached.min(39) };
        let statistics = log.statistics[&again];
        assert_eq!(statistics.reused_tokens, reused, "cancelled after {moment} steps");
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
    refuse(Request { sampling: nan, ..again(&base) }, "temperature is NaN");
    let bias = SamplingParams { logit_bias: vec![(48, 1.0)], ..SamplingParams::greedy() };
    refuse(Request { sampling: bias, ..again(&base) }, "logit_bias");
    refuse(Request { stop_ids: vec![1; 100_000], ..again(&base) }, "stop_ids is 100000");
    let endless = Request { max_tokens: usize::MAX, ..again(&base) };
    let id = engine.submit(again(&endless)).unwrap();
    engine.set_queue(1, 1000);
    assert!(matches!(engine.submit(base), Err(EngineError::QueueFull { waiting: 1, tokens: 8 })));
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
    let (first, second) = (engine.submit(good).unwrap(), engine.submit(again(&bad)).unwrap());
    finish(&mut engine, &mut log);
    assert_eq!(log.answer(first), (text, end));
    assert_eq!(log.ends[&second], Finish::NonFiniteLogits);
    assert_eq!(log.tokens[&second].last(), Some(&poison));
    let (statistics, _) = run_one(&mut engine, Request { max_tokens: 0, ..bad });
    assert_eq!(statistics.reused_tokens, 0, "its cache is not used again");
}

#[test]
fn a_failing_device_ends_everything_and_nothing_is_reused() {
    let mut fake = Fake::new(options(256, 3, 16), &WINDOWS);
    fake.fails_at = vec![6];
    let mut engine = Engine::from_program(Box::new(fake));
    run_one(&mut engine, request(prompt(3, 20), 1));
    let a = request(prompt(1, 40), 10);
    let ids =
        [engine.submit(again(&a)).unwrap(), engine.submit(request(prompt(2, 40), 10)).unwrap()];
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
    let spoke: Vec<_> = ids.iter().filter(|id| log.tokens.contains_key(id)).collect();
    assert_eq!(spoke, [&ids[0]]);
    step(&mut engine, &mut log);
    assert_eq!(log.ends[&ids[0]], Finish::DeviceFailed);
    engine.cancel(ids[1]);
    finish(&mut engine, &mut log);
    engine.forget();
    let (statistics, answer) = run_one(&mut engine, again(&a));
    assert_eq!(answer, naive(&a, 256));
    assert_eq!(statistics.reused_tokens, 0);
    let (statistics, _) = run_one(&mut engine, request(prompt(3, 20), 1));
    assert_eq!(statistics.reused_tokens, 0, "it had ended before the failure");
}

/// Memory for little more than one: the later one gives way and is run again.
#[test]
fn sequences_give_way_where_memory_is_scarce_and_lose_nothing() {
    let mut options = options(128, 2, 16);
    options.blocks = 5;
    let mut engine = Engine::from_program(Box::new(Fake::new(options, &WINDOWS)));
    let mut log = Log::default();
    let requests = [request(prompt(1, 50), 60), request(prompt(2, 50), 60)];
    let ids: Vec<_> =
        requests.iter().map(|request| engine.submit(again(request)).unwrap()).collect();
    finish(&mut engine, &mut log);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(log.answer(*id), naive(request, 128));
    }
    let preempted: Vec<usize> = ids.iter().map(|id| log.statistics[id].preemptions).collect();
    assert!(preempted[0] == 0 && preempted[1] > 0, "{preempted:?}");
    assert_eq!(engine.status().preemptions, preempted[1] as u64);
}

#[test]
fn a_more_urgent_request_starts_first_and_stays() {
    let mut options = options(128, 2, 16);
    options.blocks = 5;
    let mut engine = Engine::from_program(Box::new(Fake::new(options, &WINDOWS)));
    let mut log = Log::default();
    let first = engine.submit(request(prompt(1, 50), 60)).unwrap();
    let waiting: Vec<_> = (2..6)
        .map(|seed| {
            let priority = -(seed as i32);
            engine.submit(Request { priority, ..request(prompt(seed, 50), 60) }).unwrap()
        })
        .collect();
    let mut order = Vec::new();
    while !engine.is_idle() {
        let events = engine.step().unwrap();
        order.extend(
            events.iter().filter(|event| event.finish().is_some()).map(|event| event.sequence),
        );
        log.note(&events);
        engine.check_integrity().unwrap();
    }
    let expected: Vec<_> = waiting.iter().rev().chain([&first]).copied().collect();
    assert_eq!(order, expected);
    assert_eq!(log.answer(first), naive(&request(prompt(1, 50), 60), 128));
}

#[test]
fn a_deadline_ends_what_runs_and_what_waits() {
    let mut engine = engine(128, 1, 16);
    let mut log = Log::default();
    let soon = std::time::Instant::now() + std::time::Duration::from_millis(20);
    let late = |seed| Request { deadline: Some(soon), ..request(prompt(seed, 20), 100) };
    let running = engine.submit(late(1)).unwrap();
    step(&mut engine, &mut log);
    let waiting = engine.submit(late(2)).unwrap();
    let stays = engine.submit(request(prompt(3, 20), 5)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(25));
    finish(&mut engine, &mut log);
    assert_eq!((log.ends[&running], log.ends[&waiting]), (Finish::Deadline, Finish::Deadline));
    assert_eq!(log.answer(stays), naive(&request(prompt(3, 20), 5), 128));
}

/// The first prompt is run once, whoever comes meanwhile; where prompts branch, a fork is kept.
#[test]
fn requests_share_what_their_prompts_have_in_common() {
    let mut engine = Engine::with_running(Box::new(Fake::new(options(256, 8, 16), &WINDOWS)), 4);
    let mut log = Log::default();
    let system = prompt(7, 100);
    let of = |seed: u64| request([&system[..], &prompt(seed, 40)].concat(), 6);
    let ids: Vec<_> = (1..5).map(|seed| engine.submit(of(seed)).unwrap()).collect();
    finish(&mut engine, &mut log);
    for (id, seed) in ids.iter().zip(1..5) {
        assert_eq!(log.answer(*id), naive(&of(seed), 256));
    }
    let reused = |log: &Log, id: &SequenceId| log.statistics[id].reused_tokens;
    assert_eq!(reused(&log, &ids[0]), 0);
    // Rings had forgotten the branch when the first was done: the second ran it again and kept it.
    let total: usize = ids.iter().map(|id| reused(&log, id)).sum();
    assert!(total >= 2 * 96, "{total} positions are shared");
    let later = engine.submit(of(9)).unwrap();
    finish(&mut engine, &mut log);
    assert_eq!(log.answer(later), naive(&of(9), 256));
    assert_eq!(reused(&log, &later), 96);
    assert!(engine.status().reused_tokens >= 3 * 96);
}

/// Allows only even ids, and the end after ten.
#[derive(Debug)]
struct Even {
    left: usize,
    fails: bool,
}

impl Constraint for Even {
    fn allowed(&mut self, words: usize, mask: &mut Vec<u32>) -> Result<(), String> {
        if self.fails {
            return Err("as asked".to_owned());
        }
        mask.resize(words, 0);
        for id in (2..VOCABULARY).step_by(2).filter(|_| self.left > 0) {
            mask[id / 32] |= 1 << (id % 32);
        }
        mask[0] |= u32::from(self.left == 0);
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        assert!(token.is_multiple_of(2), "token {token} was not allowed");
        self.left -= 1;
        self.fails = self.left == 99;
        Ok(())
    }
}

/// Neither what ended sequences left, nor what running ones compute, nor the wait for that.
#[test]
fn scopes_share_nothing() {
    let prompt = prompt(1, 80);
    let of = |scope: Scope| Request { scope, ..request(prompt.clone(), 3) };
    let all = Scope::default();
    let (one, other) = (all.within(b"one"), all.within(b"other"));
    let mut engine = engine(128, 4, 16);
    assert_eq!(run_one(&mut engine, of(one)).0.reused_tokens, 0);
    for stranger in [all, other, one.within(b"salt")] {
        assert_eq!(run_one(&mut engine, of(stranger)).0.reused_tokens, 0, "{stranger:?}");
    }
    for known in [one, other] {
        let (statistics, _) = run_one(&mut engine, of(known));
        assert!(statistics.reused_tokens >= 64, "{}", statistics.reused_tokens);
    }
    // Beside each other none waits for what another one reads.
    engine.forget();
    for scope in [one, other] {
        engine.submit(of(scope)).unwrap();
    }
    engine.step().unwrap();
    assert_eq!(engine.status().running, 2);
    engine.submit(of(one)).unwrap();
    engine.step().unwrap();
    assert_eq!((engine.status().running, engine.status().waiting), (2, 1));
}

#[test]
fn a_constraint_is_obeyed_or_ends_the_request() {
    for sampling in
        [SamplingParams::greedy(), sampled(3), SamplingParams { temperature: 50.0, ..sampled(4) }]
    {
        let mut engine = engine(128, 2, 16);
        let mut log = Log::default();
        let constrained = |left: usize, max_tokens: usize| Request {
            constraint: Some(Box::new(Even { left, fails: false })),
            stop_ids: vec![0],
            sampling: sampling.clone(),
            ..request(prompt(2, 10), max_tokens)
        };
        let ends = engine.submit(constrained(10, 50)).unwrap();
        let free = engine.submit(request(prompt(3, 10), 30)).unwrap();
        finish(&mut engine, &mut log);
        let (text, end) = log.answer(ends);
        assert!(text.len() == 11 && text[..10].iter().all(|&id| id % 2 == 0 && id > 0), "{text:?}");
        assert_eq!((text[10], end), (0, Finish::Stop));
        assert_eq!(log.answer(free), naive(&request(prompt(3, 10), 30), 128));
        let fails = engine.submit(constrained(100, 50)).unwrap();
        finish(&mut engine, &mut log);
        assert_eq!((log.tokens[&fails].len(), log.ends[&fails]), (1, Finish::ConstraintFailed));
    }
}

#[test]
fn stop_ids_wait_for_the_least_number_of_tokens() {
    let plain = request(prompt(8, 10), 30);
    let (text, _) = naive(&plain, 256);
    let mut engine = engine(256, 1, 32);
    let request = Request { stop_ids: vec![text[0], text[3]], min_tokens: 6, ..plain };
    let (_, (found, _)) = run_one(&mut engine, request);
    assert!(found.len() >= 7 && !found[..6].iter().any(|id| [text[0], text[3]].contains(id)));
}

#[test]
fn log_probabilities_are_those_of_the_logits() {
    let mut options = options(128, 2, 16);
    options.width.outputs = 5;
    let mut engine = Engine::from_program(Box::new(Fake::new(options, &WINDOWS)));
    let company = engine.submit(request(prompt(9, 30), 20)).unwrap();
    let prompt = prompt(4, 40);
    for _ in 0..2 {
        let wanted =
            Request { logprobs: Some(3), prompt_logprobs: Some(0), ..request(prompt.clone(), 4) };
        let id = engine.submit(wanted).unwrap();
        let mut found: Vec<Logprobs> = Vec::new();
        while !engine.is_idle() {
            for Event { sequence, update } in engine.step().unwrap() {
                match update {
                    Update::PromptLogprobs(tokens) if sequence == id => found.extend(tokens),
                    Update::Token { logprobs: Some(logprobs), .. } if sequence == id => {
                        found.push(*logprobs)
                    }
                    _ => {}
                }
            }
        }
        let tokens: Vec<u32> =
            [prompt[0]].into_iter().chain(found.iter().map(|found| found.token)).collect();
        assert_eq!((&tokens[..40], tokens.len()), (&prompt[..], 44));
        for (at, found) in found.iter().enumerate() {
            let logits = next_logits(&tokens[..=at]);
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let logprob = f64::from(logits[found.token as usize]) - sum.ln();
            assert!((f64::from(found.logprob) - logprob).abs() < 1e-5);
            assert_eq!(found.top.len(), if at < 39 { 0 } else { 3 });
        }
    }
    assert!(engine.cancel(company).is_none());
}

/// Rows of a prompt are run again after a failure of the device, and where their memory went to
/// another sequence.
#[test]
fn log_probabilities_of_a_prompt_are_reported_once() {
    let wanted = || Request { prompt_logprobs: Some(2), ..request(prompt(2, 50), 60) };
    let engine = |outputs: usize, fails_at: Vec<usize>| {
        let mut options = options(128, 2, 16);
        options.blocks = 5;
        options.width.outputs = outputs;
        let mut fake = Fake::new(options, &WINDOWS);
        fake.fails_at = fails_at;
        Engine::from_program(Box::new(fake))
    };
    let expected = {
        let (mut engine, mut log) = (engine(5, Vec::new()), Log::default());
        let id = engine.submit(wanted()).unwrap();
        finish(&mut engine, &mut log);
        log.known.remove(&id).expect("they were asked for")
    };
    let tokens: Vec<u32> = expected.iter().map(|known| known.token).collect();
    assert_eq!(tokens, prompt(2, 50)[1..]);
    // The prompt takes ten steps.
    for run in 1..=10 {
        let (mut engine, mut log) = (engine(5, vec![run]), Log::default());
        let id = engine.submit(wanted()).unwrap();
        while !engine.is_idle() {
            log.note(&engine.step().unwrap_or_default());
        }
        assert_eq!(engine.status().device_failures, 1);
        assert_eq!(log.known[&id], expected, "run {run} fails");
        assert_eq!(log.answer(id), naive(&wanted(), 128));
    }
    // With two rows with logits it gives way in the middle of its prompt, with five behind it.
    for outputs in [2, 5] {
        let (mut engine, mut log) = (engine(outputs, Vec::new()), Log::default());
        engine.submit(request(prompt(1, 50), 60)).unwrap();
        let id = engine.submit(wanted()).unwrap();
        finish(&mut engine, &mut log);
        assert!(log.statistics[&id].preemptions > 0);
        assert_eq!(log.known[&id], expected, "{outputs} rows with logits");
        assert_eq!(log.answer(id), naive(&wanted(), 128));
    }
}

/// What has said nothing is run again after a failure; what has, ends.
#[test]
fn a_silent_request_survives_one_failure() {
    let mut fake = Fake::new(options(256, 2, 16), &WINDOWS);
    fake.fails_at = vec![4, 5, 20];
    let mut engine = Engine::from_program(Box::new(fake));
    let mut log = Log::default();
    let speaks = engine.submit(request(prompt(1, 10), 50)).unwrap();
    let silent = engine.submit(request(prompt(2, 60), 10)).unwrap();
    let mut failures = 0;
    while !engine.is_idle() {
        match engine.step() {
            Ok(events) => log.note(&events),
            Err(_) => failures += 1,
        }
        engine.check_integrity().unwrap();
    }
    assert_eq!(failures, 2, "it fails a second time, and then there is nothing to run");
    assert_eq!(log.ends[&speaks], Finish::DeviceFailed);
    assert_eq!(log.ends[&silent], Finish::DeviceFailed, "a second failure ends it");
    let mut fake = Fake::new(options(256, 2, 16), &WINDOWS);
    fake.fails_at = vec![3];
    let mut engine = Engine::from_program(Box::new(fake));
    let mut log = Log::default();
    let silent = engine.submit(request(prompt(2, 60), 10)).unwrap();
    while !engine.is_idle() {
        log.note(&engine.step().unwrap_or_default());
    }
    assert_eq!(log.answer(silent), naive(&request(prompt(2, 60), 10), 256));
    assert_eq!(engine.status().prompt_tokens, 60, "it counts once");
}

#[test]
fn logits_of_all_positions_in_pieces() {
    let mut options = options(128, 2, 16);
    options.width.outputs = 9;
    let mut engine = Engine::from_program(Box::new(Fake::new(options, &WINDOWS)));
    let company = request(prompt(9, 20), 30);
    let id = engine.submit(again(&company)).unwrap();
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
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(next, ids.len());
        engine.check_integrity().unwrap();
    }
    finish(&mut engine, &mut log);
    assert_eq!(log.answer(id), naive(&company, 128));
    let mut fail = |ids: &[u32], chunk| {
        engine.logits(ids, chunk, &mut |_, _| ControlFlow::Continue(())).unwrap_err()
    };
    assert!(matches!(fail(&[], 4), EngineError::EmptyPrompt));
    assert!(matches!(fail(&[1; 129], 4), EngineError::PromptTooLong { prompt: 129, context: 128 }));
    assert!(matches!(fail(&[1, 99], 4), EngineError::UnknownToken { id: 99, index: 1, .. }));
    assert!(matches!(fail(&[1], 0), EngineError::BadOption { option: "chunk", .. }));
}
