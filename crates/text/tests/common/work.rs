//! What a test's own work takes, whatever else the machine does meanwhile.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of the calling thread.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Fails where `work` takes more processor time than `most`: hostile input must not cost more.
pub(crate) fn within<T>(most: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = now();
    let result = work();
    let took = now().saturating_sub(start);
    assert!(took < most, "{took:?} for {what:.90}");
    result
}
