//! The number of connections that fit into the limit on open files.

/// Open files other than connections: models, devices, prefixes, the log, the runtime's own.
const OTHERS: u64 = 64;

/// Returns how many of `wanted` connections fit into the limit on open files, in addition to
/// `reserve` other files. Raises the limit of the process as far as the system allows.
///
/// # Errors
/// Returns a message if not even one connection fits.
pub fn connections(wanted: usize, reserve: usize) -> Result<usize, String> {
    let needed = OTHERS + reserve as u64 + wanted as u64;
    fitting(allowed(needed), wanted, reserve)
}

fn fitting(allowed: Option<u64>, wanted: usize, reserve: usize) -> Result<usize, String> {
    let Some(allowed) = allowed else { return Ok(wanted) };
    let others = OTHERS + reserve as u64;
    match usize::try_from(allowed.saturating_sub(others)).unwrap_or(usize::MAX) {
        0 => Err(format!(
            "the system allows {allowed} open files, the server needs {} at least; raise the \
             limit, for example with `ulimit -n {}`",
            others + 1,
            others + wanted as u64,
        )),
        room => Ok(room.min(wanted)),
    }
}

/// Returns the number of files that the process may have open, after an attempt to raise it to
/// `needed`. Returns `None` if the number is not limited or the system has no such limit.
#[cfg(unix)]
fn allowed(needed: u64) -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
        // If the system refuses, the limit stays as it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current
}

#[cfg(not(unix))]
fn allowed(_needed: u64) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_as_many_as_there_is_room_for() {
        assert_eq!(fitting(None, 1024, 16), Ok(1024));
        assert_eq!(fitting(Some(4096), 1024, 16), Ok(1024));
        assert_eq!(fitting(Some(256), 1024, 16), Ok(176));
        assert_eq!(fitting(Some(81), 1024, 16), Ok(1));
        let problem = fitting(Some(80), 1024, 16).unwrap_err();
        assert!(problem.contains("allows 80") && problem.contains("ulimit -n 1104"), "{problem}");
    }
}
