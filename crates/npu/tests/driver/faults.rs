//! Commands that end badly.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use trine_npu::cores::CoreProgram;
use trine_npu::driver::{Context, DEVICE_PATH, Device, DriverError, Program, WATCHDOG};
use trine_npu::generate::Family;
use trine_npu::packet::CommandState;
use trine_npu::sys::{Errno, File, Pointed, Sys, abi};
use trine_npu_model::{Fault, Held, Machine, ModelSys};

use crate::support::{Bench, Changed, RESULT_BYTES, contract, cores, counting_at_once, model};

/// Runs a command with a fault after a good one, and returns the error and that of a further one.
fn after(fault: Fault) -> (DriverError, Option<DriverError>) {
    let sys = model(Machine { recovers: true, ..Machine::default() });
    sys.inject([Fault::Works, fault]);
    let mut bench = Bench::new(sys.clone(), 3).unwrap();
    let before = sys.held();
    let error = bench.run(2).unwrap_err();
    let next = bench.run(1).err();
    drop(bench);
    let left = if sys.process().quarantine().is_some() {
        // Also the two results, which the run has dropped.
        Held { buffers: before.buffers + 2, mappings: before.mappings + 2, ..before }
    } else {
        Held::default()
    };
    assert_eq!(sys.held(), left);
    assert_eq!(sys.leaked(), Held::default());
    (error, next)
}

fn is_quarantined(error: Option<DriverError>) -> bool {
    matches!(error, Some(DriverError::Quarantined { .. }))
}

#[test]
fn a_command_that_hangs_is_given_up_before_the_kernel_does() {
    let (error, next) = after(Fault::Hangs);
    assert_eq!(error, DriverError::TimedOut { limit: WATCHDOG });
    assert!(is_quarantined(next));
    assert!(WATCHDOG < Machine::default().command_time_max);
}

#[test]
fn a_command_that_takes_longer_than_the_watchdog_is_given_up() {
    let (error, next) = after(Fault::Takes(WATCHDOG + Duration::from_millis(1)));
    assert_eq!(error, DriverError::TimedOut { limit: WATCHDOG });
    assert!(is_quarantined(next));
}

#[test]
fn aborted_and_unanswered_commands_put_the_device_in_quarantine() {
    for (fault, state) in [
        (Fault::Aborted, CommandState::Abort),
        (Fault::NoResponse, CommandState::NoResponse),
        (Fault::Unfinished, CommandState::Running),
    ] {
        let (error, next) = after(fault);
        assert_eq!(error, DriverError::Failed { state });
        assert!(is_quarantined(next), "{fault:?}");
    }
}

#[test]
fn a_failed_command_is_an_error_and_the_next_works() {
    let (error, next) = after(Fault::Fails);
    assert_eq!(error, DriverError::Failed { state: CommandState::Error });
    assert_eq!(next, None);
}

#[test]
fn quarantine_outlives_the_device_and_names_its_reason() {
    let sys = model(Machine::default());
    sys.inject([Fault::Hangs]);
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    bench.run(1).unwrap_err();
    let error = Context::new(&bench.device, contract().columns, &cores()).unwrap_err();
    assert!(is_quarantined(Some(error)));
    drop(bench);
    let error = Device::open(sys.clone(), DEVICE_PATH).unwrap_err();
    assert!(error.to_string().contains("more than 1000 ms"), "{error}");
}

#[test]
fn a_device_that_has_not_done_what_is_reported_is_in_quarantine() {
    let words = RESULT_BYTES as usize / 4;
    for (fault, expected) in [
        (Fault::Dropped, DriverError::NotCounted { submitted: 2, counted: 1 }),
        (Fault::Uncounted, DriverError::NotCounted { submitted: 2, counted: 1 }),
        (Fault::DroppedAndCounted, DriverError::Unwritten { first: 0, words }),
        (Fault::StopsAfter(8), DriverError::Unwritten { first: 2, words: words - 2 }),
    ] {
        let (error, next) = after(fault);
        assert_eq!(error, expected);
        assert!(is_quarantined(next), "{fault:?}");
    }
}

/// The remedy of what has happened is not told beside that of the quarantine.
#[test]
fn a_quarantine_has_one_remedy() {
    for fault in [Fault::Hangs, Fault::Aborted, Fault::Dropped, Fault::StopsAfter(8)] {
        let (error, next) = after(fault);
        let (message, next) = (error.to_string(), next.unwrap().to_string());
        let (cause, _) = message.split_once(". ").unwrap();
        let (found, remedy) = next.split_once(". ").unwrap();
        assert!(found.ends_with(cause), "{next}");
        assert_eq!(remedy, "Restart the machine before the NPU is used again");
    }
}

#[test]
fn what_ends_late_writes_to_memory_that_is_still_its_own() {
    let sys = model(Machine::default());
    sys.inject([Fault::Works, Fault::Takes(WATCHDOG + Duration::from_millis(500))]);
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    let error = bench.run(2).unwrap_err();
    assert_eq!(error, DriverError::TimedOut { limit: WATCHDOG });
    let Bench { context, program, inputs, device } = bench;
    drop((context, program, inputs));
    sys.pass(Duration::from_secs(1));
    assert_eq!(sys.refused_accesses(), 0);
    drop(device);
    assert_eq!(sys.held().files, 1);
}

#[test]
fn nothing_is_made_in_quarantine() {
    let sys = model(Machine::default());
    sys.inject([Fault::Hangs]);
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    bench.run(1).unwrap_err();
    let before = sys.held();
    let program = Program::new(&bench.device, crate::support::proven());
    assert!(is_quarantined(program.err()));
    assert!(is_quarantined(bench.device.buffer(64).err()));
    assert!(is_quarantined(bench.device.exports().err()));
    assert_eq!(sys.held(), before);
}

#[test]
fn a_panic_while_a_command_is_in_flight_keeps_its_buffers() {
    let inner = model(Machine::default());
    let waits = Arc::new(AtomicUsize::new(0));
    let ioctl = move |model: &ModelSys,
                      file: File,
                      number: u32,
                      argument: &mut [u8],
                      pointed: &mut [Pointed<'_>]| {
        let is_second = number == abi::TIMELINE_WAIT && waits.fetch_add(1, Relaxed) == 1;
        assert!(!is_second, "a panic for this test");
        model.ioctl(file, number, argument, pointed)
    };
    let sys = Changed { ioctl: Arc::new(ioctl), ..Changed::of(inner.clone()) };
    let mut bench = Bench::new(sys, 0).unwrap();
    bench.run(1).unwrap();
    let before = inner.held();
    let run = AssertUnwindSafe(|| bench.run(3).map(drop));
    catch_unwind(run).unwrap_err();
    assert!(inner.process().quarantine().is_some_and(|reason| reason.contains("a panic")));
    inner.pass(Duration::from_secs(1));
    assert_eq!(inner.refused_accesses(), 0);
    assert_eq!(inner.held().buffers, before.buffers + 3);
    drop(bench);
    assert_eq!((inner.held().files, inner.leaked()), (1, Held::default()));
}

#[test]
fn a_panic_while_nothing_is_in_flight_gives_all_back() {
    let sys = model(Machine::default());
    let bench = Bench::new(sys.clone(), 0).unwrap();
    let drops = AssertUnwindSafe(move || {
        let _bench = bench;
        panic!("a panic for this test");
    });
    catch_unwind(drops).unwrap_err();
    assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
    assert_eq!(sys.process().quarantine(), None);
}

#[test]
fn commands_in_flight_after_two_that_fail_keep_their_buffers() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    bench.run(1).unwrap();
    let slow = Fault::Takes(Duration::from_millis(700));
    sys.inject([Fault::Fails, Fault::Fails, slow, slow]);
    let error = bench.run(4).unwrap_err();
    assert_eq!(error, DriverError::Failed { state: CommandState::Error });
    sys.pass(Duration::from_secs(2));
    assert_eq!(sys.refused_accesses(), 0);
    bench.run(1).unwrap();
}

#[test]
fn the_kernels_own_timeout_ends_all_commands_of_a_context() {
    // Seen through a process that does not watch: the packets are written by the kernel.
    let sys = model(Machine::default());
    sys.inject([Fault::Hangs]);
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    assert!(bench.run(3).is_err());
    sys.pass(Duration::from_secs(3));
    assert!(sys.process().quarantine().is_some());
}

#[test]
fn an_array_that_does_not_know_its_program_gets_stuck() {
    let sys = model(Machine::default());
    let device = Device::open(sys, DEVICE_PATH).unwrap();
    let cores = CoreProgram::stand_in(b"another program", Family::Int8);
    let mut bench = Bench {
        context: Context::new(&device, contract().columns, &cores).unwrap(),
        program: Program::new(&device, crate::support::proven()).unwrap(),
        inputs: crate::support::inputs(0)
            .map(|bytes| crate::support::upload(&device, &bytes).unwrap()),
        device,
    };
    assert_eq!(bench.run(1).unwrap_err(), DriverError::TimedOut { limit: WATCHDOG });
}

#[test]
fn a_submission_that_fails_waits_for_those_before_it() {
    for failing in 0..3 {
        let sys = model(counting_at_once());
        let mut bench = Bench::new(sys.clone(), 0).unwrap();
        let before = sys.calls();
        bench.run(3).unwrap();
        // Buffers take three calls each, the counter one.
        let first_submission = 3 * 3 + 1;
        assert!(sys.calls() - before > first_submission + 3);
        let start = sys.now();
        sys.fail(first_submission + failing, Errno::ENOMEM);
        let error = bench.run(3).unwrap_err();
        assert!(error.to_string().contains("submit"), "{error}");
        let waited = Duration::from_millis(2) * failing as u32;
        assert_eq!(sys.now() - start, waited, "{failing}");
        assert_eq!(bench.run(2).unwrap().len(), 2);
    }
}
