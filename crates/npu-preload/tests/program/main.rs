//! The program as it is shipped, on the model of the NPU's kernel driver. Never run on silicon.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod machine;
mod serving;

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use machine::{Machine, SMALL, library, program};
use serde_json::Value;

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
    assert!(ran.out.contains("one (2 streams, for trine's model only)"), "{}", ran.out);
    assert!(ran.out.contains("never run on silicon"), "{}", ran.out);
}

#[test]
fn products_are_exact_in_both_address_modes() {
    for faults in ["", "iova"] {
        let (ran, report) = Machine::new().selftest(faults);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.out.ends_with("All products are exact, on trine's model.\n"), "{}", ran.out);
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

/// Commands that last longer together than one may are not taken for one that hangs.
#[test]
fn long_commands_do_not_add_up() {
    let (ran, report) = Machine::new().selftest("long");
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(report["results"]["outcomes"].as_array().unwrap().len() > 1, "{report:#}");
}

/// Who waits is told of a device that hangs by its time, not by that of a model which is slow.
#[test]
fn a_hang_is_told_from_a_slow_model() {
    let (_, report) = Machine::new().selftest("slow,hang");
    let error = report["results"]["outcomes"][0]["error"].as_str().unwrap();
    assert!(error.contains("more than 1000 ms"), "{error}");
}

#[test]
fn wrong_products_are_told_with_their_places() {
    let (ran, report) = Machine::new().selftest("wrong");
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.out.contains("wrong") && !ran.out.contains("exact"), "{}", ran.out);
    assert_eq!(report["results"]["outcomes"][0]["examples"][0][1], 1536);
}

#[test]
fn cores_that_stand_in_are_for_the_model_only() {
    let machine = Machine::new();
    let (ran, report) = machine.selftest("");
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("no result here is an NPU's"), "{}", ran.err);
    assert_eq!(report["pack"]["stand_in"], true);
    assert_eq!(report["doctor"]["facts"]["is_model"], true);
    let (ran, report) = machine.selftest("silicon");
    assert_eq!(ran.code, 1, "{}", ran.out);
    assert!(ran.err.contains("only stands in for that of a8w8acc32"), "{}", ran.err);
    assert_eq!(report["results"]["outcomes"].as_array().unwrap().len(), 0);
    assert_eq!(report["doctor"]["facts"]["is_model"], false);
    // A pack that does not say so is not even read.
    let manifest = machine.path("store/.npu/one/manifest.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replacen("stand_in = true\n", "", 1)).unwrap();
    for faults in ["", "silicon"] {
        let ran = machine.run(faults, &["npu", "selftest", "--yes"]);
        assert_eq!(ran.code, 1, "{}", ran.out);
        assert!(ran.err.contains("streams of a8w8acc32 are proven for eade7b01"), "{}", ran.err);
    }
}

#[test]
fn a_second_context_is_refused() {
    let machine = Machine::new();
    let (ran, report) = machine.selftest("context");
    assert_eq!(ran.code, 1, "{}", ran.out);
    for text in ["EINVAL", "one at a time", "`trine npu doctor`"] {
        assert!(ran.err.contains(text), "{}", ran.err);
    }
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
        ("node", "interface", "\"ivpu\""),
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

#[test]
fn a_prompt_is_split_with_the_npu() {
    let machine = Machine::with_rows(&[8, 64]);
    let (_, plain) = machine.read_a_prompt("", &[]);
    assert!(plain["npu"].is_null() && plain["statistics"]["prompt_tokens"].as_u64() > Some(64));
    let (ran, report) = machine.read_a_prompt("", &["--npu", "auto", "--npu-share", "0.5", "-v"]);
    assert!(ran.err.contains("npu (trine's model of one) for prompts"), "{}", ran.err);
    assert!(ran.err.contains("computing for"), "{}", ran.err);
    let npu = &report["npu"];
    assert!(npu["products"].as_u64() > Some(0), "{npu}");
    let rows = plain["statistics"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(npu["rows"].as_u64().unwrap(), npu["products"].as_u64().unwrap() * rows);
    assert_eq!(npu["instead"], 0);
    assert_eq!(report["statistics"]["generated_tokens"], 4);
}

#[test]
fn an_npu_that_hangs_costs_a_warning_and_no_token() {
    let machine = Machine::with_rows(&[8, 64]);
    let (_, plain) = machine.read_a_prompt("", &[]);
    let (ran, report) = machine.read_a_prompt("hang", &["--npu", "auto", "--npu-share", "1"]);
    assert_eq!(report["text"], plain["text"]);
    assert_eq!(report["npu"]["products"], 0);
    assert!(report["npu"]["instead"].as_u64() > Some(0));
    assert!(ran.err.contains("has not computed what was delegated"), "{}", ran.err);
    assert!(ran.err.contains("more than 1000 ms"), "{}", ran.err);
}

#[test]
fn an_npu_that_cannot_be_used_is_refused_before_the_prompt() {
    let run = |faults, options: &[&str]| {
        let arguments = [&["run", SMALL, "Hello", "--device", "cpu"], options].concat();
        Machine::with_rows(&[8, 64]).run(faults, &arguments)
    };
    let npu = ["--npu", "auto", "--npu-share", "0.5"];
    for (faults, text) in
        [("memory", "trine npu doctor"), ("absent", "trine npu doctor"), ("wrong", "is wrong")]
    {
        let ran = run(faults, &npu);
        assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{faults}: {}", ran.err);
        assert!(ran.err.contains(text), "{faults}: {}", ran.err);
    }
    let ran = run("", &["--npu", "nowhere"]);
    assert!(ran.code == 1 && ran.err.contains("nowhere is refused"), "{}", ran.err);
    let ran = run("", &["--npu-share", "0.5"]);
    assert!(ran.code == 2 && ran.err.contains("--npu"), "{}", ran.err);
    let ran = Machine::new().run("", &["run", "demo", "Hello", "--npu", "auto", "--device", "cpu"]);
    assert!(ran.code == 1 && ran.err.contains("for 64 rows"), "{}", ran.err);
    let elsewhere = ["run", SMALL, "Hello", "--device", "reference", "--npu", "auto"];
    let ran = Machine::new().run("", &elsewhere);
    assert!(ran.code == 2 && ran.err.contains("--device cpu"), "{}", ran.err);
}

#[test]
fn a_reader_that_goes_away_does_not_take_the_verdict_along() {
    for faults in ["hang", "wrong"] {
        let (reader, writer) = std::io::pipe().unwrap();
        // The header is read, and nothing after it.
        let read = std::thread::spawn(move || {
            std::io::BufReader::new(reader).read_line(&mut String::new()).unwrap();
        });
        let arguments = ["npu", "selftest", "--yes"];
        let ran = Machine::new().run_between(faults, &arguments, Stdio::null(), writer);
        read.join().unwrap();
        assert_eq!(ran.code, 1, "{faults}: {}", ran.err);
        assert!(faults != "hang" || ran.err.contains("restart the machine"), "{}", ran.err);
    }
}

#[test]
fn ctrl_c_ends_the_selftest_after_a_stream() {
    let machine = Machine::with_rows(&[1, 8, 16, 32]);
    let path = machine.path("report.json");
    let arguments = ["npu", "selftest", "--yes", "--report", path.to_str().unwrap()];
    // Slow, so that commands are left when the signal comes.
    let mut command = machine.command("slow", &arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Whoever starts the tests may ignore the signal.
    // SAFETY: the closure calls one function that may be called between fork and exec, and
    // allocates nothing.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let mut answers = std::io::BufReader::new(child.stdout.take().unwrap());
    // The header comes when Ctrl-C is watched for.
    answers.read_line(&mut String::new()).unwrap();
    // SAFETY: a signal to a process that this test has started and not waited for.
    assert_eq!(unsafe { libc::kill(child.id().try_into().unwrap(), libc::SIGINT) }, 0);
    std::io::copy(&mut answers, &mut std::io::sink()).unwrap();
    let ran = child.wait_with_output().unwrap();
    let error = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(130), "{error}");
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let stopped = report["results"]["stopped"].as_str().unwrap_or_default();
    assert!(stopped.contains("Ctrl-C was pressed") && error.contains(stopped), "{error}");
    assert!(stopped.contains("No command is left on the NPU"), "{stopped}");
}

#[test]
fn nothing_is_submitted_for_nobody() {
    let machine = Machine::new();
    let path = machine.path("report.json");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let arguments = ["npu", "selftest", "--yes", "--report", path.to_str().unwrap()];
    let ran = machine.run_between("", &arguments, Stdio::null(), writer);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("nothing was submitted"), "{}", ran.err);
    let report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(report["results"].is_null(), "{report:#}");
}

#[test]
fn a_missing_pack_is_the_next_step() {
    let machine = Machine::new();
    std::fs::remove_dir_all(machine.path("store/.npu")).unwrap();
    let ran = machine.run("", &["npu", "doctor"]);
    assert!(!ran.out.contains("Nothing is known to be missing"), "{}", ran.out);
    assert!(ran.out.contains("Next, a kernel pack is missing: `trine npu pack`"), "{}", ran.out);
    std::fs::create_dir_all(machine.path("store/.npu/broken")).unwrap();
    let ran = machine.run("", &["npu", "doctor"]);
    assert!(!ran.out.contains("Nothing is known to be missing"), "{}", ran.out);
}

#[test]
fn an_npu_that_had_nothing_to_do_is_explained() {
    let machine = Machine::with_rows(&[8, 64]);
    let (ran, report) = machine.read_a_prompt("", &["--npu", "auto", "--npu-share", "0", "-v"]);
    assert_eq!(report["npu"]["products"], 0);
    assert!(ran.err.contains("0 products: a share of 0 lends it no row"), "{}", ran.err);
    let short = ["run", SMALL, "Hello", "--device", "cpu", "--npu", "auto", "--npu-share", "0.5"];
    let ran =
        machine.run("", &[&short[..], &["--draft", "off", "--max-tokens", "2", "-v"]].concat());
    assert!(ran.err.contains("no prompt came with more than 64 tokens"), "{}", ran.err);
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
        ("yes", 0, "All products are exact, on trine's model.\n"),
    ] {
        let (mut typed, read) = terminal();
        writeln!(typed, "{answer}").unwrap();
        let ran = machine.run_with("", &arguments, read);
        assert_eq!(ran.code, code, "{answer}: {}{}", ran.out, ran.err);
        assert!(ran.out.ends_with(last), "{answer}: {}", ran.out);
        assert!(ran.err.contains("never run on silicon") && ran.err.contains("Type yes"));
        assert_eq!(report.exists(), code == 0, "no report without a yes");
    }
    let text = std::fs::read_to_string(&report).unwrap();
    assert!(text.contains("\"right\""), "{text}");
    // The next run does not write over it, and asks nothing.
    let ran = machine.run("", &arguments);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("report.json is there already"), "{}", ran.err);
    assert_eq!(std::fs::read_to_string(&report).unwrap(), text);
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
    let output = Command::new(program())
        .args(["npu", "doctor"])
        .env_clear()
        .env("LD_PRELOAD", library())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stdout).unwrap().contains("no NPU here"));
}
