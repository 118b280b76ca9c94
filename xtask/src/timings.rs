//! What the checks take: each step, and the longest test programs and tests.

use std::fmt::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;

use crate::meter::{self, Spent};

/// The test programs and the tests that are listed.
const LISTED: usize = 30;

/// The processor time for each processor above which the checks warn.
const MOST: Duration = Duration::from_secs(35 * 60);
/// The wall time of a test above which the checks warn.
const MOST_OF_A_TEST: Duration = Duration::from_secs(60);

/// What something took, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) spent: Spent,
}

/// What the parts of a run took so far. Steps may run at the same time.
#[derive(Debug, Default)]
pub(crate) struct Timings(Mutex<Rows>);

#[derive(Debug, Default)]
struct Rows {
    steps: Vec<Row>,
    programs: Vec<Row>,
    tests: Vec<Row>,
}

impl Timings {
    /// Does a step, and notes what it took whether it fails or not. A step in a step counts twice
    /// and is not to be measured.
    pub(crate) fn step<T>(&self, name: &str, work: impl FnOnce() -> T) -> T {
        let (result, spent) = meter::measure(work);
        self.rows().steps.push(Row { name: name.to_owned(), spent });
        result
    }

    /// Notes what a test program and its tests took.
    pub(crate) fn add(&self, program: Row, tests: Vec<Row>) {
        let of_it = |test: Row| Row { name: format!("{}: {}", program.name, test.name), ..test };
        let mut rows = self.rows();
        rows.tests.extend(tests.into_iter().map(of_it));
        rows.programs.push(program);
    }

    fn rows(&self) -> std::sync::MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the tables as Markdown, for a run that took `whole`.
    pub(crate) fn tables(&self, whole: Spent) -> String {
        let rows = self.rows();
        let mut text = String::new();
        let all = Row { name: "all".to_owned(), spent: whole };
        table(&mut text, "step", rows.steps.iter().chain([&all]));
        for (what, rows) in [("test program", &rows.programs), ("test", &rows.tests)] {
            text.push('\n');
            table(&mut text, what, longest(rows));
        }
        text
    }

    /// Returns what is longer than it should be, for a run that took `whole` on this many
    /// processors.
    pub(crate) fn warnings(&self, whole: Spent, processors: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        let each = whole.processor / processors.max(1) as u32;
        if each > MOST {
            warnings.push(format!(
                "the checks took {} of processor time on each of {processors} processors, and {} \
                 should do",
                minutes(each),
                minutes(MOST)
            ));
        }
        let rows = self.rows();
        let long = rows.tests.iter().filter(|test| test.spent.wall > MOST_OF_A_TEST);
        warnings.extend(long.map(|Row { name, spent }| {
            let seconds = spent.wall.as_secs_f64();
            format!("{name} took {seconds:.0} s, and {} should do", MOST_OF_A_TEST.as_secs())
        }));
        warnings
    }
}

/// Checks that the tables can be written into a file, before the work whose result would be lost.
/// What the file holds stays.
pub(crate) fn check(path: &Path) -> anyhow::Result<()> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let opened = opened.with_context(|| format!("cannot write {}", path.display()));
    opened.map(drop).context("the times of the checks have no place; give another with --timings")
}

/// Writes the tables into a file.
pub(crate) fn write(path: &Path, tables: &str) -> anyhow::Result<()> {
    std::fs::write(path, tables).with_context(|| format!("cannot write {}", path.display()))
}

fn longest(rows: &[Row]) -> impl Iterator<Item = &Row> {
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort_by_key(|row| std::cmp::Reverse(row.spent.wall));
    sorted.into_iter().take(LISTED)
}

fn table<'a>(text: &mut String, what: &str, rows: impl Iterator<Item = &'a Row>) {
    writeln!(text, "| {what} | wall s | processor s |\n|---|---:|---:|").expect("it is a String");
    for Row { name, spent } in rows {
        let [wall, processor] = [spent.wall, spent.processor].map(|time| time.as_secs_f64());
        writeln!(text, "| {name} | {wall:.1} | {processor:.1} |").expect("it is a String");
    }
}

fn minutes(time: Duration) -> String {
    format!("{:.0} minutes", time.as_secs_f64() / 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, wall: u64, processor: u64) -> Row {
        let [wall, processor] = [wall, processor].map(Duration::from_secs);
        Row { name: name.to_owned(), spent: Spent { wall, processor } }
    }

    #[test]
    fn the_longest_come_first_and_no_more_than_listed() {
        let timings = Timings::default();
        let tests = (0..LISTED as u64 + 5).map(|wall| row(&format!("test {wall}"), wall, 1));
        timings.add(row("program", 40, 8), tests.collect());
        timings.step("a step", || ());
        let tables = timings.tables(row("all", 100, 150).spent);
        let lines: Vec<_> = tables.lines().collect();
        assert_eq!(lines[0], "| step | wall s | processor s |");
        assert_eq!(lines[2], "| a step | 0.0 | 0.0 |");
        assert_eq!(lines[3], "| all | 100.0 | 150.0 |");
        assert_eq!(lines[7], "| program | 40.0 | 8.0 |");
        assert_eq!(lines[11], "| program: test 34 | 34.0 | 1.0 |");
        assert_eq!(lines.len(), 11 + LISTED);
    }

    #[test]
    fn long_runs_and_long_tests_are_warned_of() {
        let timings = Timings::default();
        timings.add(row("program", 70, 8), vec![row("slow", 61, 5), row("quick", 60, 90)]);
        let found = timings.warnings(row("all", 4000, 4200).spent, 2);
        assert_eq!(found, ["program: slow took 61 s, and 60 should do"]);
        let found = timings.warnings(row("all", 4000, 4202).spent, 2);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("35 minutes of processor time on each of 2"), "{found:?}");
    }
}
