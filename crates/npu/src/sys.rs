//! What the driver asks of the operating system, as bytes: the seam below which a model can stand.
//!
//! [`real::RealSys`] is Linux; for tests, `ModelSys` of the crate `npu-model` is a model of the
//! kernel's driver and of an NPU. Both get the same bytes; decision 037 has the reasons. Never run
//! on silicon.

pub mod abi;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod real;

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of a cache line: what a flush moves.
pub const CACHE_LINE_BYTES: u64 = 64;

/// A number that the kernel gives for what went wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

/// The names of the errors that the NPU's driver gives, as Linux numbers them.
macro_rules! errors {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($number);)*

            /// Returns the name and what it means.
            const fn words(self) -> Option<(&'static str, &'static str)> {
                match self {
                    $(Self::$name => Some((stringify!($name), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errors! {
    EPERM = 1, "not permitted";
    ENOENT = 2, "does not exist";
    EIO = 5, "failure of the device";
    E2BIG = 7, "too long";
    EBADF = 9, "no open file";
    EAGAIN = 11, "not possible at this time";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "in use";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    ENOTTY = 25, "not an operation of this device";
    ENOSPC = 28, "no room";
    ETIME = 62, "time is over";
    EOPNOTSUPP = 95, "not supported";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

/// A file that [`Sys::open`] or an ioctl opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct File(pub i32);

/// Memory that a field of an ioctl's struct points to.
#[derive(Debug)]
pub struct Pointed<'a> {
    /// Where the struct has the pointer, a number of 64 bits that is 0.
    pub field: usize,
    /// What it points to.
    pub bytes: &'a mut [u8],
}

/// What a process knows about its NPU for as long as it lives.
#[derive(Debug, Default)]
pub struct Process {
    quarantine: OnceLock<String>,
    has_context: AtomicBool,
}

impl Process {
    /// Nothing has happened yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { quarantine: OnceLock::new(), has_context: AtomicBool::new(false) }
    }

    /// Returns why the NPU must not be used again, if so.
    #[must_use]
    pub fn quarantine(&self) -> Option<&str> {
        self.quarantine.get().map(String::as_str)
    }

    /// Forbids the NPU for the rest of the process. The first reason is kept.
    pub fn set_quarantine(&self, reason: String) {
        let _ = self.quarantine.set(reason);
    }

    /// Takes the one context that a process may have; returns whether it was free.
    #[must_use]
    pub fn take_context(&self) -> bool {
        !self.has_context.swap(true, Ordering::AcqRel)
    }

    /// Gives it back.
    pub fn give_context(&self) {
        self.has_context.store(false, Ordering::Release);
    }
}

/// What the driver asks of the operating system.
///
/// Addresses are those of the process. No method leaves memory to the caller: mapped memory is
/// copied, and the rest lies in slices.
pub trait Sys: Send + Sync {
    /// Returns what the process knows about the NPU.
    fn process(&self) -> &Process;

    /// Reads a short text file of the kernel's.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    fn read_text(&self, path: &str) -> Result<String, Errno>;

    /// Returns the names in a folder, sorted.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    fn list(&self, path: &str) -> Result<Vec<String>, Errno>;

    /// Opens a device to read and write.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    fn open(&self, path: &str) -> Result<File, Errno>;

    /// Closes a file; nothing happens if it is not open.
    fn close(&self, file: File);

    /// Calls an ioctl of [`abi`] with the bytes of its struct, which the kernel may change.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error, or that of [`abi::check`].
    fn ioctl(
        &self,
        file: File,
        number: u32,
        argument: &mut [u8],
        pointed: &mut [Pointed<'_>],
    ) -> Result<(), Errno>;

    /// Maps `bytes` of a file from `offset` on, shared and locked, at a multiple of `alignment`
    /// (a power of two), and returns the address.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    fn map(&self, file: File, offset: u64, bytes: u64, alignment: u64) -> Result<u64, Errno>;

    /// Takes a mapping away that begins at this address; nothing happens if there is no such.
    fn unmap(&self, address: u64);

    /// Copies from mapped memory.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if the bytes are not all inside of one mapping.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno>;

    /// Copies to mapped memory.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if the bytes are not all inside of one mapping.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Writes cache lines of mapped memory back and forgets them, with fences on both sides.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if the bytes are not all inside of one mapping.
    fn flush(&self, address: u64, bytes: u64) -> Result<(), Errno>;

    /// Returns the time of the monotonic clock.
    fn now(&self) -> Duration;

    /// Waits on that clock.
    fn sleep(&self, time: Duration);
}
