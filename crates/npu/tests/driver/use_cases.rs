//! What works, and what is refused before the device is asked.

use std::time::Duration;

use trine_npu::cores::CoreProgram;
use trine_npu::driver::{
    Context, DEVICE_PATH, Device, DriverError, Program, ProvenStream, Run, Unproven,
};
use trine_npu::generate::{self, Family};
use trine_npu::sys::{Errno, Sys};
use trine_npu::verify::Verifier;
use trine_npu_model::{AddressMode, Fault, Held, Machine};

use crate::support::{
    Bench, PDI, RESULT_BYTES, bytes_of_result, contract, cores, counting_at_once, inputs, model,
    product, upload,
};

#[test]
fn results_are_those_of_the_core_in_both_address_modes() {
    for addresses in [AddressMode::Process, AddressMode::Device] {
        for protocol_minor in [7, 8] {
            let sys = model(Machine { addresses, protocol_minor, ..Machine::default() });
            let mut bench = Bench::new(sys.clone(), 5).unwrap();
            let executed = bench.run(1).unwrap();
            assert_eq!(bytes_of_result(&executed[0]), product(&inputs(5)));
            assert_eq!(sys.refused_accesses(), 0);
        }
    }
}

#[test]
fn more_commands_than_fit_in_flight_are_all_done() {
    let sys = model(counting_at_once());
    let mut bench = Bench::new(sys.clone(), 1).unwrap();
    let start = sys.now();
    assert_eq!(bench.run(11).unwrap().len(), 11);
    assert_eq!(sys.now() - start, 11 * Duration::from_millis(2));
    assert!(bench.run(0).unwrap().is_empty());
    assert_eq!(bench.run(3).unwrap().len(), 3);
}

#[test]
fn another_device_or_driver_is_refused() {
    let open = |machine| Device::open(model(machine), DEVICE_PATH).unwrap_err();
    let error = open(Machine { device: "0x17f0", ..Machine::default() });
    assert!(matches!(error, DriverError::WrongDevice { .. }), "{error}");
    let error = open(Machine { driver_major: 1, ..Machine::default() });
    assert_eq!(error, DriverError::WrongDriver { major: 1, minor: 0 });
    let error = Device::open(model(Machine::default()), "/dev/accel/accel7").unwrap_err();
    assert!(error.to_string().contains("amdxdna"), "{error}");
}

#[test]
fn a_node_that_leads_to_another_driver_is_refused() {
    let path = DEVICE_PATH.to_owned();
    for (node_driver, told) in [
        ("ivpu", "\"ivpu\""),
        // The name of the module, which no version answers with.
        ("amdxdna", "\"amdxdna\""),
        ("amdxdna_accel_driver2", "\"amdxdna_accel_driver2\""),
        ("amdxdna_accel_drive", "\"amdxdna_accel_drive\""),
        ("", "\"\""),
        ("\u{1b}[2J\n", "\"\\u{1b}[2J\\n\""),
        ("amdxdna of a name that is longer than any", "\"amdxdna of a name that is longer\""),
    ] {
        let sys = model(Machine { node_driver, ..Machine::default() });
        let error = Device::open(sys.clone(), DEVICE_PATH).unwrap_err();
        let name = node_driver.chars().take(32).collect();
        assert_eq!(error, DriverError::WrongNode { path: path.clone(), name });
        assert!(error.to_string().contains(told), "{error}");
        // Nothing was made before the driver was known.
        assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
    }
    for errno in [Errno::ENOTTY, Errno::EINVAL] {
        let sys = model(Machine::default());
        let version = 3;
        sys.fail(version, errno);
        let error = Device::open(sys, DEVICE_PATH).unwrap_err();
        assert_eq!(error, DriverError::NoDriver { path: path.clone(), errno });
    }
}

#[test]
fn too_little_lockable_memory_is_said() {
    let machine = Machine { lockable_bytes: 8 << 20, ..Machine::default() };
    let error = Device::open(model(machine), DEVICE_PATH).unwrap_err();
    assert_eq!(error, DriverError::Lock { bytes: 64 << 20, errno: Errno::EAGAIN });
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}

#[test]
fn a_second_context_is_refused() {
    let sys = model(Machine::default());
    let bench = Bench::new(sys.clone(), 0).unwrap();
    let error = Context::new(&bench.device, contract().columns, &cores()).unwrap_err();
    assert_eq!(error, DriverError::ContextTaken);
    // The refusal has not freed the place.
    let error = Context::new(&bench.device, contract().columns, &cores()).unwrap_err();
    assert_eq!(error, DriverError::ContextTaken);
    drop(bench);
    Bench::new(sys, 0).unwrap().run(1).unwrap();
}

#[test]
fn a_context_that_another_program_has_is_explained() {
    let sys = model(Machine { contexts_max: 0, ..Machine::default() });
    let device = Device::open(sys.clone(), DEVICE_PATH).unwrap();
    for _ in 0..2 {
        let error = Context::new(&device, contract().columns, &cores()).unwrap_err();
        assert_eq!(error, DriverError::ContextRefused { errno: Errno::EINVAL });
        assert!(error.to_string().contains("one at a time"), "{error}");
    }
}

#[test]
fn buffers_that_do_not_fit_the_contract_are_refused() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys, 0).unwrap();
    let small = upload(&bench.device, &[0; 64]).unwrap();
    let [a, w] = &bench.inputs;
    let cases = [
        (vec![(1, &small), (2, w)], RESULT_BYTES, "A has 64 bytes"),
        (vec![(1, a)], RESULT_BYTES, "W is to be given once"),
        (vec![(1, a), (2, w), (2, w)], RESULT_BYTES, "W is to be given once"),
        (vec![(1, a), (2, w), (3, w)], RESULT_BYTES, "3 inputs"),
        (vec![(1, a), (2, w)], RESULT_BYTES - 4, "C has 8188 bytes"),
    ];
    for (inputs, bytes, expected) in cases {
        let result = bench.device.buffer(bytes).unwrap().poison().unwrap();
        let run = Run { program: &bench.program, inputs, result };
        let error = bench.context.execute(vec![run]).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    bench.run(1).unwrap();
}

#[test]
fn what_is_of_another_open_device_is_refused() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    // Its objects have the numbers of the first one's.
    let other = Device::open(sys.clone(), DEVICE_PATH).unwrap();
    let program = Program::new(&other, crate::support::proven()).unwrap();
    let [a, w] = inputs(0).map(|bytes| upload(&other, &bytes).unwrap());
    let result = |device: &Device<_>| device.buffer(RESULT_BYTES).unwrap().poison().unwrap();
    let start = sys.now();
    let [own_a, own_w] = &bench.inputs;
    let cases = [
        (&program, vec![(1, own_a), (2, own_w)], result(&bench.device)),
        (&bench.program, vec![(1, own_a), (2, &w)], result(&bench.device)),
        (&bench.program, vec![(1, &a), (2, own_w)], result(&bench.device)),
        (&bench.program, vec![(1, own_a), (2, own_w)], result(&other)),
    ];
    for (program, inputs, result) in cases {
        let error = bench.context.execute(vec![Run { program, inputs, result }]).unwrap_err();
        assert!(error.to_string().contains("another open device"), "{error}");
    }
    assert_eq!(sys.now(), start, "nothing was submitted");
}

#[test]
fn a_result_that_is_another_buffer_too_is_refused() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    let exports = bench.device.exports().unwrap().unwrap();
    let [a, w] = &bench.inputs;
    let shared = a.export(&exports).unwrap();
    let bytes = inputs(0)[0].len() as u64;
    let twin = bench.device.import(shared.file(), bytes).unwrap().to_host().unwrap();
    let start = sys.now();
    let inputs = vec![(1, a), (2, w)];
    let run = Run { program: &bench.program, inputs, result: twin.poison().unwrap() };
    let error = bench.context.execute(vec![run]).unwrap_err();
    // If it is also too short, the error says that first.
    assert!(
        error.to_string().contains("is also another buffer") || bytes < RESULT_BYTES,
        "{error}"
    );
    let result = bench.device.buffer(RESULT_BYTES).unwrap().to_device().unwrap();
    let shared = result.export(&exports).unwrap();
    let twin = bench.device.import(shared.file(), RESULT_BYTES).unwrap();
    let runs = [result, twin].map(|result| Run {
        program: &bench.program,
        inputs: vec![(1, a), (2, w)],
        result: result.to_host().unwrap().poison().unwrap(),
    });
    let error = bench.context.execute(runs.into()).unwrap_err();
    assert!(error.to_string().contains("is also another buffer"), "{error}");
    assert_eq!(sys.now(), start, "nothing was submitted");
}

#[test]
fn a_program_for_other_columns_is_refused() {
    let device = Device::open(model(Machine::default()), DEVICE_PATH).unwrap();
    let mut context = Context::new(&device, 1, &cores()).unwrap();
    let program = Program::new(&device, crate::support::proven()).unwrap();
    let result = device.buffer(RESULT_BYTES).unwrap().poison().unwrap();
    let run = Run { program: &program, inputs: Vec::new(), result };
    let error = context.execute(vec![run]).unwrap_err();
    assert!(error.to_string().contains("columns"), "{error}");
}

#[test]
fn cores_that_stand_in_are_for_the_model_only() {
    let family = Family::Int8;
    for description in [
        "",
        "a driver",
        "trine's model of amdxdna, no NP",
        "trine's model of amdxdna, no NPU.",
        "trine's model of amdxdna, no NPU, and much more than there is room for",
    ] {
        let sys = model(Machine { description, ..Machine::default() });
        let device = Device::open(sys.clone(), DEVICE_PATH).unwrap();
        assert!(!device.is_model(), "{description}");
        let before = sys.held();
        let error = Context::new(&device, contract().columns, &cores()).unwrap_err();
        assert_eq!(error, DriverError::StandIn { family }, "{description}");
        assert!(error.to_string().contains("trine npu pack"), "{error}");
        assert_eq!(sys.held(), before);
    }
    let error = CoreProgram::published(PDI, family).unwrap_err();
    assert!(error.to_string().contains(family.pdi_sha256()), "{error}");
}

#[test]
fn a_stream_runs_on_the_cores_that_it_is_proven_for_only() {
    let sys = model(Machine::default());
    let device = Device::open(sys.clone(), DEVICE_PATH).unwrap();
    assert!(device.is_model());
    let int4 = CoreProgram::stand_in(PDI, Family::Int4);
    let mut context = Context::new(&device, contract().columns, &int4).unwrap();
    let program = Program::new(&device, crate::support::proven()).unwrap();
    let [a, w] = inputs(0).map(|bytes| upload(&device, &bytes).unwrap());
    let result = device.buffer(RESULT_BYTES).unwrap().poison().unwrap();
    let run = Run { program: &program, inputs: vec![(1, &a), (2, &w)], result };
    let start = sys.now();
    let error = context.execute(vec![run]).unwrap_err();
    let (program, cores) = (Family::Int8, Family::Int4);
    assert_eq!(error, DriverError::OtherCores { program, cores });
    assert_eq!(sys.now(), start, "nothing was submitted");
}

#[test]
fn a_stream_without_a_whole_proof_cannot_be_submitted() {
    let stream = generate::stream(crate::support::KERNEL).unwrap();
    let memory_only = trine_npu::contract::Contract { kernel: None, ..contract() };
    let verifier = Verifier::new(memory_only).unwrap();
    assert!(matches!(ProvenStream::new(&verifier, &stream), Err(Unproven::MemoryOnly)));
    let mut shorter = stream;
    shorter.operations.pop();
    let verifier = Verifier::new(contract()).unwrap();
    assert!(matches!(ProvenStream::new(&verifier, &shorter), Err(Unproven::Refused(_))));
}

#[test]
fn a_slow_command_within_the_watchdog_is_fine() {
    let sys = model(Machine::default());
    sys.inject([Fault::Takes(Duration::from_millis(900)); 4]);
    // Each has its own time, though they wait for one another.
    assert_eq!(Bench::new(sys, 0).unwrap().run(4).unwrap().len(), 4);
}
