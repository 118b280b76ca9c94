//! Records which fields the readers ask for while a test queries the server.

use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// The form in which a field is read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Form {
    Any,
    Boolean,
    Integer(RangeInclusive<i64>),
    Number(RangeInclusive<f64>),
    Text,
    List,
    Object,
}

/// Name of the threads whose reads are noted: other tests read fields at the same time.
const THREAD: &str = "reads are noted";

static READS: Mutex<Vec<(String, Form)>> = Mutex::new(Vec::new());

/// Notes that a field is asked for, whether it is there or not. Places in lists are left out:
/// `messages[].role`.
pub(crate) fn note(path: &str, form: Form) {
    if std::thread::current().name() != Some(THREAD) {
        return;
    }
    let path = path.chars().filter(|sign| !sign.is_ascii_digit() || !path.contains('['));
    let mut reads = READS.lock().unwrap_or_else(PoisonError::into_inner);
    let read = (path.collect(), form);
    if !reads.contains(&read) {
        reads.push(read);
    }
}

/// Runs work on threads whose reads are noted; returns its result.
pub(super) fn noted<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(THREAD)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let task = runtime.spawn(work);
    runtime.block_on(task).expect("the work does not panic")
}

/// Takes the reads that were noted since the last call.
pub(super) fn take() -> Vec<(String, Form)> {
    std::mem::take(&mut READS.lock().unwrap_or_else(PoisonError::into_inner))
}
