//! The content of a package: files with their places below a prefix, and their permissions.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::release::Release;
use crate::programs::{finish, output};

/// Shells, and the files of their completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/trine"),
    ("zsh", "share/zsh/vendor-completions/_trine"),
    ("fish", "share/fish/vendor_completions.d/trine.fish"),
];
/// The documents of the repository that a package contains, at the same places, so that their links
/// work.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "assets/README.md",
    "docs",
    "tools/server-test/exceptions.md",
];
/// The place of the documents in a package.
pub(super) const DOCUMENTS_PLACE: &str = "share/doc/trine";

/// Files for a package.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    /// The place below the prefix, with slashes.
    place: String,
    content: Vec<u8>,
    is_program: bool,
}

impl Tree {
    /// Returns the program with all files that accompany it.
    pub(super) fn of_program(
        root: &Path,
        program: &Path,
        release: &Release,
        licences: &str,
        bill: &Path,
    ) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.add_program(release.program(), read(program)?);
        // On Windows people print the completions of PowerShell, and there are no manual pages.
        if !release.is_for_windows() {
            tree.add_what_it_writes(root, program)?;
        }
        for document in DOCUMENTS {
            for path in files(&root.join(document))? {
                let place = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
                tree.add(&format!("{DOCUMENTS_PLACE}/{place}"), read(&path)?);
            }
        }
        tree.add(&format!("{DOCUMENTS_PLACE}/THIRD-PARTY-LICENSES"), licences.as_bytes().to_vec());
        tree.add(&format!("{DOCUMENTS_PLACE}/trine.cdx.json"), read(bill)?);
        Ok(tree)
    }

    /// Adds the completions and manual pages that a program writes.
    fn add_what_it_writes(&mut self, root: &Path, program: &Path) -> anyhow::Result<()> {
        for (shell, place) in COMPLETIONS {
            let script = output(Command::new(program).args(["completions", shell]))?;
            self.add(place, script.into_bytes());
        }
        let pages = tempfile(root)?;
        finish(Command::new(program).args(["man", "--to"]).arg(&pages))?;
        for entry in std::fs::read_dir(&pages)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.add(&format!("share/man/man1/{name}"), read(&path)?);
        }
        std::fs::remove_dir_all(&pages).with_context(|| pages.display().to_string())
    }

    /// Adds a file.
    pub(super) fn add(&mut self, place: &str, content: Vec<u8>) {
        self.files.push(File { place: place.into(), content, is_program: false });
    }

    /// Adds a file that can be run.
    pub(super) fn add_program(&mut self, place: &str, content: Vec<u8>) {
        self.files.push(File { place: place.into(), content, is_program: true });
    }

    /// Returns place, content and permissions of each file, by place.
    pub(super) fn sorted(&self) -> Vec<(&str, &[u8], u32)> {
        let mut files: Vec<_> = self.files.iter().map(File::parts).collect();
        files.sort_unstable();
        files
    }

    /// Writes the files to a folder, below a prefix there.
    pub(super) fn write(&self, folder: &Path, prefix: &str) -> anyhow::Result<()> {
        for file in &self.files {
            let (place, content, mode) = file.parts();
            write(&folder.join(prefix).join(place), content, mode)?;
        }
        Ok(())
    }
}

impl File {
    /// Returns its place, content and permissions.
    fn parts(&self) -> (&str, &[u8], u32) {
        (&self.place, &self.content, if self.is_program { 0o755 } else { 0o644 })
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}

/// Returns the files of a folder and of the folders inside, in order; for a file, the file itself.
pub(super) fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
    let mut inside = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    inside.sort();
    let inside = inside.iter().map(|path| files(path)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(inside.concat())
}

/// Makes a folder that everybody may read.
pub(super) fn folder_for_all(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path)
        .and_then(|()| set_mode(path, 0o755))
        .with_context(|| format!("cannot make {}", path.display()))
}

/// Writes a file with these permissions, and makes its parent folders with those of packages.
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

/// Makes an empty folder below `target`.
fn tempfile(root: &Path) -> anyhow::Result<PathBuf> {
    let path = root.join(format!("target/dist-pages-{}", std::process::id()));
    std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
    Ok(path)
}
