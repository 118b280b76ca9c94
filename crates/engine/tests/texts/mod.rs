//! Runs requests to their ends.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::BackendError;
use trine_engine::{
    Ask, Drafter, Drafts, Engine, Finish, Generation, Logprobs, Request, SequenceId, Statistics,
    Target, Update,
};

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

/// Reads a text to its end.
pub(crate) fn read(generation: &mut Generation) -> (Vec<u32>, Option<Finish>) {
    let mut tokens = Vec::new();
    while let Some(update) = generation.blocking_next() {
        match update {
            Update::Token { token, .. } => tokens.push(token),
            Update::Finished { finish, .. } => return (tokens, Some(finish)),
            _ => {}
        }
    }
    (tokens, None)
}

/// Asserts that texts are the same but for their guesses.
#[track_caller]
pub(crate) fn assert_same(found: &[Text], expected: &[Text]) {
    assert_eq!(found.len(), expected.len());
    for (request, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.tokens, expected.tokens, "request {request}");
        assert_eq!(found.logprobs, expected.logprobs, "request {request}");
        assert_eq!(found.end, expected.end, "request {request}");
        let [found, expected] = [found, expected].map(|text| &text.statistics);
        assert_eq!(found.generated_tokens, expected.generated_tokens, "request {request}");
        assert_eq!(found.reused_tokens, expected.reused_tokens, "request {request}");
    }
}

/// Returns drafts of a drafter alone.
pub(crate) fn drafts(drafter: impl Drafter + 'static) -> Drafts {
    Drafts { lookup: false, drafter: Some(Box::new(drafter)) }
}

/// Guesses what a rule writes for each sequence.
pub(crate) struct Rule<F>(pub(crate) F);

impl<F> Drafter for Rule<F>
where
    F: FnMut(&Ask<'_>, &mut Vec<u32>) -> Result<(), BackendError> + Send,
{
    fn draft(
        &mut self,
        _: &mut Target<'_>,
        asks: &[Ask<'_>],
        _: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        asks.iter().zip(guesses).try_for_each(|(ask, guesses)| (self.0)(ask, guesses))?;
        Ok(0)
    }
}
