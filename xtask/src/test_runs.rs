//! Runs of tests: on which driver, under the validation layer or not, and their results.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::driver::Driver;
use crate::programs::{Program, lines_within};
use crate::validation::{self, Messages, SUMMARY};

/// The longest that a test program may run: the slowest, `trine`'s `cli`, takes 143 s on two slow
/// cores that have other work too. The other programs of a run still run if one hangs.
const MOST: Duration = Duration::from_secs(12 * 60);
/// The same for those of `trine-vulkan` on lavapipe, of which the slowest takes 960 s there.
pub(crate) const MOST_ON_LAVAPIPE: Duration = Duration::from_secs(30 * 60);
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
    pub(crate) variable: Option<(&'a str, &'a Path)>,
    /// The fewest tests that must pass: if tests are chosen by name, a name that fits no test would
    /// go unnoticed.
    pub(crate) least: u64,
    /// The words with which a test says that it skips itself because the driver lacks something, if
    /// this driver must have it.
    pub(crate) forbidden: Option<&'a str>,
    /// The longest that each program may run.
    pub(crate) most: Duration,
    /// The programs that run at a time.
    pub(crate) workers: usize,
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
            workers: 1,
        }
    }

    /// Runs the programs and sums up their results. One that fails does not keep the others from
    /// running.
    pub(crate) fn run(&self, root: &Path) -> anyhow::Result<()> {
        let start = Instant::now();
        let name = format!("{}{}", self.name, self.at());
        say(&format!("== {name}: {} programs {}", self.programs.len(), self.arguments.join(" ")));
        let mut found = Found::default();
        let mut failed = Vec::new();
        for ended in self.run_programs(root)? {
            found.join(ended.found);
            failed.extend(ended.failure);
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

    /// Returns ` on` and the place, or nothing.
    fn at(&self) -> String {
        if self.place.is_empty() { String::new() } else { format!(" on {}", self.place) }
    }

    /// Runs the programs, as many at a time as `workers`.
    fn run_programs(&self, root: &Path) -> anyhow::Result<Vec<Ended<'a>>> {
        let next = AtomicUsize::new(0);
        let work = || -> anyhow::Result<Vec<Ended<'a>>> {
            let mut all = Vec::new();
            while let Some(program) = self.programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                all.push(self.run_program(root, program)?);
            }
            Ok(all)
        };
        let results = at_once((0..self.workers).map(|_| work));
        let ended = results.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        Ok(ended.into_iter().flatten().collect())
    }

    /// Runs a program. Only the runner's summary is shown if it passes and there is nothing to
    /// complain about.
    fn run_program(&self, root: &Path, program: &Program) -> anyhow::Result<Ended<'a>> {
        let place = self.at();
        say(&format!("     Running {program}{place}"));
        let mut found = Found { forbidden: self.forbidden, ..Found::default() };
        let (mut output, mut summary) = (String::new(), String::new());
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
        let shown = if has_passed && found.messages.complaints() == 0 { summary } else { output };
        let seconds = begin.elapsed().as_secs_f64();
        say(&format!("     Ran {program}{place} in {seconds:.1} s\n{}", shown.trim_end()));
        let minutes = self.most.as_secs() / 60;
        let failure = match status {
            Some(_) if has_passed => None,
            Some(status) => Some(format!("{program}: {status}")),
            None => Some(format!(
                "{program}: killed after {minutes} minutes; look for tests above that have been running for long"
            )),
        };
        Ok(Ended { found, failure })
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

/// Prints lines in one piece: another program's output may come at the same time.
fn say(text: &str) {
    // If the output is closed, its reader wants nothing more.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// Does work at the same time. Returns the results in the order of the work.
pub(crate) fn at_once<T: Send>(
    work: impl IntoIterator<Item = impl FnOnce() -> T + Send>,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|work| scope.spawn(work)).collect();
        let join = |thread: ScopedJoinHandle<'_, T>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
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

    const PASSED: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s";

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
        counts.add("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.1s");
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
    fn results_of_work_at_once_keep_their_order() {
        let pause = |index: u64| std::thread::sleep(Duration::from_millis(20 - 10 * index));
        let work = (0..3).map(|index| {
            move || {
                pause(index);
                index
            }
        });
        assert_eq!(at_once(work), [0, 1, 2]);
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
