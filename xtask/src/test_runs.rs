//! Runs of tests: on which driver, under the validation layer or not, and their results.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::driver::Driver;
use crate::lanes::at_once;
use crate::meter::Spent;
use crate::programs::{Program, lines_within};
use crate::timings::{Row, Timings};
use crate::validation::{self, Messages, SUMMARY};

/// The longest that a test program may run. The other programs of a run still run if one hangs.
const MOST: Duration = Duration::from_secs(12 * 60);
/// The same for those of `trine-vulkan` on lavapipe.
pub(crate) const MOST_ON_LAVAPIPE: Duration = Duration::from_secs(30 * 60);
/// A program runs its tests one after the other, so that the time of each can be told: several
/// programs run at once instead.
const ONE_AFTER_THE_OTHER: &str = "--test-threads=1";

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

/// A run of test programs.
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
    pub(crate) variable: Option<(&'a str, &'a OsStr)>,
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

    /// Runs the programs as [`run_all`] does, one after the other.
    pub(crate) fn run(&self, root: &Path, timings: &Timings) -> anyhow::Result<()> {
        run_all(root, std::slice::from_ref(self), 1, timings)
    }

    /// Returns the name, with the place if there is one.
    fn title(&self) -> String {
        format!("{}{}", self.name, self.at())
    }

    /// Returns ` on` and the place, or nothing.
    fn at(&self) -> String {
        if self.place.is_empty() { String::new() } else { format!(" on {}", self.place) }
    }

    /// Runs a program. Only the runner's summary is shown if it passes and there is nothing to
    /// complain about.
    fn run_program(
        &self,
        root: &Path,
        program: &Program,
        timings: &Timings,
    ) -> anyhow::Result<Ended<'a>> {
        let chosen: String = self.arguments.iter().map(|word| format!(" {word}")).collect();
        let name = format!("{program}{chosen}{}", self.at());
        say(&format!("     Running {name}"));
        let mut found = Found { forbidden: self.forbidden, ..Found::default() };
        let mut clock = TestClock::default();
        let (mut output, mut summary) = (String::new(), String::new());
        let mut command = self.command(root, program)?;
        let (status, spent) = lines_within(self.most, &mut command, |line, so_far| {
            clock.add(line, so_far);
            found.add(line);
            output.push_str(line);
            output.push('\n');
            if line.starts_with(SUMMARY) {
                summary.push_str(line);
                summary.push('\n');
            }
        })?;
        let has_passed = status.is_some_and(|status| status.success());
        let shown = if has_passed && found.messages.complaints() == 0 { summary } else { output };
        let seconds = spent.wall.as_secs_f64();
        say(&format!("     Ran {name} in {seconds:.1} s\n{}", shown.trim_end()));
        let minutes = self.most.as_secs() / 60;
        let failure = match status {
            Some(_) if has_passed => None,
            Some(status) => Some(format!("{name}: {status}{}", clock.failures())),
            None => Some(format!("{name}: killed after {minutes} minutes, {}", clock.place())),
        };
        timings.add(Row { name, spent }, clock.tests);
        Ok(Ended { found, failure })
    }

    fn command(&self, root: &Path, program: &Program) -> anyhow::Result<Command> {
        let mut command = program.command(root, self.driver);
        command.arg(ONE_AFTER_THE_OTHER).args(&self.arguments).envs(self.variable);
        if self.validation != Validation::None {
            let layers = self.driver.and_then(|driver| driver.layers.as_ref());
            let layers = layers.context("there is no validation layer")?;
            validation::apply(root, layers, &mut command);
        }
        Ok(command)
    }

    /// Sums up what the programs left and says whether that is what the run has to show.
    fn end(&self, ended: Vec<Ended<'_>>) -> anyhow::Result<()> {
        let mut found = Found::default();
        let mut failed = Vec::new();
        for ended in ended {
            found.join(ended.found);
            failed.extend(ended.failure);
        }
        let name = self.title();
        let Counts { binaries, passed, failed: tests, ignored } = found.counts;
        say(&format!(
            "== {name}: {passed} passed, {tests} failed, {ignored} ignored in {binaries} programs"
        ));
        if !failed.is_empty() {
            bail!("{name} failed: {}", failed.join("; "));
        }
        self.judge(&found).with_context(|| format!("{name} failed"))
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

/// Runs the programs of several runs in their order, as many at a time as `workers`. One that fails
/// does not keep the others from running.
pub(crate) fn run_all(
    root: &Path,
    runs: &[TestRun<'_>],
    workers: usize,
    timings: &Timings,
) -> anyhow::Result<()> {
    for run in runs {
        let programs = run.programs.len();
        say(&format!("== {}: {programs} programs", run.title()));
    }
    let jobs = runs.iter().enumerate();
    let jobs: Vec<_> =
        jobs.flat_map(|(at, run)| run.programs.iter().map(move |program| (at, program))).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut all = Vec::new();
        while let Some(&(at, program)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            all.push((at, runs[at].run_program(root, program, timings)));
        }
        all
    };
    let mut ended: Vec<_> = runs.iter().map(|_| Vec::new()).collect();
    let mut failures = Vec::new();
    for (at, result) in at_once((0..workers).map(|_| work)).into_iter().flatten() {
        match result {
            Ok(end) => ended[at].push(end),
            Err(error) => failures.push(error),
        }
    }
    let judged = runs.iter().zip(ended).map(|(run, ended)| run.end(ended));
    failures.extend(judged.filter_map(Result::err));
    let text: Vec<_> = failures.iter().map(|error| format!("{error:#}")).collect();
    if text.is_empty() { Ok(()) } else { bail!("{}", text.join("; ")) }
}

/// Prints lines in one piece: another program's output may come at the same time.
#[expect(clippy::disallowed_methods, reason = "a line of this repository's own checks")]
pub(crate) fn say(text: &str) {
    // If the output is closed, its reader wants nothing more.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// Tells from the lines of a program when each of its tests ended.
#[derive(Debug, Default)]
struct TestClock {
    tests: Vec<Row>,
    /// What the program had taken when the last test ended.
    last: Spent,
    /// The test that has begun and written lines of its own.
    begun: Option<String>,
    /// The tests that have failed.
    failed: Vec<String>,
}

impl TestClock {
    /// Takes the next line, which came when the program had taken `so_far`. A runner writes
    /// `test NAME ... `, then what the test writes past the runner, and `ok` or `FAILED`.
    fn add(&mut self, line: &str, so_far: Spent) {
        if line.starts_with("running ") {
            self.last = so_far;
        }
        let mut rest = line;
        if let Some((name, more)) =
            line.strip_prefix("test ").and_then(|test| test.split_once(" ... "))
        {
            self.begun = Some(name.to_owned());
            rest = more;
        }
        if rest.starts_with("ignored") {
            self.begun = None;
        } else if ["ok", "FAILED"].iter().any(|end| rest.ends_with(end))
            && let Some(name) = self.begun.take()
        {
            if rest.ends_with("FAILED") {
                self.failed.push(name.clone());
            }
            self.tests.push(Row { name, spent: so_far.since(self.last) });
            self.last = so_far;
        }
    }

    /// Returns which tests have failed, for people.
    fn failures(&self) -> String {
        if self.failed.is_empty() {
            return String::new();
        }
        format!(" ({} failed)", self.failed.join(", "))
    }

    /// Returns where the program is, for people.
    fn place(&self) -> String {
        self.begun
            .as_ref()
            .map_or_else(|| "between tests".to_owned(), |test| format!("in the test {test}"))
    }
}

/// What a program left behind.
struct Ended<'a> {
    found: Found<'a>,
    /// What went wrong, in a few words.
    failure: Option<String>,
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

    /// Adds the findings in the output of other programs.
    fn join(&mut self, other: Self) {
        self.counts.join(other.counts);
        self.messages.join(other.messages);
        self.skipped = self.skipped.take().or(other.skipped);
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

    fn join(&mut self, other: Self) {
        self.binaries += other.binaries;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered \
        out; finished in 0.1s";

    /// Returns the findings in the output of a program.
    fn found(lines: &[&str]) -> Found<'static> {
        let mut found = Found { forbidden: Some("no matrix units"), ..Found::default() };
        lines.iter().for_each(|line| found.add(line));
        found
    }

    #[test]
    fn results_of_all_binaries_are_summed() {
        let mut counts = Counts::default();
        counts.add("running 3 tests");
        counts.add(PASSED);
        counts.add(
            "test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 7 filtered \
            out; finished in 0.1s",
        );
        assert_eq!(counts, Counts { binaries: 2, passed: 8, failed: 2, ignored: 1 });
    }

    #[test]
    fn what_one_of_several_programs_shows_is_kept() {
        let layer = "vkCreateInstance(): Khronos Validation Layer Active:";
        let enabled =
            "    Current Enables: VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT.";
        let clean = ["running 3 tests", layer, enabled, PASSED];
        let judged = |others: &[&str]| {
            let run =
                TestRun { validation: Validation::Silent, ..TestRun::new("a run", Vec::new()) };
            [[&clean[..], others], [others, &clean[..]]].map(|programs| {
                let mut all = Found::default();
                programs.iter().for_each(|lines| all.join(found(lines)));
                assert_eq!(all.counts.passed, 6, "{programs:?}");
                run.judge(&all).is_ok()
            })
        };
        assert_eq!(judged(&clean), [true; 2]);
        assert_eq!(judged(&["running 3 tests", PASSED]), [false; 2], "one without the layer");
        let complaint = "Validation Error: [ SYNC-HAZARD-WRITE-AFTER-WRITE ]";
        assert_eq!(judged(&[&clean[..], &[complaint]].concat()), [false; 2]);
        let skips = "llvmpipe has no matrix units: their test is skipped";
        assert_eq!(judged(&[&clean[..], &[skips]].concat()), [false; 2]);
    }

    #[test]
    fn tests_are_timed_from_one_end_to_the_next() {
        let at = |wall, processor| {
            let [wall, processor] = [wall, processor].map(Duration::from_secs);
            Spent { wall, processor }
        };
        let mut clock = TestClock::default();
        for (line, so_far) in [
            ("running 4 tests", at(1, 1)),
            ("test a ... ok", at(3, 2)),
            ("test b - should panic ... a line of the test", at(4, 3)),
            ("another", at(5, 4)),
            ("ok", at(6, 5)),
            ("test c ... ignored, by hand", at(6, 5)),
            ("test d ... FAILED", at(8, 9)),
        ] {
            clock.add(line, so_far);
        }
        let expected = [("a", at(2, 1)), ("b - should panic", at(3, 3)), ("d", at(2, 4))];
        let expected = expected.map(|(name, spent)| Row { name: name.to_owned(), spent });
        assert_eq!(clock.tests, expected);
        assert_eq!(clock.place(), "between tests");
        clock.add("test e ... ", at(9, 9));
        assert_eq!(clock.place(), "in the test e");
    }

    #[test]
    fn a_run_of_too_few_tests_or_of_such_that_skip_themselves_fails() {
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
