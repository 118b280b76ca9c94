//! The whole engine under random traffic on a device that checks every cell of its caches: submissions that share
//! prefixes, cancellations, priorities, deadlines, scarce memory and device failures, with the books checked after each
//! step and each text compared with its definition.

mod fake;

use std::collections::HashMap;
use std::time::Instant;

use fake::{Fake, VOCABULARY, next_logits, options};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::BLOCK;
use trine_engine::{
    Engine, Event, Finish, Request, Sampler, SamplingParams, SequenceId, Statistics,
};

const STEPS: usize = 1_000_000;
const CONTEXT: usize = 96;
const WINDOWS: [usize; 2] = [4, 20];
const RUNNING: usize = 4;
const SLOTS: usize = 7;
/// Fewer than the running sequences could fill.
const BLOCKS: usize = 8;

/// A request and what came of it.
struct Job {
    prompt: Vec<u32>,
    max_tokens: usize,
    stop: u32,
    seed: Option<u64>,
    answer: Vec<u32>,
    is_cancelled: bool,
}

struct Simulation {
    engine: Engine,
    random: ChaCha8Rng,
    jobs: HashMap<SequenceId, Job>,
    /// Whole texts that later prompts begin like.
    texts: Vec<Vec<u32>>,
    reasons: HashMap<Finish, usize>,
    reused: usize,
    preemptions: usize,
    failures: usize,
}

fn sampling(seed: Option<u64>) -> SamplingParams {
    match seed {
        None => SamplingParams::greedy(),
        Some(seed) => SamplingParams {
            temperature: 1.0,
            top_k: 20,
            top_p: 0.9,
            seed,
            ..SamplingParams::greedy()
        },
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut options = options(CONTEXT, SLOTS, 14);
        options.blocks = BLOCKS;
        options.width.outputs = 6;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut fake = Fake::new(options, &WINDOWS);
        let mut next = 0;
        fake.fails_at = std::iter::repeat_with(|| {
            next += 1 + (random.next_u64() % 2000) as usize;
            next
        })
        .take_while(|&run| run < STEPS)
        .collect();
        Self {
            engine: Engine::with_running(Box::new(fake), RUNNING),
            random,
            jobs: HashMap::new(),
            texts: vec![Vec::new(); 8],
            reasons: HashMap::new(),
            reused: 0,
            preemptions: 0,
            failures: 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random.next_u64() % end as u64) as usize
    }

    fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(VOCABULARY) as u32).collect()
    }

    fn submit(&mut self) {
        let index = self.below(self.texts.len());
        let mut prompt = self.texts[index].clone();
        prompt.truncate(match self.below(3) {
            0 => prompt.len(),
            1 => prompt.len().saturating_sub(1 + prompt.len() % 30),
            _ => BLOCK * (1 + index % 2),
        });
        let more = 1 + self.below(30);
        prompt.extend(self.tokens(more));
        prompt.truncate(CONTEXT);
        let seed = (self.below(2) == 0).then(|| self.random.next_u64());
        let (max_tokens, stop) = (self.below(40), self.below(VOCABULARY) as u32);
        let request = Request {
            sampling: sampling(seed),
            stop_ids: vec![stop],
            priority: self.below(3) as i32,
            deadline: (self.below(200) == 0).then(Instant::now),
            prompt_logprobs: (self.below(20) == 0).then_some(1),
            logprobs: (self.below(20) == 0).then_some(2),
            ..Request::new(prompt.clone(), max_tokens)
        };
        let id = self.engine.submit(request).expect("the request is sound");
        let job = Job { prompt, max_tokens, stop, seed, answer: Vec::new(), is_cancelled: false };
        self.jobs.insert(id, job);
    }

    fn cancel(&mut self) {
        let index = self.below(self.jobs.len().max(1));
        let mut ids: Vec<SequenceId> = self.jobs.keys().copied().collect();
        ids.sort_unstable();
        if let Some(id) = ids.get(index) {
            // The end of one that a failure has ended is still to be reported.
            let is_cancelled = self.engine.cancel(*id).is_some();
            self.jobs.get_mut(id).expect("it is known").is_cancelled |= is_cancelled;
            assert!(self.engine.cancel(*id).is_none(), "{id} has ended");
        }
    }

    fn step(&mut self) {
        match self.engine.step() {
            Ok(events) => events.into_iter().for_each(|event| self.note(event)),
            Err(_) => self.failures += 1,
        }
        self.engine.check_integrity().expect("the books agree");
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Token { sequence, token, .. } => {
                let job = self.jobs.get_mut(&sequence).expect("it has not ended");
                assert!(!job.is_cancelled);
                job.answer.push(token);
            }
            Event::Finished { sequence, finish, statistics } => {
                let job = self.jobs.remove(&sequence).expect("it ends once");
                self.judge(job, finish, statistics);
            }
            _ => assert!(self.jobs.contains_key(&event.sequence()), "{event:?}"),
        }
    }

    /// The text, and its end, as the definition has them.
    fn judge(&mut self, job: Job, finish: Finish, statistics: Statistics) {
        *self.reasons.entry(finish).or_default() += 1;
        self.reused += statistics.reused_tokens;
        self.preemptions += statistics.preemptions;
        assert_eq!(statistics.generated_tokens, job.answer.len());
        assert_eq!(job.is_cancelled, finish == Finish::Cancelled);
        let mut sampler = Sampler::new(sampling(job.seed));
        let mut tokens = job.prompt.clone();
        for &token in &job.answer {
            let expected = sampler.sample(&mut next_logits(&tokens), &tokens);
            assert_eq!(token, expected.expect("the logits are finite"));
            tokens.push(token);
        }
        let is_stop = job.answer.last() == Some(&job.stop);
        match finish {
            Finish::Stop => assert!(is_stop),
            Finish::Length => assert!(!is_stop && job.answer.len() == job.max_tokens),
            Finish::Context => assert!(!is_stop && tokens.len() == CONTEXT + 1),
            _ => {}
        }
        tokens.truncate(CONTEXT);
        let index = self.below(self.texts.len());
        self.texts[index] = tokens;
    }
}

#[test]
fn random_traffic_keeps_the_books_and_the_texts() {
    let mut simulation = Simulation::new(42);
    for _ in 0..STEPS {
        match simulation.below(160) {
            0..12 if simulation.jobs.len() < 12 => simulation.submit(),
            12..14 => simulation.cancel(),
            14 if simulation.below(50) == 0 => simulation.engine.forget(),
            _ => {}
        }
        simulation.step();
    }
    while !simulation.engine.is_idle() {
        simulation.step();
    }
    assert!(simulation.jobs.is_empty(), "every request has ended");
    simulation.engine.forget();
    simulation.engine.check_integrity().expect("the books agree");
    let status = simulation.engine.status();
    let blocks = (status.running, status.waiting, status.blocks_running, status.blocks_kept);
    assert_eq!(blocks, (0, 0, 0, 0), "no block is lost");
    let Simulation { reasons, reused, preemptions, failures, .. } = simulation;
    assert!(reasons.len() == 6 && reasons.values().all(|&count| count > 20), "{reasons:?}");
    assert!(
        reused > 100_000 && preemptions > 200 && failures > 100,
        "{reused} positions reused, {preemptions} preemptions, {failures} failures"
    );
}
