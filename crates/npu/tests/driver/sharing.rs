//! Buffers that the NPU shares with other devices, as dma-bufs.

use trine_npu::driver::{DEVICE_PATH, Device, DriverError, Run};
use trine_npu::sys::{Errno, File, Sys};
use trine_npu_model::{AddressMode, Fault, Held, Machine, ModelSys};

use crate::support::{Bench, RESULT_BYTES, bytes_of_result, inputs, model, product};

fn held(exports: usize) -> Held {
    Held { exports, ..Held::default() }
}

#[test]
fn a_buffer_is_exported_where_the_kernel_can() {
    let sys = model(Machine::default());
    let device = Device::open(sys.clone(), DEVICE_PATH).unwrap();
    let exports = device.exports().unwrap().unwrap();
    assert_eq!(sys.held().exports, 0, "the one that was tried is closed");
    let buffer = device.buffer(4096).unwrap().to_device().unwrap();
    let shared = buffer.export(&exports).unwrap();
    assert_eq!(sys.held().exports, 1);
    drop(shared);
    assert_eq!(sys.held().exports, 0);
    // A dma-buf keeps the file open, and its memory.
    let shared = buffer.export(&exports).unwrap();
    drop((buffer, device));
    assert_eq!(sys.held(), Held { files: 1, ..held(1) });
    sys.write_dma_buf(shared.file(), &[1; 4096]).unwrap();
    drop(shared);
    assert_eq!((sys.held(), sys.leaked()), (held(0), held(0)));
}

#[test]
fn the_npu_reads_what_another_device_has_written_and_gives_it_the_result() {
    for addresses in [AddressMode::Process, AddressMode::Device] {
        let sys = model(Machine { addresses, ..Machine::default() });
        let mut bench = Bench::new(sys.clone(), 1).unwrap();
        let exports = bench.device.exports().unwrap().unwrap();
        let known = inputs(9);
        let dma_bufs = known.each_ref().map(|bytes| sys.other_dma_buf(bytes.len() as u64));
        let import = |which: usize| {
            let bytes = known[which].len() as u64;
            let buffer = bench.device.import(dma_bufs[which], bytes).unwrap();
            sys.write_dma_buf(dma_bufs[which], &known[which]).unwrap();
            buffer
        };
        let [a, w] = [import(0), import(1)];
        let result = bench.device.buffer(RESULT_BYTES).unwrap().poison().unwrap();
        let run = Run { program: &bench.program, inputs: vec![(1, &a), (2, &w)], result };
        let executed = bench.context.execute(vec![run]).unwrap().remove(0);
        assert_eq!(bytes_of_result(&executed), product(&known));
        let shared = executed.into_result().to_device().unwrap().export(&exports).unwrap();
        let mut seen = vec![0; RESULT_BYTES as usize];
        sys.read_dma_buf(shared.file(), &mut seen).unwrap();
        assert_eq!(seen, product(&known));
        // A buffer of another device's takes a result too.
        let other = sys.other_dma_buf(RESULT_BYTES);
        let result = bench.device.import(other, RESULT_BYTES).unwrap();
        let result = result.to_host().unwrap().poison().unwrap();
        let run = Run { program: &bench.program, inputs: vec![(1, &a), (2, &w)], result };
        bench.context.execute(vec![run]).unwrap();
        sys.read_dma_buf(other, &mut seen).unwrap();
        assert_eq!(seen, product(&known));
        assert_eq!(sys.refused_accesses(), 0);
        drop((a, w, bench, shared));
        // The files of others stay theirs.
        assert_eq!((sys.held(), sys.leaked()), (held(3), held(0)));
        [dma_bufs[0], dma_bufs[1], other].into_iter().for_each(|file| sys.close(file));
        assert_eq!(sys.held(), held(0));
    }
}

#[test]
fn a_buffer_that_comes_back_is_closed_once() {
    for addresses in [AddressMode::Process, AddressMode::Device] {
        let sys = model(Machine { addresses, ..Machine::default() });
        let mut bench = Bench::new(sys.clone(), 2).unwrap();
        let exports = bench.device.exports().unwrap().unwrap();
        let before = sys.held();
        let shared = bench.inputs[0].export(&exports).unwrap();
        let bytes = inputs(2)[0].len() as u64;
        let [one, two] = [(); 2].map(|()| bench.device.import(shared.file(), bytes).unwrap());
        assert_eq!(sys.held().buffers, before.buffers);
        drop((one, shared));
        // The first is gone, and the buffer that it was is still there under both names.
        assert_eq!(bytes_of_result(&bench.run(1).unwrap()[0]), product(&inputs(2)));
        bench.inputs[0] = two;
        assert_eq!(bytes_of_result(&bench.run(1).unwrap()[0]), product(&inputs(2)));
        assert_eq!(sys.held(), before);
        drop(bench);
        assert_eq!((sys.held(), sys.leaked()), (held(0), held(0)));
    }
}

#[test]
fn what_is_no_dma_buf_or_too_short_is_refused() {
    let sys = model(Machine::default());
    let device = Device::open(sys.clone(), DEVICE_PATH).unwrap();
    let before = sys.held();
    let what = "take a dma-buf for the NPU";
    let error = device.import(File(77), 4096).unwrap_err();
    assert_eq!(error, DriverError::Call { what, errno: Errno::EBADF });
    let other = sys.other_dma_buf(4096);
    for bytes in [0, 4097, u64::MAX - 4096] {
        let error = device.import(other, bytes).unwrap_err();
        assert_eq!(error, DriverError::Call { what, errno: Errno::EINVAL }, "{bytes} bytes");
    }
    sys.close(other);
    assert_eq!(sys.held(), before);
}

#[test]
fn nothing_is_left_of_an_import_whichever_call_fails() {
    let work = |sys: &ModelSys, other: File| {
        let device = Device::open(sys.clone(), DEVICE_PATH)?;
        let buffer = device.import(other, 4096)?.to_host()?.to_device()?;
        let exports = device.exports()?;
        let exports = exports.ok_or(DriverError::NoCounter)?;
        let shared = buffer.export(&exports)?;
        device.import(shared.file(), 4096).map(drop)
    };
    let sys = model(Machine::default());
    work(&sys, sys.other_dma_buf(4096)).unwrap();
    for call in 0..sys.calls() {
        let sys = model(Machine::default());
        let other = sys.other_dma_buf(4096);
        sys.fail(call, Errno::ENOMEM);
        work(&sys, other).unwrap_err();
        assert_eq!((sys.held(), sys.leaked()), (held(1), held(0)), "call {call}");
    }
}

#[test]
fn nothing_is_taken_in_quarantine() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    sys.inject([Fault::Hangs]);
    bench.run(1).unwrap_err();
    let other = sys.other_dma_buf(4096);
    let error = bench.device.import(other, 4096).unwrap_err();
    assert!(matches!(error, DriverError::Quarantined { .. }), "{error}");
}
