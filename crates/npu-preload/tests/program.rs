//! The program as it is shipped, on the model of the NPU's kernel driver. Never run on silicon.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use trine_npu::generate::Kernel;
use trine_npu::published;
use trine_npu::sys::model::{Behaviour, xclbin};

/// Returns a file that cargo builds beside the tests.
fn built(names: &[&str]) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folders = tests.ancestors().skip(1).take(2);
    let mut files = folders.flat_map(|folder| names.iter().map(|name| folder.join(name)));
    files.find(|file| file.is_file()).unwrap_or_else(|| {
        panic!("there is no {names:?}: build the program first (cargo build -p trine)")
    })
}

/// What a run gave.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// A folder for the model's files, and a store with one pack. Names of a user's are in all paths.
struct Machine {
    folder: tempfile::TempDir,
}

const SECRET: &str = "secret-user";

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::Builder::new().prefix(SECRET).tempdir().unwrap() };
        let pack = machine.path("store/.npu/one");
        std::fs::create_dir_all(&pack).unwrap();
        let types = r#"{ a = "i8", w = "i8", c = "i32" }"#;
        let kernels = [1, 8].map(|m| Kernel::Int8 { m, k: 2048, n: 2048 });
        let xclbin = xclbin(Behaviour::Int8.stand_in());
        for (name, bytes) in published::files("a.xclbin", &xclbin, types, &kernels).unwrap() {
            std::fs::write(pack.join(name), bytes).unwrap();
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program on the model.
    fn run(&self, faults: &str, arguments: &[&str]) -> Ran {
        self.run_with(faults, arguments, Stdio::null())
    }

    /// Runs the program on the model, with what it reads.
    fn run_with(&self, faults: &str, arguments: &[&str], input: impl Into<Stdio>) -> Ran {
        let model = self.path("model");
        let _ = std::fs::remove_dir_all(&model);
        std::fs::create_dir(&model).unwrap();
        let output = Command::new(built(&["trine"]))
            .args(arguments)
            .env_clear()
            .env("LD_PRELOAD", built(&["libtrine_npu_preload.so"]))
            .env("TRINE_NPU_MODEL", model)
            .env("TRINE_NPU_FAULTS", faults)
            .env("TRINE_HOME", self.path("store"))
            .env("HOME", self.path("home"))
            .env("USER", SECRET)
            .stdin(input)
            .output()
            .unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs the self-test and returns its report too.
    fn selftest(&self, faults: &str) -> (Ran, Value) {
        let report = self.path("report.json");
        let ran =
            self.run(faults, &["npu", "selftest", "--yes", "--report", report.to_str().unwrap()]);
        let text = std::fs::read_to_string(&report).unwrap_or_else(|_| panic!("{}", ran.err));
        assert!(!text.contains(SECRET), "{text}");
        let host = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
        let host = host.trim();
        assert!(host.len() < 4 || !text.contains(host), "{text}");
        (ran, serde_json::from_str(&text).unwrap())
    }
}

/// Returns what a check of the doctor's has found.
fn found<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["doctor"]["findings"].as_array().unwrap();
    findings.iter().find(|finding| finding["check"] == check).unwrap_or(&Value::Null)
}

#[test]
fn the_doctor_finds_nothing_amiss() {
    let ran = Machine::new().run("", &["npu", "doctor"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(!ran.out.contains("warn") && !ran.out.contains("fail"), "{}", ran.out);
    assert!(ran.out.contains("5 columns, 6 rows"), "{}", ran.out);
    assert!(ran.out.contains("one (2 streams)"), "{}", ran.out);
    assert!(ran.out.contains("never run on silicon"), "{}", ran.out);
}

#[test]
fn products_are_exact_in_both_address_modes() {
    for faults in ["", "iova"] {
        let (ran, report) = Machine::new().selftest(faults);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.out.ends_with("All products are exact.\n"), "{}", ran.out);
        assert!(ran.err.contains("never run on silicon"), "{}", ran.err);
        let outcomes = report["results"]["outcomes"].as_array().unwrap();
        let endings: Vec<&str> =
            outcomes.iter().map(|outcome| outcome["ending"].as_str().unwrap()).collect();
        assert_eq!(endings, ["right", "right"]);
        assert_eq!(outcomes[1]["elements"], 3 * 8 * 2048);
        assert_eq!(report["doctor"]["facts"]["firmware"]["build"], 391);
        assert_eq!(report["pack"]["streams"][0]["kernel"], "a8w8acc32_1_2048_2048");
    }
}

#[test]
fn a_command_that_hangs_ends_the_selftest() {
    let (ran, report) = Machine::new().selftest("hang");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("restart the machine"), "{}", ran.err);
    let outcomes = report["results"]["outcomes"].as_array().unwrap();
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0]["error"].as_str().unwrap().contains("more than 1000 ms"));
    assert!(report["results"]["stopped"].as_str().unwrap().contains("were not run"));
}

#[test]
fn wrong_products_are_told_with_their_places() {
    let (ran, report) = Machine::new().selftest("wrong");
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.out.contains("wrong") && !ran.out.contains("exact"), "{}", ran.out);
    assert_eq!(report["results"]["outcomes"][0]["examples"][0][1], 1536);
}

#[test]
fn a_second_context_is_refused() {
    let machine = Machine::new();
    let (ran, report) = machine.selftest("context");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("EINVAL") && ran.err.contains("one at a time"), "{}", ran.err);
    assert_eq!(found(&report, "contexts")["state"], "warn");
    assert_eq!(report["results"]["outcomes"].as_array().unwrap().len(), 0);
}

#[test]
fn what_is_missing_is_named_and_nothing_submitted() {
    for (fault, check, text) in [
        ("firmware", "binding", "protocol 5.7"),
        ("driver", "driver", "modprobe"),
        ("group", "access", "render"),
        ("memory", "locked memory", "ulimit -l"),
        ("absent", "device", "Hawk Point"),
    ] {
        let machine = Machine::new();
        let ran = machine.run(fault, &["npu", "doctor"]);
        assert_eq!(ran.code, 1, "{fault}: {}", ran.out);
        assert!(ran.out.contains(text), "{fault}: {}", ran.out);
        let (ran, report) = machine.selftest(fault);
        assert_eq!(ran.code, 1, "{fault}: {}", ran.out);
        assert!(ran.err.contains("nothing was submitted"), "{fault}: {}", ran.err);
        assert_eq!(found(&report, check)["state"], "fail", "{fault}: {report:#}");
        assert!(report["results"].is_null());
    }
}

/// Opens a terminal; what is written to the first file is typed for who reads the second.
fn terminal() -> (File, File) {
    let open = |path: &str| {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(path).unwrap()
    };
    let typed = open("/dev/ptmx");
    let mut name = [0; 64];
    // SAFETY: the file is a terminal's, and `name` has room for its name.
    let named = unsafe {
        libc::unlockpt(typed.as_raw_fd()) == 0
            && libc::ptsname_r(typed.as_raw_fd(), name.as_mut_ptr(), name.len()) == 0
    };
    assert!(named);
    let name: Vec<u8> =
        name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    (typed, open(&String::from_utf8(name).unwrap()))
}

#[test]
fn nothing_is_submitted_before_a_yes() {
    let machine = Machine::new();
    let report = machine.path("report.json");
    let arguments = ["npu", "selftest", "--report", report.to_str().unwrap()];
    for (answer, code, last) in [
        ("no", 1, "Nothing was submitted.\n"),
        ("", 1, "Nothing was submitted.\n"),
        ("yes", 0, "All products are exact.\n"),
    ] {
        let (mut typed, read) = terminal();
        writeln!(typed, "{answer}").unwrap();
        let ran = machine.run_with("", &arguments, read);
        assert_eq!(ran.code, code, "{answer}: {}{}", ran.out, ran.err);
        assert!(ran.out.ends_with(last), "{answer}: {}", ran.out);
        assert!(ran.err.contains("never run on silicon") && ran.err.contains("Type yes"));
        let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert_eq!(report["results"].is_null(), code == 1);
    }
}

#[test]
fn nobody_is_asked_without_a_terminal() {
    let ran = Machine::new().run("", &["npu", "selftest"]);
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert!(ran.err.contains("--yes"), "{}", ran.err);
}

#[test]
fn a_fault_that_is_not_known_ends_the_program() {
    let ran = Machine::new().run("no-such-fault", &["npu", "doctor"]);
    assert_eq!(ran.code, -1, "{}", ran.out);
    assert!(ran.err.contains("no fault is named no-such-fault"), "{}", ran.err);
}

#[test]
fn without_the_variable_nothing_is_modelled() {
    if Path::new("/dev/accel").exists() {
        return;
    }
    let output = Command::new(built(&["trine"]))
        .args(["npu", "doctor"])
        .env_clear()
        .env("LD_PRELOAD", built(&["libtrine_npu_preload.so"]))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("no NPU here"));
}
