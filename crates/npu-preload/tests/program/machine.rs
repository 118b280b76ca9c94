//! A machine with a model of an NPU, and programs that run there.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use trine_npu::generate::Kernel;
use trine_npu::published;
use trine_npu_model::{Behaviour, xclbin};

/// The program that is tried, if it is not the one beside the tests.
const PROGRAM: &str = "TRINE_NPU_PRELOAD_PROGRAM";

/// Returns the program that is tried.
pub(crate) fn program() -> PathBuf {
    std::env::var_os(PROGRAM).map_or_else(|| built("trine"), PathBuf::from)
}

/// Returns the library with the model.
pub(crate) fn library() -> PathBuf {
    built("libtrine_npu_preload.so")
}

/// Returns a file that cargo builds beside the tests.
fn built(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let mut files = tests.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    files.find(|file| file.is_file()).unwrap_or_else(|| {
        panic!("there is no {name}: build the program first (cargo build -p trine)")
    })
}

/// What a run gave.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// A folder for the model's files, and a store with one pack. Names of a user's are in all paths.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
}

/// A small model.
pub(crate) const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo-draft.gguf");

const SECRET: &str = "secret-user";

impl Machine {
    pub(crate) fn new() -> Self {
        Self::with_rows(&[1, 8])
    }

    /// The same with kernels for products of these rows.
    pub(crate) fn with_rows(rows: &[u32]) -> Self {
        let machine = Self { folder: tempfile::Builder::new().prefix(SECRET).tempdir().unwrap() };
        let pack = machine.path("store/.npu/one");
        std::fs::create_dir_all(&pack).unwrap();
        let kernel = |m: &u32| Kernel::Int8 { m: *m, k: 2048, n: 2048 };
        let kernels: Vec<Kernel> = rows.iter().map(kernel).collect();
        let xclbin = xclbin(Behaviour::Int8.stand_in());
        for (name, bytes) in published::stand_in("a.xclbin", &xclbin, &kernels).unwrap() {
            std::fs::write(pack.join(name), bytes).unwrap();
        }
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the program on the model.
    pub(crate) fn run(&self, faults: &str, arguments: &[&str]) -> Ran {
        self.run_with(faults, arguments, Stdio::null())
    }

    /// Returns the command that starts the program on the model.
    pub(crate) fn command(&self, faults: &str, arguments: &[&str]) -> Command {
        let model = self.path("model");
        let _ = std::fs::remove_dir_all(&model);
        std::fs::create_dir(&model).unwrap();
        let mut command = Command::new(program());
        command
            .args(arguments)
            .env_clear()
            .env("LD_PRELOAD", library())
            .env("TRINE_NPU_MODEL", model)
            .env("TRINE_NPU_FAULTS", faults)
            .env("TRINE_HOME", self.path("store"))
            .env("HOME", self.path("home"))
            .env("USER", SECRET);
        command
    }

    /// Runs the program on the model, with what it reads.
    pub(crate) fn run_with(
        &self,
        faults: &str,
        arguments: &[&str],
        input: impl Into<Stdio>,
    ) -> Ran {
        self.run_between(faults, arguments, input, Stdio::piped())
    }

    /// Runs the program on the model, with what it reads and where it writes.
    pub(crate) fn run_between(
        &self,
        faults: &str,
        arguments: &[&str],
        input: impl Into<Stdio>,
        answers: impl Into<Stdio>,
    ) -> Ran {
        let mut command = self.command(faults, arguments);
        let output = command.stdin(input).stdout(answers).stderr(Stdio::piped()).output().unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Has the embedded model read a long prompt, with options, and returns its report.
    pub(crate) fn read_a_prompt(&self, faults: &str, options: &[&str]) -> (Ran, Value) {
        let prompt = "once upon a time there was a cat ".repeat(9);
        let fixed = ["run", SMALL, &prompt, "--raw", "--device", "cpu", "--threads", "2"];
        let answer = ["--draft", "off", "--temperature", "0", "--max-tokens", "4", "--json"];
        let ran = self.run(faults, &[&fixed[..], &answer, options].concat());
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let report = serde_json::from_str(&ran.out).unwrap();
        (ran, report)
    }

    /// Runs the self-test and returns its report too.
    pub(crate) fn selftest(&self, faults: &str) -> (Ran, Value) {
        let report = self.path("report.json");
        let _ = std::fs::remove_file(&report);
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
