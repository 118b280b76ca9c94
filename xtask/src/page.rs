//! The page that the server serves, driven in a headless Chromium.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::drivers::is_program;
use crate::programs::{self, Program};

/// What the test takes beside the program, and the packages of Debian that have it.
const NEEDS: [(&str, &str); 3] =
    [("chromium", "chromium"), ("chromedriver", "chromium-driver"), ("python3", "python3")];

/// Packages of Debian that are missing for the test.
pub(crate) fn missing() -> Vec<&'static str> {
    NEEDS
        .into_iter()
        .filter(|(program, _)| !is_program(program))
        .map(|(_, package)| package)
        .collect()
}

/// Drives the page of the `trine` among these programs. Gives what was skipped, if anything.
pub(crate) fn test(root: &Path, programs: &[Program]) -> anyhow::Result<Option<String>> {
    let missing = missing();
    if !missing.is_empty() {
        return Ok(Some(format!("the test of the page: {} missing", missing.join(", "))));
    }
    let trine = &programs::find(programs, "bin", "trine")?.path;
    eprintln!("== the page: tools/page-test/page_test.py --trine {}", trine.display());
    let start = Instant::now();
    let mut test = Command::new("python3");
    test.arg("tools/page-test/page_test.py").arg("--trine").arg(trine).current_dir(root);
    if !test.status().context("cannot start python3")?.success() {
        bail!("the test of the page failed");
    }
    eprintln!("== the page: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(None)
}
