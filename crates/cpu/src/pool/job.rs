//! The work of the current dispatch, with its lifetime erased.

use std::cell::UnsafeCell;

use super::work::Work;

/// Holds borrowed work between the caller of a dispatch and the workers.
///
/// Workers outlive everything they work on, so the work's lifetime cannot appear in their type.
/// [`super::Pool::run`] returns only when the work has ended. Until then the work is used only by
/// threads that hold a unit, and by the one thread that reported the last unit of a phase and has
/// not yet published the next phase. That is what makes the erased lifetime sound.
pub(super) struct JobSlot(UnsafeCell<Option<&'static dyn Work>>);

// SAFETY: the slot is written only while no thread reads it (see `set`), and the work is Sync.
unsafe impl Sync for JobSlot {}
// SAFETY: the work is Sync, so a reference to it may be sent.
unsafe impl Send for JobSlot {}

impl JobSlot {
    pub(super) fn empty() -> Self {
        JobSlot(UnsafeCell::new(None))
    }

    /// Stores the work of the next dispatch.
    ///
    /// # Safety
    /// No other thread may touch the slot during the call, and the work must stay alive until the
    /// last thread that obtained it with [`get`](Self::get) has stopped using it.
    pub(super) unsafe fn set(&self, work: &dyn Work) {
        // SAFETY: only the lifetime changes; the caller keeps the work alive for all its users.
        let work: &'static dyn Work = unsafe { std::mem::transmute(work) };
        // SAFETY: no other thread touches the slot during this call.
        unsafe { *self.0.get() = Some(work) };
    }

    /// Returns the work of the current dispatch.
    ///
    /// # Safety
    /// The thread must hold a unit of the dispatch. It may use the work until it has reported that
    /// unit or, if that was the last one of its phase, until it has published the next phase or
    /// declared the end of the work.
    pub(super) unsafe fn get(&self) -> &dyn Work {
        // SAFETY: `set` happened before the first phase began, and it is not called again before
        // the work has ended.
        unsafe { *self.0.get() }.expect("a dispatch has work")
    }
}
