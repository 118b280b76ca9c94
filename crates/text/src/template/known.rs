//! What templates were found to do, kept by their source.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::trials::Trials;
use super::turns::Ways;

/// How many templates are remembered. A server has one for each model, and one for each preset with
/// a template of its own, which is read again with each request.
const MOST: usize = 16;

/// What was found of one template.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) source: Arc<str>,
    /// The turns that it takes, once they have been found by trying.
    pub(super) ways: OnceLock<Ways>,
    /// What else it does, likewise.
    pub(super) trials: OnceLock<Trials>,
}

impl Known {
    /// Returns what is known of a template, which is remembered: trying costs many renderings.
    pub(super) fn of(source: Arc<str>) -> Arc<Self> {
        // The latest comes last.
        static KNOWN: Mutex<VecDeque<Arc<Known>>> = Mutex::new(VecDeque::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let place = known.iter().position(|known| known.source == source);
        let found = match place.and_then(|place| known.remove(place)) {
            Some(found) => found,
            None => Arc::new(Self { source, ways: OnceLock::new(), trials: OnceLock::new() }),
        };
        if known.len() == MOST {
            known.pop_front();
        }
        known.push_back(Arc::clone(&found));
        found
    }
}
