//! The closure of the current dispatch, its lifetime erased.

use std::cell::UnsafeCell;

use super::{Barrier, ThreadIndex};

/// What every thread of a dispatch runs.
pub(super) type Task<'a> = dyn Fn(ThreadIndex, &Barrier) + Sync + 'a;

/// Holds a borrowed task between the caller of a dispatch and the workers.
///
/// Workers outlive every closure they run, so the closure's lifetime cannot appear in their type.
/// [`super::Pool::run`] returns only after the last worker has left the closure; that is what
/// makes the erased lifetime true.
pub(super) struct JobSlot(UnsafeCell<Option<&'static Task<'static>>>);

// SAFETY: the slot is written only while no worker reads it (see `set`), and the task is Sync.
unsafe impl Sync for JobSlot {}
// SAFETY: the task is Sync, so a reference to it may be sent.
unsafe impl Send for JobSlot {}

impl JobSlot {
    pub(super) fn empty() -> Self {
        JobSlot(UnsafeCell::new(None))
    }

    /// Stores the task of the next dispatch.
    ///
    /// # Safety
    /// No other thread may touch the slot during the call, and the task must stay alive until the
    /// last thread that obtained it with [`get`](Self::get) has stopped using it.
    pub(super) unsafe fn set(&self, task: &Task<'_>) {
        // SAFETY: only the lifetime changes; the caller keeps the task alive for all its users.
        let task: &'static Task<'static> = unsafe { std::mem::transmute(task) };
        // SAFETY: no other thread touches the slot during this call.
        unsafe { *self.0.get() = Some(task) };
    }

    /// The task of the current dispatch.
    ///
    /// # Safety
    /// A dispatch must be running, and the task may be used only until this thread reports done.
    pub(super) unsafe fn get(&self) -> &Task<'_> {
        // SAFETY: `set` happened before the dispatch began, and it is not called again during it.
        unsafe { *self.0.get() }.expect("a dispatch has a task")
    }
}
