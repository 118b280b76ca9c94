//! The steps of a Program that are in flight.

use std::collections::VecDeque;

use crate::error::BackendError;

/// A step that was submitted and has not been waited for. It cannot be copied: a step is waited for
/// once, and has no results before that.
#[derive(Debug)]
#[must_use = "a step in flight has to be waited for"]
pub struct InFlight {
    number: u64,
}

/// The steps of a Program that are in flight, the oldest first, with what the Program keeps for
/// each.
#[derive(Debug)]
pub struct Flights<T> {
    flying: VecDeque<(u64, T)>,
    depth: usize,
    next: u64,
}

impl<T> Flights<T> {
    /// Creates a list without steps that has room for `depth`.
    pub fn new(depth: usize) -> Self {
        Self { flying: VecDeque::with_capacity(depth), depth, next: 0 }
    }

    /// Checks that one more step may be submitted.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if no more may be in flight.
    pub fn check_room(&self) -> Result<(), BackendError> {
        self.check_most(self.depth)
    }

    fn check_most(&self, most: usize) -> Result<(), BackendError> {
        if self.flying.len() < most {
            return Ok(());
        }
        let what = format!("{} steps are in flight; wait for the oldest", self.flying.len());
        Err(BackendError::BadBatch { what })
    }

    /// Checks that one more step may be submitted to a Program that takes up to `silent_depth` of
    /// them if all but the youngest are silent
    /// ([`Facts::silent_depth`](crate::Facts::silent_depth)).
    ///
    /// # Errors
    /// As [`Flights::check_room`].
    pub fn check_room_behind(
        &self,
        silent_depth: usize,
        is_silent: impl Fn(&T) -> bool,
    ) -> Result<(), BackendError> {
        let are_silent = self.flying.iter().all(|(_, kept)| is_silent(kept));
        let most = if are_silent { self.depth.max(silent_depth) } else { self.depth };
        self.check_most(most)
    }

    /// Checks that no step is in flight.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if one is.
    pub fn check_idle(&self) -> Result<(), BackendError> {
        if self.flying.is_empty() {
            return Ok(());
        }
        let what = "the caches are copied or moved while a step is in flight".to_owned();
        Err(BackendError::BadBatch { what })
    }

    /// Adds a step.
    pub fn begin(&mut self, kept: T) -> InFlight {
        let number = self.next;
        self.next += 1;
        self.flying.push_back((number, kept));
        InFlight { number }
    }

    /// Removes the oldest step, which has to be this one, and returns what was kept for it.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] for any other step.
    pub fn end(&mut self, step: InFlight) -> Result<T, BackendError> {
        let InFlight { number } = step;
        match self.flying.pop_front() {
            Some((oldest, kept)) if oldest == number => Ok(kept),
            other => {
                self.flying.extend(other);
                self.flying.rotate_right(usize::from(self.flying.len() > 1));
                let what = "a step that is not the oldest in flight is waited for".to_owned();
                Err(BackendError::BadBatch { what })
            }
        }
    }

    /// Returns what is kept for the steps in flight, the oldest first.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> + ExactSizeIterator {
        self.flying.iter_mut().map(|(_, kept)| kept)
    }

    /// Forgets all steps, after a failure.
    pub fn clear(&mut self) {
        self.flying.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_waited_for_in_order() {
        let mut flights = Flights::new(2);
        let first = flights.begin('a');
        assert!(flights.check_room().is_ok());
        assert!(matches!(flights.check_idle(), Err(BackendError::BadBatch { .. })));
        let second = flights.begin('b');
        assert!(matches!(flights.check_room(), Err(BackendError::BadBatch { .. })));
        assert!(matches!(flights.end(second), Err(BackendError::BadBatch { .. })));
        assert_eq!(flights.iter_mut().map(|kept| *kept).collect::<String>(), "ab");
        assert!(matches!(flights.end(first), Ok('a')));
        let third = flights.begin('c');
        flights.clear();
        assert!(flights.check_idle().is_ok());
        assert!(matches!(flights.end(third), Err(BackendError::BadBatch { .. })));
    }
}
