//! Lints of packages, and the building of their tests.

use std::path::Path;

use crate::programs::{self, Program};

/// The packages of the product.
const PRODUCT: [&str; 3] = ["--workspace", "--exclude", "xtask"];
/// This program, apart, so that it uses what it was built with: beside the product, its
/// dependencies would have other features.
const XTASK: [&str; 2] = ["--package", "xtask"];

const LINTS: [&str; 6] = ["clippy", "--all-targets", "--locked", "--", "-D", "warnings"];

const TESTS: [&str; 3] = ["test", "--locked", "--no-run"];

/// Programs and tests.
const BUILD: [&str; 4] = ["build", "--locked", "--bins", "--tests"];
/// What the product has besides: libraries, and the one example that the checks run. Lints check
/// the others, of which two have one name.
const MORE: [&str; 3] = ["--lib", "--example", "pipeline_report"];

/// Lints everything in the workspace.
pub(crate) fn lint_all(root: &Path) -> anyhow::Result<()> {
    lint(root, "lints", &PRODUCT)?;
    lint(root, "lints of xtask", &XTASK)
}

/// Builds everything in the workspace and returns the programs.
pub(crate) fn build(root: &Path) -> anyhow::Result<Vec<Program>> {
    let product = [&BUILD[..], &MORE, &PRODUCT].concat();
    let mut programs = programs::build(root, "building everything", &product)?;
    let xtask = [&BUILD[..], &XTASK].concat();
    programs.extend(programs::build(root, "building xtask's tests", &xtask)?);
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
    programs::build(root, name, &[&TESTS[..], chosen].concat())
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
