//! What has to pass before a change lands.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use crate::drivers::{self, Driver};
use crate::{chart, radv, shaders, tidy};

/// Set to 1, this lets `ci` pass without the drivers that it could not install or fetch.
const OFFLINE: &str = "TRINE_CI_OFFLINE";

const LINTS: [&str; 6] = ["clippy", "--all-targets", "--locked", "--", "-D", "warnings"];

/// Runs every check and stops at the first that fails.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let is_offline = std::env::var_os(OFFLINE).is_some_and(|value| value == "1");
    let drivers = drivers::ensure(root)?;
    if !drivers.missing.is_empty() && !is_offline {
        bail!("drivers are missing; to go on without what needs them: {OFFLINE}=1");
    }
    let mut skipped = drivers.missing.clone();

    tidy::run(root)?;
    chart::run(root, true)?;
    cargo(root, "formatting", &["fmt", "--all", "--check"])?;
    cargo(root, "lints", &with(&LINTS, &["--workspace"]))?;
    let compiler = ["--package", "xtask", "--features", "shaders"];
    cargo(root, "lints of the shader compiler", &with(&LINTS, &compiler))?;
    skipped.extend(shaders::run(root, true)?);

    let tests = ["test", "--locked"];
    match &drivers.lavapipe {
        Some(driver) => {
            let everything = with(&tests, &["--workspace"]);
            run_tests(root, "tests", &everything, Some(driver))?;
        }
        None => {
            skipped.push("tests of trine-vulkan: no lavapipe".to_owned());
            let others = with(&tests, &["--workspace", "--exclude", "trine-vulkan"]);
            run_tests(root, "tests without Vulkan", &others, None)?;
        }
    }
    let compiler = with(&tests, &[&compiler[..], &["--bin", "shaders"]].concat());
    run_tests(root, "tests of the shader compiler", &compiler, None)?;
    match &drivers.matrix {
        Some(driver) => {
            let name = format!("tests of trine-vulkan on lavapipe {}", driver.version);
            // Examples in the documentation are no test binaries: cargo would not start them through the driver.
            let vulkan = with(&tests, &["--package", "trine-vulkan", "--lib", "--tests"]);
            run_tests(root, &name, &vulkan, Some(driver))?;
        }
        None => {
            skipped.push("tests of the cooperative matrix kernels: no newer lavapipe".to_owned())
        }
    }
    match &drivers.radv {
        Some(driver) => skipped.extend(radv::check(root, driver)?),
        None => skipped.push("the report on the Radeon 780M's code: no RADV".to_owned()),
    }

    for what in &skipped {
        eprintln!("== SKIPPED: {what}");
    }
    eprintln!(
        "== ci: passed{}",
        if skipped.is_empty() { "" } else { ", but for what was SKIPPED" }
    );
    Ok(())
}

/// A command of cargo with more arguments, which have to come before `--`.
fn with<'a>(command: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let (first, rest) = command.split_at(1);
    [first, more, rest].concat()
}

fn cargo(root: &Path, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let start = begin(name, arguments);
    let status = crate::cargo(root)
        .args(arguments)
        .status()
        .with_context(|| format!("cannot start cargo for {name}"))?;
    if !status.success() {
        bail!("{name} failed; repeat it alone with: cargo {}", arguments.join(" "));
    }
    eprintln!("== {name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn begin(name: &str, arguments: &[&str]) -> Instant {
    eprintln!("== {name}: cargo {}", arguments.join(" "));
    Instant::now()
}

/// Results of tests, over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    binaries: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// Adds what a line of a test runner says: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn add(&mut self, line: &str) {
        let Some((_, results)) =
            line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.binaries += 1;
        for part in results.split(';') {
            let Some((count, what)) = part.trim().split_once(' ') else {
                continue;
            };
            let count: u64 = count.parse().unwrap_or(0);
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }
}

/// Runs tests, on a Vulkan driver if one is given, and sums up their results.
fn run_tests(
    root: &Path,
    name: &str,
    arguments: &[&str],
    driver: Option<&Driver>,
) -> anyhow::Result<()> {
    let start = begin(name, arguments);
    let mut command = crate::cargo(root);
    command.args(arguments);
    if let Some(driver) = driver {
        driver.apply(&mut command);
    }
    let counts = count(&mut command).with_context(|| format!("{name} failed"))?;
    let Counts { binaries, passed, failed, ignored } = counts;
    eprintln!(
        "== {name}: {passed} passed, {failed} failed, {ignored} ignored in {binaries} binaries, {:.0} s",
        start.elapsed().as_secs_f64()
    );
    if passed == 0 {
        bail!("{name}: no test was run");
    }
    Ok(())
}

/// Runs a command that runs tests, passing its output on.
fn count(command: &mut Command) -> anyhow::Result<Counts> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().expect("the output is piped");
    let mut counts = Counts::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.context("cannot read the tests' output")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        counts.add(&line);
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("after {} passed, {} failed: {status}", counts.passed, counts.failed);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_binaries_are_summed() {
        let mut counts = Counts::default();
        counts.add("running 3 tests");
        counts.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s");
        counts.add("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.1s");
        assert_eq!(counts, Counts { binaries: 2, passed: 8, failed: 2, ignored: 1 });
    }

    #[test]
    fn arguments_for_cargo_come_before_those_of_its_tool() {
        let command = with(&["clippy", "--", "-D", "warnings"], &["--workspace"]);
        assert_eq!(command, ["clippy", "--workspace", "--", "-D", "warnings"]);
    }
}
