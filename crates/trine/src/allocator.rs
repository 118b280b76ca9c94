//! Settings of the C library's allocator for a program that runs for weeks.
//!
//! glibc has up to eight heaps for each processor and returns memory only from their ends, so a few
//! small, long-lived pieces keep many pages. Two heaps, and large pieces that are mapped
//! separately, avoid most of that
//! ([decision 024](../../../docs/decisions/024-memory-goes-back.md)).

/// The maximum number of heaps.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAPS: i32 = 2;
/// Pieces of this size or more are mapped separately, and a heap returns free memory at its end
/// once there is this much. glibc starts with the same size, but unless it is set, the size grows
/// with the pieces that are freed, up to 32 MiB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: i32 = 128 << 10;

/// Makes the allocator return memory while the program runs. Must be called before other threads
/// start. Does nothing if the C library is not glibc.
pub(crate) fn give_memory_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (setting, value) in [
        (libc::M_ARENA_MAX, HEAPS),
        (libc::M_MMAP_THRESHOLD, LARGE_BYTES),
        (libc::M_TRIM_THRESHOLD, LARGE_BYTES),
    ] {
        // SAFETY: `mallopt` may be called at any time with any numbers; it ignores settings that it
        // does not know.
        unsafe { libc::mallopt(setting, value) };
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod tests {
    use std::process::Command;

    use super::*;

    fn resident_bytes() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() << 10
    }

    #[test]
    #[ignore = "sets up a whole process: the test below gives it one"]
    fn alone() {
        give_memory_back();
        // Unless the threshold is set, freeing a large piece raises it, so that the allocator puts
        // later pieces of this size into a heap.
        drop(std::hint::black_box(vec![1_u8; 4 << 20]));
        let before = resident_bytes();
        let (large, small): (Vec<_>, Vec<_>) =
            (0..64).map(|_| (vec![1_u8; 1 << 20], vec![1_u8; 64])).unzip();
        assert!(resident_bytes() > before + (60 << 20), "the pieces were not there");
        drop(std::hint::black_box(large));
        let kept = resident_bytes().saturating_sub(before);
        assert!(kept < 4 << 20, "{kept} bytes are kept by small pieces");
        drop(std::hint::black_box(small));
    }

    #[test]
    fn memory_between_small_pieces_goes_back() {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let output = program
            .args(["--exact", "allocator::tests::alone", "--include-ignored"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
