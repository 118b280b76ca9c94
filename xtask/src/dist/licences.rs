//! Collects the licences of everything that is linked into the program in one text.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::inventory::{Inventory, Package};

/// The beginnings of the names of files with licences, in capitals.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Returns the text of each package's licences, each different text once.
///
/// # Errors
/// Returns an error if a package has no such file and this repository does not have the text of its
/// licence.
pub(super) fn collect(root: &Path, inventory: &Inventory) -> anyhow::Result<String> {
    let mut texts: Vec<(String, Vec<String>)> = Vec::new();
    for package in inventory.packages.iter().filter(|package| package.is_foreign) {
        let label = format!("{} {} ({})", package.name, package.version, package.licence);
        for text in texts_of(root, package, inventory)? {
            match texts.iter_mut().find(|(other, _)| *other == text) {
                Some((_, labels)) => labels.push(label.clone()),
                None => texts.push((text, vec![label.clone()])),
            }
        }
    }
    let mut all = String::from(
        "trine contains the packages below. Rust's standard library, which it contains too, is \
         licensed under MIT or\nApache-2.0.\n",
    );
    for (text, labels) in texts {
        all.push_str(&format!("\n{}\n{}\n\n{text}\n", "=".repeat(100), labels.join("\n")));
    }
    Ok(all)
}

/// Returns the texts of a package's licences: its own, those of another package of its repository,
/// or this repository's copy.
fn texts_of(root: &Path, package: &Package, inventory: &Inventory) -> anyhow::Result<Vec<String>> {
    let is_sibling = |other: &&Package| {
        package.repository.is_some()
            && (&other.repository, &other.licence) == (&package.repository, &package.licence)
    };
    let siblings = inventory.packages.iter().filter(is_sibling);
    for source in std::iter::once(package).chain(siblings) {
        let files = own_files(source)?;
        if !files.is_empty() {
            return files.iter().map(|path| read(path)).collect();
        }
    }
    match &*package.licence {
        "Apache-2.0" => Ok(vec![read(&root.join("LICENSE-APACHE"))?]),
        "MIT" => {
            let holders = format!("Copyright (c) the authors of {}", package.name);
            let text = read(&root.join("LICENSE-MIT"))?;
            let line = |line: &str| match line.starts_with("Copyright") {
                true => holders.clone(),
                false => line.to_owned(),
            };
            Ok(vec![text.lines().map(line).collect::<Vec<_>>().join("\n")])
        }
        licence => bail!("{} {} contains no licence ({licence})", package.name, package.version),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(String::from_utf8_lossy(&text).replace("\r\n", "\n").trim().to_owned())
}

fn own_files(package: &Package) -> anyhow::Result<Vec<PathBuf>> {
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file() && NAMES.iter().any(|start| name.starts_with(start))
    };
    let entries = std::fs::read_dir(&package.folder)
        .with_context(|| format!("the source of {} is missing; cargo fetch", package.name))?;
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(is_licence).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &Path, name: &str, licence: &str) -> Package {
        Package {
            name: name.into(),
            version: "1.0.0".into(),
            licence: licence.into(),
            description: None,
            repository: None,
            is_foreign: true,
            checksum: None,
            folder: folder.join(name),
            uses: Vec::new(),
        }
    }

    #[test]
    fn each_text_is_there_once_with_all_that_it_is_for() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for (name, file, text) in [
            ("a", "LICENSE-MIT", "same text\r\n"),
            ("b", "license.md", "same text"),
            ("b", "README.md", "not a licence"),
            ("c", "COPYING", "other text"),
            ("d", "lib.rs", ""),
        ] {
            std::fs::create_dir_all(root.join(name)).unwrap();
            std::fs::write(root.join(name).join(file), text).unwrap();
        }
        std::fs::write(root.join("LICENSE-APACHE"), "apache text").unwrap();
        std::fs::write(root.join("LICENSE-MIT"), "MIT\n\nCopyright (c) us\n\nmay").unwrap();
        let packages = ["a", "b", "c"].map(|name| package(root, name, "MIT")).into();
        let mut inventory = Inventory { packages };
        inventory.packages.push(package(root, "d", "Apache-2.0"));
        let text = collect(root, &inventory).unwrap();
        assert_eq!(text.matches("same text").count(), 1, "{text}");
        assert!(text.contains("a 1.0.0 (MIT)\nb 1.0.0 (MIT)\n\nsame text"), "{text}");
        assert!(text.contains("other text") && text.contains("apache text"), "{text}");
        assert!(!text.contains("not a licence"), "{text}");

        inventory.packages[3].licence = "ISC".into();
        let error = collect(root, &inventory).unwrap_err().to_string();
        assert!(error.contains("d 1.0.0"), "{error}");

        inventory.packages[3].licence = "MIT".into();
        let text = collect(root, &inventory).unwrap();
        assert!(text.contains("MIT\n\nCopyright (c) the authors of d\n\nmay"), "{text}");

        for place in [2, 3] {
            inventory.packages[place].repository = Some("https://example.org/c".into());
            inventory.packages[place].licence = "ISC".into();
        }
        let text = collect(root, &inventory).unwrap();
        assert!(text.contains("c 1.0.0 (ISC)\nd 1.0.0 (ISC)\n\nother text"), "{text}");
    }
}
