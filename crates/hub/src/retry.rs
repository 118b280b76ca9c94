//! Which failures are worth repeating, and how long to wait before the repetition.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::config::HubConfig;
use crate::error::HubError;
use crate::progress::Progress;

/// The repetitions if there was no connection: a user who is offline should not wait long for the
/// message.
const CONNECT_RETRIES: u32 = 1;
/// How often a wait checks whether it must stop.
const SLICE: Duration = Duration::from_millis(50);

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Repeating cannot help.
    Final(HubError),
    /// Repeating may help.
    Again {
        /// The error to report if it does not.
        error: HubError,
        /// The pause that the server asked for.
        after: Option<Duration>,
        /// Whether there was not even a connection.
        unconnected: bool,
    },
}

impl Failure {
    pub(crate) fn again(error: HubError) -> Self {
        Failure::Again { error, after: None, unconnected: false }
    }

    /// Returns the error of a request that is not repeated.
    pub(crate) fn into_error(self) -> HubError {
        match self {
            Failure::Final(error) | Failure::Again { error, .. } => error,
        }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Failure::Final(error)
    }
}

/// Counts failures in a row and spaces the repetitions.
pub(crate) struct Retries<'a> {
    config: &'a HubConfig,
    failures: u32,
    /// The last reason for a pause that was reported.
    told: String,
}

impl<'a> Retries<'a> {
    pub(crate) fn new(config: &'a HubConfig) -> Self {
        Retries { config, failures: 0, told: String::new() }
    }

    /// Resets the count of failures after real progress.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits until the next attempt is due, or returns the error if there is none left.
    pub(crate) fn pause(
        &mut self,
        failure: Failure,
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let (error, after, unconnected) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Again { error, after, unconnected } => (error, after, unconnected),
        };
        let limit = match unconnected {
            true => self.config.retries.min(CONNECT_RETRIES),
            false => self.config.retries,
        };
        if self.failures >= limit {
            return Err(error);
        }
        let doubled = self.config.backoff.saturating_mul(1 << self.failures.min(16));
        let pause = after.unwrap_or(doubled).min(self.config.longest_pause);
        self.failures += 1;
        tracing::debug!(%error, ?pause, attempt = self.failures, "repeating a request");
        let seconds = pause.as_secs_f64();
        let mut told = format!("trying again in {seconds:.1} s ({} of {limit})", self.failures);
        let cause = error.to_string();
        // Without a connection, the cause is the error that is reported at the end; any other cause
        // is reported once.
        if unconnected {
            told.insert_str(0, "no connection, ");
        } else if cause != self.told {
            told = format!("{told}: {cause}");
            self.told = cause;
        }
        progress.waiting(&told);
        wait(pause, progress)
    }
}

/// Sleeps, unless the caller asks to stop.
pub(crate) fn wait(pause: Duration, progress: &dyn Progress) -> Result<(), HubError> {
    let start = Instant::now();
    loop {
        if progress.cancelled() {
            return Err(HubError::Cancelled);
        }
        let left = pause.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(SLICE));
    }
}

/// Returns the pause that a `Retry-After` header asks for: seconds or a date (RFC 9110, 10.2.3).
pub(crate) fn retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let current = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
    Some(Duration::from_secs(http_date(value)?.saturating_sub(current)))
}

/// Returns the seconds since 1970 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110,
/// 5.6.7).
fn http_date(value: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut fields = value.split_once(", ")?.1.split(' ');
    let day: u64 = fields.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let name = fields.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as u64 + 1;
    let year: u64 = fields.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut clock = fields.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if hour > 23 || minute > 59 || second > 60 || fields.next() != Some("GMT") {
        return None;
    }
    // Days of the proleptic Gregorian calendar with years that begin in March, so that the leap
    // day is the last of its year.
    let (shifted_year, shifted_month) =
        if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * shifted_year + shifted_year / 4 - shifted_year / 100
        + shifted_year / 400
        + (153 * shifted_month + 2) / 5
        + day
        - 1;
    // 719468 days lie between 1 March of year 0 and 1 January 1970.
    Some(days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_seconds() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(http_date("Thu, 29 Feb 2024 12:00:00 GMT"), Some(1_709_208_000));
        for junk in ["", "x", "Sun, 06 Nov 1994", "Sun, 99 Nov 1994 08:49:37 GMT", "a, b c d e f"] {
            assert_eq!(http_date(junk), None, "{junk}");
        }
        assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("soon"), None);
    }

    #[test]
    fn repetitions_are_bounded_and_final_errors_are_not_repeated() {
        let mut config = HubConfig::new("/nonexistent");
        config.backoff = Duration::from_millis(1);
        config.retries = 3;
        let mut progress = crate::Silent;
        let mut retries = Retries::new(&config);
        for _ in 0..3 {
            retries.pause(Failure::again(HubError::Cancelled), &mut progress).unwrap();
        }
        assert!(retries.pause(Failure::again(HubError::Cancelled), &mut progress).is_err());
        retries.reset();
        assert!(retries.pause(Failure::again(HubError::Cancelled), &mut progress).is_ok());
        assert!(retries.pause(Failure::Final(HubError::Cancelled), &mut progress).is_err());
    }

    #[test]
    fn a_long_retry_after_is_capped() {
        let mut config = HubConfig::new("/nonexistent");
        config.longest_pause = Duration::from_millis(5);
        let start = Instant::now();
        let failure = Failure::Again {
            error: HubError::Cancelled,
            after: Some(Duration::from_secs(1_000_000)),
            unconnected: false,
        };
        Retries::new(&config).pause(failure, &mut crate::Silent).unwrap();
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
