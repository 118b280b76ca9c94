//! Guesses change how many steps a text takes, and nothing else.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fake::{Fake, VOCABULARY, options};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::BackendError;
use trine_engine::{
    Ask, Drafter, Drafts, Engine, Finish, ModelDrafter, Request, SamplingParams, Statistics, Update,
};

/// Longer than one step of the drafter.
const PROMPT: usize = 40;
const TOKENS: usize = 60;

fn prompt(seed: u64, tokens: usize) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..tokens).map(|_| (random.next_u64() % VOCABULARY as u64) as u32).collect()
}

/// An engine for two sequences, and the steps that its device has run. Each takes a millisecond by
/// the engine's clock, and guesses take no time, so that these pay.
fn engine() -> (Engine, Arc<AtomicUsize>) {
    let mut options = options(256, 2, 16);
    options.width.outputs = 12;
    let fake = Fake::new(options, &[5, 20]);
    let runs = Arc::clone(&fake.runs);
    let mut engine = Engine::from_program(Box::new(fake));
    let clock = Arc::clone(&runs);
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed) as u64));
    (engine, runs)
}

/// A drafter that runs the same model.
fn knowing() -> Box<dyn Drafter> {
    let fake = Fake::new(options(300, 2, 16), &[5, 20]);
    Box::new(ModelDrafter::new(Box::new(fake)))
}

/// Runs requests to their ends. Returns the tokens and the costs of each, in order.
fn run(engine: &mut Engine, requests: Vec<Request>) -> Vec<(Vec<u32>, Finish, Statistics)> {
    let ids: Vec<_> = requests.into_iter().map(|r| engine.submit(r).unwrap()).collect();
    let mut texts = vec![Vec::new(); ids.len()];
    let mut ends = vec![None; ids.len()];
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            let at = ids.iter().position(|id| *id == event.sequence).unwrap();
            match event.update {
                Update::Token { token, .. } => texts[at].push(token),
                Update::Finished { finish, statistics, .. } => {
                    ends[at] = Some((finish, statistics))
                }
                _ => {}
            }
        }
        engine.check_integrity().unwrap();
    }
    let whole = |(text, end): (Vec<u32>, Option<(Finish, Statistics)>)| {
        let (finish, statistics) = end.expect("every request ends");
        (text, finish, statistics)
    };
    texts.into_iter().zip(ends).map(whole).collect()
}

fn sampled(seed: u64) -> SamplingParams {
    let greedy = SamplingParams::greedy();
    SamplingParams { temperature: 1.0, top_k: 20, top_p: 0.9, seed, ..greedy }
}

/// Requests of every kind of sampling.
fn requests() -> Vec<Request> {
    let penalised = SamplingParams { repetition_penalty: 1.3, ..sampled(3) };
    let unbounded = SamplingParams { top_k: 0, top_p: 1.0, ..sampled(4) };
    let all = [SamplingParams::greedy(), sampled(1), sampled(2), penalised, unbounded];
    let request =
        |(index, sampling)| Request { sampling, ..Request::new(prompt(index, PROMPT), TOKENS) };
    (0..).zip(all).map(request).collect()
}

#[test]
fn a_model_that_knows_the_text_is_always_right() {
    let (mut plain, plain_runs) = engine();
    let (mut drafted, drafted_runs) = engine();
    drafted.set_drafts(Drafts { lookup: false, drafter: Some(knowing()) });
    let expected = run(&mut plain, requests());
    let found = run(&mut drafted, requests());
    for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert_eq!((&found.0, found.1), (&expected.0, expected.1), "request {index}");
        let Statistics { drafted_tokens, accepted_tokens, generated_tokens, .. } = found.2;
        assert_eq!(generated_tokens, TOKENS);
        if index != 3 {
            // It guesses without penalties.
            assert_eq!(accepted_tokens, drafted_tokens, "request {index}");
            assert!(accepted_tokens > TOKENS / 2, "request {index}: {accepted_tokens}");
        }
    }
    let runs = |runs: &AtomicUsize| runs.load(Ordering::Relaxed);
    assert!(2 * runs(&drafted_runs) < runs(&plain_runs), "{}", runs(&drafted_runs));
}

/// Guesses that are wrong in every way.
struct Wrong(ChaCha8Rng);

impl Drafter for Wrong {
    fn draft(&mut self, asks: &[Ask<'_>], guesses: &mut [Vec<u32>]) -> Result<(), BackendError> {
        for (ask, guesses) in asks.iter().zip(guesses) {
            let count = self.0.next_u64() as usize % (ask.most + 1);
            guesses.extend((0..count).map(|_| self.0.next_u64() as u32 % VOCABULARY as u32));
        }
        Ok(())
    }
}

#[test]
fn wrong_guesses_leave_no_trace() {
    let (mut plain, _) = engine();
    let (mut drafted, _) = engine();
    let wrong = Wrong(ChaCha8Rng::seed_from_u64(5));
    drafted.set_drafts(Drafts { lookup: false, drafter: Some(Box::new(wrong)) });
    for _ in 0..3 {
        // From the second time on prompts are in the cache.
        let (expected, found) = (run(&mut plain, requests()), run(&mut drafted, requests()));
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!((&found.0, found.1), (&expected.0, expected.1));
            assert_eq!(found.2.reused_tokens, expected.2.reused_tokens);
        }
    }
}
