//! Runs requests to their ends.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_engine::{Engine, Finish, Logprobs, Request, SequenceId, Statistics, Update};

use crate::fake::VOCABULARY;

/// Returns random tokens.
pub(crate) fn prompt(seed: u64, tokens: usize) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..tokens).map(|_| (random.next_u64() % VOCABULARY as u64) as u32).collect()
}

/// A text, its log-probabilities if they were asked for, its end and its cost.
pub(crate) struct Text {
    pub(crate) tokens: Vec<u32>,
    pub(crate) logprobs: Vec<Logprobs>,
    pub(crate) end: Option<(Finish, Option<u32>)>,
    pub(crate) statistics: Statistics,
}

/// Runs requests to their ends and returns their texts, in order.
pub(crate) fn run(engine: &mut Engine, requests: Vec<Request>) -> Vec<Text> {
    let ids: Vec<_> =
        requests.into_iter().map(|r| engine.submit(r).expect("a sound request")).collect();
    let text = |_: &SequenceId| Text {
        tokens: Vec::new(),
        logprobs: Vec::new(),
        end: None,
        statistics: Statistics::default(),
    };
    let mut texts: Vec<Text> = ids.iter().map(text).collect();
    while !engine.is_idle() {
        for event in engine.step().expect("the device does not fail") {
            let at = ids.iter().position(|id| *id == event.sequence).expect("it was submitted");
            let text = &mut texts[at];
            match event.update {
                Update::Token { token, logprobs, .. } => {
                    text.tokens.push(token);
                    text.logprobs.extend(logprobs.map(|logprobs| *logprobs));
                }
                Update::Finished { finish, stop, statistics, .. } => {
                    text.end = Some((finish, stop));
                    text.statistics = statistics;
                }
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    texts
}
