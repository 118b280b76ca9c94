//! How long launches take by the device's clock. The shapes of a key are measured in turn, in as
//! many pieces as the caller wants: by launches between barriers, each with other weights, or by
//! beginnings of steps where launches are chained. In a chain a launch loads before the one before
//! it has ended and looks for what that one gives, so other shapes suit it than between barriers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::shapes::{Passes, Shapes};
use super::survey::{ChosenShapes, Job, Trial};
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::program::rehearsal::Rehearsals;
use crate::raw::commands::Recording;
use crate::raw::gpu::Gpu;

/// Named in errors, for users whose driver fails here.
const DURING: &str = "tuning kernels, which --tune off leaves out";
/// How much quicker than the shape of the static tables a shape has to be, in both halves of the
/// measurements: medians of a shape measured against itself differ by up to 2 % on an H200.
const MARGIN: f64 = 0.03;
/// Most launches of a submission.
const LAUNCHES_MAX: usize = 128;
/// From this number of launches in a submission on, one more launch in front takes the time that
/// the device needs to begin. With fewer, each is so long that it does not matter.
const LAUNCHES_WITH_LEAD: usize = 8;
/// Shapes that are measured again, and more often, after a first look at all.
const FINALISTS: usize = 4;
/// Seconds, and least and most rounds, of the first look and of the final.
const FIRST_LOOK: (f64, usize, usize) = (0.02, 2, 6);
const FINAL: (f64, usize, usize) = (0.04, 6, 32);
/// The same for beginnings of steps. A shape changes only a part of their time, and medians of one
/// shape differ by up to 0.2 % on an H100.
const STEPS_MARGIN: f64 = 0.004;
const STEPS_FIRST_LOOK: (f64, usize, usize) = (0.1, 4, 12);
const STEPS_FINAL: (f64, usize, usize) = (0.2, 12, 64);
/// A device whose clocks have not risen for this long counts as warm.
const WARM_AFTER: Duration = Duration::from_millis(400);
/// A device that was idle, or waited while kernels were compiled, takes about this long to raise
/// its clocks.
const WARM_UP_MAX: Duration = Duration::from_secs(2);
/// A device that did nothing for this long may have lowered its clocks.
const PAUSE: Duration = Duration::from_millis(100);
/// Factor on the time of a launch that shows that clocks are rising.
const RISING: f64 = 0.98;

/// What was found for a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Verdict {
    /// Number of the best trial; the first is the shape of the static tables.
    pub(super) best: usize,
    /// Seconds of a launch, or of the beginning of a step, in the best shape.
    pub(super) seconds: f64,
    /// Seconds in the shape of the static tables.
    pub(super) default_seconds: f64,
}

/// What is known of the device's clocks.
#[derive(Default)]
pub(super) struct Warmth {
    /// Where it was last measured; `None` before the first time.
    known: Option<Warming>,
}

#[derive(Clone, Copy)]
struct Warming {
    begun: Instant,
    quickest: f64,
    /// When the clocks last rose.
    risen: Instant,
    /// When it last worked.
    worked: Instant,
}

impl Warmth {
    /// Returns whether the device has raised its clocks, and has not paused since.
    pub(super) fn is_warm(&self) -> bool {
        let is_warm = |known: &Warming| {
            known.worked.elapsed() < PAUSE
                && (known.begun.elapsed() >= WARM_UP_MAX || known.risen.elapsed() >= WARM_AFTER)
        };
        self.known.as_ref().is_some_and(is_warm)
    }

    /// Notes that the device has just worked.
    pub(super) fn worked(&mut self) {
        if let Some(known) = &mut self.known {
            known.worked = Instant::now();
        }
    }

    /// Lets the device raise its clocks, by launches of a measurement that are predicted to take
    /// some seconds. Returns `false` if a chain broke: the measurement has no verdict.
    pub(super) fn rise(
        &mut self,
        gpu: &Arc<Gpu>,
        of: &mut Measurement,
        seconds: f64,
    ) -> Result<bool, GpuError> {
        let known = self.known.filter(|known| known.worked.elapsed() < PAUSE);
        let Some(times) = of.times(gpu, &vec![0; of.fitting(seconds)])? else { return Ok(false) };
        let found = median(&times);
        let now = Instant::now();
        let fresh = Warming { begun: now, quickest: found, risen: now, worked: now };
        let Warming { begun, quickest, risen, .. } = known.unwrap_or(fresh);
        let (quickest, risen) =
            if found < RISING * quickest { (found, now) } else { (quickest, risen) };
        self.known = Some(Warming { begun, quickest, risen, worked: now });
        Ok(true)
    }
}

/// A job that is being measured, in pieces.
pub(super) struct Measurement {
    pub(super) job: Job,
    /// The number of its pass.
    pass: usize,
    runs: Runs,
    /// Whether a chain broke: there is no verdict.
    pub(super) has_broken: bool,
    stage: Stage,
    /// The trials of the stage, that of the static tables first.
    trials: Vec<usize>,
    /// The place among these of each launch or step of the stage.
    order: Vec<usize>,
    /// Seconds of those that have run.
    seconds: Vec<f64>,
}

/// What is timed.
enum Runs {
    /// Launches between barriers. Their weights take turns, so that no cache keeps them from one
    /// launch to the next: how many there were so far.
    Launches(usize),
    /// Beginnings of steps, one for each trial.
    Steps(Box<Rehearsals>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The first launch of a kernel brings its code to the device.
    Once,
    /// A first look at all shapes.
    Look,
    /// A closer one at the best.
    Final,
}

/// What a piece of a measurement has brought.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Progressed {
    /// Nothing yet.
    Nothing,
    /// The end; without a verdict if the device's clock is not usable or a chain broke.
    All(Option<Verdict>),
}

impl Measurement {
    /// Begins with a job of the pass of this number. It is measured in steps where it is chained,
    /// with `in_steps`.
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    pub(super) fn new(
        job: Job,
        pass: usize,
        passes: &dyn Passes,
        in_steps: bool,
    ) -> Result<Self, GpuError> {
        let count = job.trials.len();
        let steps = if in_steps && job.is_chained() {
            passes.rehearsals(pass, &job.key, count)?
        } else {
            None
        };
        let runs = steps.map_or(Runs::Launches(0), |steps| Runs::Steps(Box::new(steps)));
        let (trials, order) = ((0..count).collect(), (0..count).collect());
        let (has_broken, stage, seconds) = (false, Stage::Once, Vec::new());
        Ok(Self { job, pass, runs, has_broken, stage, trials, order, seconds })
    }

    /// Records the step of one more trial, in which other products have the shapes of `others`.
    /// Returns `false` if there is none left.
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    pub(super) fn prepare(
        &mut self,
        passes: &dyn Passes,
        others: &ChosenShapes,
    ) -> Result<bool, GpuError> {
        let Runs::Steps(steps) = &mut self.runs else { return Ok(false) };
        let Some(trial) = self.job.trials.get(steps.count()) else { return Ok(false) };
        let mut chosen = others.clone();
        chosen.insert(self.job.key.clone(), Some(trial.parameters.clone()));
        let is_chained = passes.rehearse(self.pass, Shapes::Chosen(Arc::new(chosen)), steps)?;
        if !is_chained {
            self.runs = Runs::Launches(0);
        }
        Ok(is_chained)
    }

    /// Measures on, by launches or steps that are predicted to take some seconds, or by one.
    pub(super) fn advance(&mut self, gpu: &Arc<Gpu>, seconds: f64) -> Result<Progressed, GpuError> {
        if self.has_broken {
            return Ok(Progressed::All(None));
        }
        let rest = self.order.len() - self.seconds.len();
        let taken =
            self.order.iter().skip(self.seconds.len()).take(self.fitting(seconds).min(rest));
        let named: Vec<usize> = taken.map(|&place| self.trials[place]).collect();
        let Some(found) = self.times(gpu, &named)? else { return Ok(Progressed::All(None)) };
        self.seconds.extend(found);
        Ok(if self.seconds.len() < self.order.len() {
            Progressed::Nothing
        } else {
            self.conclude()
        })
    }

    /// Goes on to the next stage.
    fn conclude(&mut self) -> Progressed {
        let mut samples = vec![Vec::new(); self.trials.len()];
        self.order.iter().zip(&self.seconds).for_each(|(&place, &took)| samples[place].push(took));
        let medians: Vec<f64> = samples.iter().map(|times| median(times)).collect();
        let (margin, first_look, last) = match self.runs {
            Runs::Launches(_) => (MARGIN, FIRST_LOOK, FINAL),
            Runs::Steps(_) => (STEPS_MARGIN, STEPS_FIRST_LOOK, STEPS_FINAL),
        };
        match self.stage {
            Stage::Once => self.begin(Stage::Look, first_look, &medians),
            Stage::Look => {
                self.trials[1..].sort_by(|&a, &b| medians[a].total_cmp(&medians[b]));
                self.trials.truncate(FINALISTS);
                let typical: Vec<f64> = self.trials.iter().map(|&trial| medians[trial]).collect();
                self.begin(Stage::Final, last, &typical);
            }
            Stage::Final => {
                let verdict = judge(&samples, margin);
                let named = |found: Verdict| Verdict { best: self.trials[found.best], ..found };
                return Progressed::All(verdict.map(named));
            }
        }
        Progressed::Nothing
    }

    /// Plans a stage of rounds, whose launches take these seconds.
    fn begin(&mut self, stage: Stage, limits: (f64, usize, usize), typical: &[f64]) {
        // Each round begins with another trial, so that none always follows the same one.
        let count = self.trials.len();
        self.order = (0..rounds(limits, typical))
            .flat_map(|round| (0..count).map(move |at| (round + at) % count))
            .collect();
        self.stage = stage;
        self.seconds.clear();
    }

    /// How many launches or steps are predicted to fit into some seconds: at least one.
    fn fitting(&self, seconds: f64) -> usize {
        let each = match &self.runs {
            Runs::Launches(_) => self.job.seconds,
            Runs::Steps(steps) => steps.predicted_seconds(),
        };
        ((seconds / each) as usize).clamp(1, LAUNCHES_MAX)
    }

    /// Seconds of each of these trials; `None` if a chain breaks. Launches are submitted together.
    fn times(&mut self, gpu: &Arc<Gpu>, trials: &[usize]) -> Result<Option<Vec<f64>>, GpuError> {
        let launched = match &mut self.runs {
            Runs::Launches(launched) => launched,
            Runs::Steps(steps) => {
                let run = |&trial: &usize| steps.run(trial, DURING);
                let times: Option<Vec<f64>> = trials.iter().map(run).collect::<Result<_, _>>()?;
                self.has_broken = times.is_none();
                return Ok(times);
            }
        };
        let lead = usize::from(trials.len() >= LAUNCHES_WITH_LEAD);
        let named = trials[..lead].iter().chain(trials);
        let dispatches: Vec<Dispatch> =
            named.map(|&trial| take(&self.job.trials[trial], launched)).collect();
        let mut recording = Recording::timed(gpu, &dispatches, &[])?;
        recording.run(DURING)?;
        Ok(Some(recording.times()?[lead..].to_vec()))
    }
}

/// Returns a launch in a trial's shape. Each call takes the next weights: `launched` counts the
/// calls.
fn take(trial: &Trial, launched: &mut usize) -> Dispatch {
    *launched += 1;
    trial.dispatches[*launched % trial.dispatches.len()].clone()
}

/// How many rounds of launches with these times fit into a number of seconds.
fn rounds((seconds, least, most): (f64, usize, usize), times: &[f64]) -> usize {
    let round: f64 = times.iter().sum();
    // A clock that reports nothing gives infinity, which becomes the largest number.
    ((seconds / round) as usize).clamp(least, most)
}

/// Returns the best of some shapes by the times of each, in the order in which they were measured,
/// the static tables' shape first. Returns `None` if the times are not usable.
fn judge(samples: &[Vec<f64>], margin: f64) -> Option<Verdict> {
    let halves = |times: &[f64]| {
        let (early, late) = times.split_at(times.len() / 2);
        [median(early), median(late)]
    };
    let whole: Vec<f64> = samples.iter().map(|times| median(times)).collect();
    let default = halves(samples.first()?);
    if !default.iter().chain(&whole).all(|time| *time > 0.0) {
        return None;
    }
    let is_better = |trial: &usize| {
        let times = halves(&samples[*trial]);
        times.iter().zip(&default).all(|(time, default)| *time < (1.0 - margin) * default)
    };
    let better = (1..samples.len()).filter(is_better);
    let best = better.min_by(|&a, &b| whole[a].total_cmp(&whole[b])).unwrap_or(0);
    Some(Verdict { best, seconds: whole[best], default_seconds: whole[0] })
}

/// Returns the median, or NaN if there are no times.
fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_taken_only_if_it_is_clearly_and_steadily_quicker() {
        let best = |samples: &[&[f64]]| {
            let samples: Vec<Vec<f64>> = samples.iter().map(|times| times.to_vec()).collect();
            judge(&samples, MARGIN).map(|verdict| verdict.best)
        };
        let default = [1.00, 1.01, 0.99, 1.0];
        assert_eq!(best(&[&default]), Some(0));
        assert_eq!(best(&[&default, &[0.5; 4], &[0.4; 4]]), Some(2), "the quickest");
        assert_eq!(best(&[&default, &[0.98; 4]]), Some(0), "within the noise");
        assert_eq!(best(&[&default, &[0.5, 0.5, 1.0, 1.0]]), Some(0), "in one half only");
        assert_eq!(best(&[&default, &[0.5, 0.5, 1.0, 1.0], &[0.9; 4]]), Some(2));
        let clocks_rose = [2.0, 2.0, 1.0, 1.0];
        assert_eq!(best(&[&clocks_rose, &[1.5, 1.5, 1.0, 1.0]]), Some(0));
        assert_eq!(best(&[&clocks_rose, &[1.8, 1.8, 0.9, 0.9]]), Some(1));
    }

    #[test]
    fn a_clock_that_tells_nothing_decides_nothing() {
        assert_eq!(judge(&[], MARGIN), None);
        assert_eq!(judge(&[vec![], vec![]], MARGIN), None);
        assert_eq!(judge(&[vec![0.0; 4], vec![0.0; 4]], MARGIN), None);
        assert_eq!(judge(&[vec![1.0; 4], vec![0.0; 4]], MARGIN), None);
        assert_eq!(judge(&[vec![f64::NAN; 4], vec![1.0; 4]], MARGIN), None);
        assert_eq!(rounds(FINAL, &[0.0, 0.0]), FINAL.2);
        assert_eq!(rounds(FINAL, &[10.0]), FINAL.1);
    }
}
