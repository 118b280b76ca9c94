//! The packages that are linked into the program, from `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use crate::programs::{cargo, output};

/// The packages of a program, the program's own first, the others by name and version.
pub(super) struct Inventory {
    pub(super) packages: Vec<Package>,
}

/// A package.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// An SPDX expression.
    pub(super) licence: String,
    pub(super) description: Option<String>,
    pub(super) repository: Option<String>,
    /// Whether it comes from a registry rather than from this repository.
    pub(super) is_foreign: bool,
    /// The SHA-256 of its source in the registry.
    pub(super) checksum: Option<String>,
    /// The folder of its source.
    pub(super) folder: PathBuf,
    /// The indices of the packages that it uses.
    pub(super) uses: Vec<usize>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Described>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Described {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    repository: Option<String>,
    source: Option<String>,
    manifest_path: PathBuf,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

impl Inventory {
    /// Returns the packages that make up `trine` when it is built for a target.
    pub(super) fn of_program(root: &Path, target: &str) -> anyhow::Result<Self> {
        let mut command = cargo(root);
        command.args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            target,
        ]);
        let metadata = serde_json::from_str(&output(&mut command)?)
            .context("cargo metadata has another form than expected")?;
        let lock = std::fs::read_to_string(root.join("Cargo.lock"))?;
        Self::new(metadata, &toml::from_str(&lock)?)
    }

    fn new(metadata: Metadata, lock: &Lock) -> anyhow::Result<Self> {
        let described: HashMap<&str, &Described> =
            metadata.packages.iter().map(|package| (&*package.id, package)).collect();
        let nodes: HashMap<&str, &Node> =
            metadata.resolve.nodes.iter().map(|node| (&*node.id, node)).collect();
        let program = metadata.packages.iter().find(|package| package.name == "trine");
        let program = program.context("the workspace has no package trine")?;

        let linked = |node: &Node| -> Vec<String> {
            let uses = node.deps.iter().filter(|dependency| {
                dependency.dep_kinds.iter().any(|kind| kind.kind.is_none())
                    && !described[&*dependency.pkg].is_macro()
            });
            uses.map(|dependency| dependency.pkg.clone()).collect()
        };
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut waiting = vec![program.id.clone()];
        while let Some(id) = waiting.pop() {
            found.entry(id).or_insert_with_key(|id| {
                let uses = linked(nodes[&**id]);
                waiting.extend(uses.iter().cloned());
                uses
            });
        }

        let others: BTreeSet<(&str, &str, &str)> = found
            .keys()
            .filter(|id| **id != program.id)
            .map(|id| (&*described[&**id].name, &*described[&**id].version, &**id))
            .collect();
        let ids: Vec<&str> =
            std::iter::once(&*program.id).chain(others.into_iter().map(|(_, _, id)| id)).collect();
        let places: HashMap<&str, usize> =
            ids.iter().enumerate().map(|(place, id)| (*id, place)).collect();
        let checksums: HashMap<(&str, &str), &str> = lock
            .package
            .iter()
            .filter_map(|locked| {
                Some(((&*locked.name, &*locked.version), &**locked.checksum.as_ref()?))
            })
            .collect();
        let package = |id: &&str| {
            let about = described[id];
            let mut uses: Vec<usize> = found[*id].iter().map(|id| places[&**id]).collect();
            uses.sort_unstable();
            anyhow::Ok(Package {
                name: about.name.clone(),
                version: about.version.clone(),
                licence: about
                    .license
                    .clone()
                    .with_context(|| format!("{} names no licence", about.name))?
                    // An old spelling of `OR`.
                    .replace('/', " OR "),
                description: about.description.clone(),
                repository: about.repository.clone(),
                is_foreign: about.source.is_some(),
                checksum: checksums.get(&(&*about.name, &*about.version)).map(|&sum| sum.into()),
                folder: about.manifest_path.parent().unwrap_or(Path::new("/")).to_owned(),
                uses,
            })
        };
        Ok(Self { packages: ids.iter().map(package).collect::<anyhow::Result<_>>()? })
    }
}

impl Described {
    /// Returns whether it runs in the compiler and not in the program.
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_and_nothing_else() {
        let package = |name: &str, kind: &str| {
            serde_json::json!({
                "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
                "source": (name != "trine").then_some("registry"),
                    "manifest_path": format!("/source/{name}/Cargo.toml"),
                "targets": [{"kind": [kind]}],
            })
        };
        let uses = |name: &str, kind: Option<&str>| {
            serde_json::json!({"pkg": name,
                "dep_kinds": [{"kind": kind}]})
        };
        let node =
            |id: &str, deps: &[serde_json::Value]| serde_json::json!({"id": id, "deps": deps});
        let metadata = serde_json::json!({
            "packages": [
                package("zlib", "lib"), package("trine", "bin"), package("alpha", "lib"),
                package("derive",
                    "proc-macro"),
                package("syn", "lib"), package("tests", "lib"), package("builds", "lib"),
            ],
            "resolve": {"nodes": [
                node("trine", &[uses("zlib", None), uses("derive", None),
                    uses("tests", Some("dev")), uses("builds", Some("build"))]),
                node("zlib", &[uses("alpha", None)]), node("alpha", &[]),
                node("derive", &[uses("syn", None)]),
                node("syn", &[]), node("tests", &[]), node("builds", &[]),
            ]},
        });
        let lock = "[[package]]\nname = \"zlib\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n\n\
            [[package]]\nname = \"trine\"\nversion = \"1.0.0\"\n";
        let inventory = Inventory::new(
            serde_json::from_value(metadata).unwrap(),
            &toml::from_str(lock).unwrap(),
        )
        .unwrap();
        let names: Vec<&str> = inventory.packages.iter().map(|package| &*package.name).collect();
        assert_eq!(names, ["trine", "alpha", "zlib"]);
        assert_eq!(inventory.packages[0].uses, [2]);
        assert_eq!(inventory.packages[2].uses, [1]);
        assert_eq!(inventory.packages[2].checksum.as_deref(), Some("ab"));
        assert_eq!(inventory.packages[1].licence, "MIT OR Apache-2.0");
        assert!(inventory.packages[1].is_foreign && !inventory.packages[0].is_foreign);
    }
}
