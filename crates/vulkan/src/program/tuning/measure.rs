//! How long launches take by the device's clock. The shapes of a key are measured in turn, each
//! launch with other weights, in as many pieces as the caller wants.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::survey::Job;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
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
    /// Seconds of a launch in the best shape.
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
    /// some seconds.
    pub(super) fn rise(
        &mut self,
        gpu: &Arc<Gpu>,
        of: &mut Measurement,
        seconds: f64,
    ) -> Result<(), GpuError> {
        let known = self.known.filter(|known| known.worked.elapsed() < PAUSE);
        let found = median(&of.times(gpu, &vec![0; of.fitting(seconds)])?);
        let now = Instant::now();
        let fresh = Warming { begun: now, quickest: found, risen: now, worked: now };
        let Warming { begun, quickest, risen, .. } = known.unwrap_or(fresh);
        let (quickest, risen) =
            if found < RISING * quickest { (found, now) } else { (quickest, risen) };
        self.known = Some(Warming { begun, quickest, risen, worked: now });
        Ok(())
    }
}

/// A job that is being measured, in pieces.
pub(super) struct Measurement {
    pub(super) job: Job,
    /// Launches so far: their weights take turns, so that no cache keeps them from one launch to
    /// the next.
    launched: usize,
    stage: Stage,
    /// The trials of the stage, that of the static tables first.
    trials: Vec<usize>,
    /// The place among these of each launch of the stage.
    order: Vec<usize>,
    /// Seconds of the launches that have run.
    seconds: Vec<f64>,
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
pub(super) enum Found {
    /// Nothing yet.
    Nothing,
    /// The end; without a verdict if the device's clock is not usable.
    All(Option<Verdict>),
}

impl Measurement {
    pub(super) fn new(job: Job) -> Self {
        let trials: Vec<usize> = (0..job.trials.len()).collect();
        let order = trials.clone();
        Self { job, launched: 0, stage: Stage::Once, trials, order, seconds: Vec::new() }
    }

    /// Measures on, by launches that are predicted to take some seconds, or by one.
    pub(super) fn advance(&mut self, gpu: &Arc<Gpu>, seconds: f64) -> Result<Found, GpuError> {
        let rest = self.order.len() - self.seconds.len();
        let taken =
            self.order.iter().skip(self.seconds.len()).take(self.fitting(seconds).min(rest));
        let named: Vec<usize> = taken.map(|&place| self.trials[place]).collect();
        let found = self.times(gpu, &named)?;
        self.seconds.extend(found);
        Ok(if self.seconds.len() < self.order.len() { Found::Nothing } else { self.conclude() })
    }

    /// Goes on to the next stage.
    fn conclude(&mut self) -> Found {
        let mut samples = vec![Vec::new(); self.trials.len()];
        self.order.iter().zip(&self.seconds).for_each(|(&place, &took)| samples[place].push(took));
        let medians: Vec<f64> = samples.iter().map(|times| median(times)).collect();
        match self.stage {
            Stage::Once => self.begin(Stage::Look, FIRST_LOOK, &medians),
            Stage::Look => {
                self.trials[1..].sort_by(|&a, &b| medians[a].total_cmp(&medians[b]));
                self.trials.truncate(FINALISTS);
                let typical: Vec<f64> = self.trials.iter().map(|&trial| medians[trial]).collect();
                self.begin(Stage::Final, FINAL, &typical);
            }
            Stage::Final => {
                let verdict = judge(&samples);
                let named = |found: Verdict| Verdict { best: self.trials[found.best], ..found };
                return Found::All(verdict.map(named));
            }
        }
        Found::Nothing
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

    /// How many launches are predicted to fit into some seconds: at least one.
    fn fitting(&self, seconds: f64) -> usize {
        ((seconds / self.job.seconds) as usize).clamp(1, LAUNCHES_MAX)
    }

    /// Seconds of a launch of each of these trials, which are submitted together.
    fn times(&mut self, gpu: &Arc<Gpu>, trials: &[usize]) -> Result<Vec<f64>, GpuError> {
        let lead = usize::from(trials.len() >= LAUNCHES_WITH_LEAD);
        let dispatches: Vec<Dispatch> =
            trials[..lead].iter().chain(trials).map(|&trial| self.take(trial)).collect();
        let mut recording = Recording::timed(gpu, &dispatches, &[])?;
        recording.run(DURING)?;
        Ok(recording.times()?[lead..].to_vec())
    }

    /// The next launch in a trial's shape.
    fn take(&mut self, trial: usize) -> Dispatch {
        let dispatches = &self.job.trials[trial].dispatches;
        let dispatch = dispatches[self.launched % dispatches.len()].clone();
        self.launched += 1;
        dispatch
    }
}

/// How many rounds of launches with these times fit into a number of seconds.
fn rounds((seconds, least, most): (f64, usize, usize), times: &[f64]) -> usize {
    let round: f64 = times.iter().sum();
    // A clock that reports nothing gives infinity, which becomes the largest number.
    ((seconds / round) as usize).clamp(least, most)
}

/// Returns the best of some shapes by the times of each, in the order in which they were measured,
/// the static tables' shape first. Returns `None` if the times are not usable.
fn judge(samples: &[Vec<f64>]) -> Option<Verdict> {
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
        times.iter().zip(&default).all(|(time, default)| *time < (1.0 - MARGIN) * default)
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
            judge(&samples).map(|verdict| verdict.best)
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
        assert_eq!(judge(&[]), None);
        assert_eq!(judge(&[vec![], vec![]]), None);
        assert_eq!(judge(&[vec![0.0; 4], vec![0.0; 4]]), None);
        assert_eq!(judge(&[vec![1.0; 4], vec![0.0; 4]]), None);
        assert_eq!(judge(&[vec![f64::NAN; 4], vec![1.0; 4]]), None);
        assert_eq!(rounds(FINAL, &[0.0, 0.0]), FINAL.2);
        assert_eq!(rounds(FINAL, &[10.0]), FINAL.1);
    }
}
