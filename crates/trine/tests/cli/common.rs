//! Running the binary.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A file or folder of the goldens.
pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name)
}

/// The file of the draft model inside the program.
pub(crate) fn draft_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo-draft.gguf")
}

/// The golden GGUF model with F32 weights, tokenizer and chat template.
pub(crate) fn model() -> String {
    golden("gguf/gemma3-f32/model.gguf").display().to_string()
}

/// What a run gave.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// What tells the Vulkan loader where drivers are, and the linker where they find their libraries.
const VULKAN_VARIABLES: [&str; 5] =
    ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LD_LIBRARY_PATH", "XDG_DATA_DIRS", "XDG_CONFIG_DIRS"];

/// The binary with an environment of its own: an empty store, no token, no network, no GPU.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trine"));
    let store = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty-store");
    command
        .args(arguments)
        .env_clear()
        .env("TRINE_HOME", &store)
        .env("HF_HOME", &store)
        .env("HOME", &store)
        .env("OLLAMA_MODELS", &store)
        .env("HF_ENDPOINT", "http://127.0.0.1:9")
        .env("XDG_CONFIG_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-config"))
        .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
        .env("VK_DRIVER_FILES", "/no/such/driver.json")
        .env("VK_ICD_FILENAMES", "/no/such/driver.json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    #[cfg(target_os = "linux")]
    signals::set(&mut command, libc::SIG_DFL);
    command
}

/// What a process inherits about signals. Tests that send some must not depend on how they were
/// started: `nohup` ignores one, shells without job control another.
#[cfg(target_os = "linux")]
pub(crate) mod signals {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// Starts a command with this way to handle the signals that end programs.
    pub(crate) fn set(command: &mut Command, way: libc::sighandler_t) {
        let set = move || {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
                // SAFETY: the function may be called between fork and exec, and installs no code.
                unsafe { libc::signal(signal, way) };
            }
            Ok(())
        };
        // SAFETY: the closure calls one function, which may be called there, and allocates nothing.
        unsafe { command.pre_exec(set) };
    }
}

/// The same, with the Vulkan drivers of the machine or those that the environment names.
pub(crate) fn vulkan_command(arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    for name in VULKAN_VARIABLES {
        match std::env::var_os(name) {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Runs the binary with Vulkan drivers.
pub(crate) fn trine_on_vulkan(arguments: &[&str]) -> Ran {
    finish(vulkan_command(arguments).output().expect("the binary starts"))
}

/// What `doctor` says about Vulkan in software, which the tests need, and its name for `--device`.
pub(crate) fn software_device() -> (serde_json::Value, String) {
    let findings = trine_on_vulkan(&["doctor", "--quick", "--json"]).json();
    let findings = findings.as_array().expect("findings are a list");
    let details = findings.iter().map(|finding| &finding["details"]);
    let software = details.into_iter().find(|details| details["kind"] == "software");
    let software = software.unwrap_or_else(|| {
        panic!(
            "the tests need Vulkan in software; `cargo xtask drivers` installs it: {findings:#?}"
        )
    });
    (software.clone(), format!("vulkan:{}", software["index"]))
}

/// Runs the binary with nothing on standard input.
pub(crate) fn trine(arguments: &[&str]) -> Ran {
    finish(command(arguments).output().expect("the binary starts"))
}

/// Runs the binary with a text on standard input.
pub(crate) fn trine_with(input: &str, arguments: &[&str]) -> Ran {
    let mut child = command(arguments).stdin(Stdio::piped()).spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().expect("the binary ends");
    writer.join().expect("the writer ends");
    finish(output)
}

/// What a process that has ended gave.
pub(crate) fn finish(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).expect("standard output is UTF-8"),
        err: String::from_utf8(output.stderr).expect("standard error is UTF-8"),
    }
}

impl Ran {
    /// The run, which must have ended well.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// The message of a run that must have failed with `code`, with nothing on standard output.
    #[track_caller]
    pub(crate) fn fails(self, code: i32) -> String {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        assert_eq!(self.out, "", "an error writes nothing to standard output");
        assert!(!self.err.contains("panicked") && !self.err.contains("has a bug"), "{}", self.err);
        self.err
    }

    /// Standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// A tensor of a safetensors file as floats, with its shape.
pub(crate) fn floats(path: &Path, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(path).expect("the file is there");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("the file is sound");
    let tensor = tensors.tensor(name).expect("the tensor is there");
    let values =
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    (tensor.shape().to_vec(), values.collect())
}

/// The token ids of a golden, as JSON.
pub(crate) fn ids_json(golden_folder: &str) -> String {
    named_ids_json(golden_folder, "input_ids")
}

/// The token ids of one of a golden's tensors, as JSON.
pub(crate) fn named_ids_json(golden_folder: &str, name: &str) -> String {
    let bytes = std::fs::read(golden(golden_folder).join("goldens.safetensors"))
        .expect("the golden is there");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("the golden is sound");
    let tensor = tensors.tensor(name).expect("ids are there");
    let ids: Vec<i64> = tensor
        .data()
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")))
        .collect();
    serde_json::to_string(&ids).expect("numbers are JSON")
}
