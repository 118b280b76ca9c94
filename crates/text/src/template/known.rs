//! What templates were found to do, kept by their source.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// What the template does with tools and thoughts, once it has been tried.
    pub(super) trials: OnceLock<Trials>,
}

impl Known {
    /// Returns what is known of a template, which is remembered: trying costs many renderings.
    pub(super) fn of(source: Arc<str>) -> Arc<Self> {
        remembered(&mut known(), source)
    }

    /// Returns what is known of a template that is remembered. It was compiled before, so that
    /// doing so again would find nothing wrong.
    pub(super) fn again(source: &str) -> Option<Arc<Self>> {
        let mut known = known();
        let found = known.iter().find(|known| *known.source == *source)?.source.clone();
        Some(remembered(&mut known, found))
    }
}

fn known() -> MutexGuard<'static, VecDeque<Arc<Known>>> {
    static KNOWN: Mutex<VecDeque<Arc<Known>>> = Mutex::new(VecDeque::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what is known of a template, which becomes the last in the list; the first is forgotten
/// when the list is full.
fn remembered(known: &mut VecDeque<Arc<Known>>, source: Arc<str>) -> Arc<Known> {
    let place = known.iter().position(|known| known.source == source);
    let found = match place.and_then(|place| known.remove(place)) {
        Some(found) => found,
        None => Arc::new(Known { source, ways: OnceLock::new(), trials: OnceLock::new() }),
    };
    if known.len() == MOST {
        known.pop_front();
    }
    known.push_back(Arc::clone(&found));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_compiled_once() {
        let source = "{{ messages }} and words that no other test has";
        assert!(Known::again(source).is_none());
        let first = Known::of(source.into());
        assert!(Arc::ptr_eq(&first, &Known::again(source).unwrap()));
    }

    #[test]
    fn the_latest_templates_are_remembered() {
        let mut known = VecDeque::new();
        let mut of = |source: &str| remembered(&mut known, source.into());
        let (first, second) = (of("first"), of("second"));
        assert!(Arc::ptr_eq(&first, &of("first")) && !Arc::ptr_eq(&first, &second));
        for index in 0..MOST - 1 {
            of(&index.to_string());
        }
        // It was asked for after the second one, which is forgotten.
        assert!(Arc::ptr_eq(&first, &of("first")) && !Arc::ptr_eq(&second, &of("second")));
        for index in 0..100 {
            of(&index.to_string());
        }
        assert!(!Arc::ptr_eq(&first, &of("first")));
        assert_eq!(known.len(), MOST);
    }
}
