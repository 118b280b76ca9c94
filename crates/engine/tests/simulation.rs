//! The whole engine under random traffic on a device that checks every cell of its caches:
//! submissions that share prefixes, embeddings among them, cancellations, priorities, deadlines,
//! scarce memory, guesses of tokens and device failures, with the books checked after each step and
//! each text compared with its definition.

use crate::looks;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::fake::{Fake, VOCABULARY, next_logits, options, vector_of};
use crate::fake_store::{Faults, Shelf};
use crate::looks::{BAD, Gated};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::{BLOCK, BackendError, SERIES_MAX};
use trine_engine::disk::Origin;
use trine_engine::{
    Ask, ClientId, Drafter, Drafts, Engine, EngineError, Event, Finish, Logprobs, ModelDrafter,
    Pooling, Request, Sampler, SamplingParams, Scope, SequenceId, Statistics, Target, Update,
};

const STEPS: usize = 1_000_000;
const STEPS_WITH_STORE: usize = 300_000;
const STEPS_IN_FLIGHT: usize = 200_000;
const STEPS_WITH_PICTURES: usize = 200_000;
const WINDOWS: [usize; 2] = [4, 20];
const RUNNING: usize = 4;
const SLOTS: usize = 7;
/// Distance of the positions that are remembered of sequences that scopes have seen. Less is never
/// reused.
const REMEMBERED: usize = 8;

/// Sizes of an engine.
#[derive(Clone, Copy)]
struct Sizes {
    context: usize,
    width: usize,
    /// Most rows in a step that is not for a unit of pictures.
    mixed: usize,
    /// Fewer than the running sequences could fill.
    blocks: usize,
}

const SMALL: Sizes = Sizes { context: 96, width: 14, mixed: 14, blocks: 8 };
/// Blocks for whole contexts of all slots, so that steps overlap.
const ROOMY: Sizes = Sizes { blocks: 24, ..SMALL };
/// Prefixes of several blocks, and rings that hold the whole blocks of a window.
const LARGER: Sizes = Sizes { context: 192, width: 45, mixed: 45, blocks: 14 };

/// A request and what came of it.
struct Job {
    scope: Scope,
    /// With what is seen of pictures in their places.
    prompt: Vec<u32>,
    /// The same in codes.
    codes: Vec<u32>,
    max_tokens: usize,
    stop: u32,
    seed: Option<u64>,
    answer: Vec<u32>,
    /// The prompt's next position whose log-probability is to be reported; `None` if they are not
    /// wanted.
    next_logprob: Option<usize>,
    is_cancelled: bool,
    /// How it is to be embedded, if no text is wanted, and the vector.
    embedding: Option<(Pooling, Option<Vec<f32>>)>,
}

impl Job {
    /// Takes the log-probability of the prompt's next token: it has to be that of the definition.
    fn check_logprob(&mut self, known: &Logprobs) {
        let next = self.next_logprob.as_mut().expect("they were asked for");
        assert_eq!(Some(&known.token), self.prompt.get(*next), "position {next}");
        let logits = next_logits(&self.prompt[..*next]);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let logprob = f64::from(logits[known.token as usize]) - sum.ln();
        assert!((f64::from(known.logprob) - logprob).abs() < 1e-4, "position {next}");
        *next += 1;
        self.skip_pictures();
    }

    /// Soft tokens have no log-probability.
    fn skip_pictures(&mut self) {
        if let Some(next) = &mut self.next_logprob {
            let rest = self.prompt[*next..].iter();
            *next += rest.take_while(|&&token| token as usize >= VOCABULARY).count();
        }
    }
}

struct Simulation {
    engine: Engine,
    context: usize,
    random: ChaCha8Rng,
    jobs: HashMap<SequenceId, Job>,
    /// Whole texts that later prompts begin like, in codes.
    texts: Vec<Vec<u32>>,
    /// Hashes of the beginnings of sequences that ran in each scope.
    seen: HashSet<(Scope, u64)>,
    reasons: HashMap<Finish, usize>,
    reused: usize,
    preemptions: usize,
    failures: usize,
    drafted: usize,
    accepted: usize,
    /// What makes rows of pictures, if prompts have any.
    looks: Option<Gated>,
    /// Pictures in the prompts that ended well, and those of them that were run.
    pictures: [usize; 2],
    /// Steps that began while another was in flight.
    overlapped: Arc<AtomicUsize>,
    /// Steps that began.
    runs: Arc<AtomicUsize>,
    /// Steps with more rows than steps for several sequences have.
    wide: Arc<AtomicUsize>,
}

/// A model that guesses, by the same definition, with fewer slots and blocks than it is asked for.
/// Some of its guesses are lost or replaced.
struct Unreliable {
    drafter: ModelDrafter,
    random: ChaCha8Rng,
}

impl Unreliable {
    /// A device that fails now and then.
    fn new(seed: u64, context: usize) -> Self {
        let mut options = options(context, RUNNING - 1, 9);
        options.blocks = 6;
        // Every other one chooses tokens itself.
        let series_max = if seed.is_multiple_of(2) { 0 } else { SERIES_MAX };
        let mut fake = Fake::new(options, &WINDOWS).with_series(series_max);
        fake.fails_at = (1..2000).map(|turn| 997 * turn).collect();
        let drafter = ModelDrafter::new(Box::new(fake));
        Self { drafter, random: ChaCha8Rng::seed_from_u64(seed) }
    }
}

impl Drafter for Unreliable {
    fn unread(&self, ask: &Ask<'_>) -> usize {
        self.drafter.unread(ask)
    }

    fn draft(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        let drafted = self.drafter.draft(target, asks, readable, guesses);
        for (guesses, ask) in guesses.iter_mut().zip(asks) {
            assert!(guesses.len() <= ask.most);
            match self.random.next_u64() % 4 {
                0 => guesses.truncate((self.random.next_u64() % 3) as usize),
                1 if !guesses.is_empty() => {
                    let at = self.random.next_u64() as usize % guesses.len();
                    guesses[at] = (self.random.next_u64() % VOCABULARY as u64) as u32;
                }
                _ => {}
            }
        }
        drafted
    }
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

/// Hashes of the beginnings of a sequence whose lengths are multiples of [`REMEMBERED`], the
/// shortest first.
fn beginnings(tokens: &[u32]) -> impl Iterator<Item = u64> {
    let mut hasher = DefaultHasher::new();
    tokens.chunks_exact(REMEMBERED).map(move |chunk| {
        chunk.hash(&mut hasher);
        hasher.finish()
    })
}

impl Simulation {
    /// `depth` steps may be in flight.
    fn new(seed: u64, sizes: Sizes, depth: usize) -> Self {
        let Sizes { context, width, mixed, blocks } = sizes;
        let mut options = options(context, SLOTS, width);
        options.blocks = blocks;
        options.width.outputs = 6;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let fake = Fake::new(options, &WINDOWS).with_states().with_pictures().with_depth(depth);
        // A piece of a prompt may have another one behind it.
        let mut fake = fake.with_mixed_rows(mixed).with_silent_depth(depth + 1);
        let (overlapped, runs) = (Arc::clone(&fake.overlapped), Arc::clone(&fake.runs));
        let wide = Arc::clone(&fake.wide);
        let mut next = 0;
        fake.fails_at = std::iter::repeat_with(|| {
            next += 1 + (random.next_u64() % 2000) as usize;
            next
        })
        .take_while(|&run| run < STEPS)
        .collect();
        Self {
            engine: Engine::with_running(Box::new(fake), RUNNING),
            context,
            random,
            jobs: HashMap::new(),
            texts: vec![Vec::new(); 8],
            seen: HashSet::new(),
            reasons: HashMap::new(),
            reused: 0,
            preemptions: 0,
            failures: 0,
            drafted: 0,
            accepted: 0,
            looks: None,
            pictures: [0; 2],
            overlapped,
            runs,
            wide,
        }
    }

    /// The same, with pictures in prompts, of which a tower keeps the rows of some.
    fn with_pictures(mut self) -> Self {
        self.looks = Some(Gated::new(20 * 4 * 3));
        // No step waits for them.
        self.engine.set_waker(|| {});
        self
    }

    /// Picks a picture, sometimes one that the tower fails on.
    fn picture(&mut self) -> Vec<u32> {
        let number = if self.below(40) == 0 { BAD[self.below(3)] } else { self.below(12) as u32 };
        looks::picture(number)
    }

    /// The same, with guesses. Steps take a millisecond and guesses no time, so that these pay.
    fn with_drafts(mut self) -> Self {
        let runs = Arc::clone(&self.runs);
        let clock = move || Duration::from_millis(runs.load(Ordering::Relaxed) as u64);
        self.engine.set_clock(clock);
        let drafter = Unreliable::new(self.random.next_u64(), self.context);
        self.engine.set_drafts(Drafts { lookup: true, drafter: Some(Box::new(drafter)) });
        self
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
        if self.looks.is_none() {
            prompt.extend(self.tokens(more));
        }
        let end = prompt.len() + more;
        while self.looks.is_some() && prompt.len() < end.min(self.context) {
            let some = self.below(more);
            let tokens = if self.below(2) == 0 { self.picture() } else { self.tokens(some) };
            prompt = looks::whole(prompt);
            prompt.extend(tokens);
        }
        prompt.truncate(self.context);
        let codes = looks::whole(prompt);
        if codes.is_empty() {
            return;
        }
        let prompt = looks::seen(&codes);
        let seed = (self.below(2) == 0).then(|| self.random.next_u64());
        let (max_tokens, stop) = (self.below(40), self.below(VOCABULARY) as u32);
        // Texts are everybody's, what is computed of them is not.
        let scope = match self.below(4) {
            0 => Scope::default().within(b"own"),
            _ => Scope::default(),
        };
        if self.below(8) == 0 && prompt == codes {
            return self.embed(prompt, scope);
        }
        let request = match &self.looks {
            Some(looks) => looks::request(&looks.tower, &codes, max_tokens),
            None => Request::new(codes.clone(), max_tokens),
        };
        let request = Request {
            sampling: sampling(seed),
            stop_ids: vec![stop],
            priority: self.below(3) as i32,
            client: ClientId(self.below(3) as u64),
            scope,
            deadline: (self.below(200) == 0).then(Instant::now),
            prompt_logprobs: (self.below(20) == 0).then_some(1),
            logprobs: (self.below(20) == 0).then_some(2),
            ..request
        };
        // The first token has none.
        let next_logprob = request.prompt_logprobs.map(|_| 1);
        let id = match self.engine.submit(request) {
            Err(EngineError::PictureTooWide { .. }) => return,
            submitted => submitted.expect("the request is sound"),
        };
        let answer = Vec::new();
        let is_cancelled = false;
        let embedding = None;
        let mut job = Job {
            scope,
            prompt,
            codes,
            max_tokens,
            stop,
            seed,
            answer,
            next_logprob,
            is_cancelled,
            embedding,
        };
        job.skip_pictures();
        self.jobs.insert(id, job);
        self.settle();
    }

    /// Lets the tower begin with what is wanted.
    fn settle(&self) {
        if let Some(looks) = &self.looks {
            looks.settle();
        }
    }

    fn embed(&mut self, prompt: Vec<u32>, scope: Scope) {
        let pooling = [Pooling::Mean, Pooling::Last][self.below(2)];
        let request = Request {
            scope,
            priority: self.below(3) as i32,
            client: ClientId(self.below(3) as u64),
            ..Request::embedding(prompt.clone(), pooling)
        };
        let id = self.engine.submit(request).expect("the request is sound");
        let job = Job {
            scope,
            codes: prompt.clone(),
            prompt,
            max_tokens: 0,
            stop: 0,
            seed: None,
            answer: Vec::new(),
            next_logprob: None,
            is_cancelled: false,
            embedding: Some((pooling, None)),
        };
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
        self.settle();
    }

    fn step(&mut self) {
        match self.engine.step() {
            Ok(events) => events.into_iter().for_each(|event| self.note(event)),
            Err(error) => {
                assert!(error.to_string().contains("as asked"), "{error}");
                self.failures += 1;
            }
        }
        self.engine.check_integrity().expect("the books agree");
        self.settle();
    }

    fn note(&mut self, Event { sequence, update }: Event) {
        match update {
            Update::Started { reused, .. } => {
                let job = &self.jobs[&sequence];
                let (scope, prompt) = (job.scope, job.prompt.clone());
                if let Some(last) = beginnings(&prompt[..reused]).last() {
                    assert!(
                        self.seen.contains(&(scope, last)),
                        "{sequence} uses another scope's prefix"
                    );
                }
                self.seen.extend(beginnings(&prompt).map(|hash| (scope, hash)));
            }
            Update::Token { token, .. } => {
                let job = self.jobs.get_mut(&sequence).expect("it has not ended");
                assert!(!job.is_cancelled);
                job.answer.push(token);
            }
            Update::PromptLogprobs(tokens) => {
                let job = self.jobs.get_mut(&sequence).expect("it has not ended");
                assert!(!job.is_cancelled);
                tokens.iter().for_each(|known| job.check_logprob(known));
            }
            Update::Embedding(vector) => {
                let job = self.jobs.get_mut(&sequence).expect("it has not ended");
                let (_, found) = job.embedding.as_mut().expect("it was asked for");
                assert!(found.replace(vector).is_none(), "{sequence} has one vector");
            }
            Update::Finished { finish, stop, statistics, .. } => {
                let mut job = self.jobs.remove(&sequence).expect("it ends once");
                assert_eq!(stop.is_some(), finish == Finish::Stop);
                job.answer.extend(stop);
                self.judge(job, finish, statistics);
            }
            _ => assert!(self.jobs.contains_key(&sequence), "{sequence}: {update:?}"),
        }
    }

    /// The text, and its end, as the definition has them.
    fn judge(&mut self, job: Job, finish: Finish, statistics: Statistics) {
        *self.reasons.entry(finish).or_default() += 1;
        self.reused += statistics.reused_tokens;
        self.preemptions += statistics.preemptions;
        self.drafted += statistics.drafted_tokens;
        self.accepted += statistics.accepted_tokens;
        assert_eq!(statistics.generated_tokens, job.answer.len());
        assert_eq!(job.is_cancelled, finish == Finish::Cancelled);
        let mut sampler = Sampler::new(sampling(job.seed));
        let mut tokens = job.prompt.clone();
        for &token in &job.answer {
            let expected = sampler.sample(&mut next_logits(&tokens), &tokens);
            assert_eq!(token, expected.expect("the logits are finite"));
            tokens.push(token);
        }
        if let Some((pooling, found)) = &job.embedding {
            let expected = (finish == Finish::Length).then(|| vector_of(&job.prompt, *pooling));
            assert_eq!(found, &expected);
        }
        let is_stop = job.answer.last() == Some(&job.stop);
        if matches!(finish, Finish::Stop | Finish::Length | Finish::Context) {
            let is_whole = |next: usize| next == job.prompt.len();
            assert!(job.next_logprob.is_none_or(is_whole), "{:?}", job.next_logprob);
        }
        match finish {
            Finish::Stop => assert!(is_stop),
            Finish::Length => assert!(!is_stop && job.answer.len() == job.max_tokens),
            Finish::Context => assert!(!is_stop && tokens.len() == self.context + 1),
            _ => {}
        }
        let is_bad = looks::numbers(&job.codes).any(|number| BAD.contains(&number));
        if is_bad || finish == Finish::PictureFailed {
            assert!(is_bad && job.answer.is_empty());
        } else {
            self.pictures[0] += looks::numbers(&job.codes).count();
            self.pictures[1] += statistics.pictures;
        }
        tokens.truncate(self.context);
        self.seen.extend(beginnings(&tokens).map(|hash| (job.scope, hash)));
        let index = self.below(self.texts.len());
        self.texts[index] = [&job.codes[..], &job.answer].concat();
        self.texts[index].truncate(self.context);
    }
}

impl Simulation {
    /// What may happen between two steps.
    fn act(&mut self) {
        match self.below(160) {
            0..12 if self.jobs.len() < 12 => self.submit(),
            12..14 => self.cancel(),
            14 if self.below(50) == 0 => self.engine.forget(),
            15..35 => self.looks.iter().for_each(Gated::paint),
            _ => {}
        }
    }

    /// Lets everything come to its end.
    fn finish(&mut self) {
        while !self.engine.is_idle() {
            self.looks.iter().for_each(Gated::paint);
            self.step();
        }
        assert!(self.jobs.is_empty(), "every request has ended");
        self.engine.forget();
        self.engine.check_integrity().expect("the books agree");
        let status = self.engine.status();
        let blocks = (status.running, status.waiting, status.blocks_running, status.blocks_kept);
        assert_eq!(blocks, (0, 0, 0, 0), "no block is lost");
    }
}

#[test]
fn random_traffic_keeps_the_books_and_the_texts() {
    let mut simulation = Simulation::new(42, SMALL, 1).with_drafts();
    for _ in 0..STEPS {
        simulation.act();
        simulation.step();
    }
    simulation.finish();
    let Simulation { reasons, reused, preemptions, failures, drafted, accepted, .. } = simulation;
    assert!(
        accepted > 15_000 && drafted - accepted > 10_000,
        "{accepted} of {drafted} guesses accepted"
    );
    assert!(reasons.len() == 6 && reasons.values().all(|&count| count > 20), "{reasons:?}");
    assert!(
        reused > 100_000 && preemptions > 200 && failures > 100,
        "{reused} positions reused, {preemptions} preemptions, {failures} failures"
    );
}

/// Of pictures some are made at once and some late, some twice in a prompt, some touch, some fail,
/// and some are wider than steps for several sequences.
#[test]
fn random_traffic_with_pictures_keeps_the_books_and_the_texts() {
    for (depth, sizes) in [(1, SMALL), (2, Sizes { mixed: 8, ..SMALL }), (2, ROOMY)] {
        let mut simulation = Simulation::new(44, sizes, depth).with_drafts().with_pictures();
        for _ in 0..STEPS_WITH_PICTURES {
            simulation.act();
            simulation.step();
        }
        simulation.finish();
        let Simulation { reasons, reused, failures, accepted, pictures, looks, wide, .. } =
            simulation;
        let wide = wide.load(Ordering::Relaxed);
        assert!(sizes.mixed == sizes.width || wide > 20, "{wide} steps for wide units");
        assert!(reasons.len() == 7 && reasons.values().all(|&count| count > 10), "{reasons:?}");
        assert!(reused > 10_000 && failures > 50, "{reused} positions, {failures} failures");
        // 486 to 936 with five seeds.
        assert!(accepted > 300, "{accepted} guesses accepted");
        let [shown, run] = pictures;
        let counts = looks.expect("there are images").tower.counts();
        println!("{shown} images, {run} of them run; {counts:?}; {accepted} guesses accepted");
        assert!(run > 1000 && shown - run > 1000, "{shown} images, {run} of them run");
        assert!(counts.hits > 100 && counts.pictures < run as u64, "{counts:?}");
    }
}

/// With as many steps in flight as there are parts of a model on several devices.
#[test]
fn random_traffic_keeps_the_texts_with_steps_in_flight() {
    for (depth, sizes) in [(2, ROOMY), (3, ROOMY), (2, SMALL)] {
        let mut simulation = Simulation::new(43, sizes, depth).with_drafts();
        for _ in 0..STEPS_IN_FLIGHT {
            simulation.act();
            simulation.step();
        }
        simulation.finish();
        let Simulation { reasons, reused, failures, accepted, overlapped, .. } = simulation;
        assert!(accepted > 3_000, "{accepted} guesses accepted");
        let overlapped = overlapped.load(Ordering::Relaxed);
        assert!(reasons.len() == 6 && reasons.values().all(|&count| count > 10), "{reasons:?}");
        assert!(reused > 10_000 && failures > 50, "{reused} positions, {failures} failures");
        // Scarce blocks leave little to overlap.
        let least = if sizes.blocks == ROOMY.blocks { STEPS_IN_FLIGHT / 10 } else { 100 };
        assert!(overlapped > least, "{overlapped} steps at depth {depth}");
    }
}

/// The same with a store of prefixes that loses, damages and confuses pages and answers late:
/// nothing of that reaches a text, whose every row the device checks.
#[test]
fn random_traffic_with_a_store_of_prefixes_keeps_the_texts() {
    with_a_store(1, false);
}

/// Pages are read while no step is in flight.
#[test]
fn random_traffic_with_a_store_and_steps_in_flight_keeps_the_texts() {
    let overlapped = with_a_store(2, false);
    assert!(overlapped > STEPS_WITH_STORE / 20, "{overlapped} steps");
}

/// Prefixes end before a picture or after it, and the same places with another picture are another
/// prefix.
#[test]
fn random_traffic_with_a_store_and_pictures_keeps_the_texts() {
    with_a_store(1, true);
}

/// Returns the number of steps that began while another was in flight.
fn with_a_store(depth: usize, has_pictures: bool) -> usize {
    let faults = Faults {
        full: 100,
        lost: 20,
        damaged: 50,
        foreign: 50,
        lies: 5,
        // More than a request waits.
        delay: 80,
        room: 120,
    };
    let shelf = Shelf::default();
    let mut simulation = Simulation::new(43, LARGER, depth).with_drafts();
    if has_pictures {
        simulation = simulation.with_pictures();
    }
    let origin = Origin::new([0; 32], simulation.engine.program().facts()).expect("it gives pages");
    simulation.engine.set_page_store(Box::new(shelf.store(7, faults)), origin);
    let time = Arc::new(AtomicU64::new(0));
    // The store's answers come by turns of the loop, and steps take time, so that guesses pay.
    let (clock, runs) = (Arc::clone(&time), Arc::clone(&simulation.runs));
    simulation.engine.set_clock(move || {
        let runs = runs.load(Ordering::Relaxed) as u64;
        Duration::from_millis(clock.load(Ordering::Relaxed) + runs)
    });
    for _ in 0..STEPS_WITH_STORE {
        simulation.act();
        if simulation.below(20_000) == 0 {
            simulation.engine.spill_kept().expect("the device gives pages");
        }
        time.fetch_add(1, Ordering::Relaxed);
        simulation.step();
    }
    while !simulation.engine.is_idle() {
        time.fetch_add(1, Ordering::Relaxed);
        simulation.looks.iter().for_each(Gated::paint);
        simulation.step();
    }
    simulation.finish();
    let status = simulation.engine.status();
    let counts = status.store.expect("there is a store");
    assert!(status.restored_tokens > 50_000, "{} tokens restored", status.restored_tokens);
    assert!(counts.written > 10_000 && counts.read > 5_000 && counts.dropped > 1_000, "{counts:?}");
    assert!(counts.failures > shelf.counts().failures, "some answers came too late");
    assert!(shelf.counts().failures > 100, "some files were damaged: {counts:?}");
    assert!(simulation.preemptions > 100 && simulation.failures > 50);
    // A model that guesses sees no pictures.
    let least = if has_pictures { 2_000 } else { 3_000 };
    assert!(simulation.accepted > least, "{} guesses accepted", simulation.accepted);
    simulation.overlapped.load(Ordering::Relaxed)
}
