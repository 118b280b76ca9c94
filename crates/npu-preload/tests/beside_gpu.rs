//! The program with a GPU and the model of the NPU beside it. Never run on silicon.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "program/machine.rs"]
mod machine;

use std::process::{Output, Stdio};

use machine::{Machine, SMALL};
use serde_json::Value;

/// Rows of the pack's kernels.
const ROWS: [u32; 2] = [8, 64];

/// Runs the program on the model with a GPU. Which driver there is, and how it compiles, comes from
/// where the tests run.
fn run(machine: &Machine, faults: &str, arguments: &[&str]) -> Output {
    let kept = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "GALLIVM_PERF"];
    let kept = kept.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    machine
        .command(faults, arguments)
        .args(["--device", "vulkan:0", "--tune", "off"])
        .envs(kept)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Has the embedded model read a long prompt, and returns the report and what was said.
fn read_a_prompt(machine: &Machine, faults: &str, options: &[&str]) -> (Value, String) {
    let prompt = "once upon a time there was a cat ".repeat(9);
    let fixed = ["run", SMALL, &prompt, "--raw", "--draft", "off", "--temperature", "0"];
    let report = ["--max-tokens", "4", "--json"];
    let ran = run(machine, faults, &[&fixed[..], &report, options].concat());
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    (serde_json::from_slice(&ran.stdout).unwrap(), text(&ran.stderr))
}

#[test]
fn a_prompt_is_split_between_a_gpu_and_the_npu() {
    let machine = Machine::with_rows(&ROWS);
    let (plain, _) = read_a_prompt(&machine, "", &[]);
    let rows = plain["statistics"]["prompt_tokens"].as_u64().unwrap();
    assert!(plain["npu"].is_null() && rows > 64, "{plain}");
    let half = ["--npu", "auto", "--npu-share", "0.5", "-v"];
    let (report, told) = read_a_prompt(&machine, "", &half);
    assert!(told.contains("npu (trine's model of one) for prompts"), "{told}");
    let npu = &report["npu"];
    assert!(npu["products"].as_u64() > Some(0), "{npu}");
    assert_eq!(npu["rows"].as_u64().unwrap(), npu["products"].as_u64().unwrap() * rows);
    assert_eq!(npu["instead"], 0);
    assert_eq!(report["statistics"]["generated_tokens"], 4);
    // One that hangs costs a warning and no token.
    let (report, told) = read_a_prompt(&machine, "hang", &["--npu", "auto", "--npu-share", "1"]);
    assert_eq!(report["text"], plain["text"]);
    assert_eq!(report["npu"]["products"], 0);
    assert!(report["npu"]["instead"].as_u64() > Some(0));
    assert!(told.contains("has not computed what was delegated"), "{told}");
}

#[test]
fn explain_shows_what_is_lent_by_a_gpu() {
    let machine = Machine::with_rows(&ROWS);
    let explain = |options: &[&str]| {
        let ran = run(&machine, "", &[&["explain", SMALL, "--json"], options].concat());
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        serde_json::from_slice::<Value>(&ran.stdout).unwrap()["placement"]["parts"][0].clone()
    };
    let (plain, lent) = (explain(&[]), explain(&["--npu", "auto", "--npu-share", "0.5"]));
    for bytes in ["weight_bytes", "scratch_bytes"] {
        assert!(lent[bytes].as_u64() > plain[bytes].as_u64(), "{bytes}: {lent}");
    }
    let steps = |part: &Value| -> Vec<(u64, String)> {
        let steps = part["steps"].as_array().unwrap().iter();
        let step = |step: &Value| {
            (step["tokens"].as_u64().unwrap(), step["text"].as_str().unwrap().to_owned())
        };
        steps.map(step).collect()
    };
    for ((tokens, lent), (_, plain)) in steps(&lent).iter().zip(&steps(&plain)) {
        let is_split = ["for the guest", "collect", "join"].iter().all(|word| lent.contains(word));
        assert_eq!(is_split, *tokens > 64, "{lent}");
        assert_eq!(lent == plain, *tokens <= 64, "{lent}");
    }
    // Steps that are always the same are too short for it.
    let invariant = ["explain", SMALL, "--npu", "auto", "--batch-invariant"];
    let ran = run(&machine, "", &invariant);
    assert_eq!(ran.status.code(), Some(2));
    assert!(text(&ran.stderr).contains("--batch-invariant"), "{}", text(&ran.stderr));
}
