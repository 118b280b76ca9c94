//! Checks that everything the documents name exists: files, folders, and names of the code.
//!
//! Reads the text between backticks in all Markdown files, without code blocks:
//!
//! - A path (`map/`, `config.rs`, `cpu/src/pool`) is one of the repository, or the end of one. In
//!   a section whose heading is a folder, like those of ARCHITECTURE's code map, it is one of that
//!   folder, unless it is whole or lacks only `crates/`.
//! - Each part of a path of Rust (`Engine::step`) and a function with parentheses is an
//!   identifier of the sources, and a type of the sources has the member.
//! - A name with a file after it (`KvCache::lease` in `engine/src/kv.rs`) is a word of that file.
//! - Any other word that is spelled like a name of Rust (`KvCache`, `check_integrity`,
//!   `BULK_ROWS`) is a word of some text file that is not a document. This includes fields of JSON
//!   and environment variables.
//!
//! Links between documents lead to a file and, after `#`, to one of its headings.
//!
//! Text that could be something else is skipped: routes, addresses, options, users' files, and
//! everything with a placeholder.

mod links;
mod members;
mod page;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context;
use proc_macro2::{TokenStream, TokenTree};

use self::links::Links;
use self::members::Members;
use self::page::is_markdown;
pub(crate) use self::page::lines_of_text;
use crate::sources::{Source, files, shown};

/// This file, whose words prove nothing.
const OWN_PATH: &str = "xtask/src/documents.rs";

/// Names in documents that the repository does not have: files, fields and variables of other
/// programs.
const NAMES_OF_OTHERS: [&str; 6] = [
    // llm-d's router has these pages.
    "docs/discovery.md",
    "docs/model-server-protocol.md",
    // Envoy and Kubernetes.
    "InferencePool",
    "ext_proc",
    // A tensor of the goldens, whose files are no texts.
    "final_hidden",
    // A field of llama.cpp's server.
    "return_tokens",
];

/// The roots of paths of Rust that are not of this repository: the standard library, and groups of
/// lints.
const ROOTS_OF_OTHERS: [&str; 5] = ["alloc", "clippy", "core", "rustdoc", "std"];

/// The extensions of files that belong to the repository wherever they are named. Users also have
/// files in JSON and TOML.
const ENDINGS: [&str; 6] = ["comp", "js", "md", "py", "rs", "sh"];

/// Larger than every text of the repository, and smaller than most models, which may lie around.
const TEXT_BYTES_MAX: u64 = 4 << 20;

/// Returns the names in the documents that do not exist.
///
/// # Errors
///
/// Returns an error if a file cannot be read.
pub(crate) fn check(root: &Path, sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let paths = paths(root)?;
    let texts = texts(root, &paths)?;
    let known = Known::new(&paths, &texts, sources);
    let pages = || texts.iter().map(|(path, text)| (*path, text.as_str()));
    let is_there = |path: &str| known.paths.contains(path);
    let links = Links::new(pages().filter(|(path, _)| is_markdown(path)), &is_there);
    let mut found = Vec::new();
    for (path, text) in pages().filter(|(path, _)| is_markdown(path)) {
        found.extend(complaints(path, text, &known));
        found.extend(links.complaints(path, text));
    }
    Ok(found)
}

/// Returns the path and the text of each document.
///
/// # Errors
///
/// Returns an error if a document cannot be read.
pub(crate) fn pages(root: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut paths = paths(root)?;
    paths.retain(|path| is_markdown(path));
    let texts = texts(root, &paths)?;
    Ok(texts.into_iter().map(|(path, text)| (path.to_owned(), text)).collect())
}

/// Returns the repository's files from its root, without hidden ones and the products of cargo.
fn paths(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(root).context("cannot list the repository")? {
        let path = entry?.path();
        let name = shown(root, &path);
        if name.starts_with('.') || name.starts_with("target") {
            continue;
        }
        let found = if path.is_dir() { files(&path)? } else { vec![path] };
        paths.extend(found.iter().map(|path| shown(root, path)));
    }
    paths.sort();
    Ok(paths)
}

/// Returns the path and the text of each file that is text and no larger than [`TEXT_BYTES_MAX`].
fn texts<'a>(root: &Path, paths: &'a [String]) -> anyhow::Result<Vec<(&'a str, String)>> {
    let mut texts = Vec::new();
    for path in paths {
        let whole = root.join(path);
        // A link to nothing has no text.
        let is_small = |file: std::fs::Metadata| file.is_file() && file.len() <= TEXT_BYTES_MAX;
        if !std::fs::metadata(&whole).is_ok_and(is_small) {
            continue;
        }
        let bytes = std::fs::read(&whole).with_context(|| format!("cannot read {path}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            texts.push((path.as_str(), text));
        }
    }
    Ok(texts)
}

/// The names that a document may use.
struct Known<'a> {
    /// Files and folders from the root.
    paths: BTreeSet<&'a str>,
    /// Identifiers of the sources.
    identifiers: BTreeSet<String>,
    /// The words of all texts except documents.
    words: BTreeSet<&'a str>,
    members: Members,
    /// All texts by their paths.
    texts: &'a [(&'a str, String)],
}

impl<'a> Known<'a> {
    fn new(paths: &'a [String], texts: &'a [(&'a str, String)], sources: &[Source]) -> Self {
        let mut known = Self {
            paths: BTreeSet::new(),
            identifiers: BTreeSet::new(),
            words: BTreeSet::new(),
            members: Members::of(sources),
            texts,
        };
        for path in paths {
            known.paths.insert(path);
            known.paths.extend(path.match_indices('/').map(|(end, _)| &path[..end]));
        }
        for source in sources {
            // A file that was parsed consists of tokens.
            if let Ok(tokens) = source.text.parse() {
                collect_identifiers(tokens, &mut known.identifiers);
            }
        }
        for (path, text) in texts {
            if !is_markdown(path) && *path != OWN_PATH {
                known.words.extend(text.split(|c: char| !is_of_word(c)));
            }
        }
        known
    }

    /// Returns whether the repository has the path, or has one in the folder `scope` that ends with
    /// it.
    fn has_path(&self, path: &str, scope: &str) -> bool {
        self.paths.iter().any(|whole| is_meant(whole, path, scope))
    }

    /// Returns whether a file that the path may mean has the words of a name, without modules.
    fn has_words(&self, path: &str, scope: &str, name: &str) -> bool {
        let is_word = |part: &&str| !part.starts_with(char::is_lowercase) || name.ends_with(*part);
        let words = || name.split("::").filter(is_word);
        let has = |text: &str, word: &str| text.split(|c: char| !is_of_word(c)).any(|w| w == word);
        let mut meant = self.texts.iter().filter(|(whole, _)| is_meant(whole, path, scope));
        meant.any(|(_, text)| words().all(|word| has(text, word)))
    }
}

/// Returns whether a document can mean the path `whole` by `path`: itself, without `crates/`, or
/// its end if it is in the folder `scope`.
fn is_meant(whole: &str, path: &str, scope: &str) -> bool {
    let path = path.trim_end_matches('/');
    let Some(before) = whole.strip_suffix(path) else { return false };
    before.is_empty() || before == "crates/" || (before.ends_with('/') && whole.starts_with(scope))
}

fn collect_identifiers(tokens: TokenStream, identifiers: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                identifiers.insert(name.to_string());
            }
            TokenTree::Group(group) => collect_identifiers(group.stream(), identifiers),
            _ => {}
        }
    }
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Text between backticks.
struct Span<'a> {
    line: usize,
    text: &'a str,
    /// The text between backticks after it if only ` in ` or ` (` is between the two.
    place: Option<&'a str>,
    /// The heading above it if that is a folder, with a slash at its end; otherwise empty.
    scope: String,
}

/// Returns the spans of a document, without those that continue over the end of a line.
fn spans<'a>(text: &'a str, known: &Known<'_>) -> Vec<Span<'a>> {
    let mut spans = Vec::new();
    let mut scope = String::new();
    let mut is_code = false;
    for (number, line) in lines_of_text(text) {
        if line.trim().is_empty() {
            is_code = false;
        }
        if line.starts_with('#') {
            let heading = line.trim_matches(['#', ' ', '`']);
            let is_folder = known.paths.contains(heading) && heading.contains('/');
            scope = if is_folder { format!("{heading}/") } else { String::new() };
        }
        let parts: Vec<_> = line.split('`').collect();
        for (index, &text) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            if is_code && index > 0 && !is_last {
                let is_placed = matches!(parts[index + 1], " in " | " (");
                let place = parts.get(index + 2).filter(|_| is_placed).copied();
                spans.push(Span { line: number, text, place, scope: scope.clone() });
            }
            is_code ^= !is_last;
        }
    }
    spans
}

fn complaints(path: &str, text: &str, known: &Known<'_>) -> Vec<String> {
    let wrong = |span: &Span<'_>| {
        let (line, text) = (span.line, span.text);
        let what = missing(span, known)?;
        Some(format!(
            "{path}:{line}: `{text}`: {what}; write its present name, or list what belongs to \
             others in {OWN_PATH}"
        ))
    };
    spans(text, known).iter().filter_map(wrong).collect()
}

/// Returns which of the names in the span does not exist.
fn missing(span: &Span<'_>, known: &Known<'_>) -> Option<String> {
    if NAMES_OF_OTHERS.contains(&span.text) {
        return None;
    }
    let (first, others) = span.text.split_once("::").unwrap_or((span.text, ""));
    if is_path(first, known) {
        if !known.has_path(first, &span.scope) {
            return Some(format!("there is no {first}"));
        }
        // `engine/tests/gaps.rs::name` is a file and an identifier.
        return missing_identifier(others, known);
    }
    let (name, has_parentheses) = match span.text.split_once('(') {
        Some((name, after)) if after.ends_with(')') => (name, true),
        _ => (span.text, false),
    };
    if !name.split("::").all(is_identifier) || ROOTS_OF_OTHERS.contains(&first) {
        return None;
    }
    if let Some(path) = span.place.filter(|path| path.ends_with(".rs") && is_path(path, known))
        && known.has_path(path, &span.scope)
        && !known.has_words(path, &span.scope, name)
    {
        return Some(format!("{path} does not have it"));
    }
    if has_parentheses || name.contains("::") {
        return missing_identifier(name, known);
    }
    let is_missing = is_name_of_rust(name) && !known.words.contains(name);
    is_missing.then(|| "no file but documents has this word".to_owned())
}

/// Returns the first part of a path of Rust that is not an identifier of the sources.
fn missing_identifier(path: &str, known: &Known<'_>) -> Option<String> {
    let missing =
        path.split("::").find(|part| !part.is_empty() && !known.identifiers.contains(*part));
    if let Some(part) = missing {
        return Some(format!("the sources have no identifier {part}"));
    }
    let parts: Vec<_> = path.split("::").collect();
    let lacks = parts.windows(2).find(|pair| known.members.lack(pair[0], pair[1]));
    lacks.map(|pair| format!("{} has no member {}", pair[0], pair[1]))
}

/// Returns whether the span can only mean a path of the repository.
fn is_path(span: &str, known: &Known<'_>) -> bool {
    let is_plain = span.chars().all(|c| is_of_word(c) || "./-".contains(c));
    if !is_plain || span.starts_with(['.', '/']) || span.starts_with("target/") {
        return false;
    }
    let parts: Vec<_> = span.split('/').collect();
    if parts.iter().any(|part| is_placeholder(part)) {
        return false;
    }
    let has_ending = span.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending));
    match parts[..] {
        [_] => has_ending,
        [first, second, ..] => {
            has_ending
                || span.ends_with('/')
                || known.paths.contains(first)
                || known.paths.contains(format!("crates/{first}/{second}").as_str())
        }
        [] => false,
    }
}

/// Returns whether the part of a path is a placeholder, like `OWNER` and `FAMILY.rs`; `README.md`
/// is not.
fn is_placeholder(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part);
    let is_capitals = stem.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    !stem.is_empty() && is_capitals && !is_markdown(part)
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && text.chars().all(is_of_word)
}

/// Returns whether the word is spelled like a name of several words in Rust: `KvCache`,
/// `check_integrity`, `BULK_ROWS`.
///
/// `Q4_0` and `IQ2_XXS` are formats.
fn is_name_of_rust(word: &str) -> bool {
    let has_lower = word.contains(|c: char| c.is_ascii_lowercase());
    let has_upper = word.contains(|c: char| c.is_ascii_uppercase());
    match word.split_once('_') {
        Some((_, "")) => false,
        Some((first, _)) if has_upper => {
            !has_lower && !first.contains(|c: char| c.is_ascii_digit())
        }
        Some(_) => has_lower,
        None => {
            has_lower
                && word.starts_with(char::is_uppercase)
                && word[1..].contains(char::is_uppercase)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 8] = [
        "README.md",
        "crates/engine/src/engine/step.rs",
        "crates/engine/tests/gaps.rs",
        "crates/vulkan/shaders/rows.comp",
        "crates/vulkan/src/lib.rs",
        "docs/openapi.json",
        "tools/page-test/run.sh",
        OWN_PATH,
    ];
    const CODE: &str = "const BULK_ROWS: u8 = 64; impl Engine { fn step() { log!(other::name) } }
        struct Place { slot: u8 } enum Kind { Ring } trait Rows { fn count(); const MOST: u8; }
        impl<T> Rows for Place { type Item = T; } mod rows { fn slot() {} }
        // Reads `HF_TOKEN` and `top_k` for a KvCache.";

    /// Returns the missing names of an invented document, as `1 span: what`.
    fn missing_in(document: &str) -> Vec<String> {
        let paths = PATHS.map(str::to_owned);
        let texts = [
            ("crates/engine/src/engine/step.rs", CODE.to_owned()),
            ("README.md", "Words like OLD_NAME prove nothing here.".to_owned()),
            (OWN_PATH, "Nor do those of OLD_NAME here.".to_owned()),
        ];
        let syntax = syn::parse_file(CODE).expect("it is Rust");
        let source = Source { path: texts[0].0.to_owned(), text: CODE.to_owned(), syntax };
        let known = Known::new(&paths, &texts, &[source]);
        let shown = |complaint: String| {
            let remedy =
                complaint.find("; write its present name, or list ").expect("it has a remedy");
            complaint[..remedy].strip_prefix("docs/a.md:").expect("it has a place").to_owned()
        };
        complaints("docs/a.md", document, &known).into_iter().map(shown).collect()
    }

    fn assert_nothing_missing(spans: &str) {
        for span in spans.split_whitespace() {
            assert_eq!(missing_in(&format!("See `{span}`.")), Vec::<String>::new(), "{span}");
        }
    }

    #[test]
    fn paths_are_those_of_the_repository_or_the_ends_of_some() {
        assert_nothing_missing(
            "README.md crates/ crates/engine engine/src/engine/ engine/src/engine/step.rs
             engine/step.rs step.rs engine/ shaders/rows.comp page-test/ run.sh docs/openapi.json
             engine/tests/gaps.rs::step",
        );
        for (span, expected) in [
            ("pass.rs", "there is no pass.rs"),
            ("tep.rs", "there is no tep.rs"),
            ("engine/src/pass/", "there is no engine/src/pass/"),
            ("docs/closedapi.json", "there is no docs/closedapi.json"),
            ("cpu/src/pool.rs", "there is no cpu/src/pool.rs"),
            ("crates/cpu", "there is no crates/cpu"),
            ("engine/tests/gap.rs::step", "there is no engine/tests/gap.rs"),
            ("engine/tests/gaps.rs::pass", "the sources have no identifier pass"),
        ] {
            assert_eq!(
                missing_in(&format!("\nSee `{span}`.")),
                [format!("2: `{span}`: {expected}")]
            );
        }
    }

    #[test]
    fn below_the_heading_of_a_folder_paths_are_of_that_folder() {
        let document =
            "### crates/engine\n`step.rs` `rows.comp` `vulkan/src/lib.rs`\n## Else\n`rows.comp`";
        assert_eq!(missing_in(document), ["2: `rows.comp`: there is no rows.comp"]);
    }

    #[test]
    fn what_may_be_no_path_is_passed_over() {
        assert_nothing_missing(
            "/v1/models /etc/trine/config.toml ~/.cache/x.py ../a.md .comp target/dist/ target/a.sh
             owner/repo OWNER/a.rs crates/model/src/FAMILY.rs tests/NAME/ */tests/a.rs <store>/a.md
             $HOME/a.sh text/event-stream application/json trine/config.toml config.json
             http://a/b.js --a/b.rs@x 1/2 and/or docs/discovery.md",
        );
    }

    #[test]
    fn paths_of_rust_and_functions_are_identifiers_of_the_sources() {
        assert_nothing_missing(
            "Engine::step Engine::step() Engine::step(a) step() other::name std::fs::rename \
             clippy::large_futures ::=",
        );
        for (span, part) in [
            ("Engine::pass", "pass"),
            ("Motor::step", "Motor"),
            ("Engine::pass(a,b)", "pass"),
            ("pass()", "pass"),
            // Comments are not code.
            ("top_k()", "top_k"),
        ] {
            let expected = format!("1: `{span}`: the sources have no identifier {part}");
            assert_eq!(missing_in(&format!("`{span}`")), [expected]);
        }
    }

    #[test]
    fn types_of_the_sources_have_their_members() {
        assert_nothing_missing(
            "Place::slot Kind::Ring Rows::count() Rows::MOST Place::Item rows::slot Engine::step",
        );
        for (span, what) in [
            ("Place::count", "Place has no member count"),
            ("Kind::slot", "Kind has no member slot"),
            ("Rows::Ring", "Rows has no member Ring"),
            ("Engine::count()", "Engine has no member count"),
            ("rows::Kind::slot", "Kind has no member slot"),
        ] {
            assert_eq!(missing_in(&format!("`{span}`")), [format!("1: `{span}`: {what}")]);
        }
    }

    #[test]
    fn a_name_is_in_the_file_that_stands_after_it() {
        for text in [
            "`BULK_ROWS` in `engine/src/engine/step.rs`",
            "`Engine::step` (`step.rs`)",
            "`step()` (`crates/engine/src/engine/step.rs`) and `BULK_ROWS`, not in `gaps.rs`",
            "`gaps` in `docs/openapi.json`",
        ] {
            assert_eq!(missing_in(text), Vec::<String>::new(), "{text}");
        }
        assert_eq!(
            missing_in("`BULK_ROWS` in `engine/tests/gaps.rs`"),
            ["1: `BULK_ROWS`: engine/tests/gaps.rs does not have it"]
        );
        assert_eq!(
            missing_in("See `Engine::step` (`vulkan/src/lib.rs`)."),
            ["1: `Engine::step`: vulkan/src/lib.rs does not have it"]
        );
    }

    #[test]
    fn names_are_words_of_some_file_that_is_no_document() {
        assert_nothing_missing("BULK_ROWS HF_TOKEN top_k KvCache InferencePool");
        assert_nothing_missing(
            "--no-such-option word Word WORD camelCase TRINE_ Mixed_case POST x=a_b [T] a.b Q4_0 \
             IQ2_XXS",
        );
        for span in ["OLD_NAME", "HF_TOKENS", "old_name", "KvCaches"] {
            let expected = format!("1: `{span}`: no file but documents has this word");
            assert_eq!(missing_in(&format!("`{span}`")), [expected]);
        }
    }

    #[test]
    fn only_whole_spans_of_text_are_read() {
        let document = "\
```rust
let gone = `gone()`;
```
Plain gone() and a span `that goes
over` a line, then `gone()`.

An open ` ends with its paragraph.

- `step()`, `gone()`";
        let expected = |line| format!("{line}: `gone()`: the sources have no identifier gone");
        assert_eq!(missing_in(document), [expected(5), expected(9)]);
    }

    #[test]
    fn the_documents_name_what_is_there() {
        let root = crate::root();
        let sources = crate::sources::read_all(&root).expect("the tree is whole");
        let complaints = check(&root, &sources).expect("the tree can be read");
        assert_eq!(complaints, Vec::<String>::new());
    }
}
