use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;

#[test]
fn every_thread_runs_each_dispatch_once() {
    for threads in 1..=8 {
        let pool = Pool::new(threads).unwrap();
        let visits: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..300 {
            pool.run(|thread, _| {
                assert_eq!(thread.count, threads);
                visits[thread.index].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        }
        assert!(visits.iter().all(|visit| visit.load(Ordering::Relaxed) == 300));
    }
}

#[test]
fn barrier_orders_the_steps() {
    for threads in 1..=8 {
        let pool = Pool::new(threads).unwrap();
        let cells: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        pool.run(|thread, barrier| {
            for step in 1..=50 {
                cells[thread.index].store(step, Ordering::Relaxed);
                barrier.wait();
                for cell in &cells {
                    assert_eq!(cell.load(Ordering::Relaxed), step);
                }
                barrier.wait();
            }
        })
        .unwrap();
    }
}

#[test]
fn chunks_are_taken_once_whatever_the_threads() {
    for threads in 1..=6 {
        let pool = Pool::new(threads).unwrap();
        let counters = ChunkCounters::new(7);
        for dispatch in 0..40 {
            counters.begin();
            let sums: Vec<AtomicUsize> = (0..7).map(|_| AtomicUsize::new(0)).collect();
            pool.run(|_, barrier| {
                for (step, sum) in sums.iter().enumerate() {
                    // The last step is left out in odd dispatches: stale counters must not count.
                    if step == 6 && dispatch % 2 == 1 {
                        continue;
                    }
                    while let Some(chunk) = counters.next(step, 20 + step) {
                        sum.fetch_add((1 << 32) + chunk, Ordering::Relaxed);
                    }
                    if step % 3 == 0 {
                        barrier.wait();
                    }
                }
            })
            .unwrap();
            for (step, sum) in sums.iter().enumerate() {
                if step == 6 && dispatch % 2 == 1 {
                    continue;
                }
                let total = 20 + step;
                assert_eq!(sum.load(Ordering::Relaxed), (total << 32) + total * (total - 1) / 2);
            }
        }
    }
}

#[test]
fn a_panic_is_an_error_and_the_pool_lives_on() {
    for threads in 1..=5 {
        let pool = Pool::new(threads).unwrap();
        for culprit in 0..threads {
            let reached = AtomicUsize::new(0);
            let result = pool.run(|thread, barrier| {
                barrier.wait();
                assert!(thread.index != culprit, "thread {culprit} fails");
                barrier.wait();
                reached.fetch_add(1, Ordering::Relaxed);
            });
            let expected = format!("thread {culprit} fails");
            assert_eq!(result, Err(PoolError::Panicked { thread: culprit, message: expected }));
            assert_eq!(reached.load(Ordering::Relaxed), 0);
            let count = AtomicUsize::new(0);
            pool.run(|_, barrier| {
                barrier.wait();
                count.fetch_add(1, Ordering::Relaxed);
                barrier.wait();
                assert_eq!(count.load(Ordering::Relaxed), threads);
            })
            .unwrap();
        }
    }
}

#[test]
fn a_panic_payload_that_panics_when_dropped_is_contained() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload's own panic");
        }
    }
    let pool = Pool::new(3).unwrap();
    let result = pool.run(|thread, barrier| {
        if thread.index == 1 {
            std::panic::panic_any(Bomb);
        }
        barrier.wait();
    });
    assert!(matches!(result, Err(PoolError::Panicked { thread: 1, .. })));
    pool.run(|_, _| {}).unwrap();
}

#[test]
fn nested_and_concurrent_use_is_refused() {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let refusals = AtomicUsize::new(0);
        pool.run(|_, _| {
            if pool.run(|_, _| {}) == Err(PoolError::Busy) {
                refusals.fetch_add(1, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_eq!(refusals.load(Ordering::Relaxed), threads);
        pool.run(|_, _| {}).unwrap();
    }
}

#[test]
fn sleeping_workers_wake_up() {
    let pool = Pool::new(4).unwrap();
    let count = AtomicUsize::new(0);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(20));
        pool.run(|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 20);
}

#[test]
fn a_pool_can_be_dropped_at_any_time() {
    for round in 0..20_u64 {
        let pool = Pool::new(4).unwrap();
        if round % 2 == 0 {
            pool.run(|_, barrier| barrier.wait()).unwrap();
        }
        std::thread::sleep(Duration::from_micros(200 * (round % 4)));
        drop(pool);
    }
}

#[test]
fn absurd_thread_counts_are_refused() {
    assert_eq!(Pool::new(0).err(), Some(PoolError::ThreadCount { threads: 0 }));
    assert!(Pool::new(MAX_THREADS + 1).is_err());
}

#[test]
fn shares_cover_everything_once() {
    for count in 1..9 {
        for total in [0, 1, 7, 64, 1000, 1152] {
            for granule in [1, 8, 32] {
                let mut next = 0;
                for index in 0..count {
                    let share = ThreadIndex { index, count }.share_of(total, granule);
                    assert_eq!(share.start, next);
                    assert!(share.start.is_multiple_of(granule) || share.start == total);
                    next = share.end;
                }
                assert_eq!(next, total);
            }
        }
    }
}
