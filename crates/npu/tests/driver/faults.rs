//! Commands that end badly.

use std::time::Duration;

use trine_npu::driver::{Context, DEVICE_PATH, Device, DriverError, WATCHDOG};
use trine_npu::packet::State;
use trine_npu::sys::model::{Fault, Held, Machine};
use trine_npu::sys::{Errno, Sys};

use crate::support::{Bench, PDI, contract, model};

/// Runs a command with a fault after a good one, and returns the error and that of a further one.
fn after(fault: Fault) -> (DriverError, Option<DriverError>) {
    let sys = model(Machine { recovers: true, ..Machine::default() });
    sys.inject([Fault::Works, fault]);
    let mut bench = Bench::new(sys.clone(), 3).unwrap();
    let error = bench.run(2).unwrap_err();
    let next = bench.run(1).err();
    drop(bench);
    assert_eq!(sys.held(), Held::default());
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
        (Fault::Aborted, State::Abort),
        (Fault::NoResponse, State::NoResponse),
        (Fault::Unfinished, State::Running),
    ] {
        let (error, next) = after(fault);
        assert_eq!(error, DriverError::Failed { state });
        assert!(is_quarantined(next), "{fault:?}");
    }
}

#[test]
fn a_failed_command_is_an_error_and_the_next_works() {
    let (error, next) = after(Fault::Fails);
    assert_eq!(error, DriverError::Failed { state: State::Error });
    assert_eq!(next, None);
}

#[test]
fn quarantine_outlives_the_device_and_names_its_reason() {
    let sys = model(Machine::default());
    sys.inject([Fault::Hangs]);
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    bench.run(1).unwrap_err();
    let error = Context::new(&bench.device, contract().columns, PDI).unwrap_err();
    assert!(is_quarantined(Some(error)));
    drop(bench);
    let error = Device::open(sys.clone(), DEVICE_PATH).unwrap_err();
    assert!(error.to_string().contains("more than 1000 ms"), "{error}");
    assert_eq!(sys.held(), Held::default());
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
    let mut bench = Bench {
        context: Context::new(&device, contract().columns, b"another program").unwrap(),
        program: trine_npu::driver::Program::new(&device, crate::support::proven()).unwrap(),
        inputs: crate::support::inputs(0)
            .map(|bytes| crate::support::upload(&device, &bytes).unwrap()),
        device,
    };
    assert_eq!(bench.run(1).unwrap_err(), DriverError::TimedOut { limit: WATCHDOG });
}

#[test]
fn a_submission_that_fails_waits_for_those_before_it() {
    for failing in 0..3 {
        let sys = model(Machine::default());
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
