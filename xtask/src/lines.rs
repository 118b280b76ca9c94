//! Counts the lines of Rust by crate.

use std::collections::BTreeMap;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::sources::Source;

/// Crates and folders that are for development: nobody who uses the program runs them.
const DEVELOPMENT: [&str; 5] = ["testing", "npu-model", "npu-preload", "xtask", "fuzz"];

/// The lines of a crate. Code has no blank lines and no comments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Lines {
    code: usize,
    /// Code of tests, benches and examples.
    tests: usize,
    /// Lines of every kind in `src`.
    all: usize,
}

impl std::ops::AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.tests += other.tests;
        self.all += other.all;
    }
}

/// Returns a table of the lines by crate: those of the product, longest first, their sum, and
/// those for development.
pub(crate) fn table(sources: &[Source]) -> String {
    let mut rooms = BTreeMap::<&str, Lines>::new();
    for source in sources {
        *rooms.entry(room(&source.path)).or_default() += lines(source);
    }
    let (development, mut product): (Vec<_>, Vec<_>) =
        rooms.into_iter().partition(|(room, _)| DEVELOPMENT.contains(room));
    product.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.code));
    let mut sum = Lines::default();
    product.iter().for_each(|&(_, lines)| sum += lines);
    let rows = product.into_iter().chain([("product", sum)]).chain(development);
    let row = |(room, Lines { code, tests, all }): (&str, Lines)| {
        format!("{room:<12} {code:>7} {tests:>7} {all:>7}\n")
    };
    let head = format!("{:<12} {:>7} {:>7} {:>7}\n", "lines of", "code", "tests", "src");
    head + &rows.map(row).collect::<String>()
}

/// Returns the crate of a file.
fn room(path: &str) -> &str {
    let path = path.strip_prefix("crates/").unwrap_or(path);
    path.split('/').next().unwrap_or(path)
}

fn lines(source: &Source) -> Lines {
    let mut tests = TestLines { of: vec![!is_product(&source.path); source.text.lines().count()] };
    tests.visit_file(&source.syntax);
    let mut lines = Lines::default();
    if source.path.contains("/src/") {
        lines.all = tests.of.len();
    }
    for (line, &is_test) in source.text.lines().zip(&tests.of) {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with("//") {
            continue;
        }
        *(if is_test { &mut lines.tests } else { &mut lines.code }) += 1;
    }
    lines
}

/// Returns whether a file has product code: the crate's own, not that of its tests.
pub(crate) fn is_product(path: &str) -> bool {
    let is_tests = |part: &str| ["tests", "benches", "examples", "tests.rs"].contains(&part);
    !path.split('/').any(is_tests) && !path.ends_with("_tests.rs")
}

/// Which lines of a file belong to items that only tests have.
struct TestLines {
    of: Vec<bool>,
}

impl TestLines {
    fn see(&mut self, attributes: &[syn::Attribute], item: &impl Spanned) {
        let is_test = |attribute: &syn::Attribute| {
            let syn::Meta::List(list) = &attribute.meta else { return false };
            list.path.is_ident("cfg") && list.tokens.to_string() == "test"
        };
        if attributes.iter().any(is_test) {
            let span = item.span();
            self.of[span.start().line - 1..span.end().line].fill(true);
        }
    }
}

impl<'ast> Visit<'ast> for TestLines {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.see(&item.attrs, item);
        visit::visit_item_mod(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.see(&item.attrs, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.see(&item.attrs, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.see(&item.attrs, item);
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, text: &str) -> (usize, usize, usize) {
        let syntax = syn::parse_file(text).expect("it is Rust");
        let Lines { code, tests, all } =
            lines(&Source { path: path.to_owned(), text: text.to_owned(), syntax });
        (code, tests, all)
    }

    #[test]
    fn code_is_what_is_neither_comment_nor_test() {
        let text = "//! A page.\n\
            \n\
            fn a() {\n    // Why.\n    b();\n\
            }\n\
            \n\
            #[cfg(test)]\n\
            fn b() {}\n\
            \n\
            impl A {\n    #[cfg(test)]\n    fn c() {}\n    fn d() {}\n\
            }\n\
            \n\
            #[cfg(test)]\n\
            mod tests {\n    #[test]\n    fn e() {}\n\
            }\n";
        assert_eq!(of("crates/a/src/a.rs", text), (6, 9, 21));
        assert_eq!(of("crates/a/src/a/tests.rs", text), (0, 15, 21));
        assert_eq!(of("crates/a/tests/it/a.rs", text), (0, 15, 0));
        assert_eq!(of("crates/a/examples/a.rs", text), (0, 15, 0));
    }

    #[test]
    fn crates_for_development_are_apart() {
        let source = |path: &str| {
            let text = "fn a() {}\n".to_owned();
            let syntax = syn::parse_file(&text).expect("it is Rust");
            Source { path: path.to_owned(), text, syntax }
        };
        let sources = ["crates/a/src/lib.rs", "xtask/src/main.rs", "fuzz/fuzz_targets/a.rs"];
        let table = table(&sources.map(source));
        let rows: Vec<Vec<_>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
        let expected: [Vec<&str>; 5] = [
            vec!["lines", "of", "code", "tests", "src"],
            vec!["a", "1", "0", "1"],
            vec!["product", "1", "0", "1"],
            vec!["fuzz", "1", "0", "0"],
            vec!["xtask", "1", "0", "1"],
        ];
        assert_eq!(rows, expected);
    }
}
