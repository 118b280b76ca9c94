//! Work at the same time.

use std::thread::ScopedJoinHandle;

use crate::meter::{self, Spent};

/// Does work at the same time. Returns the results in the order of the work; the meter of this
/// thread counts what all took.
pub(crate) fn at_once<T: Send>(
    work: impl IntoIterator<Item = impl FnOnce() -> T + Send>,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let measured = |work| scope.spawn(|| meter::measure(work));
        let threads: Vec<_> = work.into_iter().map(measured).collect();
        threads.into_iter().map(joined).collect()
    })
}

/// Waits for a thread, and adds what it took to the meter of this one.
fn joined<T>(thread: ScopedJoinHandle<'_, (T, Spent)>) -> T {
    let ended = thread.join();
    let (result, spent) = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    meter::add(spent.processor);
    result
}

/// Does two pieces of work at the same time, the second on this thread, whose meter counts what
/// both took.
pub(crate) fn both<A: Send, B>(
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B,
) -> (A, B) {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| meter::measure(first));
        let second = second();
        (joined(first), second)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn results_of_work_at_once_keep_their_order() {
        let pause = |index: u64| std::thread::sleep(Duration::from_millis(20 - 10 * index));
        let work = (0..3).map(|index| {
            move || {
                pause(index);
                index
            }
        });
        assert_eq!(at_once(work), [0, 1, 2]);
    }

    #[test]
    fn the_meter_counts_what_other_threads_took() {
        let second = Duration::from_secs(1);
        let ((), spent) = meter::measure(|| {
            let (first, other) = both(|| meter::add(second), || meter::add(2 * second));
            at_once([first, other].map(|()| move || meter::add(3 * second)));
        });
        assert_eq!(spent.processor.as_secs(), 9);
    }
}
