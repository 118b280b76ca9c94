//! The time of day.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Returns the seconds since 1970, for the fields of responses that are called `created`.
pub(crate) fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Returns a time in RFC 3339, from seconds since 1970.
///
/// The date is Howard Hinnant's `civil_from_days` (chrono-compatible low-level date algorithms,
/// 2013), for days from 1970 on.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months counted from March.
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
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

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), expected);
        }
    }
}
