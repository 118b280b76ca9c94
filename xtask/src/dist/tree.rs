//! What is packed: files with their places below a prefix, and their rights.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::programs::{finish, output};

/// Shells, the files of their completions, and the folder for these.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/trine"),
    ("zsh", "share/zsh/vendor-completions/_trine"),
    ("fish", "share/fish/vendor_completions.d/trine.fish"),
];
/// Documents of the repository that a package contains.
const DOCUMENTS: [&str; 6] = [
    "README.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "docs/command-line.md",
    "docs/server.md",
    "docs/file-formats.md",
];

/// Files for a package.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    /// Place below the prefix.
    place: PathBuf,
    content: Vec<u8>,
    is_program: bool,
}

impl Tree {
    /// The program with everything that goes with it on every system.
    pub(super) fn of_program(
        root: &Path,
        program: &Path,
        licences: &str,
        bill: &Path,
    ) -> anyhow::Result<Self> {
        let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
        let mut tree = Self::default();
        tree.add_program("bin/trine", read(program)?);
        for (shell, place) in COMPLETIONS {
            let script = output(Command::new(program).args(["completions", shell]))?;
            tree.add(place, script.into_bytes());
        }
        let pages = tempfile(root)?;
        finish(Command::new(program).args(["man", "--to"]).arg(&pages))?;
        for entry in std::fs::read_dir(&pages)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            tree.add(&format!("share/man/man1/{name}"), read(&path)?);
        }
        std::fs::remove_dir_all(&pages)?;
        for document in DOCUMENTS {
            let name = document.rsplit('/').next().unwrap_or(document);
            tree.add(&format!("share/doc/trine/{name}"), read(&root.join(document))?);
        }
        tree.add("share/doc/trine/THIRD-PARTY-LICENSES", licences.as_bytes().to_vec());
        tree.add("share/doc/trine/trine.cdx.json", read(bill)?);
        Ok(tree)
    }

    /// Adds a file.
    pub(super) fn add(&mut self, place: &str, content: Vec<u8>) {
        self.files.push(File { place: place.into(), content, is_program: false });
    }

    fn add_program(&mut self, place: &str, content: Vec<u8>) {
        self.files.push(File { place: place.into(), content, is_program: true });
    }

    /// Writes the files to a folder, below a prefix there.
    pub(super) fn write(&self, folder: &Path, prefix: &str) -> anyhow::Result<()> {
        for file in &self.files {
            let path = folder.join(prefix).join(&file.place);
            write(&path, &file.content, if file.is_program { 0o755 } else { 0o644 })?;
        }
        Ok(())
    }
}

/// Writes a file with these rights, and the folders that it lies in with those that packages have.
pub(super) fn write(path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(parent)?;
        std::fs::write(path, content)?;
        set_mode(path, mode)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_mode(_: &Path, _: u32) -> std::io::Result<()> {
    Ok(())
}

/// An empty folder below `target`.
fn tempfile(root: &Path) -> anyhow::Result<PathBuf> {
    let path = root.join(format!("target/dist-pages-{}", std::process::id()));
    std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}
