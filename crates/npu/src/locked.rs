//! How much memory a process may lock: all that the NPU sees is locked.

use crate::sys::Sys;

/// The bit of the capability to lock any amount of memory (`CAP_IPC_LOCK`).
const LOCKS_ALL: u64 = 1 << 14;

/// How much memory this process may lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Any amount, for the process is privileged.
    Privileged,
    /// Any amount.
    Unlimited,
    /// At most this number of bytes.
    Bytes(u64),
    /// Unknown: Linux does not say it.
    Unknown,
}

impl Limit {
    /// Returns the limit that Linux reports for this process.
    pub(crate) fn of(sys: &dyn Sys) -> Self {
        let read = |path| sys.read_text(path).unwrap_or_default();
        let status = read("/proc/self/status");
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|all| u64::from_str_radix(all.trim(), 16).ok());
        if capabilities.is_some_and(|all| all & LOCKS_ALL != 0) {
            return Self::Privileged;
        }
        let limits = read("/proc/self/limits");
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        match limit.and_then(|limit| limit.split_whitespace().next()) {
            Some("unlimited") => Self::Unlimited,
            Some(bytes) => bytes.parse().map_or(Self::Unknown, Self::Bytes),
            None => Self::Unknown,
        }
    }
}
