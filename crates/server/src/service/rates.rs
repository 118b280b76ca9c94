//! The rates of engines, computed from their counts.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use trine_engine::Status;

/// Time over which rates are taken, about.
const SPAN: Duration = Duration::from_secs(1);
/// A sample older than this says nothing about the present.
const SPAN_MAX: Duration = Duration::from_secs(5);
/// Samples closer together than this count as one, so that many clients that ask do not push the
/// useful one out.
const GAP: Duration = Duration::from_millis(100);
/// Number of samples kept of a model.
const SAMPLES: usize = SPAN_MAX.as_millis().div_ceil(GAP.as_millis()) as usize;

/// The counts of an engine at a moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    generated: u64,
    prompt: u64,
    busy_seconds: f64,
}

/// The rates of an engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rates {
    /// Tokens generated per second.
    pub(crate) generated: f64,
    /// Prompt tokens of started requests per second.
    pub(crate) prompt: f64,
    /// Share of the time spent in steps, 0 to 1.
    pub(crate) busy: f64,
}

/// Earlier samples of engines, by model: an engine has only counts, and a rate is the difference to
/// an earlier sample.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    by_model: Mutex<HashMap<String, VecDeque<Sample>>>,
}

impl Samples {
    /// Returns the rates since the youngest sample that is a second old or, if there is none, since
    /// the oldest. Returns `None` for the first sample in a while. `name` is one of the server's
    /// models, never a client's text.
    pub(crate) fn of(&self, name: &str, status: &Status, at: Instant) -> Option<Rates> {
        let sample = Sample {
            at,
            generated: status.generated_tokens,
            prompt: status.prompt_tokens,
            busy_seconds: status.busy_seconds,
        };
        let mut by_model = self.by_model.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = by_model.entry(name.to_owned()).or_default();
        // An engine that was loaded again counts from zero.
        samples.retain(|old| {
            at.saturating_duration_since(old.at) <= SPAN_MAX && old.generated <= sample.generated
        });
        let is_old = |old: &&Sample| at.saturating_duration_since(old.at) >= SPAN;
        let before = samples.iter().rev().find(is_old).or(samples.front()).copied();
        if samples.back().is_none_or(|last| at.saturating_duration_since(last.at) >= GAP) {
            if samples.len() == SAMPLES {
                samples.pop_front();
            }
            samples.push_back(sample);
        }
        let before = before?;
        let seconds = at.saturating_duration_since(before.at).as_secs_f64();
        (seconds >= GAP.as_secs_f64()).then(|| Rates {
            generated: sample.generated.saturating_sub(before.generated) as f64 / seconds,
            prompt: sample.prompt.saturating_sub(before.prompt) as f64 / seconds,
            // The engine counts a step when it ends: one may have begun before the span.
            busy: ((sample.busy_seconds - before.busy_seconds) / seconds).clamp(0.0, 1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(generated: u64) -> Status {
        Status { generated_tokens: generated, ..Status::default() }
    }

    #[test]
    fn rates_are_those_of_the_last_second() {
        let (samples, begin) = (Samples::default(), Instant::now());
        let sample = |milliseconds: u64, generated: u64| {
            let at = begin + Duration::from_millis(milliseconds);
            samples.of("main", &counted(generated), at).map(|rates| rates.generated)
        };
        assert_eq!(sample(0, 100), None, "nobody asked before");
        assert_eq!(sample(10, 100), None, "too near to say");
        assert_eq!(sample(500, 110), Some(20.0), "since the oldest sample");
        assert_eq!(sample(1000, 130), Some(30.0));
        assert_eq!(sample(1500, 160), Some(50.0), "since the sample at 500");
        assert_eq!(sample(2600, 160), Some(0.0), "since the sample at 1500");
        assert_eq!(sample(9000, 500), None, "a long time without a sample");
        assert_eq!(sample(10_000, 3), None, "the engine was loaded again");
        assert_eq!(sample(11_000, 5), Some(2.0));
    }

    #[test]
    fn many_who_ask_take_bounded_memory_and_hide_nothing() {
        let (samples, begin) = (Samples::default(), Instant::now());
        let mut last = None;
        for millisecond in 0..20_000_u64 {
            let at = begin + Duration::from_millis(millisecond);
            last = samples.of("main", &counted(millisecond), at);
        }
        assert!((last.unwrap().generated - 1000.0).abs() < 1.0, "{last:?}");
        assert!(samples.by_model.lock().unwrap()["main"].len() <= SAMPLES);
    }
}
