//! Files of tests that no program has: a package with `autotests = false` compiles only the files
//! of `tests/` that its `main.rs` declares or its manifest names.

use std::path::Path;

use anyhow::Context;

use crate::sources::Source;

/// Returns a complaint for each file of tests that is in no program.
pub(crate) fn check(root: &Path, sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let mut complaints = Vec::new();
    for Source { path, .. } in sources {
        let Some((package, name)) = test_file(path) else { continue };
        let manifest = root.join(package).join("Cargo.toml");
        let manifest = std::fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        let main = format!("{package}/tests/main.rs");
        let main = sources.iter().find(|source| source.path == main);
        let declared = main.map_or("", |source| source.text.as_str());
        if is_orphan(name, &manifest, declared) {
            complaints.push(format!(
                "{path} is in no program: declare it in tests/main.rs, or as a [[test]] in \
                 Cargo.toml"
            ));
        }
    }
    Ok(complaints)
}

/// Returns the package's folder and the name of a file directly in its `tests`.
fn test_file(path: &str) -> Option<(&str, &str)> {
    let (package, file) = path.split_once("/tests/")?;
    let name = file.strip_suffix(".rs")?;
    let is_package = package.strip_prefix("crates/").is_some_and(|name| !name.contains('/'));
    (is_package && !name.contains('/')).then_some((package, name))
}

/// Returns whether neither the manifest nor `declared`, the text of `main.rs`, has a file.
fn is_orphan(name: &str, manifest: &str, declared: &str) -> bool {
    let is_named = manifest.lines().any(|line| line == format!("name = \"{name}\""));
    let is_declared = declared.lines().any(|line| line == format!("mod {name};"));
    let is_apart = manifest.lines().any(|line| line == "autotests = false");
    is_apart && name != "main" && !is_named && !is_declared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_no_program_are_found() {
        let manifest = "[package]\nautotests = false\n[[test]]\nname = \"apart\"\n";
        let declared = "mod common;\nmod files;\n";
        assert!(!is_orphan("files", manifest, declared));
        assert!(!is_orphan("apart", manifest, declared));
        assert!(!is_orphan("main", manifest, declared));
        assert!(is_orphan("lost", manifest, declared));
        assert!(!is_orphan("lost", "[package]\n", ""), "cargo finds it");
        assert_eq!(test_file("crates/a/tests/b.rs"), Some(("crates/a", "b")));
        assert_eq!(test_file("crates/a/tests/common/mod.rs"), None);
        assert_eq!(test_file("crates/a/src/c/tests/b.rs"), None);
    }
}
