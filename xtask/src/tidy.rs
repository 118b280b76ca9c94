//! The rules of the house that no compiler checks.
//!
//! - A crate uses only crates below it in ARCHITECTURE's picture; crates for tests are used only in
//!   tests and by one another.
//! - A file has at most 700 lines, a function at most 80 (tests may have longer functions).
//! - A line of Rust or of a document has at most 100 columns; raw strings, tables, blocks of code
//!   and records of measurements may be wider.
//! - ARCHITECTURE.md has at most 5,000 words, a decision 700.
//! - `unsafe` occurs only in the named modules.
//! - Every operation of the Plan has its scalar reference, and each backend runs it and tests it.
//! - Every row of the list of bad input has tests that exist.
//! - The wall clock, which may jump, is read only in the named places.
//! - The files of a crate do not import one another in circles.
//! - A type's name is there once in a crate and in three crates at most, where other files see it.
//! - Every file of tests is in a program.
//! - The paths and the names of code that the documents have between backticks exist, and links
//!   between documents lead to a file and a heading.

use std::path::Path;

use anyhow::{Context, bail};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::sources::{Source, read_all};
use crate::{bad_input, circles, documents, lines, orphans, type_names, widths};

/// The crates from the bottom to the top: an arrow may only point down, to one listed earlier.
const ROOMS: [&str; 17] = [
    "foreign",
    "weights",
    "model",
    "backend",
    "cpu",
    "vulkan",
    "npu",
    "pictures",
    "text",
    "engine",
    "server",
    "hub",
    "session",
    "trine",
    "testing",
    "npu-model",
    "npu-preload",
];

/// The crates that belong to no product. Tests of any crate may use them, nothing else but one
/// another.
const FOR_TESTS: [&str; 3] = ["testing", "npu-model", "npu-preload"];

/// Arrows that point down but are wrong: the engine and the server know devices only through
/// `backend`.
const FORBIDDEN: [(&str, &str); 6] = [
    ("engine", "cpu"),
    ("engine", "vulkan"),
    ("engine", "npu"),
    ("server", "cpu"),
    ("server", "vulkan"),
    ("server", "npu"),
];

/// The files and folders in which `unsafe` may occur.
const UNSAFE_ROOMS: [&str; 13] = [
    "crates/weights/src/map",
    "crates/cpu/src/attention",
    "crates/cpu/src/matmul",
    "crates/cpu/src/pool",
    "crates/cpu/src/program/frame",
    "crates/cpu/src/quantize",
    "crates/cpu/src/shared",
    "crates/cpu/src/vector",
    // ioctls, mapped memory and cache lines of the NPU: the one part that a model cannot replace.
    "crates/npu/src/sys/real",
    // Replaces functions of the C library below a program that is tested.
    "crates/npu-preload/src/hooks",
    "crates/trine/src/allocator",
    "crates/trine/src/driver_cache",
    "crates/vulkan/src/raw",
];

/// Tests and examples may use `unsafe` to observe what safe Rust cannot, for example with a
/// counting allocator, and to call kernels whose callers have duties.
const UNSAFE_TESTS: [&str; 2] = ["/tests/", "/examples/"];

/// The files in which the time of day is useful: the date of an answer, a date from a server, the
/// age of a file.
const WALL_CLOCKS: [&str; 4] = [
    "crates/engine/src/disk/folder.rs",
    "crates/hub/src/retry.rs",
    "crates/server/src/clock.rs",
    "crates/weights/src/map.rs",
];

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 80;

/// The file that defines the operations, and the files in which each of them must be named.
const OPERATIONS: &str = "crates/model/src/plan.rs";
const OPERATION_TWINS: [(&str, &str); 4] = [
    ("the scalar reference", "crates/backend/src/reference/device.rs"),
    ("the CPU backend", "crates/cpu/src/program/frame.rs"),
    ("the Vulkan backend", "crates/vulkan/src/program/lower.rs"),
    ("the backends' tests", "crates/testing/src/operations.rs"),
];

/// Checks every rule and lists the violations, and prints the lines of each crate.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let sources = read_all(root)?;
    let mut complaints = arrows(root)?;
    for source in &sources {
        complaints.extend(long_file(source));
        complaints.extend(functions(source));
        complaints.extend(unsafe_rooms(source));
        complaints.extend(wall_clock(source));
    }
    complaints.extend(bad_input::check(root, &sources)?);
    complaints.extend(operations(&sources)?);
    complaints.extend(documents::check(root, &sources)?);
    complaints.extend(circles::check(&sources)?);
    complaints.extend(orphans::check(root, &sources)?);
    complaints.extend(type_names::check(&sources, &FOR_TESTS));
    complaints.extend(widths::check(root, &sources)?);
    if complaints.is_empty() {
        eprint!("{}", lines::table(&sources));
        eprintln!("== tidy: {} files are in order", sources.len());
        return Ok(());
    }
    complaints.iter().for_each(|complaint| eprintln!("tidy: {complaint}"));
    bail!("tidy: {} complaints", complaints.len())
}

/// Checks the dependencies between the crates, including those of tests and build scripts.
fn arrows(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut complaints = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).context("cannot list the crates")? {
        let folder = entry?.path();
        let room = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !ROOMS.contains(&room.as_str()) {
            complaints.push(format!("crate {room} has no place in the list of rooms"));
            continue;
        }
        let path = folder.join("Cargo.toml");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let manifest: toml::Table =
            text.parse().with_context(|| format!("{} is not TOML", path.display()))?;
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(dependencies) = manifest.get(table).and_then(|value| value.as_table()) else {
                continue;
            };
            for other in dependencies.keys().filter_map(|name| name.strip_prefix("trine-")) {
                if !may_use(&room, other, table == "dev-dependencies") {
                    complaints.push(format!("crate {room} may not use {other} ({table})"));
                }
            }
        }
    }
    Ok(complaints)
}

/// Returns whether a crate may use another, as a whole or only in its tests.
fn may_use(room: &str, other: &str, in_tests: bool) -> bool {
    if FOR_TESTS.contains(&other) && !FOR_TESTS.contains(&room) {
        return in_tests;
    }
    let below = ROOMS.split(|known| *known == room).next().unwrap_or_default();
    below.contains(&other) && !FORBIDDEN.contains(&(room, other))
}

fn long_file(source: &Source) -> Option<String> {
    let count = source.text.lines().count();
    let path = &source.path;
    (count > FILE_LINES_MAX).then(|| format!("{path} has {count} lines, at most {FILE_LINES_MAX}"))
}

fn functions(source: &Source) -> Vec<String> {
    if is_test_file(&source.path) {
        return Vec::new();
    }
    let mut visitor = LongFunctions { path: &source.path, complaints: Vec::new() };
    visitor.visit_file(&source.syntax);
    visitor.complaints
}

/// Returns whether the whole file is test code.
fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

struct LongFunctions<'a> {
    path: &'a str,
    complaints: Vec<String>,
}

impl LongFunctions<'_> {
    fn check(&mut self, name: &syn::Ident, whole: proc_macro2::Span) {
        let (first, last) = (whole.start().line, whole.end().line);
        let count = last - first + 1;
        if count > FUNCTION_LINES_MAX {
            let path = self.path;
            self.complaints.push(format!(
                "{path}:{first}: function {name} has {count} lines, at most {FUNCTION_LINES_MAX}"
            ));
        }
    }
}

impl<'ast> Visit<'ast> for LongFunctions<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.check(&function.sig.ident, function.block.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.check(&function.sig.ident, block.span());
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.check(&function.sig.ident, function.block.span());
        visit::visit_impl_item_fn(self, function);
    }
}

/// Returns whether a file is the module `module` (a path without `.rs`) or a part of it.
fn is_in_module(path: &str, module: &str) -> bool {
    let rest = path.strip_prefix(module);
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn unsafe_rooms(source: &Source) -> Vec<String> {
    let path = &source.path;
    let allowed = UNSAFE_ROOMS.iter().any(|room| is_in_module(path, room))
        || UNSAFE_TESTS.iter().any(|folder| path.contains(folder));
    if allowed {
        return Vec::new();
    }
    let mut visitor = UnsafeCode { lines: Vec::new() };
    visitor.visit_file(&source.syntax);
    let complaint =
        |line| format!("{path}:{line}: unsafe outside its rooms (xtask/src/tidy.rs lists them)");
    visitor.lines.into_iter().map(complaint).collect()
}

fn wall_clock(source: &Source) -> Option<String> {
    let path = &source.path;
    let is_program = path.starts_with("crates/") && path.contains("/src/");
    let is_wrong =
        is_program && source.text.contains("SystemTime") && !WALL_CLOCKS.contains(&path.as_str());
    is_wrong.then(|| {
        format!(
            "{path}: the wall clock may jump; use Instant (xtask/src/tidy.rs lists the exceptions)"
        )
    })
}

struct UnsafeCode {
    lines: Vec<usize>,
}

impl<'ast> Visit<'ast> for UnsafeCode {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.lines.push(block.unsafe_token.span.start().line);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = item.unsafety {
            self.lines.push(token.span.start().line);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        // A function whose callers have duties is allowed only inside the rooms, even if its body
        // keeps them without a block of its own: its name spreads unsafety.
        if let Some(token) = signature.unsafety {
            self.lines.push(token.span.start().line);
        }
        visit::visit_signature(self, signature);
    }
}

/// Checks that each operation of the Plan is named by its reference, its backends and their tests.
fn operations(sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let find = |path: &str| sources.iter().find(|source| source.path == path);
    let plan = find(OPERATIONS).with_context(|| format!("{OPERATIONS} is missing"))?;
    let names = operation_names(&plan.syntax);
    if names.is_empty() {
        bail!("{OPERATIONS} defines no operations: has enum Op moved?");
    }
    let mut complaints = Vec::new();
    for (what, path) in OPERATION_TWINS {
        let Some(source) = find(path) else {
            complaints.push(format!("{path}, {what}, is missing"));
            continue;
        };
        let mut paths = OpPaths { names: Vec::new() };
        paths.visit_file(&source.syntax);
        let named = |name: &&String| paths.names.contains(name);
        let missing: Vec<_> = names.iter().filter(|name| !named(name)).collect();
        complaints
            .extend(missing.iter().map(|name| format!("{path}, {what}, does not name Op::{name}")));
    }
    Ok(complaints)
}

/// The variants of `Op` that a file's code names, without comments.
struct OpPaths {
    names: Vec<String>,
}

impl<'ast> Visit<'ast> for OpPaths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let [.., first, second] = segments.as_slice()
            && first == "Op"
        {
            self.names.push(second.clone());
        }
        visit::visit_path(self, path);
    }
}

fn operation_names(plan: &syn::File) -> Vec<String> {
    let is_op = |item: &syn::Item| match item {
        syn::Item::Enum(item) if item.ident == "Op" => {
            item.variants.iter().map(|variant| variant.ident.to_string()).collect()
        }
        _ => Vec::new(),
    };
    plan.items.iter().flat_map(is_op).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        let syntax = syn::parse_file(text).expect("it is Rust");
        Source { path: path.to_owned(), text: text.to_owned(), syntax }
    }

    #[test]
    fn products_use_no_crate_for_tests() {
        for (room, other, whole, in_tests) in [
            ("backend", "model", true, true),
            ("model", "backend", false, false),
            ("engine", "cpu", false, false),
            ("backend", "testing", false, true),
            ("npu", "npu-model", false, true),
            ("npu-model", "npu", true, true),
            ("npu-preload", "npu-model", true, true),
        ] {
            let may = (may_use(room, other, false), may_use(room, other, true));
            assert_eq!(may, (whole, in_tests), "{room} and {other}");
        }
    }

    #[test]
    fn the_wall_clock_is_for_dates_alone() {
        let reads = "fn f() { std::time::SystemTime::now(); }";
        assert!(wall_clock(&source("crates/engine/src/engine/step.rs", reads)).is_some());
        let steady = "fn f() { std::time::Instant::now(); }";
        assert_eq!(wall_clock(&source("crates/engine/src/engine/step.rs", steady)), None);
        for path in [WALL_CLOCKS[0], "crates/engine/tests/gaps.rs", "xtask/src/ci.rs"] {
            assert_eq!(wall_clock(&source(path, reads)), None, "{path}");
        }
    }
}
