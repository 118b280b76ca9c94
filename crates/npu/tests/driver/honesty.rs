//! Work counts as the NPU's only if the NPU has done it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytemuck::pod_read_unaligned;
use trine_npu::driver::DriverError;
use trine_npu::sys::{Errno, File, Pointed, Sys, abi};
use trine_npu::uapi;
use trine_npu_model::{Fault, Held, Machine, ModelSys};

use crate::support::{Bench, Changed, RESULT_BYTES, bytes_of_result, call, inputs, model, product};

fn run_with(fault: Fault) -> DriverError {
    let sys = model(Machine::default());
    sys.inject([Fault::Works, fault]);
    Bench::new(sys, 0).unwrap().run(3).unwrap_err()
}

#[test]
fn a_command_that_is_dropped_silently_is_no_work() {
    let error = run_with(Fault::Dropped);
    assert_eq!(error, DriverError::NotCounted { submitted: 3, counted: 2 });
}

/// Newer drivers count a command after they have told its end.
#[test]
fn a_command_that_is_counted_late_is_work() {
    for (seed, late) in [(1, 0), (2, 1), (3, 40), (4, 900), (5, 900), (6, 900)] {
        let counted_late = Duration::from_millis(late);
        let sys = model(Machine { seed, counted_late, ..Machine::default() });
        let mut bench = Bench::new(sys, 0).unwrap();
        for _ in 0..5 {
            bench.run(3).unwrap();
        }
    }
    // One that is not counted within the watchdog's time may never have run.
    let counted_late = Duration::from_secs(3600);
    let sys = model(Machine { counted_late, ..Machine::default() });
    let error = Bench::new(sys, 0).unwrap().run(3).unwrap_err();
    assert_eq!(error, DriverError::NotCounted { submitted: 3, counted: 0 });
}

#[test]
fn a_command_that_failed_and_is_counted_late_is_not_one_of_the_next() {
    for seed in 0..6 {
        let counted_late = Duration::from_millis(900);
        let sys = model(Machine { seed, counted_late, ..Machine::default() });
        let mut bench = Bench::new(sys.clone(), 0).unwrap();
        sys.inject([Fault::Works, Fault::Fails]);
        let error = bench.run(3).unwrap_err();
        assert!(matches!(error, DriverError::Failed { .. }), "{error}");
        assert_eq!(bytes_of_result(&bench.run(1).unwrap()[0]), product(&inputs(0)));
    }
    // What has failed is reported; what was not counted beside it costs the device all the same.
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    sys.inject([Fault::Uncounted, Fault::Fails]);
    let error = bench.run(3).unwrap_err();
    assert!(matches!(error, DriverError::Failed { .. }), "{error}");
    let refused = bench.run(1).unwrap_err();
    assert!(matches!(refused, DriverError::Quarantined { .. }), "{refused}");
}

#[test]
fn a_command_that_is_counted_and_dropped_is_no_work() {
    let words = RESULT_BYTES as usize / 4;
    assert_eq!(run_with(Fault::DroppedAndCounted), DriverError::Unwritten { first: 0, words });
}

#[test]
fn a_command_that_is_done_and_not_counted_is_no_work() {
    let error = run_with(Fault::Uncounted);
    assert_eq!(error, DriverError::NotCounted { submitted: 3, counted: 2 });
}

#[test]
fn a_result_that_lacks_one_word_is_no_result() {
    let words = RESULT_BYTES as usize / 4;
    let error = run_with(Fault::StopsAfter(RESULT_BYTES - 4));
    assert_eq!(error, DriverError::Unwritten { first: words - 1, words: 1 });
}

#[test]
fn what_is_written_after_the_result_is_found() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys, 0).unwrap();
    // The contract's result ends 64 bytes before the buffer does.
    let run = |bench: &mut Bench<ModelSys>, bytes| {
        let result = bench.device.buffer(bytes).unwrap().poison().unwrap();
        let inputs = vec![(1, &bench.inputs[0]), (2, &bench.inputs[1])];
        let run = trine_npu::driver::Run { program: &bench.program, inputs, result };
        bench.context.execute(vec![run])
    };
    run(&mut bench, RESULT_BYTES + 64).unwrap();

    let cores = trine_npu_model::Cores::new();
    let long = |inputs: &[Vec<u8>]| [product(inputs), vec![0; 4]].concat();
    let contract = crate::support::contract();
    let cores = cores.with(crate::support::PDI, contract, Box::new(long)).unwrap();
    let sys = ModelSys::new(Machine::default(), Box::new(cores));
    let mut bench = Bench::new(sys, 0).unwrap();
    let first = RESULT_BYTES as usize / 4;
    let error = run(&mut bench, RESULT_BYTES + 64).unwrap_err();
    assert_eq!(error, DriverError::Overrun { first });
    let next = bench.device.buffer(64).map(drop);
    assert!(matches!(next, Err(DriverError::Quarantined { .. })), "{next:?}");
}

/// Where a buffer object is mapped.
fn address_of(model: &ModelSys, file: File, handle: u32) -> u64 {
    let info = uapi::GetBoInfo { handle, ..Default::default() };
    call(model, file, uapi::GET_BO_INFO, info, None).unwrap().vaddr
}

/// A device whose commands are never sent: the processor computes the result, and writes it and the
/// state of the packet.
fn secretly_on_the_processor(
    model: &ModelSys,
    sizes: &Mutex<BTreeMap<u32, u64>>,
    file: File,
    number: u32,
    argument: &mut [u8],
    pointed: &mut [Pointed<'_>],
) -> Result<(), Errno> {
    match number {
        uapi::CREATE_BO => {
            model.ioctl(file, number, argument, pointed)?;
            let create: uapi::CreateBo = pod_read_unaligned(argument);
            sizes.lock().unwrap().insert(create.handle, create.size);
            Ok(())
        }
        uapi::EXEC_CMD => {
            let execute: uapi::ExecCmd = pod_read_unaligned(argument);
            let sizes = sizes.lock().unwrap();
            let handles = pointed[0].bytes.chunks_exact(4);
            for handle in handles.map(|word| u32::from_le_bytes(word.try_into().unwrap())) {
                if sizes[&handle] == RESULT_BYTES {
                    let address = address_of(model, file, handle);
                    model.write(address, &product(&inputs(0))).unwrap();
                    model.flush(address, RESULT_BYTES).unwrap();
                }
            }
            let packet = address_of(model, file, execute.cmd_handles as u32);
            let mut word = [0; 1];
            model.read(packet, &mut word).unwrap();
            model.write(packet, &[word[0] & 0xf0 | 4]).unwrap();
            Ok(())
        }
        abi::TIMELINE_WAIT => Ok(()),
        _ => model.ioctl(file, number, argument, pointed),
    }
}

#[test]
fn a_processor_that_computes_the_result_is_no_npu() {
    let sizes = Arc::new(Mutex::new(BTreeMap::new()));
    let ioctl = move |model: &ModelSys,
                      file: File,
                      number,
                      argument: &mut [u8],
                      pointed: &mut [Pointed<'_>]| {
        secretly_on_the_processor(model, &sizes, file, number, argument, pointed)
    };
    let sys = Changed { ioctl: Arc::new(ioctl), ..Changed::of(model(Machine::default())) };
    let error = Bench::new(sys, 0).unwrap().run(1).map(drop).unwrap_err();
    assert_eq!(error, DriverError::NotCounted { submitted: 1, counted: 0 });
}

/// The driver lists processes by the kernel's numbers. In a container the process has another for
/// itself, which may be that of another context.
#[test]
fn the_context_is_found_whatever_number_the_process_has() {
    for process in [2, 4242, i64::from(std::process::id()), i64::MAX] {
        let sys = model(Machine { process, ..Machine::default() });
        let mut bench = Bench::new(sys.clone(), 0).unwrap();
        assert_eq!(bench.run(3).unwrap().len(), 3, "{process}");
        drop(bench);
        // One that is made again.
        assert_eq!(Bench::new(sys, 0).unwrap().run(1).unwrap().len(), 1, "{process}");
    }
}

/// Another program's context, which the driver lists from the second answer on.
#[test]
fn two_contexts_that_appear_at_once_confirm_nothing() {
    let asked = AtomicUsize::new(0);
    let ioctl = move |model: &ModelSys,
                      file: File,
                      number,
                      argument: &mut [u8],
                      pointed: &mut [Pointed<'_>]| {
        model.ioctl(file, number, argument, pointed)?;
        if number == uapi::GET_INFO && asked.fetch_add(1, Ordering::Relaxed) == 0 {
            pointed[0].bytes.fill(0);
        }
        Ok(())
    };
    let sys = model(Machine::default());
    let changed = Changed { ioctl: Arc::new(ioctl), ..Changed::of(sys.clone()) };
    assert_eq!(Bench::new(changed, 0).map(drop), Err(DriverError::UnclearCounter));
    assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
    Bench::new(sys, 0).unwrap().run(1).unwrap();
}

#[test]
fn a_context_that_is_not_listed_confirms_nothing() {
    let ioctl =
        |model: &ModelSys, file: File, number, argument: &mut [u8], pointed: &mut [Pointed<'_>]| {
            model.ioctl(file, number, argument, pointed)?;
            let question = argument.get(..4) == Some(&uapi::INFO_HW_CONTEXTS.to_le_bytes()[..]);
            if number == uapi::GET_INFO && question {
                // Only the context of the other process, which has the same handle.
                pointed[0].bytes[64..].fill(0);
            }
            Ok(())
        };
    let sys = Changed { ioctl: Arc::new(ioctl), ..Changed::of(model(Machine::default())) };
    assert_eq!(Bench::new(sys, 0).map(drop), Err(DriverError::NoCounter));
}
