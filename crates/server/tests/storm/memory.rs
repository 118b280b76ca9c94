//! What the process holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts live bytes.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; only a counter is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size, Ordering::Relaxed);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a process holds at a time when it has nothing to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    /// Bytes that were allocated and not freed.
    pub(crate) live: usize,
    /// Bytes in memory, where the system tells.
    pub(crate) resident: Option<usize>,
    /// Open files, where the system tells.
    pub(crate) files: Option<usize>,
}

impl Held {
    /// More than any process holds.
    pub(crate) fn most() -> Self {
        Self { live: usize::MAX, resident: Some(usize::MAX), files: Some(usize::MAX) }
    }

    /// What it holds at the moment.
    pub(crate) fn look() -> Self {
        let files = std::fs::read_dir("/proc/self/fd").ok().map(Iterator::count);
        Self { live: LIVE.load(Ordering::Relaxed), resident: resident(), files }
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let resident = self.resident.unwrap_or_default() as f64 / 1e6;
        let files = self.files.unwrap_or_default();
        write!(
            formatter,
            "{:.2} MB live, {resident:.1} MB resident, {files} files",
            self.live as f64 / 1e6
        )
    }
}

fn resident() -> Option<usize> {
    give_back();
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}

/// Gives pages in which nothing is allocated back to the system, those between others too: glibc
/// keeps some of them, and how many is a matter of chance.
fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
