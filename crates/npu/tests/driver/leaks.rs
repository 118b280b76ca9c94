//! Everything is given back, whichever call fails.

use trine_npu::driver::DriverError;
use trine_npu::sys::{Errno, Sys};
use trine_npu_model::{Held, Machine};

use crate::support::{Bench, counting_at_once, model};

#[test]
fn nothing_is_left_after_a_good_end() {
    let sys = model(Machine::default());
    let mut bench = Bench::new(sys.clone(), 0).unwrap();
    let executed = bench.run(5).unwrap();
    assert_eq!(sys.held().contexts, 1);
    drop(bench);
    // A result keeps its buffer and the file.
    assert_eq!(sys.held(), Held { files: 1, buffers: 5, mappings: 5, ..Held::default() });
    drop(executed);
    assert_eq!((sys.held(), sys.leaked()), Default::default());
}

#[test]
fn nothing_is_left_whichever_call_fails() {
    let work = |sys: &trine_npu_model::ModelSys| {
        let mut bench = Bench::new(sys.clone(), 0)?;
        let exports = bench.device.exports()?;
        let problem = || DriverError::Request { problem: "no exports".to_owned() };
        exports.ok_or_else(problem)?;
        bench.run(3).map(drop)
    };
    let sys = model(counting_at_once());
    work(&sys).unwrap();
    let calls = sys.calls();
    assert!(calls > 40, "{calls}");
    let (mut failures, mut kept) = (0, 0);
    for call in 0..calls {
        let sys = model(counting_at_once());
        sys.fail(call, Errno::ENOMEM);
        failures += usize::from(work(&sys).is_err());
        // What a command may still write to stays where it is not known to have ended.
        let is_kept = sys.process().quarantine().is_some();
        kept += usize::from(is_kept);
        assert_eq!(sys.leaked(), Held::default(), "call {call}");
        assert_eq!(sys.held() != Held::default(), is_kept, "call {call}");
    }
    assert_eq!(failures, calls, "each of the failures is seen");
    assert_eq!(kept, 3 + 1, "one wait for each command, and the question after them");
}
