//! What streams feel of other people's prompts: the whole engine on a device that computes nothing
//! and takes, by a clock of its own, as long as a real one would.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fake::{Fake, options};
use crate::timed::{Cost, Timed, costs};
use trine_engine::{Drafter, Drafts, Engine, Event, ModelDrafter, Request, SequenceId, Update};

const CONTEXT: usize = 2048;
const WIDTH: usize = 256;
/// Tokens of a long prompt: many steps' worth.
const PROMPT: usize = 1500;
/// Tokens that streams have generated before a prompt comes.
const SETTLED: usize = 60;

/// An engine in simulated time.
struct Simulation {
    engine: Engine,
    clock: Arc<AtomicU64>,
    /// By stream: when its last token came, and how many have come.
    streams: HashMap<SequenceId, (u64, usize)>,
    /// The longest time between two tokens of one stream, in nanoseconds.
    longest: u64,
    made: u32,
}

impl Simulation {
    fn new(cost: Cost, sequences: usize) -> Self {
        let mut sizes = options(CONTEXT, sequences, WIDTH);
        sizes.width.outputs = sequences;
        let fake = Fake::new(sizes, &[]);
        let (engine, clock) = Timed::engine(fake, cost);
        Self { engine, clock, streams: HashMap::new(), longest: 0, made: 0 }
    }

    /// The same with a drafter that is always right and takes a tenth of the time of the model, and
    /// the rows that the drafter has run.
    fn drafted(cost: Cost, sequences: usize) -> (Self, Arc<AtomicU64>) {
        let mut simulation = Self::new(cost, sequences);
        let fake = Fake::new(options(CONTEXT, sequences, WIDTH), &[]);
        let cost = Cost { weights: cost.weights / 10, row: cost.row / 10, ..cost };
        let program = Timed::new(fake, cost, &simulation.clock);
        let rows = Arc::clone(&program.rows);
        let drafter: Option<Box<dyn Drafter>> =
            Some(Box::new(ModelDrafter::new(Box::new(program))));
        simulation.engine.set_drafts(Drafts { lookup: false, drafter });
        (simulation, rows)
    }

    /// Submits a prompt that begins like no other.
    fn submit(&mut self, length: usize, tokens: usize) -> SequenceId {
        self.made += 1;
        let own = self.made;
        let prompt = (0..length as u32).map(|at| (own + at * (own + 1)) % 48).collect();
        self.engine.submit(Request::new(prompt, tokens)).expect("the request is sound")
    }

    /// Begins streams that go on to the end, and lets them settle.
    fn stream(&mut self, count: usize) {
        for _ in 0..count {
            let id = self.submit(10, CONTEXT - 10);
            self.streams.insert(id, (0, 0));
        }
        while self.streams.values().any(|&(_, tokens)| tokens < SETTLED) {
            self.step();
        }
        self.longest = 0;
    }

    /// The longest gap of a stream until all these prompts have been read.
    fn read(&mut self, prompts: usize) -> u64 {
        self.longest = 0;
        let mut left: Vec<_> = (0..prompts).map(|_| self.submit(PROMPT, 1)).collect();
        while !left.is_empty() {
            let ended = self.step();
            left.retain(|id| !ended.contains(id));
        }
        self.longest
    }

    /// The longest gap within this number of steps.
    fn alone(&mut self, steps: usize) -> u64 {
        self.longest = 0;
        (0..steps).for_each(|_| drop(self.step()));
        self.longest
    }

    /// One step; gives what has ended.
    fn step(&mut self) -> Vec<SequenceId> {
        let events = self.engine.step().expect("the device does not fail");
        let now = self.clock.load(Ordering::Relaxed);
        let mut ended = Vec::new();
        for Event { sequence, update } in events {
            match update {
                Update::Token { .. } => {
                    let Some((last, tokens)) = self.streams.get_mut(&sequence) else { continue };
                    if *tokens > 0 {
                        self.longest = self.longest.max(now - *last);
                    }
                    (*last, *tokens) = (now, *tokens + 1);
                }
                Update::Finished { .. } => {
                    assert!(!self.streams.contains_key(&sequence), "streams go on");
                    ended.push(sequence);
                }
                _ => {}
            }
        }
        ended
    }
}

#[test]
fn a_long_prompt_less_than_doubles_the_gaps_of_streams() {
    for cost in costs() {
        for streams in [1, 4, 12] {
            let mut simulation = Simulation::new(cost, 16);
            simulation.stream(streams);
            let alone = simulation.alone(50);
            // The first prompt that the engine reads beside streams, and a later one.
            for turn in 0..2 {
                let beside = simulation.read(1);
                assert!(
                    beside < 2 * alone,
                    "{cost:?}, {streams} streams, prompt {turn}: {beside} ns, alone {alone} ns"
                );
                simulation.alone(10);
            }
        }
    }
}

#[test]
fn several_prompts_add_by_the_cube_of_their_number() {
    for cost in costs() {
        for prompts in [2, 3] {
            let mut simulation = Simulation::new(cost, 16);
            simulation.stream(4);
            let alone = simulation.alone(50);
            let beside = simulation.read(prompts);
            let bound = (1 + (prompts as u64).pow(3)) * alone;
            assert!(beside < bound, "{cost:?}, {prompts} prompts: {beside} ns, alone {alone} ns");
        }
    }
}

/// How many rows of a prompt go with few streams is not what went with many.
#[test]
fn a_long_prompt_less_than_doubles_the_gaps_of_those_who_stay() {
    for cost in costs() {
        let mut simulation = Simulation::new(cost, 16);
        simulation.stream(12);
        simulation.read(1);
        let mut ids: Vec<SequenceId> = simulation.streams.keys().copied().collect();
        ids.sort_unstable();
        for id in &ids[1..] {
            simulation.streams.remove(id);
            assert!(simulation.engine.cancel(*id).is_some());
        }
        simulation.alone(30);
        let alone = simulation.alone(50);
        let beside = simulation.read(1);
        assert!(beside < 2 * alone, "{cost:?}: {beside} ns, alone {alone} ns");
    }
}

/// A drafter has to read a prompt too, where its guesses may win back the time.
#[test]
fn a_drafters_reading_less_than_doubles_the_gaps_of_streams() {
    for cost in costs() {
        let (mut simulation, rows) = Simulation::drafted(cost, 16);
        simulation.stream(4);
        let alone = simulation.alone(20);
        let mut run = |tokens| {
            let begin = rows.load(Ordering::Relaxed);
            let id = simulation.submit(PROMPT / 2, tokens);
            simulation.longest = 0;
            while !simulation.step().contains(&id) {}
            (simulation.longest, rows.load(Ordering::Relaxed) - begin)
        };
        let (beside, read) = run(40);
        assert!(beside < 2 * alone, "{cost:?}: {beside} ns, alone {alone} ns");
        assert!(read > PROMPT as u64 / 3, "{cost:?}: {read} rows");
        let (_, read) = run(4);
        assert!(read < PROMPT as u64 / 4, "{cost:?}: {read} rows for four tokens");
    }
}
