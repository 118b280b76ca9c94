//! Zeroed, 64-byte aligned memory for packed weights, on huge pages if the system has them: a
//! matrix-vector product touches every page once per token, and 4 KiB pages would cost a
//! translation miss every few hundred nanoseconds.

use std::ptr::NonNull;

/// The size and alignment of a huge page on the systems that matter.
#[cfg(unix)]
const HUGE: usize = 2 << 20;

/// Owned zeroed bytes.
#[derive(Debug)]
pub(super) struct AlignedBytes {
    /// 64-byte aligned start of the usable bytes.
    pointer: NonNull<u8>,
    length: usize,
    /// The memory that was reserved: start and length.
    reserved: (NonNull<u8>, usize),
}

// SAFETY: the memory is owned and reached only through `&self` and `&mut self`.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Reserves `length` zeroed bytes; returns `None` if the system has no room.
    #[cfg(unix)]
    pub(super) fn zeroed(length: usize) -> Option<Self> {
        let alignment = if length >= HUGE { HUGE } else { 64 };
        let total = length.max(1).checked_add(alignment)?;
        // SAFETY: an anonymous private mapping at an address of the system's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                total,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = NonNull::new(start.cast::<u8>())?;
        let shift = start.as_ptr().align_offset(alignment);
        // SAFETY: shift < alignment, and that much more than `length` was mapped.
        let pointer = unsafe { start.add(shift) };
        #[cfg(target_os = "linux")]
        if length >= HUGE {
            // SAFETY: the range was just mapped. A refusal only means small pages.
            unsafe { libc::madvise(pointer.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
        }
        Some(AlignedBytes { pointer, length, reserved: (start, total) })
    }

    /// Reserves `length` zeroed bytes; returns `None` if the system has no room.
    #[cfg(not(unix))]
    pub(super) fn zeroed(length: usize) -> Option<Self> {
        let total = length.max(1);
        let layout = std::alloc::Layout::from_size_align(total, 64).ok()?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?;
        Some(AlignedBytes { pointer: start, length, reserved: (start, total) })
    }

    /// Returns the bytes for reading.
    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: `length` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }

    /// Returns the bytes for writing.
    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `length` initialised bytes that this value owns, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        let (start, total) = self.reserved;
        #[cfg(unix)]
        // SAFETY: exactly the range that was mapped; nothing borrows it any more.
        unsafe {
            libc::munmap(start.as_ptr().cast(), total);
        }
        #[cfg(not(unix))]
        if let Ok(layout) = std::alloc::Layout::from_size_align(total, 64) {
            // SAFETY: allocated with exactly this layout.
            unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        for length in [0, 1, 100, 4 << 20] {
            let mut bytes = AlignedBytes::zeroed(length).unwrap();
            assert_eq!(bytes.as_slice().len(), length);
            assert_eq!(bytes.as_slice().as_ptr() as usize % 64, 0);
            assert!(bytes.as_slice().iter().all(|&byte| byte == 0));
            bytes.as_mut_slice().fill(7);
            assert!(bytes.as_slice().iter().all(|&byte| byte == 7));
        }
        assert!(AlignedBytes::zeroed(usize::MAX).is_none());
        assert!(AlignedBytes::zeroed(usize::MAX / 4).is_none());
    }
}
