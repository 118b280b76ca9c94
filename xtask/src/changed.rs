//! What a change can affect: packages by the arrows between them, and other parts of the checks by
//! folders. Whatever is not known here affects everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;

use crate::programs::{self, output};
use crate::sources::{joined, read_all, shown};

/// A part of the checks, other than the tests of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// The committed SPIR-V.
    Shaders,
    /// The report on the kernels for the Radeon 780M.
    Radv,
    /// The program without its tests.
    Alone,
    Packages,
    Image,
    Page,
    Router,
}

impl Part {
    const ALL: [Self; 7] = [
        Self::Shaders,
        Self::Radv,
        Self::Alone,
        Self::Packages,
        Self::Image,
        Self::Page,
        Self::Router,
    ];
    /// Returns its name for people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Shaders => "shaders",
            Self::Radv => "report on the Radeon's kernels",
            Self::Alone => "the program without its tests",
            Self::Packages => "packages",
            Self::Image => "image",
            Self::Page => "page",
            Self::Router => "router",
        }
    }

    /// The parts that run the program.
    const OF_THE_PROGRAM: [Self; 5] =
        [Self::Alone, Self::Packages, Self::Image, Self::Page, Self::Router];
}

/// The folders of some packages: of the program, of the kernels, and of the NPU's model, whose
/// tests run the program and are run again on the packed one.
const PROGRAM: &str = "crates/trine";
const KERNELS: &str = "crates/vulkan";
const PRELOAD: &str = "crates/npu-preload";

/// Files and folders outside the packages, with the packages and the parts that they affect. The
/// first that fits counts. `tidy`, which always runs, checks documents.
const PLACES: [(&str, &[&str], &[Part]); 11] = [
    ("docs/openapi.json", &["crates/server"], &[]),
    ("docs/benchmarks/radv-phoenix.md", &[], &[Part::Radv, Part::Packages]),
    ("docs", &[], &[Part::Packages]),
    // Tests of xtask read the commands in these, and run the script that installs.
    (".github", &["xtask"], &[]),
    ("README.md", &["xtask"], &[Part::Packages]),
    ("ARCHITECTURE.md", &[], &[Part::Packages]),
    ("CONTRIBUTING.md", &[], &[Part::Packages]),
    ("tools/page-test", &[], &[Part::Page]),
    ("tools/server-test", &[], &[Part::Router, Part::Packages]),
    // The image is built from the packages.
    ("tools/package-test", &[], &[Part::Packages, Part::Image]),
    ("packaging", &["xtask"], &[Part::Packages, Part::Image]),
];

/// What no check runs: fuzz targets, which need a nightly compiler, and tools for use by hand.
const UNCHECKED: [&str; 7] = [
    "fuzz",
    "tools/compare-llama",
    "tools/compare-logits",
    "tools/demo-model",
    "tools/make-model",
    "tools/terminal-image",
    "tools/windows",
];

/// What has to be checked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The folders of the packages whose tests run.
    packages: BTreeSet<String>,
    parts: BTreeSet<Part>,
    /// The folders of all packages.
    all: BTreeSet<String>,
}

impl Scope {
    /// Returns everything.
    pub(crate) fn everything(root: &Path) -> anyhow::Result<Self> {
        let all: BTreeSet<_> = packages(root)?.into_keys().collect();
        Ok(Self { packages: all.clone(), parts: Part::ALL.into(), all })
    }

    /// Returns what the files that differ between the working tree and `since`, or where the branch
    /// left `origin/main`, can affect.
    pub(crate) fn changed(root: &Path, since: Option<&str>) -> anyhow::Result<Self> {
        let base = base(root, since)?;
        let files = changed_files(root, &base)?;
        eprintln!("== changed since {}: {} files", &base[..base.len().min(12)], files.len());
        let sources = read_all(root)?;
        let texts = sources.iter().map(|source| (source.path.as_str(), source.text.as_str()));
        Ok(Self::of(&files, &packages(root)?, &included(texts)))
    }

    /// Returns what files can affect: `packages` has each package's folder with those that it uses,
    /// `included` the folders whose files packages include from outside.
    fn of(
        files: &[String],
        packages: &BTreeMap<String, BTreeSet<String>>,
        included: &BTreeMap<String, BTreeSet<String>>,
    ) -> Self {
        let all: BTreeSet<String> = packages.keys().cloned().collect();
        let mut scope = Self { packages: BTreeSet::new(), parts: BTreeSet::new(), all };
        let mut used = BTreeSet::new();
        for file in files {
            let is_in = |folder: &str| Path::new(file).starts_with(folder);
            // The checks themselves decide what is checked.
            let package = scope.all.iter().find(|folder| is_in(folder) && *folder != "xtask");
            if let Some(folder) = package.cloned() {
                let include = included.iter().filter(|(place, _)| is_in(place));
                scope.packages.extend(include.flat_map(|(_, by)| by.iter().cloned()));
                if is_in(&format!("{folder}/shaders")) {
                    scope.parts.insert(Part::Shaders);
                }
                // Other packages use no code of its tests but what they include, and may read data.
                let is_test =
                    ["tests", "examples"].iter().any(|part| is_in(&format!("{folder}/{part}")));
                if !(is_test && file.ends_with(".rs")) {
                    used.insert(folder.clone());
                }
                scope.packages.insert(folder);
            } else if let Some((_, packages, parts)) =
                PLACES.iter().find(|(place, _, _)| is_in(place))
            {
                scope.packages.extend(packages.iter().map(|&folder| folder.to_owned()));
                used.extend(packages.iter().map(|&folder| folder.to_owned()));
                scope.parts.extend(parts.iter());
            } else if !UNCHECKED.iter().any(|place| is_in(place)) {
                eprintln!(
                    "== {file} may affect everything; if it is no part of the project, move it \
                     away or name it in .git/info/exclude"
                );
                return Self { packages: scope.all.clone(), parts: Part::ALL.into(), ..scope };
            }
        }
        // Whatever uses a package that is affected is affected, too.
        loop {
            let before = used.len();
            let users = packages.iter().filter(|(_, uses)| !uses.is_disjoint(&used));
            let users: Vec<_> = users.map(|(folder, _)| folder.clone()).collect();
            used.extend(users);
            if used.len() == before {
                break;
            }
        }
        scope.packages.extend(used.iter().cloned());
        if used.contains(PROGRAM) {
            scope.parts.extend(Part::OF_THE_PROGRAM);
        }
        for (folder, part) in [(KERNELS, Part::Radv), (PRELOAD, Part::Packages)] {
            scope.parts.extend(scope.packages.contains(folder).then_some(part));
        }
        scope
    }

    /// Returns whether the tests of the package in this folder run.
    pub(crate) fn has_package(&self, folder: &str) -> bool {
        self.packages.contains(folder)
    }

    /// Returns whether a part runs.
    pub(crate) fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Returns whether nothing has to be built.
    pub(crate) fn is_empty(&self) -> bool {
        self.packages.is_empty() && self.parts.is_empty()
    }

    /// Returns whether nothing is left out.
    pub(crate) fn is_whole(&self) -> bool {
        self.packages == self.all && self.parts.len() == Part::ALL.len()
    }

    /// Returns whether something of it needs what is fetched: drivers, a browser, a router.
    pub(crate) fn needs_drivers(&self) -> bool {
        let parts = [Part::Radv, Part::Page, Part::Router];
        self.has_package(KERNELS) || parts.into_iter().any(|part| self.has(part))
    }

    /// Prints what runs, what does not, and why.
    pub(crate) fn print(&self) {
        if self.is_whole() {
            return;
        }
        let tests = self.packages.iter().map(|folder| format!("tests of {folder}"));
        let parts = self.parts.iter().map(|part| part.title().to_owned());
        let runs = tests.chain(parts).collect::<Vec<_>>().join(", ");
        if !runs.is_empty() {
            eprintln!("== RUNS, after lints and builds of everything: {runs}");
        }
        for folder in self.all.difference(&self.packages) {
            eprintln!("== LEFT OUT: tests of {folder}: neither it nor what it uses has changed");
        }
        for part in Part::ALL.iter().filter(|part| !self.parts.contains(part)) {
            let why = match part {
                Part::Shaders => "no shader has changed",
                Part::Radv => "neither the kernels nor what chooses them has changed",
                _ => "neither the program nor what belongs to this test has changed",
            };
            eprintln!("== LEFT OUT: {}: {why}", part.title());
        }
    }
}

/// Returns the commit that the working tree is compared with.
fn base(root: &Path, since: Option<&str>) -> anyhow::Result<String> {
    let name = since.unwrap_or("origin/main");
    let known = ["rev-parse", "--verify", "--end-of-options", &format!("{name}^{{commit}}")];
    let commit = git(root, &known).with_context(|| {
        format!("{name} is no commit here; fetch it, or name another with --since COMMIT")
    })?;
    let base = git(root, &["merge-base", "HEAD", commit.trim()]).with_context(|| {
        format!(
            "nothing that HEAD and {name} have in common is here; if the clone is shallow: git \
             fetch --unshallow"
        )
    })?;
    Ok(base.trim().to_owned())
}

/// Returns the files that were changed, added or removed since a commit, committed or not.
fn changed_files(root: &Path, base: &str) -> anyhow::Result<Vec<String>> {
    let changed = git(root, &["diff", "--name-only", "--no-renames", "-z", base])?;
    let added = git(root, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    let names = changed.split('\0').chain(added.split('\0'));
    Ok(names.filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    output(Command::new("git").args(arguments).current_dir(root))
}

/// What cargo says of the workspace.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    /// The folder of a package of this workspace.
    path: Option<PathBuf>,
}

/// Returns the folder of each package with the folders of those that it uses, for tests too.
fn packages(root: &Path) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut cargo = programs::cargo(root);
    let text = output(cargo.args(["metadata", "--no-deps", "--format-version", "1", "--locked"]))?;
    let metadata: Metadata =
        serde_json::from_str(&text).context("the output of cargo metadata is not as expected")?;
    let shown = |path: &Path| shown(root, path);
    let package = |package: Package| {
        let folder = package.manifest_path.parent().map(shown)?;
        let uses = package.dependencies.iter().filter_map(|used| used.path.as_deref());
        Some((folder, uses.map(shown).collect()))
    };
    let mut packages: BTreeMap<String, BTreeSet<String>> =
        metadata.packages.into_iter().filter_map(package).collect();
    // Cargo does not know that tests start the program.
    let preload = packages.get_mut(PRELOAD).context("cargo metadata lacks a package")?;
    preload.insert(PROGRAM.to_owned());
    Ok(packages)
}

/// Returns the folders from which files of other packages include modules, with the folders of
/// these packages.
fn included<'a>(
    texts: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut included: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in texts {
        let Some(package) = package_of(path) else { continue };
        for line in text.lines() {
            let named =
                line.trim().strip_prefix("#[path = \"").and_then(|rest| rest.split('"').next());
            let Some(file) = named.map(|name| joined(path, name)) else { continue };
            if package_of(&file).is_some_and(|other| other != package)
                && let Some((folder, _)) = file.rsplit_once('/')
            {
                included.entry(folder.to_owned()).or_default().insert(package.to_owned());
            }
        }
    }
    included
}

/// Returns the folder of the package of a file below `crates`.
fn package_of(path: &str) -> Option<&str> {
    let name = path.strip_prefix("crates/")?.split('/').next()?;
    path.get(.."crates/".len() + name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> BTreeMap<String, BTreeSet<String>> {
        let set = |uses: &[&str]| uses.iter().map(|&name| name.to_owned()).collect();
        [
            ("crates/weights", &[] as &[&str]),
            ("crates/backend", &["crates/weights"]),
            ("crates/vulkan", &["crates/backend"]),
            ("crates/server", &["crates/backend"]),
            ("crates/trine", &["crates/server", "crates/vulkan"]),
            (PRELOAD, &[PROGRAM]),
            ("xtask", &[]),
        ]
        .map(|(folder, uses)| (folder.to_owned(), set(uses)))
        .into()
    }

    /// Returns the names of packages and parts that files affect.
    fn affected(files: &[&str]) -> (Vec<String>, Vec<Part>) {
        let included = BTreeMap::from([(
            "crates/backend/tests/common".to_owned(),
            BTreeSet::from(["crates/vulkan".to_owned()]),
        )]);
        let files: Vec<_> = files.iter().map(|&file| file.to_owned()).collect();
        let scope = Scope::of(&files, &graph(), &included);
        let name = |folder: &String| folder.trim_start_matches("crates/").to_owned();
        (scope.packages.iter().map(name).collect(), scope.parts.into_iter().collect())
    }

    #[test]
    fn a_package_affects_those_that_use_it() {
        let (packages, parts) = affected(&["crates/server/src/request/open.rs"]);
        assert_eq!(packages, ["npu-preload", "server", "trine"]);
        assert_eq!(parts, Part::OF_THE_PROGRAM);
        let (packages, parts) = affected(&["crates/weights/src/map.rs"]);
        assert_eq!(packages, ["backend", "npu-preload", "server", "trine", "vulkan", "weights"]);
        assert!(parts.contains(&Part::Radv) && !parts.contains(&Part::Shaders));
        let (_, parts) = affected(&["crates/vulkan/shaders/heads.comp"]);
        assert_eq!(parts, Part::ALL);
    }

    #[test]
    fn tests_affect_their_package_and_those_that_include_them() {
        assert_eq!(affected(&["crates/server/tests/it/main.rs"]).0, ["server"]);
        assert_eq!(affected(&["crates/backend/tests/common/mod.rs"]).0, ["backend", "vulkan"]);
        assert_eq!(affected(&["crates/trine/tests/memory.rs"]).1, []);
        // Data of tests is read by others.
        assert_eq!(affected(&["crates/backend/tests/data.bin"]).0.len(), 5);
        let packed = affected(&["crates/npu-preload/tests/program/main.rs"]);
        assert_eq!(packed, (vec!["npu-preload".to_owned()], vec![Part::Packages]));
    }

    #[test]
    fn documents_and_tools_affect_their_parts() {
        assert_eq!(affected(&["docs/server.md", "tools/make-model/a.py"]).1, [Part::Packages]);
        assert_eq!(affected(&["tools/page-test/page_test.py"]), (vec![], vec![Part::Page]));
        assert_eq!(affected(&["docs/openapi.json"]).0, ["npu-preload", "server", "trine"]);
        assert_eq!(affected(&[]), (vec![], vec![]));
    }

    #[test]
    fn what_is_unknown_affects_everything() {
        for file in ["Cargo.lock", "xtask/src/ci.rs", "tests/goldens/a.json", "new/file", ".ci/run"]
        {
            let (packages, parts) = affected(&["docs/server.md", file]);
            assert_eq!((packages.len(), parts.len()), (graph().len(), Part::ALL.len()), "{file}");
        }
    }

    #[test]
    fn included_folders_are_found() {
        let texts = [
            (
                "crates/cpu/tests/a.rs",
                "#[path = \"../../backend/tests/common/mod.rs\"]\nmod common;",
            ),
            ("crates/cpu/tests/b.rs", "#[path = \"common/mod.rs\"]\nmod common;"),
        ];
        let found = included(texts.into_iter());
        let cpu = BTreeSet::from(["crates/cpu".to_owned()]);
        assert_eq!(found, BTreeMap::from([("crates/backend/tests/common".to_owned(), cpu)]));
    }

    /// The places of the table are there, and so are the packages that it names.
    #[test]
    fn the_table_names_what_is_there() {
        let root = crate::root();
        let packages = packages(&root).unwrap();
        for (place, used, _) in PLACES {
            assert!(root.join(place).exists(), "{place}");
            assert!(used.iter().all(|folder| packages.contains_key(*folder)), "{place}");
        }
        assert!(UNCHECKED.iter().all(|place| root.join(place).is_dir()));
        assert!([PROGRAM, KERNELS, PRELOAD].iter().all(|folder| packages.contains_key(*folder)));
    }
}
