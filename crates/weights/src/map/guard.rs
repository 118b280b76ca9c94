//! The SIGBUS handler that keeps a process alive when a mapped file shrinks.
//!
//! Mapped ranges are in a fixed table of atomics, because a signal handler may neither lock nor
//! allocate. If a fault lies in a registered range, the handler replaces everything from the
//! faulting page to the end of the range by zero pages (one system call; all later pages also lie
//! beyond the new end of the file) and flags the range. Any other SIGBUS goes to the handler that
//! was installed before.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// The number of files that can be mapped at once in one process.
const SLOTS: usize = 1024;

const FREE: u8 = 0;
const CLAIMED: u8 = 1;
const LIVE: u8 = 2;

struct Slot {
    state: AtomicU8,
    /// Counts the ranges that the slot has held, so that the handler notices when one replaces
    /// another.
    generation: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    cut: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        state: AtomicU8::new(FREE),
        generation: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        cut: AtomicBool::new(false),
    }
}; SLOTS];

/// The action that was installed before ours; set before our handler can run.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether installing the handler succeeded; decided once per process.
static INSTALLED: OnceLock<bool> = OnceLock::new();
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A claimed slot of the table; freed on drop.
#[derive(Debug)]
pub(super) struct Registration {
    slot: usize,
}

impl Registration {
    /// Returns whether a page of the range was missing when it was touched.
    pub(super) fn was_cut(&self) -> bool {
        TABLE[self.slot].cut.load(Ordering::Acquire)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        TABLE[self.slot].state.store(FREE, Ordering::Release);
    }
}

/// Puts a mapped range under guard.
pub(super) fn register(start: usize, length: usize) -> Result<Registration, &'static str> {
    if !*INSTALLED.get_or_init(install) {
        return Err("the system refused a SIGBUS handler");
    }
    let end = start.checked_add(length.next_multiple_of(page_bytes())).ok_or("address overflow")?;
    for (index, slot) in TABLE.iter().enumerate() {
        let claim = slot.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
        if claim.is_ok() {
            slot.generation.fetch_add(1, Ordering::SeqCst);
            slot.start.store(start, Ordering::SeqCst);
            slot.end.store(end, Ordering::SeqCst);
            slot.cut.store(false, Ordering::Relaxed);
            slot.state.store(LIVE, Ordering::Release);
            return Ok(Registration { slot: index });
        }
    }
    Err("more than 1024 model files are mapped at once")
}

/// Returns the system's page size in bytes.
pub(super) fn page_bytes() -> usize {
    let known = PAGE_BYTES.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
    let asked = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page = usize::try_from(asked).ok().filter(|page| page.is_power_of_two()).unwrap_or(4096);
    PAGE_BYTES.store(page, Ordering::Relaxed);
    page
}

fn install() -> bool {
    page_bytes();
    // SAFETY: sigaction structures are plain data for which all zeros is a valid value; both
    // pointers live across their calls; the handler has the signature that SA_SIGINFO asks for and
    // does only what is allowed inside a signal handler.
    unsafe {
        let mut previous: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous) != 0 {
            return false;
        }
        // Stored before installing: the handler may run at once, on any thread.
        PREVIOUS.get_or_init(|| previous);
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as usize;
        // ONSTACK: the standard library's stack-overflow handler, to which we may chain, needs it.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) == 0
    }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo. si_addr is meaningful for faults
    // (positive codes), which si_code distinguishes from signals sent by kill.
    let (is_fault, address) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    if is_fault && replace_missing_pages(address) {
        return;
    }
    // SAFETY: same arguments as the kernel gave us.
    unsafe { chain(signal, info, context) }
}

/// Puts zero pages from the page of `address` to the end of its registered range. Returns whether
/// that was done.
fn replace_missing_pages(address: usize) -> bool {
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    for slot in &TABLE {
        if slot.state.load(Ordering::Acquire) != LIVE {
            continue;
        }
        let generation = slot.generation.load(Ordering::SeqCst);
        let (start, end) = (slot.start.load(Ordering::SeqCst), slot.end.load(Ordering::SeqCst));
        // The slot may have been freed and taken again between the two loads; the new owner's range
        // is not this one.
        let is_torn = generation != slot.generation.load(Ordering::SeqCst);
        if is_torn || address < start || address >= end {
            continue;
        }
        let first = address & !(page - 1);
        slot.cut.store(true, Ordering::Release);
        let errno = read_errno();
        // SAFETY: [first, end) is page aligned and lies inside a live mapping of ours, so FIXED
        // replaces only pages of that mapping; mmap is a bare system call. Readers see zeros, which
        // are valid bytes.
        let placed = unsafe {
            libc::mmap(
                first as *mut c_void,
                end - first,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        write_errno(errno);
        return placed != libc::MAP_FAILED;
    }
    false
}

/// Passes a signal that is not ours to the action that was installed before.
///
/// # Safety
///
/// The arguments must be those of a running SA_SIGINFO handler.
unsafe fn chain(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let handler = PREVIOUS.get().map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The default action ends the process, as it would have without us. The raised signal
        // stays pending until this handler returns.
        // SAFETY: both calls are allowed inside a signal handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    let with_info = PREVIOUS.get().is_some_and(|p| p.sa_flags & libc::SA_SIGINFO != 0);
    if with_info {
        // SAFETY: SA_SIGINFO in its flags says that the handler has this signature.
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    } else {
        // SAFETY: without SA_SIGINFO a handler takes only the signal number.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
        handler(signal);
    }
}

#[cfg(any(target_os = "linux", target_os = "emscripten"))]
fn errno_location() -> *mut c_int {
    // SAFETY: returns the calling thread's errno, always valid.
    unsafe { libc::__errno_location() }
}

#[cfg(any(target_os = "macos", target_os = "ios", target_os = "freebsd"))]
fn errno_location() -> *mut c_int {
    // SAFETY: returns the calling thread's errno, always valid.
    unsafe { libc::__error() }
}

#[cfg(any(target_os = "android", target_os = "openbsd", target_os = "netbsd"))]
fn errno_location() -> *mut c_int {
    // SAFETY: returns the calling thread's errno, always valid.
    unsafe { libc::__errno() }
}

fn read_errno() -> c_int {
    // SAFETY: the location belongs to this thread.
    unsafe { *errno_location() }
}

fn write_errno(value: c_int) {
    // SAFETY: the location belongs to this thread.
    unsafe { *errno_location() = value }
}
