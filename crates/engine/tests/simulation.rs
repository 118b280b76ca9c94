//! Scheduler and KV books under random traffic, with a judge that simulates the caches.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use trine_backend::BLOCK;
use trine_engine::kv::{KvCache, KvShape, Ring};
use trine_engine::scheduler::{Pick, Scheduler};
use trine_model::Width;

const STEPS: usize = 120_000;
const CONTEXT: usize = 160;
const WIDTH: Width = Width { tokens: 12, outputs: 3 };
const SLOTS: usize = 4;
/// Fewer than every sequence could fill.
const BLOCKS: usize = 13;

/// A running sequence.
#[derive(Debug, Clone, Copy)]
struct Job {
    prompt: usize,
    generate: usize,
    generated: usize,
}

/// What the caches of a device would hold: which writing of which position.
struct Judge {
    rings: Vec<Ring>,
    /// Per ring: (slots, length).
    cells: Vec<Vec<(usize, u64)>>,
    /// (blocks, BLOCK): slot and writing.
    blocks: Vec<(usize, u64)>,
    /// Per slot and position: the writing that counts.
    written: Vec<Vec<u64>>,
    writings: u64,
}

impl Judge {
    fn new(rings: &[Ring]) -> Self {
        Self {
            cells: rings.iter().map(|ring| vec![(usize::MAX, 0); ring.length * SLOTS]).collect(),
            rings: rings.to_vec(),
            blocks: vec![(usize::MAX, 0); BLOCKS * BLOCK],
            written: vec![Vec::new(); SLOTS],
            writings: 0,
        }
    }

    /// All rows are written before any is read, as devices do.
    fn run(&mut self, kv: &KvCache, picks: &[Pick]) {
        for pick in picks {
            let first = kv.length(pick.slot);
            assert_eq!(first, self.written[pick.slot].len());
            for position in first..first + pick.rows {
                self.writings += 1;
                self.written[pick.slot].push(self.writings);
                let block = kv.blocks(pick.slot)[position / BLOCK] as usize;
                self.blocks[block * BLOCK + position % BLOCK] = (pick.slot, self.writings);
                for (ring, cells) in self.rings.iter().zip(&mut self.cells) {
                    cells[pick.slot * ring.length + position % ring.length] =
                        (position, self.writings);
                }
            }
        }
        for pick in picks {
            let first = kv.length(pick.slot);
            for position in [first, first + pick.rows - 1] {
                self.read(kv, pick.slot, position);
            }
        }
    }

    fn read(&self, kv: &KvCache, slot: usize, position: usize) {
        let written = &self.written[slot];
        for (at, &writing) in written[..=position].iter().enumerate() {
            let block = kv.blocks(slot)[at / BLOCK] as usize;
            assert_eq!(self.blocks[block * BLOCK + at % BLOCK], (slot, writing), "block at {at}");
        }
        for (ring, cells) in self.rings.iter().zip(&self.cells) {
            for at in (position + 1).saturating_sub(ring.window)..=position {
                let cell = cells[slot * ring.length + at % ring.length];
                assert_eq!(cell, (at, written[at]), "ring of window {} at {at}", ring.window);
            }
        }
    }
}

struct Simulation {
    kv: KvCache,
    scheduler: Scheduler,
    judge: Judge,
    jobs: [Option<Job>; SLOTS],
    random: ChaCha8Rng,
    picks: Vec<Pick>,
    reused: usize,
    finished: usize,
    cancelled: usize,
    out_of_blocks: usize,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let ring = |window: usize| Ring {
            window,
            length: (window - 1 + WIDTH.tokens).min(CONTEXT).next_multiple_of(BLOCK),
        };
        let rings = vec![ring(1), ring(5), ring(30), ring(90)];
        let judge = Judge::new(&rings);
        let shape = KvShape { slots: SLOTS, blocks: BLOCKS, context: CONTEXT, rings };
        Self {
            kv: KvCache::new(shape),
            scheduler: Scheduler::new(SLOTS, WIDTH),
            judge,
            jobs: [None; SLOTS],
            random: ChaCha8Rng::seed_from_u64(seed),
            picks: Vec::new(),
            reused: 0,
            finished: 0,
            cancelled: 0,
            out_of_blocks: 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        (self.random.next_u64() % end as u64) as usize
    }

    fn submit(&mut self) {
        let prompt = 1 + self.below(CONTEXT);
        // Mostly a continuation or a small change of something ended.
        let common: [usize; SLOTS] = std::array::from_fn(|slot| {
            let length = self.kv.length(slot);
            let back = if self.below(2) == 0 { self.below(8) } else { self.below(length + 1) };
            length.saturating_sub(back)
        });
        let Some(lease) = self.kv.lease(prompt, |slot| common[slot]) else {
            assert!(self.jobs.iter().all(Option::is_some), "a slot was free");
            return;
        };
        assert!(self.jobs[lease.slot].is_none() && lease.reused < prompt);
        self.reused += lease.reused;
        self.judge.written[lease.slot].truncate(lease.reused);
        let generate = self.below(40);
        self.jobs[lease.slot] = Some(Job { prompt, generate, generated: 0 });
        self.scheduler.admit(lease.slot, prompt - lease.reused, generate > 0);
    }

    fn end(&mut self, slot: usize) {
        self.scheduler.remove(slot);
        let keep = self.below(10) > 0;
        self.kv.release(slot, keep);
        self.jobs[slot] = None;
        self.judge.written[slot].truncate(self.kv.length(slot));
    }

    fn step(&mut self) {
        self.scheduler.next_step(&mut self.picks);
        let rows: usize = self.picks.iter().map(|pick| pick.rows).sum();
        let outputs = self.picks.iter().filter(|pick| pick.output).count();
        assert!(rows <= WIDTH.tokens && outputs <= WIDTH.outputs);
        assert_eq!(
            rows == 0,
            self.jobs.iter().all(Option::is_none),
            "work waits and no row is picked"
        );
        let mut picks = std::mem::take(&mut self.picks);
        picks.retain(|pick| {
            let fits = self.kv.reserve(pick.slot, self.kv.length(pick.slot) + pick.rows).is_ok();
            if !fits {
                self.out_of_blocks += 1;
                self.end(pick.slot);
            }
            fits
        });
        // Blocks that ended sequences gave up may be written at once.
        for slot in (0..SLOTS).filter(|&slot| self.jobs[slot].is_none()) {
            self.judge.written[slot].truncate(self.kv.length(slot));
        }
        self.judge.run(&self.kv, &picks);
        for &Pick { slot, rows, output, prefill } in &picks {
            self.kv.advance(slot, rows);
            let length = self.kv.length(slot);
            let mut job = self.jobs[slot].expect("only running jobs are picked");
            assert_eq!(prefill, length <= job.prompt);
            assert_eq!(output, job.generate > 0 && length >= job.prompt);
            if output {
                job.generated += 1;
                self.jobs[slot] = Some(job);
            }
            if length < job.prompt {
                continue;
            }
            if job.generated >= job.generate || length == CONTEXT {
                self.finished += 1;
                self.end(slot);
            } else {
                self.scheduler.resume(slot);
            }
        }
        self.picks = picks;
    }

    fn check(&self) {
        self.kv.check_integrity().expect("the books agree");
        self.scheduler.check_integrity().expect("the books agree");
        for (slot, job) in self.jobs.iter().enumerate() {
            assert_eq!(job.is_some(), self.kv.is_running(slot));
            assert_eq!(job.is_some(), self.scheduler.holds(slot));
        }
    }
}

#[test]
fn random_traffic_keeps_the_books() {
    let mut simulation = Simulation::new(42);
    for _ in 0..STEPS {
        match simulation.below(16) {
            0..4 => simulation.submit(),
            4 => {
                let slot = simulation.below(SLOTS);
                if simulation.jobs[slot].is_some() {
                    simulation.cancelled += 1;
                    simulation.end(slot);
                }
            }
            5 if simulation.below(50) == 0 => simulation.kv.forget(),
            _ => {}
        }
        for slot in (0..SLOTS).filter(|&slot| simulation.jobs[slot].is_none()) {
            simulation.judge.written[slot].truncate(simulation.kv.length(slot));
        }
        simulation.step();
        simulation.check();
    }
    let Simulation { reused, finished, cancelled, out_of_blocks, .. } = simulation;
    let counts = [reused, finished, cancelled, out_of_blocks];
    assert!(
        counts.iter().all(|&count| count > 500),
        "the traffic was to have everything: {counts:?}"
    );
    for slot in 0..SLOTS {
        if simulation.jobs[slot].is_some() {
            simulation.end(slot);
        }
    }
    simulation.kv.forget();
    simulation.check();
    assert_eq!(simulation.kv.free_blocks(), BLOCKS, "no block is lost");
}
