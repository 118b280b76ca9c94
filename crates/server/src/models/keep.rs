//! How long a model that nobody uses stays loaded.

use std::time::Duration;

use serde_json::Value;

/// How long a model that nobody uses stays loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KeepAlive {
    /// Until others need its room, or the server ends.
    #[default]
    Forever,
    /// This long after the last request that used it.
    For(Duration),
}

/// Units of durations, in seconds. Longer names come first: `ms` ends with `s`.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];
/// Longest time that is counted, in seconds: a hundred years. Longer ones mean forever.
const SECONDS_MAX: f64 = 100.0 * 365.25 * 86_400.0;

impl KeepAlive {
    /// Reads seconds (`300`), a duration as Go writes it (`5m`, `1h30m`, `2.5s`), or a negative one
    /// of either, which means forever.
    ///
    /// # Errors
    /// A message that says what can be written.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || "write a time such as 5m, 1h30m or 300 (seconds), 0, or -1 forever".to_owned();
        let seconds = match text.parse::<f64>() {
            Ok(seconds) => seconds,
            Err(_) => parse_units(text).ok_or_else(wrong)?,
        };
        Self::of_seconds(seconds).ok_or_else(wrong)
    }

    /// Reads a field of a request: a number of seconds, or a text as [`KeepAlive::parse`] takes it.
    pub(crate) fn of_value(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Self::of_seconds(number.as_f64()?),
            Value::String(text) => Self::parse(text).ok(),
            _ => None,
        }
    }

    fn of_seconds(seconds: f64) -> Option<Self> {
        match seconds {
            seconds if seconds.is_nan() => None,
            seconds if !(0.0..=SECONDS_MAX).contains(&seconds) => Some(Self::Forever),
            seconds => Some(Self::For(Duration::from_secs_f64(seconds))),
        }
    }
}

/// Returns the seconds of `1h30m` and the like.
fn parse_units(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut seconds = None;
    while !rest.is_empty() {
        let digits = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (unit, each) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        seconds = Some(seconds.unwrap_or(0.0) + number * each);
    }
    seconds.map(|seconds| sign * seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn seconds(seconds: f64) -> Option<KeepAlive> {
        Some(KeepAlive::For(Duration::from_secs_f64(seconds)))
    }

    #[test]
    fn durations_are_read_as_ollama_does() {
        for (value, expected) in [
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!("1.5s"), seconds(1.5)),
            (json!("200ms"), seconds(0.2)),
            (json!("90"), seconds(90.0)),
            (json!(90), seconds(90.0)),
            (json!(0), seconds(0.0)),
            (json!("0"), seconds(0.0)),
            (json!("0s"), seconds(0.0)),
            (json!(-1), Some(KeepAlive::Forever)),
            (json!("-1"), Some(KeepAlive::Forever)),
            (json!("-1m"), Some(KeepAlive::Forever)),
            (json!(1e300), Some(KeepAlive::Forever)),
            (json!("9999999999h"), Some(KeepAlive::Forever)),
            (json!("inf"), Some(KeepAlive::Forever)),
        ] {
            assert_eq!(KeepAlive::of_value(&value), expected, "{value}");
        }
        for wrong in [
            json!(""),
            json!("m"),
            json!("5 m"),
            json!("5x"),
            json!("-"),
            json!("1..5s"),
            json!("nan"),
            json!(true),
            json!([5]),
        ] {
            assert_eq!(KeepAlive::of_value(&wrong), None, "{wrong}");
        }
    }
}
