//! Runs of tests: on which driver, under the validation layer or not, and their results.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::driver::Driver;
use crate::programs::{Program, lines_within};
use crate::validation::{self, Messages, SUMMARY};

/// The longest that a test program may run: the slowest, `trine`'s `cli`, takes 143 s on two slow
/// cores that have other work too. The other programs of a run still run if one hangs.
const MOST: Duration = Duration::from_secs(12 * 60);
/// The same for those of `trine-vulkan` on lavapipe, of which the slowest takes 1,290 s there.
pub(crate) const MOST_ON_LAVAPIPE: Duration = Duration::from_secs(45 * 60);
/// What a test runner says of a test that is slow, or hangs.
const SLOW: &str = "has been running for over";

/// What a run has to show in addition to passing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Validation {
    /// Nothing: the validation layer is not loaded.
    None,
    /// The layer was loaded and did not complain.
    Silent,
    /// The layer was loaded and saw a hazard.
    Hazard,
}

/// A run of test programs, one after the other.
#[derive(Debug)]
pub(crate) struct TestRun<'a> {
    /// A name for people.
    pub(crate) name: &'a str,
    pub(crate) programs: Vec<&'a Program>,
    /// Arguments of each program, such as the names of tests.
    pub(crate) arguments: Vec<&'a str>,
    /// The Vulkan driver that it runs on, and its name for people.
    pub(crate) driver: Option<&'a Driver>,
    pub(crate) place: &'a str,
    pub(crate) validation: Validation,
    /// A variable of the environment, and its value.
    pub(crate) variable: Option<(&'a str, &'a Path)>,
    /// The fewest tests that must pass: if tests are chosen by name, a name that fits no test would
    /// go unnoticed.
    pub(crate) least: u64,
    /// The words with which a test says that it skips itself because the driver lacks something, if
    /// this driver must have it.
    pub(crate) forbidden: Option<&'a str>,
    /// The longest that each program may run.
    pub(crate) most: Duration,
}

impl<'a> TestRun<'a> {
    /// Makes a run of at least one test without Vulkan.
    pub(crate) fn new(name: &'a str, programs: Vec<&'a Program>) -> Self {
        Self {
            name,
            programs,
            arguments: Vec::new(),
            driver: None,
            place: "",
            validation: Validation::None,
            variable: None,
            least: 1,
            forbidden: None,
            most: MOST,
        }
    }

    /// Runs the programs and sums up their results. Only the runner's summary is shown for a
    /// program that passes and about which there is nothing to complain. One that fails does not
    /// keep the others from running.
    pub(crate) fn run(&self, root: &Path) -> anyhow::Result<()> {
        let start = Instant::now();
        let place =
            if self.place.is_empty() { String::new() } else { format!(" on {}", self.place) };
        let name = format!("{}{place}", self.name);
        say(&format!("== {name}: {} programs {}", self.programs.len(), self.arguments.join(" ")));
        let mut found = Found { forbidden: self.forbidden, ..Found::default() };
        let mut failed = Vec::new();
        for program in &self.programs {
            say(&format!("     Running {program}{place}"));
            let (mut output, mut summary) = (String::new(), String::new());
            let complaints = found.messages.complaints();
            let begin = Instant::now();
            let status = lines_within(self.most, &mut self.command(root, program)?, |line| {
                if line.contains(SLOW) {
                    say(&format!("{program}{place}: {line}"));
                }
                found.add(line);
                output.push_str(line);
                output.push('\n');
                if line.starts_with(SUMMARY) {
                    summary.push_str(line);
                    summary.push('\n');
                }
            })?;
            let has_passed = status.is_some_and(|status| status.success());
            let is_clean = has_passed && found.messages.complaints() == complaints;
            let shown = if is_clean { summary } else { output };
            let seconds = begin.elapsed().as_secs_f64();
            say(&format!("     Ran {program}{place} in {seconds:.1} s\n{}", shown.trim_end()));
            if !has_passed {
                let minutes = self.most.as_secs() / 60;
                failed.push(match status {
                    Some(status) => format!("{program}: {status}"),
                    None => format!(
                        "{program}: killed after {minutes} minutes; look for tests above that have been running for long"
                    ),
                });
            }
        }
        let Counts { binaries, passed, failed: tests, ignored } = found.counts;
        say(&format!(
            "== {name}: {passed} passed, {tests} failed, {ignored} ignored in {binaries} programs, {:.0} s",
            start.elapsed().as_secs_f64()
        ));
        if !failed.is_empty() {
            bail!("{name} failed: {}", failed.join("; "));
        }
        self.judge(&found).with_context(|| format!("{name} failed"))
    }

    fn command(&self, root: &Path, program: &Program) -> anyhow::Result<Command> {
        let mut command = program.command(root, self.driver);
        command.args(&self.arguments).envs(self.variable);
        if self.validation != Validation::None {
            let layers = self.driver.and_then(|driver| driver.layers.as_ref());
            let layers = layers.context("there is no validation layer")?;
            validation::apply(root, layers, &mut command);
        }
        Ok(command)
    }

    fn judge(&self, found: &Found<'_>) -> anyhow::Result<()> {
        if found.counts.passed < self.least {
            bail!("{} tests were run, and {} are the least", found.counts.passed, self.least);
        }
        if let Some(line) = &found.skipped {
            bail!("a test skipped itself: {line}");
        }
        match self.validation {
            Validation::None => Ok(()),
            Validation::Silent => found.messages.judge(),
            Validation::Hazard => found.messages.judge_wrong(),
        }
    }
}

/// Prints lines in one piece: another list's output may come at the same time.
fn say(text: &str) {
    // If the output is closed, its reader wants nothing more.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// Makes lists of runs, all lists at the same time: the compiler for lavapipe keeps only one
/// processor busy.
pub(crate) fn run_at_once(root: &Path, lists: &[Vec<TestRun<'_>>]) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = lists
            .iter()
            .map(|runs| scope.spawn(move || runs.iter().try_for_each(|run| run.run(root))))
            .collect();
        // All are waited for, and the first failure is the result.
        let results: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        results.into_iter().collect()
    })
}

/// The findings in the output of test programs.
#[derive(Debug, Default)]
struct Found<'a> {
    counts: Counts,
    messages: Messages,
    forbidden: Option<&'a str>,
    /// A line with the forbidden words. Tests that pass show their output only with
    /// `--show-output`.
    skipped: Option<String>,
}

impl Found<'_> {
    fn add(&mut self, line: &str) {
        self.counts.add(line);
        self.messages.add(line);
        if self.forbidden.is_some_and(|words| line.contains(words)) {
            self.skipped = Some(line.to_owned());
        }
    }
}

/// The results of tests, over all test binaries.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    binaries: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// Adds the results in a line of a test runner:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn add(&mut self, line: &str) {
        let Some((_, results)) = line.strip_prefix(SUMMARY).and_then(|rest| rest.split_once(". "))
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

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";

    #[test]
    fn results_of_all_binaries_are_summed() {
        let mut counts = Counts::default();
        counts.add("running 3 tests");
        counts.add(PASSED);
        counts.add("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.1s");
        assert_eq!(counts, Counts { binaries: 2, passed: 8, failed: 2, ignored: 1 });
    }

    #[test]
    fn a_run_of_too_few_tests_or_of_such_that_skip_themselves_fails() {
        let found = |lines: &[&str]| {
            let mut found = Found { forbidden: Some("no matrix units"), ..Found::default() };
            lines.iter().for_each(|line| found.add(line));
            found
        };
        let mut run = TestRun::new("a run", Vec::new());
        assert!(run.judge(&found(&[])).is_err());
        run.least = 3;
        run.judge(&found(&[PASSED])).unwrap();
        run.least = 4;
        assert!(run.judge(&found(&[PASSED])).is_err());

        run.least = 1;
        let skips =
            |lack| found(&[&format!("llvmpipe has no {lack}: their test is skipped"), PASSED]);
        run.judge(&skips("wide registers")).unwrap();
        assert!(run.judge(&skips("matrix units")).is_err());

        run.validation = Validation::Silent;
        assert!(
            run.judge(&found(&["running 3 tests", PASSED])).is_err(),
            "the layer was not there"
        );
    }
}
