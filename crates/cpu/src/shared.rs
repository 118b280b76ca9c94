//! Memory that several threads of the pool write at once, each its own part.
//!
//! Rust's borrows cannot express "thread 3 owns rows 12..16 until the next phase", so these two
//! types hand out parts of a buffer from a shared reference. Bounds are always checked. That no two
//! threads hold overlapping parts is the caller's promise, stated at each unsafe call.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use bytemuck::Pod;

/// The machine refused to reserve memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes of memory: shorten the context, serve fewer sequences, or keep \
     the KV cache in int8"
)]
pub struct OutOfMemory {
    /// Bytes asked for; `usize::MAX` if the size itself overflows.
    pub bytes: usize,
}

/// A mutable slice lent to all threads of the pool.
#[derive(Debug)]
pub struct SharedSlice<'a, T> {
    pointer: NonNull<T>,
    length: usize,
    lender: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is only a pointer and a length; access goes through the unsafe methods, whose
// callers promise that parts do not overlap, and T itself may be sent and shared.
unsafe impl<T: Send + Sync> Send for SharedSlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Lends the whole slice for the lifetime of its borrow.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedSlice {
            length: slice.len(),
            pointer: NonNull::from(slice).cast(),
            lender: PhantomData,
        }
    }

    /// The address of the first element, for kernels. It may be used for every element.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.pointer.as_ptr()
    }

    /// Lends the elements of `range`. Panics if the range leaves the slice.
    pub fn part(&self, range: Range<usize>) -> SharedSlice<'a, T> {
        check(&range, self.length);
        // SAFETY: the range lies inside the slice.
        let pointer = unsafe { self.pointer.add(range.start) };
        SharedSlice { pointer, length: range.len(), lender: PhantomData }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the slice has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the elements of `range` for reading. Panics if the range leaves the slice.
    ///
    /// # Safety
    /// Nothing may write any of these elements while the returned slice is in use.
    pub unsafe fn read(&self, range: Range<usize>) -> &[T] {
        check(&range, self.length);
        // SAFETY: the range lies inside the slice; absence of writers is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(range.start), range.len()) }
    }

    /// Returns the elements of `range` for writing. Panics if the range leaves the slice.
    ///
    /// # Safety
    /// Nothing else may read or write any of these elements while the returned slice is in use.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn write(&self, range: Range<usize>) -> &mut [T] {
        check(&range, self.length);
        // SAFETY: the range lies inside the slice; exclusiveness is the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.pointer.as_ptr().add(range.start), range.len())
        }
    }
}

/// Zeroed memory of fixed size, aligned to 64 bytes. The system hands out its pages when they are
/// first touched, so a cache for a long context costs only what is used of it.
#[derive(Debug)]
pub struct SharedBuffer<T: Pod> {
    allocation: Option<(NonNull<u8>, Layout)>,
    pointer: NonNull<T>,
    length: usize,
}

// SAFETY: the buffer owns its memory; access goes through `&mut self` or the unsafe methods.
unsafe impl<T: Pod + Send + Sync> Send for SharedBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Send + Sync> Sync for SharedBuffer<T> {}

const ALIGNMENT: usize = 64;

impl<T: Pod> SharedBuffer<T> {
    /// Reserves `length` zeroed elements.
    pub fn new(length: usize) -> Result<Self, OutOfMemory> {
        if length == 0 {
            return Ok(SharedBuffer { allocation: None, pointer: NonNull::dangling(), length });
        }
        let overflow = OutOfMemory { bytes: usize::MAX };
        let bytes = length.checked_mul(size_of::<T>()).ok_or(overflow)?;
        let padded = bytes.checked_add(ALIGNMENT).ok_or(overflow)?;
        // The allocator is asked only for the type's natural alignment: for a larger one it would
        // clear the memory itself and so touch every page.
        let layout = Layout::from_size_align(padded, align_of::<T>()).map_err(|_| overflow)?;
        // SAFETY: the layout has a size of at least ALIGNMENT bytes.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory { bytes })?;
        let shift = start.as_ptr().align_offset(ALIGNMENT);
        assert!(shift < ALIGNMENT, "a byte pointer can always be aligned");
        // SAFETY: shift < ALIGNMENT, and ALIGNMENT spare bytes were reserved.
        let pointer = unsafe { start.add(shift) }.cast();
        Ok(SharedBuffer { allocation: Some((start, layout)), pointer, length })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the buffer has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.length * size_of::<T>()
    }

    /// All elements, exclusively.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: the memory is owned, initialised (zeroed Pod), and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }

    /// Lends the buffer to all threads.
    pub fn share(&mut self) -> SharedSlice<'_, T> {
        SharedSlice::new(self.as_mut_slice())
    }

    /// Returns the elements of `range` for reading. Panics if the range leaves the buffer.
    ///
    /// # Safety
    /// Nothing may write any of these elements while the returned slice is in use.
    pub unsafe fn read(&self, range: Range<usize>) -> &[T] {
        check(&range, self.length);
        // SAFETY: inside the buffer and initialised; absence of writers is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(range.start), range.len()) }
    }

    /// Returns the elements of `range` for writing. Panics if the range leaves the buffer.
    ///
    /// # Safety
    /// Nothing else may read or write any of these elements while the returned slice is in use.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn write(&self, range: Range<usize>) -> &mut [T] {
        check(&range, self.length);
        // SAFETY: inside the buffer and initialised; exclusiveness is the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.pointer.as_ptr().add(range.start), range.len())
        }
    }
}

impl<T: Pod> Drop for SharedBuffer<T> {
    fn drop(&mut self) {
        if let Some((start, layout)) = self.allocation {
            // SAFETY: `start` came from the allocator with exactly this layout.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }
}

fn check(range: &Range<usize>, length: usize) {
    assert!(
        range.start <= range.end && range.end <= length,
        "range {range:?} leaves a buffer of {length} elements"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_zeroed_aligned_and_counted() {
        let mut buffer = SharedBuffer::<u16>::new(1001).unwrap();
        assert_eq!(buffer.bytes(), 2002);
        assert_eq!(buffer.as_mut_slice().as_ptr() as usize % ALIGNMENT, 0);
        assert!(buffer.as_mut_slice().iter().all(|&value| value == 0));
        assert!(SharedBuffer::<u64>::new(usize::MAX).is_err());
        assert_eq!(SharedBuffer::<f32>::new(0).unwrap().as_mut_slice().len(), 0);
    }

    #[test]
    fn threads_write_disjoint_parts() {
        let mut values = vec![0_usize; 64];
        let shared = SharedSlice::new(&mut values);
        std::thread::scope(|scope| {
            for part in 0..4 {
                let shared = &shared;
                scope.spawn(move || {
                    // SAFETY: every thread takes its own sixteen elements.
                    let own = unsafe { shared.write(part * 16..part * 16 + 16) };
                    own.iter_mut().enumerate().for_each(|(i, value)| *value = part * 16 + i);
                });
            }
        });
        assert!(values.iter().enumerate().all(|(i, &value)| i == value));
    }

    #[test]
    #[should_panic(expected = "leaves a buffer")]
    fn ranges_are_checked() {
        let mut values = [0_u8; 4];
        let shared = SharedSlice::new(&mut values);
        // SAFETY: single-threaded; the call panics before any access.
        let _ = unsafe { shared.read(2..5) };
    }
}
