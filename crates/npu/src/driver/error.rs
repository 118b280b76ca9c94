//! What goes wrong with a device.

use std::time::Duration;

use crate::packet::State;
use crate::sys::Errno;

/// What goes wrong with a device, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The device cannot be opened.
    #[error("cannot open {path}: {errno}. {remedy}")]
    Open {
        /// The device's path.
        path: String,
        /// The kernel's error.
        errno: Errno,
        /// What to do.
        remedy: &'static str,
    },
    /// It is no XDNA1.
    #[error("{path} is {vendor}:{device}, expected 0x1022:0x1502 (Phoenix or Hawk Point)")]
    WrongDevice {
        /// The device's path.
        path: String,
        /// The vendor's number.
        vendor: String,
        /// The device's number.
        device: String,
    },
    /// Its driver is not the one that this is written for.
    #[error("the driver is {name} {major}.{minor}, expected amdxdna 0. Update trine")]
    WrongDriver {
        /// The driver's name.
        name: String,
        /// First number of its interface.
        major: i32,
        /// Second number.
        minor: i32,
    },
    /// The device heap cannot be mapped.
    #[error(
        "cannot lock 64 MiB of memory for the NPU: {errno}. Raise the limit of locked memory (ulimit -l) to 128 MiB or more"
    )]
    Heap {
        /// The kernel's error.
        errno: Errno,
    },
    /// The process has a context.
    #[error("this process has a context on the NPU, and can have one. Drop the other first")]
    ContextTaken,
    /// The driver gives no context.
    #[error(
        "the NPU's driver gives no context: {errno}. Another program may use the NPU, which can serve one at a time; end it"
    )]
    ContextRefused {
        /// The kernel's error.
        errno: Errno,
    },
    /// The NPU must not be used in this process any more.
    #[error(
        "the NPU is not used again in this process: {reason}. Restart trine; if it recurs, restart the machine"
    )]
    Quarantined {
        /// What has happened.
        reason: String,
    },
    /// A call of the kernel failed.
    #[error("cannot {what}: {errno}")]
    Call {
        /// What was to be done.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A request that cannot be.
    #[error("{problem}")]
    Request {
        /// What is wrong with it.
        problem: String,
    },
    /// A command was not done in time.
    #[error("a command on the NPU took more than {} ms; the NPU is not used again in this process", limit.as_millis())]
    TimedOut {
        /// How long it may take.
        limit: Duration,
    },
    /// A command ended in another way than by being completed.
    #[error("a command on the NPU ended as {state:?}")]
    Failed {
        /// How.
        state: State,
    },
    /// A packet has no known state.
    #[error("a command's packet begins with {word:#010x}, which is no state")]
    BadPacket {
        /// Its first word.
        word: u32,
    },
    /// The device did not count the commands.
    #[error(
        "{commands} commands were reported as done, and the NPU counted {counted}: no result is used"
    )]
    NotCounted {
        /// Commands.
        commands: u64,
        /// By how much the counter rose.
        counted: i128,
    },
    /// The driver does not list the context with its counter.
    #[error("the NPU's driver does not list this context, so that no work can be confirmed")]
    NoCounter,
    /// A part of the result was not written.
    #[error(
        "the NPU left {words} words of its result unwritten, the first is {first}: no result is used"
    )]
    Unwritten {
        /// The first word.
        first: usize,
        /// How many.
        words: usize,
    },
    /// Something was written after the result.
    #[error("the NPU wrote after the end of its result, at word {first}: no result is used")]
    Overrun {
        /// The first such word.
        first: usize,
    },
}

impl DriverError {
    /// Makes the error of a failed call from what was to be done.
    pub(super) const fn call(what: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Call { what, errno }
    }
}
