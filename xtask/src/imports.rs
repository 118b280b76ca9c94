//! Determines which files of a crate import which.
//!
//! A file imports another if its code names a module of that file, or an item in it, by a path:
//! after `use`, in an expression, in a type, or among the tokens of a macro.
//!
//! - A path belongs to the deepest module that it names: `crate::engine::step::Pass` to
//!   `engine/step.rs`, and `crate::engine::Pass` to `engine.rs`, even if that only re-exports
//!   `Pass`.
//! - A module inside a file belongs to the file.
//! - `mod child;` imports nothing, nor does `pub use child::Item` (with any `pub`), which
//!   re-exports an item of a module below. If the same file's code uses `Item`, that is an import.
//! - Code that is compiled only for tests does not count: items under `#[cfg(test)]`, and the files
//!   that they declare.
//!
//! Names that come through `use other::*`, methods, and paths in attributes are not followed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::sources::Source;

/// For each file of a crate the files that it imports, with the line of the first import.
pub(crate) type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, usize>>;

/// Returns the imports of every crate, by its folder: `crates/engine`.
///
/// A package of several programs has the files of all of them.
///
/// # Errors
///
/// Returns an error if a module is declared whose file is not among the sources.
pub(crate) fn read(sources: &[Source]) -> anyhow::Result<BTreeMap<&str, Imports<'_>>> {
    let mut crates = BTreeMap::<&str, Imports<'_>>::new();
    for root in sources {
        if let Some(package) = package_of_root(&root.path) {
            let modules = Modules::read(root, sources)?;
            crates.entry(package).or_default().extend(modules.imports());
        }
    }
    Ok(crates)
}

/// Returns the folder of the package if the file is the root of a library or program.
fn package_of_root(path: &str) -> Option<&str> {
    let (package, inside) = path.split_once("/src/")?;
    let is_root = match inside.strip_prefix("bin/") {
        Some(program) => !program.contains('/') || program.ends_with("/main.rs"),
        None => ["lib.rs", "main.rs"].contains(&inside),
    };
    is_root.then_some(package)
}

/// Returns whether the item is compiled only for tests.
pub(crate) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Meta>().is_ok_and(|condition| needs_test(&condition))
    })
}

/// Returns whether the condition of a `cfg` is never true outside tests: `test`, `all(test, unix)`.
fn needs_test(condition: &syn::Meta) -> bool {
    match condition {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => {
            let parser = Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
            list.parse_args_with(parser).is_ok_and(|parts| parts.iter().any(needs_test))
        }
        _ => false,
    }
}

/// The names from the root of a crate to a module; empty for the root.
type Place = Vec<String>;

/// The modules of a library or program.
struct Modules<'a> {
    /// The file of each module, including modules inside a file.
    by_place: BTreeMap<Place, &'a str>,
    /// The files, each with the place of its module.
    files: Vec<(Place, &'a Source)>,
}

impl<'a> Modules<'a> {
    fn read(root: &'a Source, sources: &'a [Source]) -> anyhow::Result<Self> {
        let mut modules = Self { by_place: BTreeMap::new(), files: Vec::new() };
        let folder = root.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let known = sources.iter().map(|source| (source.path.as_str(), source)).collect();
        modules.add_file(Vec::new(), folder, root, &known)?;
        Ok(modules)
    }

    /// Adds the file and its modules, whose files are in `folder`.
    fn add_file(
        &mut self,
        place: Place,
        folder: &str,
        source: &'a Source,
        known: &BTreeMap<&'a str, &'a Source>,
    ) -> anyhow::Result<()> {
        self.files.push((place.clone(), source));
        self.add_items(place, folder, source, &source.syntax.items, known)
    }

    fn add_items(
        &mut self,
        place: Place,
        folder: &str,
        source: &'a Source,
        items: &[syn::Item],
        known: &BTreeMap<&'a str, &'a Source>,
    ) -> anyhow::Result<()> {
        for item in items {
            let syn::Item::Mod(module) = item else { continue };
            if is_for_tests(&module.attrs) {
                continue;
            }
            let inside = [place.as_slice(), &[module.ident.to_string()]].concat();
            let base = format!("{folder}/{}", module.ident);
            if let Some((_, items)) = &module.content {
                self.add_items(inside, &base, source, items, known)?;
                continue;
            }
            let paths = [format!("{base}.rs"), format!("{base}/mod.rs")];
            let file = paths.iter().find_map(|path| known.get(path.as_str()));
            let file = file.with_context(|| {
                format!("{}: found no file for module {}", source.path, module.ident)
            })?;
            self.add_file(inside, &base, file, known)?;
        }
        self.by_place.insert(place, &source.path);
        Ok(())
    }

    fn imports(&self) -> Imports<'a> {
        let imports_of = |(place, source): &(Place, &'a Source)| {
            let mut visitor = Importer {
                modules: self,
                place: place.clone(),
                imports: Vec::new(),
                passed_on: Vec::new(),
                used: BTreeSet::new(),
            };
            visitor.visit_file(&source.syntax);
            (source.path.as_str(), visitor.into_imports(&source.path))
        };
        self.files.iter().map(imports_of).collect()
    }

    /// Returns the deepest module that a path in the module at `place` names, if it begins with a
    /// module of this crate.
    fn resolve(&self, place: &[String], path: &[String]) -> Option<Place> {
        let mut found = place.to_vec();
        let mut rest = path;
        if let Some((first, others)) = path.split_first()
            && first == "crate"
        {
            found.clear();
            rest = others;
        }
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "self" => {}
                "super" => {
                    found.pop()?;
                }
                name => {
                    found.push(name.to_owned());
                    if !self.by_place.contains_key(&found) {
                        found.pop();
                        break;
                    }
                }
            }
            rest = others;
        }
        // No part of the path was followed: it begins with a local name or another crate.
        (rest.len() < path.len()).then_some(found)
    }
}

/// Collects the imports of a file.
struct Importer<'m, 'a> {
    modules: &'m Modules<'a>,
    /// The module that is being read.
    place: Place,
    imports: Vec<(&'a str, usize)>,
    /// Names from modules below that `pub use` re-exports, with the files and lines that they come
    /// from.
    passed_on: Vec<(String, &'a str, usize)>,
    /// The first parts of the paths in the file's code.
    used: BTreeSet<String>,
}

/// A name that a `use` introduces, and the path that it stands for.
struct Used {
    name: String,
    path: Vec<String>,
    line: usize,
}

impl<'a> Importer<'_, 'a> {
    fn into_imports(self, path: &str) -> BTreeMap<&'a str, usize> {
        let used = |(name, _, _): &(String, &'a str, usize)| self.used.contains(name);
        let passed_on = self.passed_on.into_iter().filter(used);
        let mut imports = BTreeMap::new();
        for (file, line) in
            self.imports.into_iter().chain(passed_on.map(|(_, file, line)| (file, line)))
        {
            if file != path {
                let first = imports.entry(file).or_insert(line);
                *first = line.min(*first);
            }
        }
        imports
    }

    fn add_path(&mut self, path: &[String], line: usize) {
        if let Some(first) = path.first() {
            self.used.insert(first.clone());
        }
        // A single name is an item or a variable, not a module.
        if path.len() > 1
            && let Some(place) = self.modules.resolve(&self.place, path)
        {
            self.imports.push((self.modules.by_place[&place], line));
        }
    }

    fn add_use(&mut self, used: Used, is_public: bool) {
        let Some(place) = self.modules.resolve(&self.place, &used.path) else { return };
        let file = self.modules.by_place[&place];
        if is_public && place.starts_with(&self.place) {
            self.passed_on.push((used.name, file, used.line));
        } else {
            self.imports.push((file, used.line));
        }
    }
}

impl<'ast> Visit<'ast> for Importer<'_, '_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.place.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.place.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let is_public = !matches!(item.vis, syn::Visibility::Inherited);
            let mut names = Vec::new();
            flatten(&item.tree, &mut Vec::new(), &mut names);
            names.into_iter().for_each(|used| self.add_use(used, is_public));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
            self.add_path(&names, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for (path, line) in paths_in(call.tokens.clone()) {
            self.add_path(&path, line);
        }
        visit::visit_macro(self, call);
    }

    // `pub(in crate::generate)` and `#[serde(default)]` import nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

/// Returns the attributes of the items that may be compiled only for tests.
fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Adds the names of a tree of `use`, whose paths begin with `before`.
fn flatten(tree: &syn::UseTree, before: &mut Vec<String>, names: &mut Vec<Used>) {
    let line = tree.span().start().line;
    let ends_with = |last: &syn::Ident| [before.as_slice(), &[last.to_string()]].concat();
    match tree {
        syn::UseTree::Path(part) => {
            before.push(part.ident.to_string());
            flatten(&part.tree, before, names);
            before.pop();
        }
        syn::UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, before, names));
        }
        syn::UseTree::Name(last) => {
            // `use path::{self}` names the last part of the path.
            let named = if last.ident == "self" { before.last() } else { None };
            let name = named.cloned().unwrap_or_else(|| last.ident.to_string());
            names.push(Used { name, path: ends_with(&last.ident), line });
        }
        syn::UseTree::Rename(last) => {
            names.push(Used { name: last.rename.to_string(), path: ends_with(&last.ident), line });
        }
        syn::UseTree::Glob(_) => {
            names.push(Used { name: "*".to_owned(), path: before.clone(), line });
        }
    }
}

/// Returns the paths among the tokens of a macro, and their lines.
fn paths_in(tokens: TokenStream) -> Vec<(Vec<String>, usize)> {
    let mut paths = Vec::<(Vec<String>, usize)>::new();
    // The colons since the last name, if there is nothing else in between.
    let mut colons = None;
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                match paths.last_mut() {
                    Some((path, _)) if colons == Some(2) => path.push(name.to_string()),
                    _ => paths.push((vec![name.to_string()], name.span().start().line)),
                }
                colons = Some(0);
            }
            TokenTree::Punct(sign) if sign.as_char() == ':' => {
                colons = colons.map(|count| count + 1);
            }
            TokenTree::Group(group) => {
                paths.extend(paths_in(group.stream()));
                colons = None;
            }
            _ => colons = None,
        }
    }
    paths
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the sources of a crate `crates/a`, by their paths below `src`.
    pub(crate) fn invented(files: &[(&str, &str)]) -> Vec<Source> {
        let source = |(path, text): &(&str, &str)| {
            let syntax = syn::parse_file(text).expect("it is Rust");
            Source { path: format!("crates/a/src/{path}"), text: (*text).to_owned(), syntax }
        };
        files.iter().map(source).collect()
    }

    /// Returns the imports of the file `of`, as `b.rs:2 c/mod.rs:1`, if `files` are a crate.
    fn imports(files: &[(&str, &str)], of: &str) -> String {
        let sources = invented(files);
        let crates = read(&sources).expect("every module has a file");
        let imports = &crates["crates/a"][format!("crates/a/src/{of}").as_str()];
        let shown = |(file, line): (&&str, &usize)| {
            format!("{}:{line}", file.strip_prefix("crates/a/src/").expect("it is of the crate"))
        };
        imports.iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_path_belongs_to_the_deepest_module_that_it_names() {
        let imports_of_c = |code: &str| {
            let files = [
                ("lib.rs", "mod a; mod c; mod m;"),
                ("a.rs", ""),
                ("c/mod.rs", "mod d;"),
                ("c/d.rs", code),
                ("m/mod.rs", "mod n; mod inside {}"),
                ("m/n.rs", ""),
            ];
            imports(&files, "c/d.rs")
        };
        for (code, expected) in [
            ("use crate::a::Item;", "a.rs:1"),
            ("\nuse crate::a;", "a.rs:2"),
            ("use crate::Item;", "lib.rs:1"),
            ("use crate::m::n::Item;", "m/n.rs:1"),
            ("use crate::m::Item;", "m/mod.rs:1"),
            ("use crate::m::inside::Item;", "m/mod.rs:1"),
            ("use crate::m::{self, n::{Item, Other}};", "m/mod.rs:1 m/n.rs:1"),
            ("use crate::{a::*, m::n as other};", "a.rs:1 m/n.rs:1"),
            ("use super::Item;", "c/mod.rs:1"),
            ("use super::super::a::Item;", "a.rs:1"),
            ("mod inside { use super::super::Item; use super::Own; }", "c/mod.rs:1"),
            ("fn f() { crate::a::g::<crate::m::n::T>(); }", "a.rs:1 m/n.rs:1"),
            ("fn f() { assert!(x, {\n} == [crate::m::n::g()]); }", "m/n.rs:2"),
            ("use std::fmt; use serde::a::Item; use self::Own; fn f() { a::g(); }", ""),
            ("pub(in crate::c) fn f() {} pub(super) struct S; /* crate::a::Item */", ""),
        ] {
            assert_eq!(imports_of_c(code), expected, "{code}");
        }
    }

    #[test]
    fn passing_on_what_is_below_is_no_import_but_using_it_is() {
        let imports_of_parent = |code: &str| {
            imports(
                &[("lib.rs", "mod b; pub mod c;"), ("b.rs", code), ("b/c.rs", ""), ("c.rs", "")],
                "b.rs",
            )
        };
        for (code, expected) in [
            ("mod c;", ""),
            ("pub mod c; pub use c::Item;", ""),
            ("mod c; pub(crate) use self::c::{Item, Other as Name};", ""),
            ("mod c; pub(super) use c::Item;\nfn f(item: Item) {}", "b/c.rs:1"),
            ("mod c; pub use c::Item as Name;\nfn f(item: Item) {}", ""),
            ("mod c; use c::Item;", "b/c.rs:1"),
            ("mod c; fn f() { c::g(); }", "b/c.rs:1"),
            ("mod c; fn f(c: u8) -> u8 { c }", ""),
            ("mod c; pub use crate::c::Item;", "c.rs:1"),
        ] {
            assert_eq!(imports_of_parent(code), expected, "{code}");
        }
    }

    #[test]
    fn what_is_compiled_only_for_tests_does_not_count() {
        let files = [
            ("main.rs", "mod b; mod c; #[cfg(test)] mod testing;"),
            (
                "b.rs",
                "#[cfg(test)] use crate::c::A;
                #[cfg(all(test, unix))] mod tests { use crate::c::B; }
                impl T { #[cfg(test)] fn f() { crate::c::g(); } }",
            ),
            ("c.rs", "#[cfg(not(test))] use crate::b::A;"),
            ("testing.rs", "use crate::b::A; use crate::c::A;"),
        ];
        assert_eq!(imports(&files, "b.rs"), "");
        assert_eq!(imports(&files, "c.rs"), "b.rs:1");
        assert!(
            !read(&invented(&files)).expect("it is whole")["crates/a"]
                .contains_key("crates/a/src/testing.rs")
        );
    }

    #[test]
    fn a_module_without_a_file_is_an_error() {
        let error = read(&invented(&[("lib.rs", "mod b;")])).expect_err("b is missing");
        assert_eq!(error.to_string(), "crates/a/src/lib.rs: found no file for module b");
    }

    #[test]
    fn roots_are_libraries_and_programs() {
        for (path, expected) in [
            ("crates/a/src/lib.rs", Some("crates/a")),
            ("xtask/src/main.rs", Some("xtask")),
            ("xtask/src/bin/b.rs", Some("xtask")),
            ("xtask/src/bin/b/main.rs", Some("xtask")),
            ("xtask/src/bin/b/c.rs", None),
            ("crates/a/src/b.rs", None),
            ("crates/a/src/b/main.rs", None),
            ("crates/a/tests/it/main.rs", None),
        ] {
            assert_eq!(package_of_root(path), expected, "{path}");
        }
    }
}
