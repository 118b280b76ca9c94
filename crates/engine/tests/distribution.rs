//! Texts with guesses follow the model's distribution, by the rule of the engine and no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::fake::VOCABULARY;
use crate::texts::{Rule, drafts, run};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::{
    BLOCK, BackendError, Batch, Facts, Flights, InFlight, Memory, Program, ProgramOptions, Results,
};
use trine_engine::{Ask, Drafts, Engine, Request, SamplingParams, Statistics};
use trine_model::{Buffer, BufferId, KvType, Plan, Rows, Width};

/// A device whose logits depend on the last token only, so that the distribution of what follows
/// each token is known. It has no caches.
struct Chain {
    facts: Facts,
    /// (states, vocabulary).
    logits: Vec<Vec<f32>>,
    flights: Flights<Vec<f32>>,
    given: Vec<f32>,
    runs: Arc<AtomicUsize>,
}

/// The tokens of [`Chain`] that follow one another; the others never come.
const STATES: usize = 8;

impl Chain {
    fn new(context: usize) -> Self {
        let options = ProgramOptions {
            width: Width { tokens: 16, outputs: 16 },
            kv: KvType::F16,
            context,
            sequences: 1,
            blocks: context.div_ceil(BLOCK),
        };
        let logits = Buffer { name: "logits".to_owned(), rows: Rows::Outputs, columns: VOCABULARY };
        let plan = Plan {
            buffers: vec![logits],
            weights: Vec::new(),
            caches: Vec::new(),
            steps: Vec::new(),
            inputs: Vec::new(),
            outputs: vec![BufferId(0)],
            ends: Vec::new(),
        };
        let facts = Facts::new("chain".to_owned(), plan, options);
        let mut random = ChaCha8Rng::seed_from_u64(11);
        let mut logit = |id: usize| match id < STATES {
            true => (random.next_u64() % 400) as f32 / 100.0 - 2.0,
            false => -1e9,
        };
        let logits = (0..STATES).map(|_| (0..VOCABULARY).map(&mut logit).collect()).collect();
        Self { facts, logits, flights: Flights::new(1), given: Vec::new(), runs: Arc::default() }
    }

    /// (state, next token): probabilities at temperature 1.
    fn probabilities(&self) -> Vec<Vec<f64>> {
        let row = |logits: &Vec<f32>| {
            let weights: Vec<f64> = logits[..STATES].iter().map(|&l| f64::from(l).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.iter().map(|weight| weight / sum).collect()
        };
        self.logits.iter().map(row).collect()
    }
}

impl Program for Chain {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        batch.check(&self.facts.options, &self.facts.plan, VOCABULARY)?;
        self.flights.check_room()?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        let token = |&row: &u32| batch.tokens[row as usize] as usize;
        let rows = batch.outputs.iter().map(token);
        Ok(self.flights.begin(rows.flat_map(|token| self.logits[token].clone()).collect()))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.given = self.flights.end(step)?;
        Ok(self)
    }

    fn copy_slot(&mut self, _: u32, _: u32, _: usize) -> Result<(), BackendError> {
        self.flights.check_idle()
    }

    fn profile(&mut self, _: bool) -> Vec<f64> {
        Vec::new()
    }
}

impl Results for Chain {
    fn output(&mut self, _: usize) -> Result<&[f32], BackendError> {
        Ok(&self.given)
    }
}

/// Draws guesses from the right distribution, but with random numbers of its own, or from another.
struct Drawing {
    probabilities: Vec<Vec<f64>>,
    random: ChaCha8Rng,
    /// Share of guesses that are drawn evenly.
    even: f64,
}

impl Drawing {
    fn new(probabilities: Vec<Vec<f64>>, even: f64) -> Self {
        Self { probabilities, random: ChaCha8Rng::seed_from_u64(9), even }
    }

    fn next(&mut self, last: u32) -> u32 {
        let mut uniform = || (self.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let (kind, mut at) = (uniform(), uniform());
        if kind < self.even {
            return (at * STATES as f64) as u32;
        }
        let row = &self.probabilities[last as usize];
        let found = row.iter().position(|probability| {
            at -= probability;
            at < 0.0
        });
        found.unwrap_or(STATES - 1) as u32
    }
}

/// The most likely text of a chain repeats itself, so that guesses are found in it.
#[test]
fn what_is_found_serves_where_a_drafter_gives_nothing() {
    let chain = Chain::new(4000);
    let largest = |row: &Vec<f64>| (0..STATES).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let next: Vec<u32> =
        chain.probabilities().iter().map(|row| largest(row).unwrap_or(0) as u32).collect();
    let clock = Arc::clone(&chain.runs);
    let mut engine = Engine::from_program(Box::new(chain));
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed) as u64));
    let mut left = 40_usize;
    // What the chain says most likely, a number of times, and then nothing.
    let falling = Rule(move |ask: &Ask<'_>, guesses: &mut Vec<u32>| {
        left = left.saturating_sub(1);
        let mut last = *ask.tokens.last().expect("there is a token");
        for _ in 0..if left == 0 { 0 } else { ask.most } {
            last = next[last as usize];
            guesses.push(last);
        }
        Ok(())
    });
    engine.set_drafts(Drafts { lookup: true, ..drafts(falling) });
    let text = run(&mut engine, vec![Request::new(vec![0], 3000)]).remove(0);
    let accepted = text.statistics.accepted_tokens;
    assert!(accepted > 2400, "{accepted} of {} tokens were guessed", text.tokens.len());
}

/// Pearson's statistic of the pairs in a text against the chain's probabilities. With 56 degrees of
/// freedom it is 56 on average, with a standard deviation of 10.6.
fn deviation(text: &[u32], probabilities: &[Vec<f64>]) -> f64 {
    let mut counts = vec![[0.0; STATES]; STATES];
    text.windows(2).for_each(|pair| counts[pair[0] as usize][pair[1] as usize] += 1.0);
    let mut sum = 0.0;
    for (counts, probabilities) in counts.iter().zip(probabilities) {
        let total: f64 = counts.iter().sum();
        for (count, probability) in counts.iter().zip(probabilities) {
            let expected = total * probability;
            sum += (count - expected).powi(2) / expected;
        }
    }
    sum
}

const DRAWS: usize = 40_000;
/// Beyond this, a text does not follow the distribution: five standard deviations.
const DEVIATION_MAX: f64 = 56.0 + 5.0 * 10.6;

/// A sampled text and the share of its tokens that were guessed, `even` of them evenly.
fn drawn(even: f64) -> (Vec<u32>, f64) {
    let chain = Chain::new(DRAWS + 64);
    let probabilities = chain.probabilities();
    let clock = Arc::clone(&chain.runs);
    let mut engine = Engine::from_program(Box::new(chain));
    engine.set_clock(move || Duration::from_millis(clock.load(Ordering::Relaxed) as u64));
    let mut drawing = Drawing::new(probabilities, even);
    engine.set_drafts(drafts(Rule(move |ask: &Ask<'_>, guesses: &mut Vec<u32>| {
        let mut last = *ask.tokens.last().expect("there is a token");
        for _ in 0..ask.most.min(4) {
            last = drawing.next(last);
            guesses.push(last);
        }
        Ok(())
    })));
    let sampling =
        SamplingParams { temperature: 1.0, top_k: 0, seed: 21, ..SamplingParams::greedy() };
    let request = Request { sampling, ..Request::new(vec![0], DRAWS) };
    let text = run(&mut engine, vec![request]).remove(0);
    let Statistics { accepted_tokens, .. } = text.statistics;
    (text.tokens, accepted_tokens as f64 / DRAWS as f64)
}

#[test]
fn texts_with_guesses_follow_the_models_distribution() {
    let probabilities = Chain::new(64).probabilities();
    for even in [0.0, 0.5] {
        let (text, guessed) = drawn(even);
        let found = deviation(&text, &probabilities);
        assert!(guessed > 0.1, "{guessed} of the tokens were guessed");
        assert!(found < DEVIATION_MAX, "{found} with {even} of the guesses drawn evenly");
    }
}

/// The test above notices guesses that are accepted without a comparison: the text is theirs.
#[test]
fn a_broken_rule_is_found() {
    let probabilities = Chain::new(64).probabilities();
    let mut drawing = Drawing::new(probabilities.clone(), 0.5);
    let mut text = vec![0];
    (0..DRAWS).for_each(|at| text.push(drawing.next(text[at])));
    let found = deviation(&text, &probabilities);
    assert!(found > 2.0 * DEVIATION_MAX, "{found}");
}
