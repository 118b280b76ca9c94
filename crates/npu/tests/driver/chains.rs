//! Commands that are submitted as chains.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trine_npu::driver::{DriverError, WATCHDOG};
use trine_npu::packet::State;
use trine_npu::sys::{Errno, File, Pointed, Sys};
use trine_npu::uapi::{self, ExecCmd};
use trine_npu_model::{AddressMode, Fault, Held, Machine, ModelSys};

use crate::calls::{CREATE, Open, units};
use crate::support::{
    Bench, Changed, RESULT_BYTES, bytes_of_result, call, contract, counting_at_once, inputs, model,
    product,
};

/// Commands of a chain with six buffers each.
const MOST: usize = 30;

/// A model that counts submissions.
fn counted(machine: Machine) -> (Changed, Arc<AtomicUsize>) {
    let submissions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&submissions);
    let ioctl = move |model: &ModelSys,
                      file: File,
                      number: u32,
                      argument: &mut [u8],
                      pointed: &mut [Pointed<'_>]| {
        counter.fetch_add(usize::from(number == uapi::EXEC_CMD), Ordering::Relaxed);
        model.ioctl(file, number, argument, pointed)
    };
    (Changed { ioctl: Arc::new(ioctl), ..Changed::of(model(machine)) }, submissions)
}

/// Runs a chain of four commands with a fault, with this protocol of the firmware.
fn with(fault: Fault, protocol_minor: u32) -> Result<usize, DriverError> {
    let sys = model(Machine { protocol_minor, ..Machine::default() });
    let mut bench = Bench::new(sys.clone(), 4).unwrap();
    sys.inject([fault]);
    let executed = bench.chain(4);
    assert_eq!(sys.injected(), 0);
    for executed in executed.iter().flatten() {
        assert_eq!(bytes_of_result(executed), product(&inputs(4)));
    }
    executed.map(|executed| executed.len())
}

#[test]
fn chains_give_the_results_of_single_commands() {
    assert_eq!(contract().slots, 6);
    for addresses in [AddressMode::Process, AddressMode::Device] {
        for protocol_minor in [7, 8] {
            let (sys, submissions) =
                counted(Machine { addresses, protocol_minor, ..Machine::default() });
            let mut bench = Bench::new(sys, 5).unwrap();
            for (count, chains) in [(3, 1), (MOST, 1), (MOST + 1, 2), (1, 1), (0, 0)] {
                let before = submissions.load(Ordering::Relaxed);
                let executed = bench.chain(count).unwrap();
                assert_eq!(executed.len(), count);
                assert_eq!(submissions.load(Ordering::Relaxed) - before, chains, "{count}");
                for executed in executed {
                    assert_eq!(bytes_of_result(&executed), product(&inputs(5)));
                }
            }
        }
    }
}

#[test]
fn nothing_is_chained_unless_it_is_asked_for() {
    let (sys, submissions) = counted(Machine::default());
    let mut bench = Bench::new(sys, 0).unwrap();
    bench.run(5).unwrap();
    assert_eq!(submissions.load(Ordering::Relaxed), 5);
    // Both ways on one context.
    bench.chain(5).unwrap();
    bench.run(2).unwrap();
    assert_eq!(submissions.load(Ordering::Relaxed), 8);
}

#[test]
fn the_command_that_fails_is_told() {
    for (at, command) in [(0, Some(0)), (2, Some(2)), (3, Some(3)), (4, None), (u32::MAX, None)] {
        for protocol_minor in [7, 8] {
            let error = with(Fault::FailsAt(at), protocol_minor).unwrap_err();
            let state = State::Error;
            assert_eq!(error, DriverError::ChainFailed { state, commands: 4, command });
            let told = error.to_string();
            assert_eq!(told.contains("at command"), command.is_some(), "{told}");
        }
    }
}

#[test]
fn after_a_command_that_fails_the_next_chain_works() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    sys.inject([Fault::FailsAt(1)]);
    bench.chain(3).unwrap_err();
    assert_eq!(bench.chain(3).unwrap().len(), 3);
    drop(bench);
    assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
}

#[test]
fn a_command_that_is_dropped_silently_is_found() {
    // The message for chains of protocol 5.8 was seen to drop commands, that of 5.7 was not.
    let words = RESULT_BYTES as usize / 4;
    for at in 0..4 {
        // The chain is counted: what shows the drop is the poison.
        let error = with(Fault::DropsAt(at), 8).unwrap_err();
        assert_eq!(error, DriverError::Unwritten { first: 0, words });
        assert_eq!(with(Fault::DropsAt(at), 7), Ok(4));
    }
    for protocol_minor in [7, 8] {
        let error = with(Fault::Dropped, protocol_minor).unwrap_err();
        assert_eq!(error, DriverError::NotCounted { submitted: 1, counted: 0 });
        let error = with(Fault::Uncounted, protocol_minor).unwrap_err();
        assert_eq!(error, DriverError::NotCounted { submitted: 1, counted: 0 });
        let error = with(Fault::DroppedAndCounted, protocol_minor).unwrap_err();
        assert_eq!(error, DriverError::Unwritten { first: 0, words });
    }
}

/// As the published driver does: a counter of ended submissions.
#[test]
fn the_counter_rises_by_the_chains_and_not_by_the_commands() {
    let sys = model(counting_at_once());
    let file = sys.open(trine_npu::driver::DEVICE_PATH).unwrap();
    let completions = || {
        let mut bytes = [0; 128];
        let question = uapi::GetInfo { param: uapi::INFO_HW_CONTEXTS, buffer_size: 128, buffer: 0 };
        call(&sys, file, uapi::GET_INFO, question, Some((8, &mut bytes))).unwrap();
        // The first is the other process's.
        u64::from_le_bytes(bytes[64 + 32..64 + 40].try_into().unwrap())
    };
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    bench.run(2).unwrap();
    assert_eq!(completions(), 2);
    bench.chain(4).unwrap();
    bench.chain(MOST + 1).unwrap();
    assert_eq!(completions(), 5);
    sys.inject([Fault::Fails]);
    bench.run(1).unwrap_err();
    assert_eq!(completions(), 6);
}

#[test]
fn a_chain_that_does_not_end_well_puts_the_device_in_quarantine() {
    for (fault, state) in [
        (Fault::Aborted, State::Abort),
        (Fault::NoResponse, State::NoResponse),
        (Fault::Unfinished, State::Running),
    ] {
        let sys = model(Machine { recovers: true, ..Machine::default() });
        let mut bench = Bench::new(sys.clone(), 0).unwrap();
        sys.inject([fault]);
        let error = bench.chain(3).unwrap_err();
        assert_eq!(error, DriverError::ChainFailed { state, commands: 3, command: None });
        let held = sys.held();
        assert!(matches!(bench.chain(1), Err(DriverError::Quarantined { .. })));
        drop(bench);
        assert_eq!(sys.held(), held);
    }
}

#[test]
fn the_watchdog_watches_a_whole_chain() {
    let command_time = Duration::from_millis(300);
    let sys = model(Machine { command_time, ..Machine::default() });
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    assert_eq!(bench.run(4).unwrap().len(), 4);
    assert_eq!(bench.chain(3).unwrap().len(), 3);
    let error = bench.chain(4).unwrap_err();
    assert_eq!(error, DriverError::TimedOut { limit: WATCHDOG });
    // It ends late, and writes to results that are still there.
    drop(bench);
    sys.pass(Duration::from_secs(1));
    assert_eq!(sys.refused_accesses(), 0);
}

#[test]
fn nothing_is_left_of_a_chain_whichever_call_fails() {
    let work = |sys: &ModelSys| {
        let mut bench = Bench::new(sys.clone(), 0)?;
        bench.chain(2)?;
        bench.chain(3).map(drop)
    };
    let sys = model(counting_at_once());
    work(&sys).unwrap();
    let (calls, mut kept) = (sys.calls(), 0);
    for call in 0..calls {
        let sys = model(counting_at_once());
        sys.fail(call, Errno::ENOMEM);
        work(&sys).unwrap_err();
        let is_kept = sys.process().quarantine().is_some();
        kept += usize::from(is_kept);
        assert_eq!(sys.leaked(), Held::default(), "call {call}");
        assert_eq!(sys.held() != Held::default(), is_kept, "call {call}");
    }
    assert_eq!(kept, 2 * 2, "one wait for each chain, and the question after it");
}

/// Writes words into a packet.
fn write(open: &Open, packet: u32, words: &[u32]) -> u64 {
    let address = open.info_of(packet).vaddr;
    let address = match address {
        uapi::INVALID_ADDRESS => open.map(packet, 4096, 4096).unwrap(),
        address => address,
    };
    let mut bytes = vec![0; 4096];
    bytes[..words.len() * 4].copy_from_slice(bytemuck::cast_slice(words));
    open.sys.write(address, &bytes).unwrap();
    address
}

#[test]
fn chains_that_the_driver_cannot_read_are_aborted() {
    let header = |opcode: u32, count: u32| 1 | count << 12 | opcode << 23;
    let unit = [header(0, 18), 1, 3];
    // START_NPU: a mask, an address, bytes, a count of properties.
    let npu = [header(20, 5), 1, 0, 0, 16, 0];
    let long = [header(0, 21), 1, 3];
    for protocol_minor in [7, 8] {
        let open = Open::with_heap(Machine { protocol_minor, ..Machine::default() });
        let context = open.context(CREATE).unwrap();
        let cores = open.buffer(uapi::BO_DEVICE, 64).unwrap();
        open.configure(context.handle, &mut units(&[cores])).unwrap();
        let new = || open.buffer(uapi::BO_COMMAND, 4096).unwrap();
        let (chain, one, two, other, share) =
            (new(), new(), new(), new(), open.buffer(uapi::BO_SHARE, 4096).unwrap());
        write(&open, one, &unit);
        write(&open, two, &npu);
        write(&open, other, &long);
        write(&open, share, &unit);
        let of = |handles: &[u32]| {
            let words = handles.iter().flat_map(|handle| [*handle, 0]);
            let count = 6 + 2 * handles.len() as u32;
            let start = [header(19, count), handles.len() as u32, 0, 0, 0, 0, 0];
            start.into_iter().chain(words).collect::<Vec<u32>>()
        };
        let mut more = of(&[one]);
        more[1] = 2;
        // Commands that are read reach for instructions that are not there: an error, at the first.
        let start_npu = if protocol_minor >= 8 { (5, 0) } else { (6, u32::MAX) };
        for (what, words, (state, failed)) in [
            ("one command", of(&[one]), (5, 0)),
            ("as many as fit", of(&[one; 30]), (5, 0)),
            ("one more", of(&[one; 31]), (6, u32::MAX)),
            ("START_NPU", of(&[two]), start_npu),
            ("two kinds of commands", of(&[one, two]), (6, u32::MAX)),
            ("a command that is too long", of(&[other]), (6, u32::MAX)),
            ("a buffer that is no packet", of(&[share]), (6, u32::MAX)),
            ("a handle of nothing", of(&[99]), (6, u32::MAX)),
            ("itself", of(&[chain]), (6, u32::MAX)),
            ("another count", more, (6, u32::MAX)),
        ] {
            let address = write(&open, chain, &words);
            let execute = ExecCmd {
                hwctx: context.handle,
                cmd_handles: u64::from(chain),
                cmd_count: 1,
                ..Default::default()
            };
            open.execute(execute, &mut []).unwrap();
            open.sys.pass(Duration::from_millis(100));
            let mut bytes = [0; 16];
            open.sys.read(address, &mut bytes).unwrap();
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!((word(0) & 15, word(12)), (state, failed), "{what}, 5.{protocol_minor}");
        }
    }
}
