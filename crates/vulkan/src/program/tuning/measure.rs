//! How long launches take by the device's clock. The shapes of a key are measured in turn, each
//! launch with other weights.

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

/// Lets the device raise its clocks by running the launches of a job, at most until a moment.
pub(super) fn warm_up(gpu: &Arc<Gpu>, job: &Job, until: Instant) -> Result<(), GpuError> {
    let start = Instant::now();
    let until = until.min(start + WARM_UP_MAX);
    let (mut quickest, mut risen) = (f64::INFINITY, start);
    let mut turns = Turns::new(job);
    while Instant::now() < until && risen.elapsed() < WARM_AFTER {
        let times = turns.times(gpu, &[0; LAUNCHES_MAX])?;
        let found = median(&times);
        if found < RISING * quickest {
            (quickest, risen) = (found, Instant::now());
        }
    }
    Ok(())
}

/// Measures the shapes of a job. Returns `None` if the device's clock is not usable.
pub(super) fn measure(gpu: &Arc<Gpu>, job: &Job) -> Result<Option<Verdict>, GpuError> {
    let mut turns = Turns::new(job);
    let all: Vec<usize> = (0..job.trials.len()).collect();
    // The first launch of a kernel brings its code to the device.
    let once = turns.times(gpu, &all)?;
    let looked = turns.rounds(gpu, &all, rounds(FIRST_LOOK, &once))?;
    let mut finalists = all;
    finalists[1..].sort_by(|&a, &b| median(&looked[a]).total_cmp(&median(&looked[b])));
    finalists.truncate(FINALISTS);
    let typical: Vec<f64> = finalists.iter().map(|&trial| median(&looked[trial])).collect();
    let samples = turns.rounds(gpu, &finalists, rounds(FINAL, &typical))?;
    let verdict = judge(&samples);
    Ok(verdict.map(|verdict| Verdict { best: finalists[verdict.best], ..verdict }))
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

/// The launches of a job. Their weights take turns, so that no cache keeps them from one launch to
/// the next.
struct Turns<'a> {
    job: &'a Job,
    next: usize,
}

impl<'a> Turns<'a> {
    fn new(job: &'a Job) -> Self {
        Self { job, next: 0 }
    }

    /// Seconds of each round's launch, for each of some trials.
    fn rounds(
        &mut self,
        gpu: &Arc<Gpu>,
        trials: &[usize],
        rounds: usize,
    ) -> Result<Vec<Vec<f64>>, GpuError> {
        // Each round begins with another trial, so that none always follows the same one.
        let count = trials.len();
        let order: Vec<usize> =
            (0..rounds).flat_map(|round| (0..count).map(move |at| (round + at) % count)).collect();
        let named: Vec<usize> = order.iter().map(|&place| trials[place]).collect();
        let times = self.times(gpu, &named)?;
        let mut found = vec![Vec::with_capacity(rounds); count];
        order.iter().zip(times).for_each(|(&place, seconds)| found[place].push(seconds));
        Ok(found)
    }

    /// Seconds of a launch of each of these trials.
    fn times(&mut self, gpu: &Arc<Gpu>, trials: &[usize]) -> Result<Vec<f64>, GpuError> {
        let fitting = (gpu.submission_seconds() / self.job.seconds) as usize;
        let mut times = Vec::with_capacity(trials.len());
        for trials in trials.chunks(fitting.clamp(1, LAUNCHES_MAX)) {
            let lead = usize::from(trials.len() >= LAUNCHES_WITH_LEAD);
            let dispatches: Vec<Dispatch> =
                trials[..lead].iter().chain(trials).map(|&trial| self.take(trial)).collect();
            let mut recording = Recording::timed(gpu, &dispatches, &[])?;
            recording.run(DURING)?;
            times.extend(&recording.times()?[lead..]);
        }
        Ok(times)
    }

    /// The next launch in a trial's shape.
    fn take(&mut self, trial: usize) -> Dispatch {
        let dispatches = &self.job.trials[trial].dispatches;
        let dispatch = dispatches[self.next % dispatches.len()].clone();
        self.next += 1;
        dispatch
    }
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
