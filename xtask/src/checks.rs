//! Lints of packages, and the building of their tests.

use std::path::Path;

use crate::programs::{self, Program};

const LINTS: [&str; 6] = ["clippy", "--all-targets", "--locked", "--", "-D", "warnings"];

const TESTS: [&str; 3] = ["test", "--locked", "--no-run"];

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
