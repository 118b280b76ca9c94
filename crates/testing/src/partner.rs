//! A partner of devices in plain code, which fails on demand.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use trine_backend::{BackendError, Give, Guest, Job, Partner, Tally};
use trine_model::{Model, Weight};
use trine_weights::Tensor;

use super::random::relative_difference;

/// When a partner fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    Never,
    /// Nothing can be loaded.
    ToLoad,
    /// The product of this number cannot be begun.
    ToBegin(usize),
    /// The product of this number is not computed.
    ToFinish(usize),
}

/// A partner that computes in f64, adds `offset` to each result, and keeps everything in order.
#[derive(Debug)]
pub struct Plain {
    /// Eighths of the rows of each matrix that stay.
    pub eighths: usize,
    pub offset: f32,
    pub failure: Failure,
    pub tally: Arc<Tally>,
    /// Rows and in-features of the products that were begun.
    pub begun: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl Plain {
    pub fn new(eighths: usize, offset: f32, failure: Failure) -> Self {
        Self { eighths, offset, failure, tally: Arc::default(), begun: Arc::default() }
    }
}

impl Partner for Plain {
    fn name(&self) -> String {
        "a partner".to_owned()
    }

    fn kept(&self, weight: &Weight) -> usize {
        weight.rows * self.eighths / 8
    }

    fn bytes(&self, weight: &Weight) -> u64 {
        (weight.rows * weight.columns * 4) as u64
    }

    fn load(&self, jobs: &[Vec<Tensor>]) -> Result<Box<dyn Guest>, BackendError> {
        if self.failure == Failure::ToLoad {
            return Err(failed());
        }
        let matrix = |tensor: &Tensor| (tensor.columns(), tensor.to_f32().unwrap());
        Ok(Box::new(PlainGuest {
            jobs: jobs.iter().map(|job| job.iter().map(matrix).collect()).collect(),
            waiting: Vec::new(),
            number: AtomicUsize::new(0),
            offset: self.offset,
            failure: self.failure,
            tally: Arc::clone(&self.tally),
            begun: Arc::clone(&self.begun),
        }))
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}

struct PlainGuest {
    /// In-features and weights of the matrices of each job.
    jobs: Vec<Vec<(usize, Vec<f32>)>>,
    waiting: Vec<Vec<f32>>,
    number: AtomicUsize,
    offset: f32,
    failure: Failure,
    tally: Arc<Tally>,
    begun: Arc<Mutex<Vec<(usize, usize)>>>,
}

fn failed() -> BackendError {
    BackendError::Failed { device: "a partner".to_owned(), what: "as the test wants".to_owned() }
}

impl Guest for PlainGuest {
    fn begin(&mut self, job: &Job<'_>) -> Result<(), BackendError> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        if self.failure == Failure::ToBegin(number) {
            return Err(failed());
        }
        let (input, matrices) = (job.inputs[0], &self.jobs[job.number]);
        let product = |(columns, weights): &(usize, Vec<f32>)| {
            let dot = |input: &[f32], weights: &[f32]| -> f32 {
                let terms = input.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
                terms.sum::<f64>() as f32 + self.offset
            };
            let rows = input.chunks_exact(*columns);
            rows.flat_map(|row| weights.chunks_exact(*columns).map(move |w| dot(row, w))).collect()
        };
        self.waiting = matrices.iter().map(product).collect();
        let columns = matrices[0].0;
        self.begun.lock().unwrap().push((input.len() / columns, columns));
        Ok(())
    }

    fn finish(&mut self, _: &Job<'_>, give: &mut Give<'_>) -> Result<(), BackendError> {
        let is_failing = self.failure == Failure::ToFinish(self.number.load(Ordering::Relaxed) - 1);
        for (index, computed) in self.waiting.iter_mut().enumerate() {
            if is_failing {
                // What it has given by then is not to be used.
                computed.fill(f32::NAN);
            } else {
                self.tally.computed(1);
            }
            give(index, computed);
        }
        if is_failing { Err(failed()) } else { Ok(()) }
    }
}

/// Returns a prompt of `rows` tokens that the model has.
pub fn prompt(model: &Model, rows: usize) -> Vec<u32> {
    (0..rows).map(|at| (at * at + 3 * at) as u32 % model.config().vocabulary as u32).collect()
}

/// Returns the largest difference, relative to the largest number.
pub fn difference(expected: &[f32], found: &[f32]) -> f32 {
    relative_difference(&[expected.to_vec()], &[found.to_vec()])
}
