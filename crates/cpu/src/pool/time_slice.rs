//! When a thread offers its core to others of its own accord.

use std::thread;
use std::time::{Duration, Instant};

/// How long a thread works before it offers its core: shorter than what systems give a thread
/// before they stop it (3 to 15 ms), and far longer than an offer that no other thread takes (under
/// 1 us).
pub(super) const LENGTH: Duration = Duration::from_millis(1);

/// A thread's time on its core.
///
/// The system stops a thread that shares its core at any point, most likely within a unit, and then
/// all threads wait until it goes on. A thread that offers its core between two units is stopped
/// there, where no thread waits for it.
#[derive(Debug)]
pub(super) struct TimeSlice {
    began: Instant,
    length: Duration,
}

impl TimeSlice {
    /// Begins a slice now; one of [`Duration::MAX`] has no end.
    pub(super) fn new(length: Duration) -> Self {
        TimeSlice { began: Instant::now(), length }
    }

    /// Returns whether the thread should offer its core as soon as it holds no unit.
    pub(super) fn is_over(&self) -> bool {
        self.length != Duration::MAX && self.began.elapsed() >= self.length
    }

    /// Offers the core to others, and begins the next slice.
    pub(super) fn end(&mut self) {
        thread::yield_now();
        self.restart();
    }

    /// Begins the next slice after a sleep.
    pub(super) fn restart(&mut self) {
        self.began = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_over_after_its_length() {
        let hour = Duration::from_secs(3600);
        for (length, expected) in [(Duration::ZERO, true), (hour, false), (Duration::MAX, false)] {
            assert_eq!(TimeSlice::new(length).is_over(), expected, "{length:?}");
        }
    }
}
