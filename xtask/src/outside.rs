//! Tests of the server from outside: its page in a headless Chromium, and several servers behind a
//! router.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::machine::is_program;
use crate::meter;
use crate::programs::{self, Program};

/// The programs that the tests need in addition to `trine`, and their packages in Debian.
const NEEDS: [(&str, &str); 3] =
    [("chromium", "chromium"), ("chromedriver", "chromium-driver"), ("python3", "python3")];

/// Returns the packages of Debian that the tests lack.
pub(crate) fn missing() -> Vec<&'static str> {
    let needs = NEEDS.into_iter().filter(|(program, _)| !is_program(program));
    let mut packages: Vec<_> = needs.map(|(_, package)| package).collect();
    if !makes_environments() {
        packages.push("python3-venv");
    }
    packages
}

/// Returns whether Python can make a virtual environment, which Debian packs separately.
fn makes_environments() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import ensurepip, venv"]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// Drives the page of the `trine` among these programs. Returns what was skipped, if anything.
pub(crate) fn page(root: &Path, programs: &[Program]) -> anyhow::Result<Option<String>> {
    let arguments = ["tools/page-test/page_test.py"];
    test(root, programs, "the page", "python3", &arguments, &[])
}

/// Puts several of the `trine` among these programs behind sglang-router. Returns what was skipped,
/// if anything.
pub(crate) fn router(root: &Path, programs: &[Program]) -> anyhow::Result<Option<String>> {
    test(root, programs, "the router", "bash", &["tools/server-test/run.sh"], &["router"])
}

fn test(
    root: &Path,
    programs: &[Program],
    name: &str,
    program: &str,
    before: &[&str],
    after: &[&str],
) -> anyhow::Result<Option<String>> {
    let missing = missing();
    if !missing.is_empty() {
        return Ok(Some(format!("the test of {name}: {} missing", missing.join(", "))));
    }
    let trine = &programs::find(programs, "bin", "trine")?.path;
    eprintln!("== {name}: {} --trine {}", before.join(" "), trine.display());
    let start = Instant::now();
    let mut test = Command::new(program);
    test.args(before).arg("--trine").arg(trine).args(after).current_dir(root);
    if !meter::status(&mut test).with_context(|| format!("cannot start {program}"))?.success() {
        bail!("the test of {name} failed");
    }
    eprintln!("== {name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(None)
}
