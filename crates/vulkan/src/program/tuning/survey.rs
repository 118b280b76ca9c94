//! What has to be measured: the launches of a Plan's passes by key, with the shapes to try.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::table::Table;
use crate::capabilities::Capabilities;
use crate::compiler::Compiler;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::kernels::product::ProductLaunch;
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::KernelKey;

/// Most shapes that are tried for a key: each may have to be compiled, which takes about a tenth of
/// a second.
const TRIALS_MAX: usize = 8;
/// Most keys that are prepared at a time: those that matter most are measured before others are
/// compiled.
const JOBS_MAX: usize = 6;
/// Most launches of a key, each with other weights: measurements go through them in turn.
const LAUNCHES_MAX: usize = 64;

/// A shape to try.
pub(super) struct Trial {
    pub(super) parameters: Vec<u32>,
    /// The launches of the key in this shape.
    pub(super) dispatches: Vec<Dispatch>,
}

/// A key to measure.
pub(super) struct Job {
    pub(super) key: String,
    /// Digest of the shapes offered.
    pub(super) offer: String,
    /// Predicted seconds of a launch, cautiously.
    pub(super) seconds: f64,
    /// The shape of the static tables first.
    pub(super) trials: Vec<Trial>,
    /// The indices, among the shapes offered, of those that are tried.
    numbers: Vec<usize>,
}

impl Job {
    /// Returns whether its launches hand on values where they are chained.
    pub(super) fn is_chained(&self) -> bool {
        let mut launches = self.trials.iter().flat_map(|trial| &trial.dispatches);
        launches.any(|dispatch| dispatch.hands.is_some())
    }
}

/// Parameters of the chosen shapes by key; `None` stands for the shape of the static tables.
pub(super) type ChosenShapes = HashMap<String, Option<Vec<u32>>>;

/// Sees all products that the passes of a Plan launch. It chooses those that were measured before,
/// and counts the others or, with [`Survey::collect`], prepares them to be measured.
pub(crate) struct Survey {
    compiler: Arc<dyn Compiler>,
    /// What has been decided; keys that the table knows are added.
    pub(super) chosen: ChosenShapes,
    table: Table,
    /// Keys that have to be measured.
    pub(super) missing: HashSet<String>,
    aim: Aim,
    /// In the order in which they were seen.
    pub(super) jobs: Vec<Job>,
    places: HashMap<String, usize>,
    /// The first missing key that was seen.
    pub(super) found: Option<Found>,
    /// Whether a missing key was seen since it was last asked.
    has_seen: bool,
    /// What the shapes of all products are compiled from, if they are to be listed.
    listed: Vec<KernelKey>,
}

/// What a survey does with missing keys.
#[derive(Clone, Copy)]
enum Aim {
    /// Notes them.
    Count,
    /// Prepares some to be measured: the first in any case, the others until this moment.
    Collect(Instant),
    /// Finds the first.
    Find,
    /// Notes that it sees one.
    Watch,
    /// Lists what the shapes of all products are compiled from.
    List,
}

/// A key to measure, and what its shapes are compiled from.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) key: String,
    pub(super) kernels: Vec<KernelKey>,
}

impl Survey {
    pub(super) fn new(compiler: Arc<dyn Compiler>, chosen: ChosenShapes, table: Table) -> Self {
        let (missing, jobs, places) = Default::default();
        let aim = Aim::Count;
        Self {
            compiler,
            chosen,
            table,
            missing,
            aim,
            jobs,
            places,
            found: None,
            has_seen: false,
            listed: Vec::new(),
        }
    }

    /// Creates a survey that lists what the shapes to try are compiled from, whatever was measured.
    pub(crate) fn listing(compiler: Arc<dyn Compiler>) -> Self {
        Self { aim: Aim::List, ..Self::new(compiler, ChosenShapes::new(), Table::new()) }
    }

    /// Returns what was listed since the last call.
    pub(crate) fn take_listed(&mut self) -> Vec<KernelKey> {
        std::mem::take(&mut self.listed)
    }

    /// Creates a survey that finds the first of some keys which it sees.
    pub(super) fn finding(gpu: &Arc<Gpu>, missing: HashSet<String>) -> Self {
        Self {
            missing,
            aim: Aim::Find,
            ..Self::new(gpu.clone(), ChosenShapes::new(), Table::new())
        }
    }

    /// Creates a survey that notes whether it sees a key.
    pub(in crate::program) fn watching(gpu: &Arc<Gpu>, key: &str) -> Self {
        Self { aim: Aim::Watch, ..Self::finding(gpu, HashSet::from([key.to_owned()])) }
    }

    /// Returns whether it has seen the key since the last call.
    pub(in crate::program) fn take_seen(&mut self) -> bool {
        std::mem::take(&mut self.has_seen)
    }

    /// Creates a survey that prepares a key to be measured.
    pub(super) fn of_one(gpu: &Arc<Gpu>, key: &str) -> Self {
        let missing = HashSet::from([key.to_owned()]);
        let aim = Aim::Collect(Instant::now());
        Self { missing, aim, ..Self::new(gpu.clone(), ChosenShapes::new(), Table::new()) }
    }

    /// From here on, prepares some missing keys to be measured: the first in any case, the others
    /// until the deadline.
    pub(super) fn collect(&mut self, deadline: Instant) {
        self.aim = Aim::Collect(deadline);
        self.jobs.clear();
        self.places.clear();
    }

    /// Looks at a launch.
    ///
    /// # Errors
    /// If the device fails while a kernel is compiled.
    pub(crate) fn see<L: ProductLaunch>(&mut self, launch: &L) -> Result<(), GpuError> {
        let key = launch.key();
        if self.chosen.contains_key(&key) {
            return Ok(());
        }
        match (self.aim, self.missing.contains(&key)) {
            (Aim::Count, true) | (Aim::Collect(_) | Aim::Find | Aim::Watch, false) => Ok(()),
            (Aim::Count, false) => {
                self.decide(key, launch);
                Ok(())
            }
            (Aim::Collect(deadline), true) => self.ready(key, launch, deadline),
            (Aim::List, _) => {
                // Launches of one key have the same shapes.
                if self.missing.insert(key) {
                    self.listed.extend(trials(launch, self.compiler.capabilities()));
                }
                Ok(())
            }
            (Aim::Find, true) => {
                self.find(key, launch);
                Ok(())
            }
            (Aim::Watch, true) => {
                self.has_seen = true;
                Ok(())
            }
        }
    }

    /// Notes a missing key, if it is the first.
    fn find<L: ProductLaunch>(&mut self, key: String, launch: &L) {
        if self.found.is_some() {
            return;
        }
        let kernels = trials(launch, self.compiler.capabilities());
        self.found = Some(Found { key, kernels });
    }

    /// Chooses a shape by the table, or notes that it is missing.
    fn decide<L: ProductLaunch>(&mut self, key: String, launch: &L) {
        let offer = offered(launch, self.compiler.capabilities());
        if offer.len() < 2 {
            self.chosen.insert(key, None);
            return;
        }
        let known = self.table.get(&key).filter(|known| known.offer == digest(&offer));
        match known.filter(|known| offer.contains(&known.shape)) {
            Some(known) => {
                self.chosen.insert(key, Some(known.shape.clone()));
            }
            None => {
                self.missing.insert(key);
            }
        }
    }

    /// Adds a launch to its job, which is created if there is time.
    fn ready<L: ProductLaunch>(
        &mut self,
        key: String,
        launch: &L,
        deadline: Instant,
    ) -> Result<(), GpuError> {
        let shapes = launch.offer(self.compiler.capabilities());
        let Some(&place) = self.places.get(&key) else {
            let is_full = self.jobs.len() >= JOBS_MAX || Instant::now() >= deadline;
            if !self.jobs.is_empty() && is_full {
                return Ok(());
            }
            let job = self.job(key, launch, &shapes)?;
            self.places.insert(job.key.clone(), self.jobs.len());
            self.jobs.push(job);
            return Ok(());
        };
        let job = &mut self.jobs[place];
        if job.trials[0].dispatches.len() < LAUNCHES_MAX {
            for (trial, &number) in job.trials.iter_mut().zip(&job.numbers) {
                trial.dispatches.push(launch.dispatch(&self.compiler, shapes[number], "", 0)?);
            }
        }
        Ok(())
    }

    /// Compiles the shapes to try, all at the same time. One that does not compile is left out,
    /// unless it is the device that fails.
    fn job<L: ProductLaunch>(
        &self,
        key: String,
        launch: &L,
        shapes: &[L::Shape],
    ) -> Result<Job, GpuError> {
        let capabilities = self.compiler.capabilities();
        let speed = capabilities.cautious_speed();
        let product = launch.product();
        let (bytes, operations) = product.matrix.cost(product.width);
        let seconds = (bytes as f64 / speed.bytes).max(operations as f64 / speed.operations);
        let offer = digest(&offered(launch, capabilities));
        let numbers = spread(shapes.len(), TRIALS_MAX);
        let compiled: Vec<Result<Dispatch, GpuError>> = numbers
            .par_iter()
            .map(|&number| launch.dispatch(&self.compiler, shapes[number], "", 0))
            .collect();
        let mut job = Job { key, offer, seconds, trials: Vec::new(), numbers: Vec::new() };
        for (number, compiled) in numbers.into_iter().zip(compiled) {
            let parameters = L::parameters(&shapes[number]);
            match compiled {
                Ok(dispatch) => {
                    job.trials.push(Trial { parameters, dispatches: vec![dispatch] });
                    job.numbers.push(number);
                }
                Err(error @ GpuError::Lost { .. }) => return Err(error),
                // Without the shape of the static tables there is nothing to compare with, and
                // nothing to run.
                Err(error) if number == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!(key = job.key, ?parameters, %error, "a shape was not tried");
                }
            }
        }
        Ok(job)
    }
}

/// Returns what the shapes that are tried for a launch are compiled from.
fn trials<L: ProductLaunch>(launch: &L, capabilities: &Capabilities) -> Vec<KernelKey> {
    let shapes = launch.offer(capabilities);
    let tried = spread(shapes.len(), TRIALS_MAX).into_iter();
    // A shape that has no room is left out here as in the job.
    let laid = tried.filter_map(|at| launch.lay_out(capabilities, shapes[at], "").ok());
    laid.map(|layout| layout.kernel).collect()
}

/// Parameters of all shapes of a launch.
fn offered<L: ProductLaunch>(launch: &L, capabilities: &Capabilities) -> Vec<Vec<u32>> {
    launch.offer(capabilities).iter().map(L::parameters).collect()
}

/// Returns a short digest of shapes, in order.
pub(super) fn digest(offer: &[Vec<u32>]) -> String {
    let mut hash = Sha256::new();
    for parameters in offer {
        hash.update((parameters.len() as u32).to_le_bytes());
        parameters.iter().for_each(|number| hash.update(number.to_le_bytes()));
    }
    hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns at most `most` of `count` numbers: the first, and others spread evenly over the rest,
/// because neighbours in a list of shapes are alike.
fn spread(count: usize, most: usize) -> Vec<usize> {
    let taken = count.min(most);
    (0..taken).map(|at| at * count / taken).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_to_try_are_spread_over_the_list() {
        assert!(spread(0, 8).is_empty());
        assert_eq!(spread(3, 8), [0, 1, 2]);
        assert_eq!(spread(8, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(spread(20, 4), [0, 5, 10, 15]);
        assert_eq!(spread(9, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn digests_tell_lists_of_shapes_apart() {
        let lists: [&[Vec<u32>]; 5] = [
            &[],
            &[vec![1, 2], vec![3]],
            &[vec![1], vec![2, 3]],
            &[vec![3], vec![1, 2]],
            &[vec![1, 2, 3]],
        ];
        let digests: HashSet<String> = lists.iter().map(|list| digest(list)).collect();
        assert_eq!(digests.len(), lists.len());
    }
}
