//! Lints of packages, and the building of their tests.

use std::path::Path;

use anyhow::bail;

use crate::machine::is_program;
use crate::programs::{self, Program};

const LINTS: [&str; 6] = ["clippy", "--all-targets", "--locked", "--", "-D", "warnings"];

const TESTS: [&str; 3] = ["test", "--locked", "--no-run"];

/// Libraries, programs, tests and examples of the product.
const PRODUCT: [&str; 6] =
    ["build", "--workspace", "--exclude", "xtask", "--all-targets", "--locked"];
/// Those of this program, apart, so that they use what it was built with: with the product, their
/// dependencies would have other features.
const XTASK: [&str; 5] = ["build", "--package", "xtask", "--all-targets", "--locked"];

/// Clippy's driver: a compiler that lints what it compiles.
const DRIVER: &str = "clippy-driver";
/// The driver's arguments `-D warnings`, each with the mark that ends it, as `cargo clippy` passes
/// them on.
const DRIVER_ARGUMENTS: &str = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";

/// Lints and builds everything in the workspace, and returns the programs. One process lints and
/// compiles: `cargo clippy` would compile all dependencies a second time, for itself.
pub(crate) fn build(root: &Path) -> anyhow::Result<Vec<Program>> {
    if !is_program(DRIVER) {
        bail!("{DRIVER} is missing; get it with: rustup component add clippy");
    }
    let environment = [("RUSTC_WORKSPACE_WRAPPER", DRIVER), ("CLIPPY_ARGS", DRIVER_ARGUMENTS)];
    let mut programs = programs::build(root, "linting and building", &PRODUCT, &environment)?;
    programs.extend(programs::build(root, "linting and building xtask", &XTASK, &environment)?);
    Ok(programs)
}

/// Lints the packages that these arguments of cargo choose.
pub(crate) fn lint(root: &Path, name: &str, packages: &[&str]) -> anyhow::Result<()> {
    programs::run(root, name, &with(&LINTS, packages))
}

/// Builds the tests that these arguments of cargo choose.
pub(crate) fn build_tests(
    root: &Path,
    name: &str,
    chosen: &[&str],
) -> anyhow::Result<Vec<Program>> {
    programs::build(root, name, &[&TESTS[..], chosen].concat(), &[])
}

/// Returns a command of cargo with more arguments, which have to come before `--`.
fn with<'a>(command: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let (first, rest) = command.split_at(1);
    [first, more, rest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_for_cargo_come_before_those_of_its_tool() {
        let command = with(&["clippy", "--", "-D", "warnings"], &["--workspace"]);
        assert_eq!(command, ["clippy", "--workspace", "--", "-D", "warnings"]);
    }
}
