//! What engines did over time. Rates are differences between two samples.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::status::{Engine, Snapshot};

/// The number of samples that are kept of a model, at least one for each column of a wide terminal.
const SAMPLES: usize = 512;

/// The rates of an engine between two samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rates {
    /// Tokens generated per second.
    pub(super) generated: f64,
    /// Prompt tokens of started requests per second.
    pub(super) prompt: f64,
    /// The share of the time spent in steps, 0 to 1.
    pub(super) busy: f64,
    /// The bytes that steps had to move per second.
    pub(super) bytes: f64,
}

impl Rates {
    /// Computes the rates between two samples `seconds` apart; `None` if a count is smaller in the
    /// second one, as after an engine was loaded again.
    fn between(old: &Engine, new: &Engine, seconds: f64) -> Option<Self> {
        let counts_on = new.generated_tokens >= old.generated_tokens
            && new.prompt_tokens >= old.prompt_tokens
            && new.busy_seconds >= old.busy_seconds
            && new.bytes >= old.bytes;
        (counts_on && seconds > 0.0).then(|| Self {
            generated: (new.generated_tokens - old.generated_tokens) as f64 / seconds,
            prompt: (new.prompt_tokens - old.prompt_tokens) as f64 / seconds,
            // A step is counted when it ends, and it may have begun before the first sample.
            busy: ((new.busy_seconds - old.busy_seconds) / seconds).clamp(0.0, 1.0),
            bytes: (new.bytes - old.bytes) / seconds,
        })
    }
}

/// One sample of an engine, for diagrams over time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    /// `None` for the first sample.
    pub(super) rates: Option<Rates>,
    /// Rows of the last step.
    pub(super) width: u64,
    /// KV blocks of running sequences.
    pub(super) blocks: u64,
}

#[derive(Debug, Default)]
struct Course {
    last: Option<(Instant, Engine)>,
    /// `None` for a request that the server did not answer.
    samples: VecDeque<Option<Sample>>,
}

impl Course {
    fn push(&mut self, sample: Option<Sample>) {
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    fn miss(&mut self) {
        self.last = None;
        self.push(None);
    }
}

/// The history of each loaded model of a server.
#[derive(Debug, Default)]
pub(super) struct History {
    started: u64,
    by_model: HashMap<String, Course>,
}

impl History {
    /// Adds a sample. Models that are gone or not loaded are forgotten, and all models if the
    /// server was restarted.
    pub(super) fn hear(&mut self, snapshot: &Snapshot, at: Instant) {
        if self.started != snapshot.started {
            *self = Self { started: snapshot.started, ..Self::default() };
        }
        let mut before = std::mem::take(&mut self.by_model);
        for model in &snapshot.models {
            let Some(engine) = &model.engine else { continue };
            let mut course = before.remove(&model.name).unwrap_or_default();
            let rates = course.last.as_ref().and_then(|(earlier, old)| {
                let seconds = at.saturating_duration_since(*earlier).as_secs_f64();
                Rates::between(old, engine, seconds)
            });
            course.last = Some((at, engine.clone()));
            let (width, blocks) = (engine.batch().0, engine.blocks_running);
            course.push(Some(Sample { rates, width, blocks }));
            self.by_model.insert(model.name.clone(), course);
        }
    }

    /// Adds a request that the server did not answer.
    pub(super) fn miss(&mut self) {
        self.by_model.values_mut().for_each(Course::miss);
    }

    /// Returns the rates of a model at the last sample.
    pub(super) fn rates(&self, model: &str) -> Option<Rates> {
        let sample = self.by_model.get(model)?.samples.back()?;
        sample.as_ref()?.rates
    }

    /// Returns the samples of a model, the newest first; `None` for each request that failed.
    pub(super) fn samples(&self, model: &str) -> impl Iterator<Item = Option<&Sample>> {
        let course = self.by_model.get(model);
        course.into_iter().flat_map(|course| course.samples.iter().rev()).map(Option::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::status::tests::snapshot;
    use super::*;

    fn counted(generated: u64) -> Snapshot {
        let mut snapshot = snapshot();
        let engine = snapshot.models[0].engine.as_mut().unwrap();
        engine.generated_tokens = generated;
        engine.busy_seconds = generated as f64 / 100.0;
        snapshot
    }

    #[test]
    fn rates_are_differences() {
        let (mut history, begin) = (History::default(), Instant::now());
        let mut look = |seconds: u64, snapshot: &Snapshot| {
            history.hear(snapshot, begin + Duration::from_secs(seconds));
            history.rates("demo").map(|rates| (rates.generated, (100.0 * rates.busy).round()))
        };
        assert_eq!(look(0, &counted(100)), None, "the first look");
        assert_eq!(look(0, &counted(100)), None, "no time has passed");
        assert_eq!(look(2, &counted(200)), Some((50.0, 50.0)));
        assert_eq!(look(3, &counted(1000)), Some((800.0, 100.0)), "more steps than time");
        assert_eq!(look(4, &counted(7)), None, "the engine was loaded again");
        assert_eq!(look(5, &counted(9)), Some((2.0, 2.0)));
        let mut other = counted(900);
        other.started += 1;
        assert_eq!(look(6, &other), None, "another server");
        assert_eq!(history.samples("demo").count(), 1);
        history.miss();
        assert_eq!(history.rates("demo"), None);
        history.hear(&other, begin + Duration::from_secs(9));
        assert_eq!(history.rates("demo"), None, "nobody knows what happened meanwhile");
        assert_eq!(
            history.samples("demo").map(|sample| sample.is_some()).collect::<Vec<_>>(),
            [true, false, true]
        );
        assert_eq!(history.samples("second").count(), 0, "it is not loaded");
    }

    #[test]
    fn absurd_counts_and_long_watching_are_bounded() {
        let (mut history, begin) = (History::default(), Instant::now());
        for look in 0..2000_u64 {
            let count = if look % 2 == 0 { 0 } else { u64::MAX };
            history.hear(&counted(count), begin + Duration::from_millis(100 * look));
            assert!(history.rates("demo").is_none_or(|rates| rates.generated.is_finite()));
        }
        assert_eq!(history.samples("demo").count(), SAMPLES);
        let mut empty = counted(0);
        empty.models.clear();
        history.hear(&empty, begin + Duration::from_secs(900));
        assert!(history.by_model.is_empty());
    }
}
