//! The container image, built from the Debian package and tried by
//! `tools/package-test/container.sh`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::machine::{install, is_program};
use crate::meter;

/// The programs that it needs, which are also the names of Debian's packages.
const NEEDS: [&str; 4] = ["podman", "runc", "debootstrap", "curl"];
const SCRIPT: &str = "tools/package-test/container.sh";
/// The script's exit code if the machine runs no containers, or if there is nothing to build on.
const IMPOSSIBLE: i32 = 77;

/// Builds and tries the image of the package in `target/dist`. Returns what was skipped, if
/// anything.
///
/// # Errors
///
/// Returns an error if the image cannot be built or does not do what it should.
pub(crate) fn run(root: &Path) -> anyhow::Result<Option<String>> {
    let start = Instant::now();
    let missing: Vec<&str> = NEEDS.into_iter().filter(|program| !is_program(program)).collect();
    if let Err(error) = install(root, &missing) {
        return Ok(Some(format!("the image: {error:#}")));
    }
    eprintln!("== the image: {SCRIPT}");
    let status = meter::status(Command::new("bash").arg(SCRIPT).current_dir(root));
    let status = status.context("cannot start bash")?;
    match status.code() {
        Some(0) => eprintln!("== the image: passed in {:.0} s", start.elapsed().as_secs_f64()),
        Some(IMPOSSIBLE) => return Ok(Some("the image: no containers run here".to_owned())),
        _ => bail!("{SCRIPT} failed"),
    }
    Ok(None)
}
