//! The repository's Rust files, read and parsed.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// A Rust file.
pub(crate) struct Source {
    /// Path from the repository's root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) syntax: syn::File,
}

/// Returns every Rust file of the crates, xtask and fuzz targets.
pub(crate) fn read_all(root: &Path) -> anyhow::Result<Vec<Source>> {
    let mut paths = Vec::new();
    for folder in ["crates", "xtask", "fuzz"] {
        paths.extend(
            files(&root.join(folder))?
                .into_iter()
                .filter(|path| path.extension().is_some_and(|ending| ending == "rs")),
        );
    }
    paths.sort();
    paths.iter().map(|path| read(root, path)).collect()
}

fn read(root: &Path, path: &Path) -> anyhow::Result<Source> {
    let shown = shown(root, path);
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let syntax = syn::parse_file(&text).with_context(|| format!("{shown} is not Rust"))?;
    Ok(Source { path: shown, text, syntax })
}

/// Returns the path from the repository's root, with forward slashes.
pub(crate) fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// Returns the path that a file's relative path means.
pub(crate) fn joined(from: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in relative.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns every file in the folder and those below it, sorted, except for the products of cargo;
/// empty if there is no such folder.
pub(crate) fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    collect(folder, &mut paths)?;
    paths.sort();
    Ok(paths)
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot list {}", folder.display()));
        }
    };
    for entry in entries {
        let path = entry?.path();
        if !path.is_dir() {
            paths.push(path);
        } else if path.file_name().is_some_and(|name| name != "target") {
            collect(&path, paths)?;
        }
    }
    Ok(())
}
