//! Names of types: each once in a crate, and at most three times in all crates.
//!
//! Who reads a name in a file, or finds it by a search, has to know which type it is. So the names
//! of structures, enums, unions, traits and aliases count that other files may use. Names of tests,
//! and of crates for tests, do not.

use std::collections::BTreeMap;

use syn::Visibility;
use syn::visit::{self, Visit};

use crate::imports::is_for_tests;
use crate::lines::is_product;
use crate::sources::Source;

/// How many crates may have a type of the same name.
const CRATES_MAX: usize = 3;

/// Returns the names that a crate, or too many crates, have several times.
///
/// # Arguments
///
/// - `for_tests`: the crates whose names do not count.
pub(crate) fn check(sources: &[Source], for_tests: &[&str]) -> Vec<String> {
    complaints(&declared(sources, for_tests))
}

/// The places in which types are declared, by name and crate.
type Declared = BTreeMap<String, BTreeMap<String, Vec<String>>>;

fn declared(sources: &[Source], for_tests: &[&str]) -> Declared {
    let mut declared = Declared::new();
    for source in sources {
        let room = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        let Some((room, inside)) = room else { continue };
        let is_testing = |part: &str| ["testing", "testing.rs"].contains(&part);
        if for_tests.contains(&room)
            || !is_product(&source.path)
            || inside.split('/').any(is_testing)
        {
            continue;
        }
        let mut types = Types { found: Vec::new() };
        types.visit_file(&source.syntax);
        for (name, line) in types.found {
            let rooms = declared.entry(name).or_default();
            rooms.entry(room.to_owned()).or_default().push(format!("{}:{line}", source.path));
        }
    }
    declared
}

fn complaints(declared: &Declared) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, rooms) in declared {
        for (room, places) in rooms.iter().filter(|(_, places)| places.len() > 1) {
            let places = places.join(", ");
            complaints.push(format!("crate {room} has several types {name}: {places}"));
        }
        if rooms.len() > CRATES_MAX {
            let places: Vec<_> = rooms.values().map(|places| places.join(", ")).collect();
            let (count, places) = (rooms.len(), places.join(", "));
            complaints.push(format!(
                "{count} crates have a type {name}, at most {CRATES_MAX} may: {places}"
            ));
        }
    }
    complaints
}

/// The types of a file that other files may use, with their lines.
struct Types {
    found: Vec<(String, usize)>,
}

impl Types {
    fn see(&mut self, visibility: &Visibility, name: &syn::Ident, attributes: &[syn::Attribute]) {
        if !matches!(visibility, Visibility::Inherited) && !is_for_tests(attributes) {
            self.found.push((name.to_string(), name.span().start().line));
        }
    }
}

impl<'ast> Visit<'ast> for Types {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.see(&item.vis, &item.ident, &item.attrs);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.see(&item.vis, &item.ident, &item.attrs);
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.see(&item.vis, &item.ident, &item.attrs);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.see(&item.vis, &item.ident, &item.attrs);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.see(&item.vis, &item.ident, &item.attrs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Declared {
        let source = |(path, text): &(&str, &str)| {
            let syntax = syn::parse_file(text).expect("it is Rust");
            Source { path: format!("crates/{path}"), text: (*text).to_owned(), syntax }
        };
        declared(&files.iter().map(source).collect::<Vec<_>>(), &["testing"])
    }

    #[test]
    fn a_name_is_there_once_in_a_crate_and_three_times_at_most() {
        let of = |room: &str| format!("{room}/src/a.rs");
        let many = |count: usize| -> Vec<(String, &str)> {
            let rooms = ["a", "b", "c", "d", "e"].into_iter().take(count);
            rooms.map(|room| (of(room), "pub enum Kind {}")).collect()
        };
        for (files, expected) in [
            (vec![(of("a"), "pub struct A; pub(crate) trait B {}")], 0),
            (vec![(of("a"), "pub struct A;"), ("a/src/b.rs".into(), "pub(super) type A = u8;")], 1),
            (vec![(of("a"), "pub struct A;"), ("a/src/b.rs".into(), "struct A;")], 0),
            (vec![(of("a"), "pub struct A; mod b { pub(in crate::a) union A { a: u8 } }")], 1),
            (vec![(of("a"), "pub struct A; #[cfg(test)] mod b { pub struct A; }")], 0),
            (vec![(of("a"), "pub struct A;"), ("a/src/tests.rs".into(), "pub struct A;")], 0),
            (vec![(of("a"), "pub struct A;"), ("a/tests/it/b.rs".into(), "pub struct A;")], 0),
            (vec![(of("testing"), "pub struct A; pub mod b { pub struct A; }")], 0),
            (many(3), 0),
            (many(4), 1),
        ] {
            let files: Vec<_> = files.iter().map(|(path, text)| (&**path, *text)).collect();
            let found = complaints(&read(&files));
            assert_eq!(found.len(), expected, "{files:?}: {found:?}");
        }
    }
}
