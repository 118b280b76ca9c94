//! Checks the list of bad input: every row is in it once, and has tests that exist or a reason for
//! having none.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::Context;
use syn::visit::{self, Visit};

use crate::sources::Source;

const LIST: &str = "docs/bad-input.md";
/// The rows that it must have. The missing numbers are faults of devices.
const ROWS: [RangeInclusive<usize>; 2] = [1..=90, 109..=121];
/// The beginning of a row without a test.
const NO_TEST: &str = "None: ";

/// Returns the problems of the list.
pub(crate) fn check(root: &Path, sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let list =
        std::fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let complaints = complaints(&list, &|path: &str, name: &str| {
        let source = sources.iter().find(|source| source.path == format!("crates/{path}"));
        source.is_some_and(|source| has_test(&source.syntax, name))
    });
    Ok(complaints.into_iter().map(|complaint| format!("{LIST}: {complaint}")).collect())
}

fn complaints(list: &str, exists: &dyn Fn(&str, &str) -> bool) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut seen = BTreeMap::<usize, usize>::new();
    for line in list.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [row, _, tests] = cells[..] else { continue };
        let Ok(row) = row.parse::<usize>() else { continue };
        *seen.entry(row).or_default() += 1;
        if tests.starts_with(NO_TEST) {
            continue;
        }
        if tests.is_empty() {
            complaints.push(format!("row {row} has neither a test nor a reason"));
        }
        for test in tests.split_whitespace().map(|test| test.trim_matches('`')) {
            let found = test.rsplit_once("::").is_some_and(|(path, name)| exists(path, name));
            if !found {
                complaints.push(format!("row {row}: there is no test {test}"));
            }
        }
    }
    let wanted = ROWS.into_iter().flatten();
    let wrong = wanted.filter(|row| seen.remove(row) != Some(1)).collect::<Vec<_>>();
    complaints.extend(wrong.iter().map(|row| format!("row {row} is not there once")));
    complaints.extend(seen.keys().map(|row| format!("row {row} is not in the list")));
    complaints
}

fn has_test(file: &syn::File, name: &str) -> bool {
    let mut tests = Tests { name, is_found: false };
    tests.visit_file(file);
    tests.is_found
}

struct Tests<'a> {
    name: &'a str,
    is_found: bool,
}

impl<'ast> Visit<'ast> for Tests<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let has = |name: &str| {
            function.attrs.iter().any(|attribute| {
                attribute.path().segments.last().is_some_and(|segment| segment.ident == name)
            })
        };
        // `#[test]` and `#[tokio::test]`. An ignored test proves nothing.
        self.is_found |= function.sig.ident == self.name && has("test") && !has("ignore");
        visit::visit_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(rows: impl Iterator<Item = usize>) -> String {
        rows.map(|row| format!("| {row} | what | `a/b.rs::c` |\n")).collect()
    }

    #[test]
    fn rows_are_there_once_and_name_tests_that_exist() {
        let exists = |path: &str, name: &str| (path, name) == ("a/b.rs", "c");
        let all = || ROWS.into_iter().flatten();
        let whole = list(all());
        assert_eq!(complaints(&whole, &exists), Vec::<String>::new());
        let reasoned = list(all().filter(|row| *row != 5)) + "| 5 | what | None: it is so |";
        assert_eq!(complaints(&reasoned, &exists), Vec::<String>::new());
        for (list, expected) in [
            (list(all().filter(|row| *row != 5)), "row 5 is not there once"),
            (whole.clone() + "| 5 | again | `a/b.rs::c` |", "row 5 is not there once"),
            (whole.clone() + "| 100 | what | `a/b.rs::c` |", "row 100 is not in the list"),
            (list(all().filter(|row| *row != 5)) + "| 5 | what | |", "row 5 has neither"),
            (
                list(all().filter(|row| *row != 5)) + "| 5 | what | `a/b.rs::d` |",
                "there is no test a/b.rs::d",
            ),
        ] {
            let found = complaints(&list, &exists);
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn tests_are_functions_that_say_so() {
        let file = syn::parse_file(
            "#[test] fn a() {} #[tokio::test] async fn b() {} fn c() {}
             mod tests { #[test] fn d() {} } // fn e()
             #[test] #[ignore] fn f() {}",
        );
        let file = file.expect("it is Rust");
        let found = ["a", "b", "c", "d", "e", "f"].map(|name| has_test(&file, name));
        assert_eq!(found, [true, true, false, true, false, false]);
    }
}
