//! Choosing shapes of kernels by measurement. The static tables of the kernels say what a kind of
//! device probably likes. The shapes that a model's products can have are timed once on this device
//! with the model's own weights, while it has nothing to do or when it is loaded, and the results
//! are kept in a file.
//!
//! [`survey`] finds out what has to be measured, [`measure`] measures it, [`table`] keeps it,
//! [`background`] does all of this in pieces between steps. Shapes sum in different orders: the
//! last bits of results depend on the choice. Within a process a shape never changes, even if time
//! was short and nothing was measured.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::capabilities::{Capabilities, DeviceKind};
use crate::error::GpuError;
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::{PipelineCache, fingerprint};

mod background;
mod measure;
mod settled;
mod shapes;
mod survey;
mod table;

pub(super) use background::Background;
use measure::{Measurement, Progressed, Verdict, Warmth};
pub use settled::Settled;
pub(super) use shapes::{Passes, Shapes};
pub(super) use survey::Survey;
use survey::{ChosenShapes, Job};
use table::{Measured, Refusal, Table, TableFile};

/// How much longer a load may take for measuring, by default.
const BUDGET: Duration = Duration::from_secs(5);
/// The longest budget that is accepted.
const BUDGET_MAX: Duration = Duration::from_secs(3600);

/// Which shapes kernels get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TuningMode {
    /// Those of the static tables.
    #[default]
    Off,
    /// Those that were measured earlier.
    Kept,
    /// Those that were measured; what was not is measured for later processes, while a model that
    /// is loaded has nothing to do.
    Idle,
    /// Those that were measured; what was not is measured when a model is loaded.
    Missing,
    /// All that a model needs is measured when it is loaded, even if it was measured earlier.
    Again,
    /// The shape of this number among those that a kernel offers, or the last of them: for tests.
    Forced(usize),
}

/// Called with the number of kernels that were measured and the number that are to be: from the
/// start on, and with two equal numbers at the end, even if there was too little time for all.
pub type TuningProgress = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// How shapes of kernels are chosen by measurement.
#[derive(Clone)]
pub struct Tuning {
    /// Which shapes kernels get.
    pub mode: TuningMode,
    /// Where measurements are kept; without it, each process measures again.
    pub cache: Option<PipelineCache>,
    /// How much longer a load may take. What was not reached is measured by the next process.
    pub budget: Duration,
    /// Whether software devices are measured too: for tests.
    pub software: bool,
    /// Called while kernels are measured when a model is loaded.
    pub progress: Option<TuningProgress>,
    /// What this process has chosen.
    pub settled: Settled,
}

impl Default for Tuning {
    fn default() -> Self {
        let mode = TuningMode::default();
        let (cache, progress, settled) = Default::default();
        Self { mode, cache, budget: BUDGET, software: false, progress, settled }
    }
}

/// What is known of a device's file of measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningState {
    /// Where it is, or will be.
    pub path: PathBuf,
    /// Kernels that were measured; `None` without a file.
    pub kernels: Option<usize>,
    /// How many of them another shape suits better than that of the static tables.
    pub improved: usize,
    /// What is wrong with the file; it is replaced.
    pub damage: Option<String>,
}

/// Reads a device's file of measurements and returns what is known of it.
pub fn tuning_state(cache: &PipelineCache, capabilities: &Capabilities) -> TuningState {
    let file = TableFile::of(cache, capabilities);
    let path = file.path().to_owned();
    let (kernels, improved, damage) = match file.read() {
        Ok(table) => {
            let is_improved = |measured: &&Measured| measured.us < measured.default_us;
            (Some(table.len()), table.values().filter(is_improved).count(), None)
        }
        Err(Refusal::Absent) => (None, 0, None),
        Err(Refusal::Damaged(what)) => (None, 0, Some(what)),
    };
    TuningState { path, kernels, improved, damage }
}

/// Chooses shapes for a device.
pub(crate) struct Tuner {
    tuning: Tuning,
}

impl Tuner {
    pub(crate) fn new(tuning: Tuning) -> Self {
        Self { tuning }
    }

    /// Returns the shapes for a Plan's passes.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn settle(&self, gpu: &Arc<Gpu>, passes: &dyn Passes) -> Result<Shapes, GpuError> {
        let capabilities = gpu.capabilities();
        let is_software = capabilities.kind == DeviceKind::Processor;
        match self.tuning.mode {
            TuningMode::Off => return Ok(Shapes::Static),
            TuningMode::Forced(number) => return Ok(Shapes::Forced(number)),
            _ if is_software && !self.tuning.software => return Ok(Shapes::Static),
            _ => {}
        }
        let of_device = self.tuning.settled.of(&fingerprint(capabilities));
        let mut settled = of_device.choices();
        let file = self.file(capabilities);
        let table = match self.tuning.mode {
            TuningMode::Again => Table::new(),
            _ => file.as_ref().map(read).unwrap_or_default(),
        };
        let survey = RefCell::new(Survey::new(gpu.clone(), settled.chosen.clone(), table));
        let mut count = 0;
        while passes.show(count, &survey)? {
            count += 1;
        }
        let start = Instant::now();
        let total = survey.borrow().missing.len();
        let is_now = matches!(self.tuning.mode, TuningMode::Missing | TuningMode::Again);
        let measured = if total == 0 || !is_now {
            Table::new()
        } else {
            let deadline = start + self.tuning.budget.min(BUDGET_MAX);
            self.measure(gpu, passes, count, &survey, deadline)?
        };
        let Survey { mut chosen, missing, .. } = survey.into_inner();
        if self.tuning.mode == TuningMode::Idle {
            settled.unmeasured.extend(missing.iter().cloned());
        }
        missing.into_iter().for_each(|key| {
            chosen.entry(key).or_insert(None);
        });
        settled.chosen = chosen.clone();
        keep(file.as_ref(), measured, total, start, capabilities);
        Ok(Shapes::Chosen(Arc::new(chosen)))
    }

    /// Returns where a device's measurements are kept, if they are.
    fn file(&self, capabilities: &Capabilities) -> Option<TableFile> {
        self.tuning.cache.as_ref().map(|cache| TableFile::of(cache, capabilities))
    }

    /// Measures what a survey of `count` passes misses, and chooses what it finds: the first kernel
    /// in any case, the others until the deadline.
    fn measure(
        &self,
        gpu: &Arc<Gpu>,
        passes: &dyn Passes,
        count: usize,
        survey: &RefCell<Survey>,
        deadline: Instant,
    ) -> Result<Table, GpuError> {
        let total = survey.borrow().missing.len();
        let tell = |done: usize| {
            if let Some(progress) = &self.tuning.progress {
                progress(done, total);
            }
        };
        tell(0);
        let mut table = Table::new();
        let mut warmth = Warmth::default();
        let mut done = 0;
        // Whether what is chained is measured in steps: until a chain breaks there.
        let mut in_steps = true;
        let is_late = |done: usize| done > 0 && Instant::now() >= deadline;
        let seconds = gpu.submission_seconds();
        'all: while !is_late(done) {
            let jobs = collect(passes, count, survey, deadline)?;
            if jobs.is_empty() {
                break;
            }
            for (job, pass) in jobs {
                if is_late(done) {
                    break;
                }
                let others = survey.borrow().chosen.clone();
                let mut measurement = match ready(job, pass, passes, &others, in_steps) {
                    Ok(measurement) => measurement,
                    // A model that leaves no room runs in the shapes that are known.
                    Err(error @ GpuError::OutOfMemory { .. }) => {
                        tracing::debug!(%error, "no more kernels are measured");
                        break 'all;
                    }
                    Err(error) => return Err(error),
                };
                let rises = done == 0 && gpu.capabilities().kind != DeviceKind::Processor;
                let mut holds = true;
                while holds && rises && !warmth.is_warm() && Instant::now() < deadline {
                    holds = warmth.rise(gpu, &mut measurement, seconds)?;
                }
                let verdict = loop {
                    match measurement.advance(gpu, seconds)? {
                        Progressed::All(verdict) => break verdict,
                        Progressed::Nothing if is_late(done) => break 'all,
                        Progressed::Nothing => {}
                    }
                };
                in_steps &= !measurement.has_broken;
                let found = verdict.map(|verdict| entry(&measurement.job, verdict));
                let shape = found.as_ref().map(|(_, measured)| measured.shape.clone());
                survey.borrow_mut().chosen.insert(measurement.job.key, shape);
                table.extend(found);
                done += 1;
                tell(done);
            }
        }
        tell(total);
        Ok(table)
    }
}

/// Prepares the next kernels that a survey of `count` passes misses, with the numbers of their
/// passes: the first in any case, the others until the deadline.
fn collect(
    passes: &dyn Passes,
    count: usize,
    survey: &RefCell<Survey>,
    deadline: Instant,
) -> Result<Vec<(Job, usize)>, GpuError> {
    survey.borrow_mut().collect(deadline);
    let mut places = Vec::new();
    for pass in 0..count {
        passes.show(pass, survey)?;
        places.resize(survey.borrow().jobs.len(), pass);
    }
    Ok(std::mem::take(&mut survey.borrow_mut().jobs).into_iter().zip(places).collect())
}

/// Prepares a job to be measured, see [`Measurement::new`] and [`Measurement::prepare`].
fn ready(
    job: Job,
    pass: usize,
    passes: &dyn Passes,
    others: &ChosenShapes,
    in_steps: bool,
) -> Result<Measurement, GpuError> {
    let mut measurement = Measurement::new(job, pass, passes, in_steps)?;
    while measurement.prepare(passes, others)? {}
    Ok(measurement)
}

/// Returns the table's entry for a job.
fn entry(job: &Job, verdict: Verdict) -> (String, Measured) {
    let shape = job.trials[verdict.best].parameters.clone();
    let [us, default_us] =
        [verdict.seconds, verdict.default_seconds].map(|s| (s * 1e9).round() / 1e3);
    tracing::debug!(key = job.key, us, default_us, ?shape, "a kernel was measured");
    (job.key.clone(), Measured { offer: job.offer.clone(), shape, us, default_us })
}

/// The file's table; one that is not a table counts as empty.
fn read(file: &TableFile) -> Table {
    match file.read() {
        Ok(table) => table,
        Err(Refusal::Absent) => Table::new(),
        Err(Refusal::Damaged(what)) => {
            let path = file.path().display();
            tracing::warn!(%path, what, "the file of measured kernels is not used and is replaced");
            Table::new()
        }
    }
}

/// Writes what was measured to the file and logs it.
fn keep(
    file: Option<&TableFile>,
    measured: Table,
    total: usize,
    start: Instant,
    capabilities: &Capabilities,
) {
    if measured.is_empty() {
        return;
    }
    let improved = measured.values().filter(|one| one.us < one.default_us).count();
    tracing::info!(
        device = capabilities.name,
        kernels = measured.len(),
        of = total,
        improved,
        seconds = start.elapsed().as_secs_f64(),
        "kernels were tuned"
    );
    let Some(file) = file else { return };
    if let Err(error) = file.add(measured) {
        let path = file.path().display();
        tracing::warn!(%path, %error,
            "what was measured of kernels could not be kept; the next start measures again");
    }
}

#[cfg(test)]
mod tests;
