//! Steps of a device that has a partner.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fake::{Fake, options};
use trine_backend::{
    BackendError, Batch, Facts, Guest, InFlight, Memory, Partner, PartnerWork, Program, Results,
    Tally,
};
use trine_engine::{Engine, PartnerCounts, Request, SharedStep, Update};
use trine_model::Weight;
use trine_weights::Tensor;

/// Products of a step.
const PRODUCTS: usize = 50;

/// A partner of which only the tally is used.
#[derive(Debug, Default)]
struct Counting(Tally);

impl Partner for Counting {
    fn name(&self) -> String {
        "counting".to_owned()
    }

    fn kept(&self, weight: &Weight) -> usize {
        weight.rows
    }

    fn bytes(&self, _: &Weight) -> u64 {
        0
    }

    fn load(&self, _: &[Vec<Tensor>]) -> Result<Box<dyn Guest>, BackendError> {
        unreachable!("nothing is lent")
    }

    fn tally(&self) -> &Tally {
        &self.0
    }
}

/// A device whose partner computes in each step with more than one row.
struct Helped {
    fake: Fake,
    partner: Arc<Counting>,
}

impl Program for Helped {
    fn facts(&self) -> &Facts {
        self.fake.facts()
    }

    fn memory(&self) -> Memory {
        self.fake.memory()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        if batch.tokens.len() > 1 {
            let tally = self.partner.tally();
            for _ in 0..PRODUCTS {
                let start = Instant::now();
                std::thread::sleep(Duration::from_micros(50));
                let end = Instant::now();
                let (products, rows) = (1, batch.tokens.len());
                tally.computed(rows);
                tally.worked(PartnerWork { start, end, products, rows, busy: end - start });
            }
            tally.waited_for(Duration::from_millis(3));
        }
        self.fake.submit(batch)
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.fake.wait(step)
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.fake.copy_slot(from, to, positions)
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        self.fake.profile(on)
    }
}

/// Runs a prompt of 40 tokens in steps of 16, and returns what is told of shared steps.
fn shared(is_watched: bool) -> (Vec<Arc<SharedStep>>, Option<PartnerCounts>) {
    let partner = Arc::new(Counting::default());
    let fake = Fake::new(options(64, 1, 16), &[5]);
    let helped = Helped { fake, partner: Arc::clone(&partner) };
    let mut engine = Engine::from_program(Box::new(helped));
    if is_watched {
        engine.set_partner(partner);
    }
    let (begun, mut shared, mut tokens) = (Instant::now(), Vec::new(), 0);
    engine.submit(Request::new((0..40).collect(), 5)).unwrap();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event.update {
                Update::Shared(step) => shared.push(step),
                Update::Token { .. } => tokens += 1,
                _ => {}
            }
        }
    }
    assert_eq!(tokens, 5);
    for step in &shared {
        assert!(begun <= step.start && step.end <= Instant::now());
    }
    (shared, engine.status().partner)
}

#[test]
fn steps_of_prompts_tell_what_the_partner_did_meanwhile() {
    let (steps, counts) = shared(true);
    let rows: Vec<usize> = steps.iter().map(|step| step.prompt_rows).collect();
    assert_eq!(rows, [16, 16, 8]);
    let mut end = steps[0].start;
    for step in &steps {
        assert!(end <= step.start && step.start < step.end);
        end = step.end;
        assert!(step.works.len() <= 16, "{} works", step.works.len());
        let mut last = step.start;
        for work in &step.works {
            assert!(last <= work.start && work.start < work.end && work.end <= step.end);
            assert!(work.busy <= work.end - work.start);
            last = work.end;
        }
        let products: usize = step.works.iter().map(|work| work.products).sum();
        let rows: usize = step.works.iter().map(|work| work.rows).sum();
        assert_eq!((products, rows), (PRODUCTS, PRODUCTS * step.prompt_rows));
        assert_eq!(step.waited, Duration::from_millis(3));
    }
    let counts = counts.unwrap();
    assert_eq!((counts.products, counts.rows), (150, 50 * 40));
    assert!(counts.busy_seconds > 0.0 && (counts.waited_seconds - 0.009).abs() < 1e-9);
    assert!(!counts.is_lost && counts.failures == 0 && counts.instead == 0);
}

#[test]
fn without_a_partner_nothing_is_told() {
    let (steps, counts) = shared(false);
    assert!(steps.is_empty() && counts.is_none());
}
