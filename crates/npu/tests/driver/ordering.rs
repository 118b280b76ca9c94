//! Orders of steps, and flushes that are left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use trine_npu::driver::{DriverError, Run};
use trine_npu::sys::Sys;
use trine_npu_model::{AddressMode, Fault, Held, Machine, ModelSys};

use crate::support::{
    Bench, Changed, RESULT_BYTES, bytes_of_result, inputs, model, product, upload,
};

#[test]
fn each_flush_that_is_left_out_is_seen() {
    let run = |lacking| {
        let flushes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&flushes);
        // One flush, or none, does nothing.
        let flush = move |model: &ModelSys, address: u64, bytes: u64| match counted
            .fetch_add(1, Ordering::Relaxed)
            == lacking
        {
            true => Ok(()),
            false => model.flush(address, bytes),
        };
        let sys = Changed { flush: Arc::new(flush), ..Changed::of(model(Machine::default())) };
        let outcome = Bench::new(sys, 7).and_then(|mut bench| bench.run(1));
        let result = outcome.map(|executed| bytes_of_result(&executed[0]));
        (result, flushes.load(Ordering::Relaxed))
    };
    let expected = product(&inputs(7));
    let (result, flushes) = run(usize::MAX);
    assert_eq!(result.as_ref(), Ok(&expected));
    // Cores, stream; A and W once new and once written; the result new, poisoned and at the end.
    assert_eq!(flushes, 9);
    let unseen: Vec<usize> =
        (0..flushes).filter(|lacking| run(*lacking).0.as_ref() == Ok(&expected)).collect();
    // New buffers have clean lines in the model, and are flushed again before the device has them.
    assert_eq!(unseen, [2, 4, 6]);
}

#[derive(Debug, Clone)]
enum Step {
    /// New bytes for A (0) or W (1).
    Upload(usize, u8),
    /// Takes A or W back, changes a byte, hands it over.
    Change(usize, usize, u8),
    /// Runs this many commands.
    Run(usize),
    /// The next command goes wrong.
    Inject(Fault),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2_usize, any::<u8>()).prop_map(|(which, seed)| Step::Upload(which, seed)),
        (0..2_usize, 0..2048_usize, any::<u8>())
            .prop_map(|(which, at, byte)| Step::Change(which, at, byte)),
        (1..7_usize).prop_map(Step::Run),
        prop_oneof![
            Just(Fault::Fails),
            Just(Fault::Dropped),
            Just(Fault::DroppedAndCounted),
            Just(Fault::Uncounted),
            Just(Fault::StopsAfter(128)),
            Just(Fault::Takes(std::time::Duration::from_millis(700))),
        ]
        .prop_map(Step::Inject),
    ]
}

proptest! {
    #![proptest_config(
        ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() }
    )]

    /// Whatever the order: a result is that of the inputs as they were handed over last. There is
    /// an error exactly if a fault is among the commands, and the NPU is in quarantine exactly if
    /// it did not do what was reported as done.
    #[test]
    fn results_follow_the_order_of_steps(
        steps in prop::collection::vec(step(), 1..12),
        is_process in any::<bool>(),
    ) {
        let addresses = if is_process { AddressMode::Process } else { AddressMode::Device };
        let sys = model(Machine { addresses, ..Machine::default() });
        let mut bench = Bench::new(sys.clone(), 0).unwrap();
        let mut known = inputs(0);
        let mut faults = std::collections::VecDeque::new();
        for step in steps {
            match step {
                Step::Upload(which, seed) => {
                    known[which] = inputs(seed)[which].clone();
                    bench.inputs[which] = upload(&bench.device, &known[which]).unwrap();
                }
                Step::Change(which, at, byte) => {
                    known[which][at] = byte;
                    let mut buffer = bench.device.buffer(64).unwrap().to_device().unwrap();
                    std::mem::swap(&mut buffer, &mut bench.inputs[which]);
                    let mut buffer = buffer.to_host().unwrap();
                    buffer.write(at as u64, &[byte]).unwrap();
                    bench.inputs[which] = buffer.to_device().unwrap();
                }
                Step::Inject(fault) => {
                    sys.inject([fault]);
                    faults.push_back(fault);
                }
                Step::Run(count) => {
                    // After a command that fails, no further one of the batch is submitted but
                    // those in flight with it: the rest of the faults waits for the next batch.
                    let executed = bench.run(count);
                    let met = faults.len() - sys.injected();
                    let met: Vec<Fault> = faults.drain(..met).collect();
                    let is_good = met.iter().all(|fault| matches!(fault, Fault::Takes(_)));
                    prop_assert_eq!(executed.is_ok(), is_good, "{:?}", executed.err());
                    // The results of a batch of which a command failed are not looked at; its
                    // commands are counted all the same.
                    let is_counted = !met
                        .iter()
                        .any(|fault| matches!(fault, Fault::Dropped | Fault::Uncounted));
                    let is_trusted = is_good || is_counted && met.contains(&Fault::Fails);
                    prop_assert_eq!(sys.process().quarantine().is_none(), is_trusted);
                    if !is_trusted {
                        let next = bench.run(1).map(drop);
                        let is_refused = matches!(next, Err(DriverError::Quarantined { .. }));
                        prop_assert!(is_refused);
                        let held = sys.held();
                        drop(bench);
                        prop_assert_eq!((sys.held(), sys.leaked()), (held, Held::default()));
                        return Ok(());
                    }
                    for executed in executed.into_iter().flatten() {
                        prop_assert_eq!(bytes_of_result(&executed), product(&known));
                    }
                }
            }
        }
        drop(bench);
        prop_assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
    }
}

#[test]
fn commands_in_flight_share_their_inputs() {
    // The same input in two commands of a batch is pinned by each.
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys, 9).unwrap();
    let runs = (0..4).map(|_| Run {
        program: &bench.program,
        inputs: vec![(2, &bench.inputs[1]), (1, &bench.inputs[0])],
        result: bench.device.buffer(RESULT_BYTES).unwrap().poison().unwrap(),
    });
    let runs: Vec<_> = runs.collect();
    let executed: Result<Vec<_>, DriverError> = bench.context.execute(runs);
    for executed in executed.unwrap() {
        assert_eq!(bytes_of_result(&executed), product(&inputs(9)));
    }
}
