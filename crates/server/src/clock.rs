//! The time of day.

/// Returns the seconds since 1970, for the fields of responses that are called `created`.
pub(crate) fn unix_seconds() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
