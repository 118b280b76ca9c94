//! What goes wrong with a device. Each message ends with what to do.

use std::time::Duration;

use crate::kernel::Family;
use crate::packet::CommandState;
use crate::sys::Errno;

/// What to do about a locked memory that is too small.
const LOCK_MORE: &str = "Raise the limit of locked memory (ulimit -l) to 128 MiB or more, or free \
    memory; `trine npu doctor` tells the limit";
/// What to do about what the kernel cannot do at this time.
const TRY_AGAIN: &str =
    "Try again, since the NPU may be waking; if it recurs, see the kernel's messages (sudo dmesg)";
/// What to do about a device that may hang.
const RESTART: &str = "Restart the machine before the NPU is used again";
/// What to do about what neither the driver's interface nor the device should do.
const REPORT: &str =
    "Report it with the kernel's messages (sudo dmesg), as docs/npu.md says under \"What to send\"";

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
    /// The device is no XDNA1.
    #[error(
        "{path} is {vendor}:{device}, expected 0x1022:0x1502 (Phoenix or Hawk Point). Name the \
         NPU's node, which `trine npu doctor` finds"
    )]
    WrongDevice {
        /// The device's path.
        path: String,
        /// The vendor's number.
        vendor: String,
        /// The device's number.
        device: String,
    },
    /// The node leads to another driver, as it may in a container.
    #[error(
        "{path} leads to the driver {name:?}, expected \"amdxdna_accel_driver\". Name the NPU's \
         node, which `trine npu doctor` finds, or give the container that one"
    )]
    WrongNode {
        /// The node's path.
        path: String,
        /// The driver's name, up to 32 bytes of it.
        name: String,
    },
    /// The node leads to no driver of the kernel's graphics core.
    #[error(
        "{path} tells no driver: {errno}. Name the NPU's node, which `trine npu doctor` finds, or \
         give the container that one"
    )]
    NoDriver {
        /// The node's path.
        path: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// The driver is not the one that this is written for.
    #[error("the driver amdxdna has the interface {major}.{minor}, expected 0. Update trine")]
    WrongDriver {
        /// First number of its interface.
        major: i32,
        /// Second number.
        minor: i32,
    },
    /// Memory that the device is to see cannot be mapped and locked.
    #[error(
        "cannot lock {} KiB of memory for the NPU: {errno}. {}",
        bytes.div_ceil(1024),
        lock_remedy(*errno)
    )]
    Lock {
        /// How many bytes.
        bytes: u64,
        /// The kernel's error.
        errno: Errno,
    },
    /// The process has a context.
    #[error("this process has a context on the NPU, and can have one. Drop the other first")]
    ContextTaken,
    /// The driver gives no context.
    #[error("the NPU's driver gives no context: {errno}. {}", context_remedy(*errno))]
    ContextRefused {
        /// The kernel's error.
        errno: Errno,
    },
    /// The cores' program is for trine's model, and the driver is another.
    #[error(
        "the cores' program only stands in for that of {family}, for trine's model of the driver, \
         and this is another driver. Take a pack of AMD's published file, which `trine npu pack` \
         makes"
    )]
    StandIn {
        /// The family.
        family: Family,
    },
    /// A stream is proven for other cores than those of the context.
    #[error(
        "the stream is proven for the cores of {program}, and the context runs those of {cores}. \
         Give it a context with its own"
    )]
    OtherCores {
        /// The stream's family.
        program: Family,
        /// The context's.
        cores: Family,
    },
    /// The NPU must not be used in this process any more.
    #[error("the NPU is not used again in this process: {reason}. {RESTART}")]
    Quarantined {
        /// What has happened, without what to do.
        reason: String,
    },
    /// A call of the kernel failed.
    #[error("cannot {what}: {errno}. {}", remedy(*errno))]
    Call {
        /// What was to be done.
        what: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A request that cannot be.
    #[error("{problem}. Give the command the buffers that its program's contract names")]
    Request {
        /// What is wrong with it.
        problem: String,
    },
    /// An answer of the driver's that cannot be.
    #[error("{problem}. {REPORT}")]
    Answer {
        /// What is wrong with it.
        problem: String,
    },
    /// A command was not done in time.
    #[error("a command on the NPU took more than {} ms. {RESTART}", limit.as_millis())]
    TimedOut {
        /// How long it may take.
        limit: Duration,
    },
    /// A command ended in another way than by being completed.
    #[error("a command on the NPU ended as {state:?}. {}", failed_remedy(*state))]
    Failed {
        /// The state in which the command ended.
        state: CommandState,
    },
    /// A packet has no known state.
    #[error("a command's packet begins with {word:#010x}, which is no state. {RESTART}")]
    BadPacket {
        /// Its first word.
        word: u32,
    },
    /// The driver did not count the submissions.
    #[error(
        "{submitted} commands were reported as done, and the NPU's driver counted {counted}: no \
         result is used. {REPORT}"
    )]
    NotCounted {
        /// Commands.
        submitted: u64,
        /// The number by which the counter rose.
        counted: i128,
    },
    /// The driver does not list the context with its counter.
    #[error(
        "the NPU's driver does not list this context, so that no work can be confirmed. Update \
         Linux, or end other programs that use the NPU: up to 32 contexts are read"
    )]
    NoCounter,
    /// Several contexts are new in the driver's list.
    #[error(
        "another program began to use the NPU at the same time, so that no work can be confirmed. \
         End it, and try again"
    )]
    UnclearCounter,
    /// A part of the result was not written.
    #[error(
        "the NPU left {words} words of its result unwritten, the first is {first}: no result is \
         used. {REPORT}"
    )]
    Unwritten {
        /// The first word.
        first: usize,
        /// How many.
        words: usize,
    },
    /// Something was written after the result.
    #[error(
        "the NPU wrote after the end of its result, at word {first}: no result is used. {REPORT}"
    )]
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

    /// Returns what has happened, without what to do: a message is one sentence, and then the
    /// remedy.
    pub(super) fn cause(&self) -> String {
        let message = self.to_string();
        message.split_once(". ").map_or(&*message, |(cause, _)| cause).to_owned()
    }
}

/// Returns what to do about an error of the kernel's.
fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES => {
            "Add the user to the group render, and log in again; `trine npu doctor` tells who may"
        }
        Errno::ENOMEM => "Free memory, for example by ending other programs",
        Errno::EAGAIN => TRY_AGAIN,
        Errno::ENOSPC => "Drop programs that are not needed: the NPU's heap has 64 MiB",
        Errno::EBUSY => "End other programs that use the NPU; `trine npu doctor` lists them",
        Errno::EIO | Errno::ENODEV | Errno::ETIME => {
            "See the kernel's messages (sudo dmesg); where the NPU hangs, restart the machine"
        }
        Errno::ENOTTY | Errno::EOPNOTSUPP => "Update Linux: its driver has not all that is needed",
        _ => "Run `trine npu doctor`; if it finds nothing, see the kernel's messages (sudo dmesg)",
    }
}

fn lock_remedy(errno: Errno) -> &'static str {
    match errno {
        // What the kernel has for memory that may not be locked.
        Errno::EPERM | Errno::EAGAIN | Errno::ENOMEM => LOCK_MORE,
        _ => remedy(errno),
    }
}

fn context_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::EINVAL | Errno::EBUSY => {
            "End the other program that uses the NPU, which can serve one at a time; `trine npu \
             doctor` names it"
        }
        _ => remedy(errno),
    }
}

fn failed_remedy(state: CommandState) -> &'static str {
    // Such an end is one of the command and not of the device.
    if state == CommandState::Error { REPORT } else { RESTART }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that a remedy begins with.
    const VERBS: [&str; 16] = [
        "Add", "Drop", "End", "Free", "Give", "Load", "Name", "Raise", "Report", "Restart", "Run",
        "See", "Switch", "Take", "Try", "Update",
    ];

    /// Returns one of each, or one for each error of the kernel's. A new variant does not compile
    /// before it is here.
    fn all(errno: Errno, state: CommandState) -> Vec<DriverError> {
        use DriverError as E;
        let (path, name) = ("/dev/accel/accel0".to_owned(), "ivpu".to_owned());
        let text = || "something".to_owned();
        let errors = vec![
            E::Open { path: path.clone(), errno, remedy: "See the kernel's messages (dmesg)" },
            E::WrongDevice { path: path.clone(), vendor: text(), device: text() },
            E::WrongNode { path: path.clone(), name },
            E::NoDriver { path, errno },
            E::WrongDriver { major: 1, minor: 2 },
            E::Lock { bytes: 64 << 20, errno },
            E::ContextTaken,
            E::ContextRefused { errno },
            E::Quarantined { reason: text() },
            E::Call { what: "do it", errno },
            E::Request { problem: text() },
            E::Answer { problem: text() },
            E::TimedOut { limit: Duration::from_secs(1) },
            E::Failed { state },
            E::BadPacket { word: 0 },
            E::NotCounted { submitted: 2, counted: 1 },
            E::NoCounter,
            E::Unwritten { first: 0, words: 1 },
            E::Overrun { first: 0 },
            E::StandIn { family: Family::Int8 },
            E::OtherCores { program: Family::Int8, cores: Family::Int4 },
            E::UnclearCounter,
        ];
        let index = |error: &DriverError| match error {
            E::Open { .. } => 0,
            E::WrongDevice { .. } => 1,
            E::WrongNode { .. } => 2,
            E::NoDriver { .. } => 3,
            E::WrongDriver { .. } => 4,
            E::Lock { .. } => 5,
            E::ContextTaken => 6,
            E::ContextRefused { .. } => 7,
            E::Quarantined { .. } => 8,
            E::Call { .. } => 9,
            E::Request { .. } => 10,
            E::Answer { .. } => 11,
            E::TimedOut { .. } => 12,
            E::Failed { .. } => 13,
            E::BadPacket { .. } => 14,
            E::NotCounted { .. } => 15,
            E::NoCounter => 16,
            E::Unwritten { .. } => 17,
            E::Overrun { .. } => 18,
            E::StandIn { .. } => 19,
            E::OtherCores { .. } => 20,
            E::UnclearCounter => 21,
        };
        assert!(errors.iter().map(index).eq(0..errors.len()));
        errors
    }

    #[test]
    fn each_message_ends_with_what_to_do() {
        for number in (0..=40).chain([62, 95]) {
            for state in [
                CommandState::Error,
                CommandState::Abort,
                CommandState::Timeout,
                CommandState::NoResponse,
            ] {
                for error in all(Errno(number), state) {
                    let message = error.to_string();
                    let (_, remedy) =
                        message.split_once(". ").unwrap_or_else(|| panic!("{message}"));
                    let verb = remedy.split(' ').next().unwrap_or_default();
                    assert!(VERBS.contains(&verb), "{message}");
                    assert!(!message.ends_with('.'), "{message}");
                    let (cause, _) = message.split_once(". ").unwrap();
                    assert_eq!(error.cause(), cause);
                }
            }
        }
    }

    #[test]
    fn errors_of_the_kernel_have_their_own_remedies() {
        let context = |errno| DriverError::ContextRefused { errno }.to_string();
        assert!(context(Errno::EINVAL).contains("one at a time"));
        assert!(context(Errno::EAGAIN).contains("Try again"));
        for errno in [Errno::EAGAIN, Errno::EPERM, Errno::ENOMEM] {
            let lock = DriverError::Lock { bytes: 64 << 20, errno }.to_string();
            assert!(lock.contains("lock 65536 KiB") && lock.contains("ulimit -l"), "{lock}");
            // What does not lock memory does not fail for its limit.
            let call = DriverError::Call { what: "do it", errno }.to_string();
            assert!(!call.contains("ulimit") && !context(errno).contains("ulimit"), "{call}");
        }
        let call = |errno| DriverError::Call { what: "do it", errno }.to_string();
        assert!(call(Errno::EACCES).contains("group render"));
        assert!(call(Errno::ENODEV).contains("restart the machine"));
    }
}
