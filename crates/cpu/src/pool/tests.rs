use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// A pause of a thread that waits for another. Yielding may not let that one run while other
/// programs are busy.
const PAUSE: Duration = Duration::from_micros(10);

/// Work of phases with these numbers of units; the closure does a unit of a phase on a thread.
struct Steps<F> {
    units: Vec<usize>,
    unit: F,
}

impl<F: Fn(usize, usize, usize) + Sync> Work for Steps<F> {
    fn units(&self, phase: usize) -> Option<usize> {
        self.units.get(phase).copied()
    }

    fn run(&self, phase: usize, thread: usize, units: &mut Units<'_>) {
        for unit in units {
            (self.unit)(phase, thread, unit);
        }
    }
}

fn steps<F: Fn(usize, usize, usize) + Sync>(units: &[usize], unit: F) -> Steps<F> {
    Steps { units: units.to_vec(), unit }
}

fn counters(count: usize) -> Vec<AtomicUsize> {
    (0..count).map(|_| AtomicUsize::new(0)).collect()
}

/// Runs work whose every unit checks that all units of earlier phases are done and that no other
/// thread has it.
fn check_order(pool: &Pool, units: &[usize], dispatches: usize) {
    let firsts: Vec<usize> = (0..units.len()).map(|phase| units[..phase].iter().sum()).collect();
    let done = counters(units.iter().sum());
    for dispatch in 0..dispatches {
        let work = steps(units, |phase, thread, unit| {
            assert!(thread < pool.threads() && unit < units[phase]);
            let first = firsts[phase];
            assert!(done[..first].iter().all(|one| one.load(Ordering::Relaxed) == dispatch + 1));
            assert_eq!(done[first + unit].fetch_add(1, Ordering::Relaxed), dispatch);
        });
        pool.run(&work).unwrap();
        assert!(done.iter().all(|one| one.load(Ordering::Relaxed) == dispatch + 1));
    }
}

#[test]
fn phases_follow_one_another_and_each_unit_is_done_once() {
    for threads in 1..=8 {
        let pool = Pool::new(threads).unwrap();
        check_order(&pool, &[1, 7, 0, 2, 1, 1, 30, 0, 5, 1], 200);
        check_order(&pool, &[], 3);
        check_order(&pool, &[0, 0], 3);
        check_order(&pool, &[1], 3);
        check_order(&pool, &[40], 50);
    }
}

/// Far more threads than cores: the system stops them anywhere, with and without a unit, and they
/// come back phases and dispatches later.
#[test]
fn threads_that_are_stopped_anywhere_change_nothing() {
    for length in [time_slice::LENGTH, Duration::ZERO] {
        let pool = Pool::with_slices(48, length).unwrap();
        check_order(&pool, &[3, 1, 50, 2, 0, 2, 9, 1, 1, 17, 64, 2], 300);
    }
}

/// Threads that leave a phase after every unit to offer their core still do all of it.
#[test]
fn slices_that_end_at_once_lose_no_unit() {
    for threads in 2..=4 {
        let pool = Pool::with_slices(threads, Duration::ZERO).unwrap();
        check_order(&pool, &[1, 7, 0, 2, 1, 30, 5, 1], 200);
    }
}

/// A pool whose workers never come, as if the system gave them no core.
fn without_workers(threads: usize) -> Pool {
    let mut pool = Pool::new(1).unwrap();
    Arc::get_mut(&mut pool.shared).unwrap().sleepers = Seats::new(threads);
    pool
}

#[test]
fn workers_that_never_come_hold_nothing_up() {
    check_order(&without_workers(4), &[1, 7, 0, 2, 1, 30, 5], 20);
}

#[test]
fn a_worker_that_came_for_one_phase_is_not_waited_for_in_the_next() {
    let pool = without_workers(2);
    // The worker takes one unit of the first phase and never returns.
    thread::scope(|scope| {
        let shared = &pool.shared;
        let taken = AtomicBool::new(false);
        let work = steps(&[2, 8, 3], |phase, thread, _| {
            taken.fetch_or(thread == 1, Ordering::SeqCst);
            while phase == 0 && !taken.load(Ordering::SeqCst) {
                thread::sleep(PAUSE);
            }
            assert!(phase == 0 || thread == 0);
        });
        scope.spawn(|| {
            let claim = loop {
                if let Some(claim) = shared.board.claim() {
                    break claim;
                }
                thread::sleep(PAUSE);
            };
            // Its slice is over: it does not go on to the next phase, whichever thread ends this
            // one.
            shared.take_part(claim, 1, &TimeSlice::new(Duration::ZERO));
        });
        pool.run(&work).unwrap();
    });
}

#[test]
fn others_do_what_a_stopped_thread_has_not_begun() {
    for threads in 2..=4 {
        let pool = Pool::new(threads).unwrap();
        let others = AtomicUsize::new(0);
        // Unit 0 ends when all other units are done, whichever thread has it.
        let work = steps(&[1, 100], |phase, _, unit| match (phase, unit) {
            (0, _) => {}
            (_, 0) => {
                while others.load(Ordering::Acquire) < 99 {
                    thread::sleep(PAUSE);
                }
            }
            _ => {
                others.fetch_add(1, Ordering::Release);
            }
        });
        pool.run(&work).unwrap();
        assert_eq!(others.into_inner(), 99);
    }
}

/// Both threads have to take part, and the one that is called for is asleep by then.
#[test]
fn sleepers_wake_up() {
    let pool = Pool::new(2).unwrap();
    let caller = thread::current().id();
    for slow_worker in [false, true] {
        for _ in 0..5 {
            let met = Barrier::new(2);
            let ended = AtomicUsize::new(0);
            let work = steps(&[2, 2], |_, _, _| {
                met.wait();
                if (thread::current().id() != caller) == slow_worker {
                    thread::sleep(Duration::from_millis(10));
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
            pool.run(&work).unwrap();
            assert_eq!(ended.into_inner(), 4);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_panic_is_an_error_and_the_pool_lives_on() {
    for threads in 1..=5 {
        let pool = Pool::new(threads).unwrap();
        for units in [1, 2, 40] {
            for culprit in [0, units / 2, units - 1] {
                let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let thread_of_culprit = AtomicUsize::new(usize::MAX);
                let work = steps(&[3, units, 3], |phase, thread, unit| {
                    assert!(phase < 2, "a phase after the one that failed");
                    begun.fetch_add(1, Ordering::Relaxed);
                    if phase == 1 && unit == culprit {
                        thread_of_culprit.store(thread, Ordering::Relaxed);
                        panic!("unit {culprit} fails");
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                });
                let result = pool.run(&work);
                let thread = thread_of_culprit.into_inner();
                let message = format!("unit {culprit} fails");
                assert_eq!(result, Err(PoolError::Panicked { thread, message }));
                assert_eq!(begun.into_inner(), ended.into_inner() + 1, "what was begun has ended");
            }
            check_order(&pool, &[1, 7, 2, 30], 3);
        }
    }
}

#[test]
fn panics_of_all_threads_at_once_are_one_error() {
    for threads in 2..=4 {
        let pool = Pool::new(threads).unwrap();
        for _ in 0..20 {
            let met = Barrier::new(threads);
            let work = steps(&[threads + 9], |_, thread, _| {
                met.wait();
                panic!("thread {thread}");
            });
            assert!(matches!(pool.run(&work), Err(PoolError::Panicked { .. })));
        }
        check_order(&pool, &[5, 1, 5], 3);
    }
}

#[test]
fn a_panic_between_two_phases_is_an_error() {
    struct Broken;
    impl Work for Broken {
        fn units(&self, phase: usize) -> Option<usize> {
            assert!(phase < 2, "no count of units");
            Some(3)
        }
        fn run(&self, _: usize, _: usize, units: &mut Units<'_>) {
            units.for_each(drop);
        }
    }
    let pool = Pool::new(3).unwrap();
    for _ in 0..10 {
        match pool.run(&Broken) {
            Err(PoolError::Panicked { message, .. }) => assert_eq!(message, "no count of units"),
            other => panic!("{other:?}"),
        }
    }
    check_order(&pool, &[5, 1, 5], 3);
}

#[test]
fn work_that_breaks_the_rules_is_an_error() {
    struct Idle;
    impl Work for Idle {
        fn units(&self, phase: usize) -> Option<usize> {
            (phase < 2).then_some(3)
        }
        fn run(&self, _: usize, _: usize, _: &mut Units<'_>) {}
    }
    let pool = Pool::new(2).unwrap();
    assert!(matches!(pool.run(&Idle), Err(PoolError::Panicked { .. })));
    let endless = steps(&[MAX_UNITS + 1], |_, _, _| panic!("a unit ran"));
    match pool.run(&endless) {
        Err(PoolError::Panicked { message, .. }) => assert!(message.contains("units in one phase")),
        other => panic!("{other:?}"),
    }
    check_order(&pool, &[5, 1, 5], 3);
}

#[test]
fn a_panic_payload_that_panics_when_dropped_is_contained() {
    /// Panics with a payload of one stage less when it is dropped.
    struct Bomb(usize);
    impl Drop for Bomb {
        fn drop(&mut self) {
            match self.0 {
                0 => panic!("the payload's own panic"),
                stages => std::panic::panic_any(Bomb(stages - 1)),
            }
        }
    }
    for threads in 1..=3 {
        let pool = Pool::new(threads).unwrap();
        for stages in 0..3 {
            let result = pool.run(&steps(&[5], |_, _, unit| {
                if unit == 1 {
                    std::panic::panic_any(Bomb(stages));
                }
            }));
            assert!(matches!(result, Err(PoolError::Panicked { .. })));
            check_order(&pool, &[5, 1, 5], 3);
        }
    }
}

#[test]
fn nested_and_concurrent_use_is_refused() {
    for threads in [1, 3] {
        let pool = Pool::new(threads).unwrap();
        let refusals = AtomicUsize::new(0);
        pool.run(&steps(&[1, 6], |_, _, _| {
            if pool.run(&steps(&[1], |_, _, _| {})) == Err(PoolError::Busy) {
                refusals.fetch_add(1, Ordering::Relaxed);
            }
        }))
        .unwrap();
        assert_eq!(refusals.load(Ordering::Relaxed), 7);
        check_order(&pool, &[5, 1, 5], 3);
    }
}

#[test]
fn a_pool_can_be_dropped_at_any_time() {
    for round in 0..20_u64 {
        let pool = Pool::new(4).unwrap();
        if round % 2 == 0 {
            check_order(&pool, &[4, 1, 9], 1);
        }
        thread::sleep(Duration::from_micros(200 * (round % 4)));
        drop(pool);
    }
}

#[test]
fn absurd_thread_counts_are_refused() {
    assert_eq!(Pool::new(0).err(), Some(PoolError::ThreadCount { threads: 0 }));
    assert!(Pool::new(MAX_THREADS + 1).is_err());
}

#[test]
fn the_board_hands_out_and_counts() {
    let board = Board::default();
    assert_eq!(board.claim(), None);
    let phase = |index, units, unit| Some(Claim { phase: index, units, unit });
    board.publish(4, 3, 1);
    assert!(board.is_open());
    assert_eq!(board.claim(), phase(4, 3, 1));
    let slice = TimeSlice::new(Duration::MAX);
    let mut units = Units::new(&board, phase(4, 3, 0).unwrap(), &slice);
    assert_eq!((units.next(), units.next(), units.next()), (Some(0), Some(2), None));
    assert_eq!((units.handed(), board.is_open(), board.claim()), (2, false, None));
    // Further requests do not open the phase again, even as often as its bits can count.
    assert!((0..1 << 25).all(|_| units.next().is_none()));
    assert_eq!(board.claim(), None);
    assert!(!board.report(2, 3));
    assert!(board.report(1, 3));
    // A phase that failed is closed, however often.
    board.publish(5, 100, 0);
    assert_eq!(board.claim(), phase(5, 100, 0));
    assert_eq!((board.take_rest(100), board.take_rest(100)), (99, 0));
    assert_eq!((board.is_open(), board.claim()), (false, None));
    assert!(board.report(100, 100));
    board.publish(0, 2, 0);
    assert_eq!(board.claim(), phase(0, 2, 0));
}

#[test]
fn a_thread_whose_slice_is_over_takes_no_second_unit() {
    let board = Board::default();
    board.publish(0, 3, 1);
    let claim = Claim { phase: 0, units: 3, unit: 0 };
    let slice = TimeSlice::new(Duration::ZERO);
    let mut units = Units::new(&board, claim, &slice);
    assert_eq!((units.next(), units.next()), (Some(0), None));
    assert_eq!(board.claim().map(|claim| claim.unit), Some(1));
}
