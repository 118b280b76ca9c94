//! Circles of imports: files of a crate that import one another, in pairs or through others.
//!
//! Such files cannot be read, tested or moved one at a time, so there may be none.
//! [`crate::imports`] defines what an import is.

use std::collections::BTreeSet;

use crate::imports::{self, Imports};
use crate::sources::Source;

/// Returns a complaint for each circle of a crate.
///
/// # Errors
///
/// Returns an error if a module is declared whose file is not among the sources.
pub(crate) fn check(sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let crates = imports::read(sources)?;
    let complaints = |imports: &Imports<'_>| -> Vec<String> {
        circles(imports).iter().map(|circle| describe(circle, imports)).collect()
    };
    Ok(crates.values().flat_map(complaints).collect())
}

/// Files that import one another.
type Circle<'a> = BTreeSet<&'a str>;

/// Returns the circles.
fn circles<'a>(imports: &Imports<'a>) -> BTreeSet<Circle<'a>> {
    let reached: Vec<_> = imports.keys().map(|file| (*file, reachable(file, imports))).collect();
    let mut circles = BTreeSet::new();
    for (file, others) in &reached {
        let comes_back = |(other, from_other): &&(&'a str, Circle<'a>)| {
            others.contains(other) && from_other.contains(file)
        };
        let circle: Circle = reached.iter().filter(comes_back).map(|(other, _)| *other).collect();
        if !circle.is_empty() {
            circles.insert(circle);
        }
    }
    circles
}

/// Returns the files that the file imports, directly or through others.
fn reachable<'a>(file: &str, imports: &Imports<'a>) -> BTreeSet<&'a str> {
    let imported =
        |file: &str| imports.get(file).into_iter().flat_map(|others| others.keys().copied());
    let mut found = BTreeSet::new();
    let mut waiting: Vec<_> = imported(file).collect();
    while let Some(next) = waiting.pop() {
        if found.insert(next) {
            waiting.extend(imported(next));
        }
    }
    found
}

/// Returns a complaint that names the files of the circle, one import that closes it, and the
/// remedy.
fn describe(circle: &Circle<'_>, imports: &Imports<'_>) -> String {
    let closing = circle.iter().find_map(|from| {
        let (to, line) = imports[from].iter().find(|(to, _)| circle.contains(*to))?;
        Some(format!("{from}:{line} imports {to}"))
    });
    let files = Vec::from_iter(circle.iter().copied()).join(", ");
    format!(
        "{}: these {} files import one another: {files}; move what they share into a file that \
         imports none of them, or pass it as an argument",
        closing.unwrap_or_default(),
        circle.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::tests::invented;

    /// Returns the complaints about a crate of these files.
    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        check(&invented(files)).expect("every module has a file")
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod b; mod c; mod d;");
    const NO_CIRCLE: [(&str, &str); 4] =
        [ROOT, ("b.rs", "use crate::c::A;"), ("c.rs", "use crate::d::A;"), ("d.rs", "")];
    const CIRCLE_OF_TWO: [(&str, &str); 4] = [
        ROOT,
        ("b.rs", "use crate::{c::A, d::A as D};"),
        ("c.rs", "use super::b::A;"),
        ("d.rs", ""),
    ];
    const CIRCLE_OF_THREE: [(&str, &str); 4] = [
        ROOT,
        ("b.rs", "use crate::c::A;"),
        ("c.rs", "fn f() { crate::d::g(); }"),
        ("d.rs", "\nuse crate::b::A;"),
    ];
    const TWO_CIRCLES: [(&str, &str); 4] = [
        ("lib.rs", "mod b; mod c; mod d; fn f() { d::g(); }"),
        ("b.rs", "use crate::c::A;"),
        ("c.rs", "use crate::b::A;"),
        ("d.rs", "use crate::A;"),
    ];

    #[test]
    fn files_without_a_circle_are_in_order() {
        assert_eq!(complaints(&NO_CIRCLE), Vec::<String>::new());
    }

    #[test]
    fn a_circle_is_named_with_an_import_that_closes_it() {
        let files = "crates/a/src/b.rs, crates/a/src/c.rs";
        let begins =
            |complaint: &str, with: &str| assert!(complaint.starts_with(with), "{complaint}");
        let found = complaints(&CIRCLE_OF_TWO);
        assert_eq!(found.len(), 1, "{found:?}");
        begins(&found[0], "crates/a/src/b.rs:1 imports crates/a/src/c.rs: these 2 files ");
        assert!(found[0].contains(&format!(": {files}; move")), "{found:?}");

        let found = complaints(&CIRCLE_OF_THREE);
        assert_eq!(found.len(), 1, "{found:?}");
        begins(&found[0], "crates/a/src/b.rs:1 imports crates/a/src/c.rs: these 3 files ");
        assert!(found[0].contains(&format!(": {files}, crates/a/src/d.rs; move")), "{found:?}");
    }

    #[test]
    fn each_circle_has_a_complaint() {
        let found = complaints(&TWO_CIRCLES);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("b.rs, crates/a/src/c.rs;"), "{found:?}");
        assert!(found[1].contains("d.rs, crates/a/src/lib.rs;"), "{found:?}");
    }

    #[test]
    fn the_tree_has_none() {
        let sources = crate::sources::read_all(&crate::root()).expect("the tree is whole");
        let complaints = check(&sources).expect("every module has a file");
        assert_eq!(complaints, Vec::<String>::new());
    }
}
