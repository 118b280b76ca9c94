//! The doctor on machines that lack one thing each.

use trine_npu::doctor::{Diagnosis, State, diagnose};
use trine_npu::sys::{Errno, File, Pointed};
use trine_npu::uapi;
use trine_npu_model::{Held, Machine, ModelSys};

use crate::support::{Bench, Changed, model};

/// A machine on which nothing is amiss.
fn healthy() -> Machine {
    Machine { foreign_contexts: 0, driver_minor: 6, ..Machine::default() }
}

fn of(machine: Machine) -> Diagnosis {
    let sys = model(machine);
    let diagnosis = diagnose(&sys);
    assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
    diagnosis
}

/// Returns what a check has found, with its remedy.
fn found(diagnosis: &Diagnosis, check: &str) -> (State, String) {
    let finding = diagnosis.findings.iter().find(|finding| finding.check == check);
    let finding = finding.unwrap_or_else(|| panic!("no check {check}: {diagnosis:#?}"));
    (finding.state, format!("{} -> {}", finding.found, finding.remedy.as_deref().unwrap_or("")))
}

#[test]
fn a_healthy_machine_has_no_remedies() {
    let diagnosis = of(healthy());
    assert!(diagnosis.is_usable());
    assert!(diagnosis.findings.iter().all(|finding| finding.state == State::Ok), "{diagnosis:#?}");
    let checks: Vec<&str> = diagnosis.findings.iter().map(|finding| finding.check).collect();
    assert_eq!(
        checks,
        [
            "device",
            "driver",
            "firmware's file",
            "IOMMU",
            "locked memory",
            "binding",
            "device file",
            "access",
            "interface",
            "firmware",
            "array",
            "clocks",
            "resources",
            "contexts",
        ]
    );
    assert_eq!(diagnosis.path.as_deref(), Some("/dev/accel/accel0"));
    let facts = &diagnosis.facts;
    assert_eq!((facts.interface, facts.is_model), (Some([0, 6]), true));
    assert!(found(&diagnosis, "interface").1.contains("trine's model"));
    let other = of(Machine { description: "another", ..healthy() });
    assert!(!other.facts.is_model);
    assert!(found(&other, "interface").1.starts_with("amdxdna_accel_driver, 0.6"));
    assert_eq!(facts.clocks_mhz, Some([400, 800]));
    assert_eq!(facts.array.map(|array| (array.cols, array.core.row_count)), Some((5, 4)));
    assert_eq!(facts.firmware.map(|version| version.build), Some(391));
    assert_eq!(facts.resources.map(|info| info.npu_task_max), Some(6));
    assert_eq!(facts.contexts, Some(0));
    assert_eq!(facts.pci.as_ref().map(|pci| pci[1].as_str()), Some("0x1502"));
}

#[test]
fn each_thing_that_is_missing_is_named_with_its_remedy() {
    let eight = 8 << 20;
    for (machine, check, texts) in [
        (Machine { is_there: false, ..healthy() }, "device", ["no NPU here", "Phoenix"]),
        (Machine { device: "0x17f0", ..healthy() }, "device", ["XDNA2", "XDNA1"]),
        (Machine { is_loaded: false, ..healthy() }, "driver", ["6.14.0", "modprobe amdxdna"]),
        (
            Machine { is_loaded: false, kernel: "6.8.0-31", ..healthy() },
            "driver",
            ["6.8.0-31", "since 6.14"],
        ),
        (
            Machine { has_firmware: false, ..healthy() },
            "firmware's file",
            ["1502_00/npu.sbin", "linux-firmware"],
        ),
        (Machine { has_firmware: false, ..healthy() }, "binding", ["not taken", "dmesg"]),
        (Machine { protocol_minor: 6, ..healthy() }, "binding", ["not taken", "protocol 5.7"]),
        (
            Machine { lockable_bytes: eight, ..healthy() },
            "locked memory",
            ["up to 8 MiB", "ulimit -l"],
        ),
        (Machine { has_node: false, ..healthy() }, "device file", ["accel0", "--device"]),
        (
            Machine { open_error: Some(Errno::EACCES), ..healthy() },
            "access",
            ["permission denied", "render"],
        ),
        (Machine { open_error: Some(Errno::EINVAL), ..healthy() }, "access", ["EINVAL", "IOMMU"]),
        (Machine { node_driver: "ivpu", ..healthy() }, "interface", ["ivpu", "--device"]),
        (
            Machine { driver_major: 1, ..healthy() },
            "interface",
            ["amdxdna, no NPU, 1.6", "update trine"],
        ),
    ] {
        let diagnosis = of(machine.clone());
        assert!(!diagnosis.is_usable(), "{machine:?}");
        let (state, told) = found(&diagnosis, check);
        assert_eq!(state, State::Fail, "{told}");
        assert!(texts.iter().all(|text| told.contains(text)), "{told}");
    }
}

#[test]
fn what_may_do_is_a_warning() {
    for (machine, check, text) in [
        (Machine { has_iommu: false, ..healthy() }, "IOMMU", "firmware's settings"),
        (Machine { lockable_bytes: 100 << 20, ..healthy() }, "locked memory", "128 MiB"),
        // Enough for the largest product, and not for a model's matrices.
        (Machine { lockable_bytes: 128 << 20, ..healthy() }, "locked memory", "1728 MiB"),
        (Machine { foreign_contexts: 1, ..healthy() }, "contexts", "in use by process 1:"),
    ] {
        let diagnosis = of(machine);
        assert!(diagnosis.is_usable());
        let (state, told) = found(&diagnosis, check);
        assert_eq!(state, State::Warn, "{told}");
        assert!(told.contains(text), "{told}");
    }
}

#[test]
fn old_drivers_that_tell_less_are_no_failure() {
    let diagnosis = of(Machine { driver_minor: 0, ..healthy() });
    assert!(found(&diagnosis, "resources").1.contains("0.4"));
    let diagnosis = of(Machine { tells_all: false, ..healthy() });
    assert!(diagnosis.is_usable());
    for check in ["array", "clocks", "resources"] {
        let (state, told) = found(&diagnosis, check);
        assert!(state == State::Ok && told.contains("does not tell"), "{told}");
    }
}

#[test]
fn root_may_lock_any_amount() {
    let diagnosis = of(Machine { is_root: true, lockable_bytes: 1 << 20, ..healthy() });
    assert_eq!(found(&diagnosis, "locked memory").0, State::Ok);
}

#[test]
fn a_context_in_use_is_counted() {
    let sys = model(healthy());
    let bench = Bench::new(sys.clone(), 0).unwrap();
    let diagnosis = diagnose(&sys);
    assert_eq!(diagnosis.facts.contexts, Some(1));
    assert_eq!(found(&diagnosis, "contexts").0, State::Warn);
    drop(bench);
}

#[test]
fn nothing_is_made_and_nothing_submitted() {
    let refuse = |model: &ModelSys,
                  file: File,
                  number: u32,
                  argument: &mut [u8],
                  pointed: &mut [Pointed<'_>]| {
        assert!([trine_npu::sys::abi::VERSION, uapi::GET_INFO].contains(&number), "{number:#x}");
        model.ioctl(file, number, argument, pointed)
    };
    use trine_npu::sys::Sys;
    let sys = Changed { ioctl: std::sync::Arc::new(refuse), ..Changed::of(model(healthy())) };
    assert!(diagnose(&sys).is_usable());
}

#[test]
fn a_call_that_fails_is_told_and_nothing_stays_open() {
    let sys = model(healthy());
    let calls = {
        diagnose(&sys);
        sys.calls()
    };
    for call in 0..calls {
        let sys = model(healthy());
        sys.fail(call, Errno::EIO);
        diagnose(&sys);
        assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
    }
}
