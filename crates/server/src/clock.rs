//! The time of day.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Returns the seconds since 1970, for the fields of responses that are called `created`.
pub(crate) fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// The same moment on the steady clock and on that of days, for traces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    steady: Instant,
    /// Nanoseconds since 1970.
    unix: i64,
}

impl Moment {
    /// Reads both clocks.
    pub(crate) fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        Self { steady: Instant::now(), unix }
    }

    /// Returns the nanoseconds since 1970 of a time that is not after this moment.
    pub(crate) fn unix_nanoseconds(self, at: Instant) -> i64 {
        let ago = self.steady.saturating_duration_since(at).as_nanos();
        self.unix.saturating_sub(i64::try_from(ago).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_keep_their_distance() {
        let begun = Instant::now();
        let (moment, seconds) = (Moment::now(), unix_seconds());
        let ago = |time| moment.unix_nanoseconds(moment.steady.checked_sub(time).unwrap());
        assert!((moment.unix / 1_000_000_000 - seconds as i64).abs() <= 1);
        assert_eq!(moment.unix_nanoseconds(begun + Duration::from_secs(60)), moment.unix);
        assert_eq!(ago(Duration::ZERO) - ago(Duration::from_micros(3)), 3000);
    }
}
