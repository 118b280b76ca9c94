//! How long runs usually take, so that a wait can be awake when one ends.

use std::time::{Duration, Instant};

use crate::capabilities::DeviceKind;

/// The longest run whose end is waited for awake: what that gains, about a tenth of a millisecond,
/// is half a percent of it.
const SHORT: Duration = Duration::from_millis(20);
/// How long before its likely end a run is watched, and how long after that.
const MARGIN: Duration = Duration::from_micros(300);
/// The shortest sleep.
const NAP: Duration = Duration::from_micros(50);

/// The times of a recording's runs. A thread that sleeps in the driver until the device signals
/// goes on about 0.1 ms after that (`docs/benchmarks/gpu-kernels.md`). One that looks all the time
/// goes on at once, but keeps a core busy. So the end of a short run is waited for asleep first,
/// and awake when it is likely to be near.
#[derive(Debug)]
pub(super) struct Usual {
    /// Whether the device is of a kind whose runs are watched.
    is_watched: bool,
    begun: Option<Instant>,
    /// What the last runs took whose ends were waited for, the latest first.
    seen: [Option<Duration>; 2],
}

/// What a wait does next if the run has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The wait sleeps for this time.
    Sleep(Duration),
    /// The wait looks again at once.
    Look,
    /// The wait leaves the rest to the driver.
    Wait,
}

impl Usual {
    /// Makes the times of no runs. Runs of devices that share the host's cores or memory are not
    /// watched.
    pub(super) fn of(kind: DeviceKind) -> Self {
        let is_watched = matches!(kind, DeviceKind::Discrete | DeviceKind::Virtual);
        Self { is_watched, begun: None, seen: [None; 2] }
    }

    /// Notes that a run begins.
    pub(super) fn begin(&mut self) {
        self.begun = self.is_watched.then(Instant::now);
    }

    /// Notes that the run ended before anybody waited for that: nobody knows when.
    pub(super) fn miss(&mut self) {
        self.begun = None;
    }

    /// Notes that the run has ended and was waited for.
    pub(super) fn end(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.seen = [Some(begun.elapsed()), self.seen[0]];
        }
    }

    /// Returns what a wait does next.
    pub(super) fn next(&self) -> Next {
        self.begun.map_or(Next::Wait, |begun| self.after(begun.elapsed()))
    }

    /// Returns what a wait does next, so long after the run began. One run that was late for a
    /// reason of its own does not make the wait for the next one sleep past its end.
    fn after(&self, elapsed: Duration) -> Next {
        let Some(usual) = self.seen.into_iter().flatten().min() else { return Next::Wait };
        let left = usual.saturating_sub(MARGIN).saturating_sub(elapsed);
        if usual > SHORT || elapsed >= usual + MARGIN {
            Next::Wait
        } else if left < NAP {
            Next::Look
        } else {
            // In halves, in case the run is shorter than usual.
            Next::Sleep((left / 2).max(NAP))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seen: [u64; 2]) -> Usual {
        let seen = seen.map(|us| Some(Duration::from_micros(us)));
        Usual { seen, ..Usual::of(DeviceKind::Discrete) }
    }

    #[test]
    fn a_wait_sleeps_until_the_end_is_near() {
        let usual = after([5_000, 6_000]);
        let (mut elapsed, mut sleeps) = (Duration::ZERO, 0);
        while let Next::Sleep(time) = usual.after(elapsed) {
            elapsed += time;
            sleeps += 1;
        }
        assert!((5..10).contains(&sleeps), "{sleeps}");
        let near = Duration::from_micros(4_650)..=Duration::from_micros(4_700);
        assert!(near.contains(&elapsed), "{elapsed:?}");
        assert_eq!(usual.after(elapsed), Next::Look);
        assert_eq!(usual.after(Duration::from_micros(5_299)), Next::Look);
        assert_eq!(usual.after(Duration::from_micros(5_300)), Next::Wait, "it takes longer");
    }

    #[test]
    fn one_late_run_changes_nothing() {
        let late = after([19_000, 5_000]);
        assert_eq!(late.after(Duration::from_micros(4_700)), Next::Look);
        let longer = after([19_000, 18_000]);
        assert!(matches!(longer.after(Duration::from_micros(4_700)), Next::Sleep(_)));
    }

    #[test]
    fn the_shortest_runs_are_watched_from_the_beginning() {
        assert_eq!(after([200, 200]).after(Duration::ZERO), Next::Look);
    }

    #[test]
    fn long_and_unknown_runs_are_left_to_the_driver() {
        let begun = Some(Instant::now());
        let long = Usual { begun, ..after([20_001, 20_001]) };
        assert_eq!(long.next(), Next::Wait);
        let first = Usual { begun, ..Usual::of(DeviceKind::Discrete) };
        assert_eq!(first.next(), Next::Wait);
        assert_eq!(after([200, 200]).next(), Next::Wait, "no run has begun");
    }

    #[test]
    fn runs_whose_end_was_waited_for_count() {
        let mut usual = Usual::of(DeviceKind::Discrete);
        usual.begin();
        usual.miss();
        usual.end();
        assert_eq!(usual.seen, [None; 2]);
        for known in 1..=2 {
            usual.begin();
            usual.end();
            assert_eq!(usual.seen.iter().flatten().count(), known);
        }
        let mut software = Usual::of(DeviceKind::Processor);
        software.begin();
        software.end();
        assert_eq!((software.next(), software.seen), (Next::Wait, [None; 2]));
    }
}
