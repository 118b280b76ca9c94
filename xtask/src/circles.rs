//! Circles of imports: files of a crate that import one another, in pairs or through others.
//!
//! Such files cannot be read, tested or moved one at a time. The existing circles are recorded. A
//! crate may have no more circles than its record and no larger ones, and the record may not claim
//! more than there are, so that it only shrinks. [`crate::imports`] defines what an import is.

use std::collections::BTreeSet;

use crate::imports::{self, Imports};
use crate::sources::Source;

/// The number of files in each circle, from the largest on, by the folder of the crate.
const RECORD: [(&str, &[usize]); 3] =
    [("crates/cpu", &[3, 3]), ("crates/trine", &[2, 2]), ("xtask", &[10, 2, 2, 2])];

/// The file with [`RECORD`].
const RECORD_PATH: &str = "xtask/src/circles.rs";

/// The circles of the crates, and the complaints about them.
pub(crate) struct Report {
    pub(crate) complaints: Vec<String>,
    /// The number of circles.
    pub(crate) circles: usize,
    /// The number of crates that have any.
    pub(crate) crates: usize,
}

/// Compares the circles of each crate with the record.
///
/// # Errors
///
/// Returns an error if a module is declared whose file is not among the sources.
pub(crate) fn check(sources: &[Source]) -> anyhow::Result<Report> {
    check_against(sources, &RECORD)
}

fn check_against(sources: &[Source], record: &[(&str, &[usize])]) -> anyhow::Result<Report> {
    let crates = imports::read(sources)?;
    let mut report = Report { complaints: Vec::new(), circles: 0, crates: 0 };
    for (package, imports) in &crates {
        let found = circles(imports);
        let recorded = record.iter().find(|(name, _)| name == package);
        let recorded = recorded.map_or(&[][..], |(_, sizes)| sizes);
        report.circles += found.len();
        report.crates += usize::from(!found.is_empty());
        report.complaints.extend(compare(package, &found, recorded, imports));
    }
    let gone = record.iter().filter(|(package, _)| !crates.contains_key(package));
    let gone = gone.map(|(package, _)| {
        format!("{RECORD_PATH} records circles of {package}, which is not there")
    });
    report.complaints.extend(gone);
    Ok(report)
}

/// Files that import one another.
type Circle<'a> = BTreeSet<&'a str>;

/// Returns the circles, from the largest on.
fn circles<'a>(imports: &Imports<'a>) -> Vec<Circle<'a>> {
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
    let mut circles = Vec::from_iter(circles);
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
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

/// Returns the problems of a crate's circles, or of their record.
fn compare(
    package: &str,
    found: &[Circle<'_>],
    recorded: &[usize],
    imports: &Imports<'_>,
) -> Vec<String> {
    let sizes: Vec<_> = found.iter().map(BTreeSet::len).collect();
    if sizes == recorded {
        return Vec::new();
    }
    let fits = sizes.len() <= recorded.len()
        && sizes.iter().zip(recorded).all(|(size, recorded)| size <= recorded);
    if fits {
        return vec![format!(
            "{RECORD_PATH} records circles of {recorded:?} files for {package}, which has {sizes:?}: lower the record"
        )];
    }
    let mut unmatched = recorded.to_vec();
    let is_new = |circle: &&Circle<'_>| {
        let place = unmatched.iter().position(|size| *size == circle.len());
        place.map(|place| unmatched.swap_remove(place)).is_none()
    };
    found.iter().filter(is_new).map(|circle| describe(circle, imports)).collect()
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
        "{}: these {} files import one another, which the record ({RECORD_PATH}) does not have: {files}; move what they \
         share into a file that imports none of them, or pass it as an argument",
        closing.unwrap_or_default(),
        circle.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imports::tests::invented;

    /// Returns the complaints about a crate of these files, for a record of circles of these sizes.
    fn complaints(files: &[(&str, &str)], recorded: &[usize]) -> Vec<String> {
        let sources = invented(files);
        let report = check_against(&sources, &[("crates/a", recorded)]);
        report.expect("every module has a file").complaints
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
    fn what_agrees_with_its_record_is_in_order() {
        assert_eq!(complaints(&NO_CIRCLE, &[]), Vec::<String>::new());
        assert_eq!(complaints(&CIRCLE_OF_TWO, &[2]), Vec::<String>::new());
        assert_eq!(complaints(&CIRCLE_OF_THREE, &[3]), Vec::<String>::new());
        assert_eq!(complaints(&TWO_CIRCLES, &[2, 2]), Vec::<String>::new());
    }

    #[test]
    fn new_circles_and_larger_ones_are_named_with_an_import_that_closes_them() {
        let files = "crates/a/src/b.rs, crates/a/src/c.rs";
        let begins =
            |complaint: &str, with: &str| assert!(complaint.starts_with(with), "{complaint}");
        let found = complaints(&CIRCLE_OF_TWO, &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        begins(&found[0], "crates/a/src/b.rs:1 imports crates/a/src/c.rs: these 2 files ");
        assert!(found[0].contains(&format!(": {files}; move")), "{found:?}");

        let found = complaints(&CIRCLE_OF_THREE, &[2]);
        assert_eq!(found.len(), 1, "{found:?}");
        begins(&found[0], "crates/a/src/b.rs:1 imports crates/a/src/c.rs: these 3 files ");
        assert!(found[0].contains(&format!(": {files}, crates/a/src/d.rs; move")), "{found:?}");

        // Either of the two may be the new one.
        assert_eq!(complaints(&TWO_CIRCLES, &[2]).len(), 1);
        assert_eq!(complaints(&TWO_CIRCLES, &[3]).len(), 2);
        assert_eq!(complaints(&TWO_CIRCLES, &[]).len(), 2);
    }

    #[test]
    fn a_record_that_claims_too_much_has_to_shrink() {
        for (files, recorded) in [
            (NO_CIRCLE, &[2][..]),
            (CIRCLE_OF_TWO, &[3]),
            (CIRCLE_OF_TWO, &[2, 2]),
            (TWO_CIRCLES, &[3, 2]),
        ] {
            let found = complaints(&files, recorded);
            assert!(found.len() == 1 && found[0].ends_with("lower the record"), "{found:?}");
        }
        let report = check_against(&invented(&NO_CIRCLE), &[("crates/gone", &[2])]);
        let found = report.expect("every module has a file").complaints;
        assert!(found.len() == 1 && found[0].ends_with("which is not there"), "{found:?}");
    }

    #[test]
    fn the_record_agrees_with_the_tree() {
        let sources = crate::sources::read_all(&crate::root()).expect("the tree is whole");
        let report = check(&sources).expect("every module has a file");
        assert_eq!(report.complaints, Vec::<String>::new());
    }
}
