//! What a test's own work takes, whatever else the machine does meanwhile.

use std::time::Duration;

use cpu_time::ThreadTime;

/// Fails where `work` takes more processor time than `most`: hostile input must not cost more.
pub(crate) fn within<T>(most: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = ThreadTime::now();
    let result = work();
    let took = start.elapsed();
    assert!(took < most, "{took:?} for {what:.90}");
    result
}
