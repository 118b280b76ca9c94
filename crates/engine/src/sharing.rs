//! What a device's partner does of the engine's steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trine_backend::{Partner, PartnerWork, Tally};

/// The most works of a step that are told apart.
const WORKS_MAX: usize = 16;

/// A step whose device had a partner at work, which may have served other engines meanwhile too.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedStep {
    /// When the step began.
    pub start: Instant,
    /// When its results were there.
    pub end: Instant,
    /// Rows of prompts in it.
    pub prompt_rows: usize,
    /// When the partner computed, in order, within the step. At most 16: of more, neighbours are
    /// merged.
    pub works: Vec<PartnerWork>,
    /// The time in which a device waited for the partner.
    pub waited: Duration,
}

/// What a partner has done for all engines of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct PartnerCounts {
    /// Products that it computed.
    pub products: u64,
    /// Rows in these, counted once for each product.
    pub rows: u64,
    /// Products that were given to it and that the device computed instead.
    pub instead: u64,
    /// Times that it failed.
    pub failures: u64,
    /// Seconds in which it computed.
    pub busy_seconds: f64,
    /// Seconds in which a device waited for it.
    pub waited_seconds: f64,
    /// Whether it can never compute again in this process.
    pub is_lost: bool,
}

impl PartnerCounts {
    fn of(tally: &Tally) -> Self {
        Self {
            products: tally.products(),
            rows: tally.rows(),
            instead: tally.instead(),
            failures: tally.failures(),
            busy_seconds: tally.busy().as_secs_f64(),
            waited_seconds: tally.waited().as_secs_f64(),
            is_lost: tally.is_lost(),
        }
    }
}

/// The beginning of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beginning {
    at: Instant,
    /// The partner's time that devices had waited for by then.
    waited: Duration,
}

/// A device's partner, as an engine watches it.
pub(crate) struct Sharing {
    partner: Arc<dyn Partner>,
    /// When the last step ended.
    ended: Option<Instant>,
}

impl Sharing {
    pub(crate) fn new(partner: Arc<dyn Partner>) -> Self {
        Self { partner, ended: None }
    }

    pub(crate) fn counts(&self) -> PartnerCounts {
        PartnerCounts::of(self.partner.tally())
    }

    /// Notes that a step begins.
    pub(crate) fn begin(&self) -> Beginning {
        Beginning { at: Instant::now(), waited: self.partner.tally().waited() }
    }

    /// Notes that a step with rows of prompts, if any, has ended. Returns what the partner did
    /// meanwhile; `None` if that is nothing. A step that was begun while another ran counts from
    /// that one's end.
    pub(crate) fn end(&mut self, beginning: Beginning, prompt_rows: usize) -> Option<SharedStep> {
        let end = Instant::now();
        let start = self.ended.replace(end).map_or(beginning.at, |ended| ended.max(beginning.at));
        if prompt_rows == 0 {
            return None;
        }
        let tally = self.partner.tally();
        let mut works = tally.works_since(start);
        for work in &mut works {
            // What began before was for another engine.
            work.start = work.start.max(start);
            work.end = work.end.min(end);
        }
        let works = PartnerWork::merged(&works, WORKS_MAX);
        let waited = tally.waited().saturating_sub(beginning.waited);
        (!works.is_empty()).then_some(SharedStep { start, end, prompt_rows, works, waited })
    }
}
