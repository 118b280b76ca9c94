//! Debian's packages: installs them, and fetches those of other releases through a private apt,
//! whose lists, settings and cache are in a folder of this repository's `target`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::meter;

/// The keys that sign every release of Debian, from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Installs packages of the system's release.
pub(crate) fn install(root: &Path, packages: &[&str]) -> anyhow::Result<()> {
    let mut update = Command::new("apt-get");
    finish(update.arg("update").current_dir(root), "the package lists cannot be fetched")?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    install.env("DEBIAN_FRONTEND", "noninteractive").current_dir(root);
    finish(&mut install, "the packages cannot be installed")
}

/// A private apt.
pub(crate) struct Apt {
    folder: PathBuf,
    options: Vec<String>,
}

impl Apt {
    /// Makes its folders below `drivers` and fetches the package lists of the releases.
    pub(crate) fn new(drivers: &Path, name: &str, suites: &str) -> anyhow::Result<Self> {
        if !Path::new(KEYRING).is_file() {
            bail!("{KEYRING} is missing; please install debian-archive-keyring");
        }
        let folder = drivers.join(format!("apt-{name}"));
        for part in ["parts", "lists/partial", "cache/archives/partial", "packages"] {
            let path = folder.join(part);
            std::fs::create_dir_all(&path)
                .with_context(|| format!("cannot make {}", path.display()))?;
        }
        let shown = folder.display();
        let options = [
            "Dir::Etc::sourcelist=/dev/null".to_owned(),
            format!("Dir::Etc::sourceparts={shown}/parts"),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::Lists={shown}/lists"),
            format!("Dir::Cache={shown}/cache"),
            // Nothing counts as installed, so that the packages that a package depends on come too.
            "Dir::State::status=/dev/null".to_owned(),
            "Debug::NoLocking=1".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
            "Acquire::http::Timeout=30".to_owned(),
        ];
        let apt = Self { folder, options: options.into() };
        apt.update(&archive()?, suites)?;
        Ok(apt)
    }

    fn update(&self, archive: &str, suites: &str) -> anyhow::Result<()> {
        let sources = format!(
            "Types: deb\nURIs: {archive}\nSuites: {suites}\nComponents: main\nSigned-By: \
             {KEYRING}\n"
        );
        std::fs::write(self.folder.join("parts/drivers.sources"), sources)?;
        // Without this option apt treats lists that it cannot fetch as a warning.
        let mut update = self.command("apt-get");
        update.args(["-o", "APT::Update::Error-Mode=any", "--quiet", "update"]);
        finish(&mut update, "the package lists cannot be fetched; is the machine offline?")
    }

    /// Returns the versions of a package in a release, newest first.
    pub(crate) fn versions(&self, package: &str, suite: &str) -> anyhow::Result<Vec<String>> {
        let output = self
            .command("apt-cache")
            .args(["madison", package])
            .output()
            .context("cannot start apt-cache")?;
        Ok(versions_in(&String::from_utf8_lossy(&output.stdout), suite))
    }

    /// Downloads exactly these packages, each `NAME=VERSION`, and returns the files.
    pub(crate) fn download(&self, packages: &[String]) -> anyhow::Result<Vec<PathBuf>> {
        let folder = self.folder.join("packages");
        let mut command = self.command("apt-get");
        command.args(["--quiet", "download"]).args(packages).current_dir(&folder);
        finish(&mut command, "the packages cannot be fetched")?;
        files(&folder)
    }

    /// Downloads packages and everything they depend on, preferring one release, and returns the
    /// files.
    pub(crate) fn download_whole(
        &self,
        suite: &str,
        packages: &[String],
    ) -> anyhow::Result<Vec<PathBuf>> {
        let mut command = self.command("apt-get");
        command.args(["--quiet", "--yes", "--download-only", "--no-install-recommends"]);
        command.args(["--target-release", suite, "install"]).args(packages);
        finish(&mut command, "the packages cannot be fetched")?;
        files(&self.folder.join("cache/archives"))
    }

    /// Deletes lists and packages, whose content is unpacked.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(&self.folder)
            .with_context(|| format!("cannot delete {}", self.folder.display()))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}

/// Runs a command whose output is useful only if it fails.
fn finish(command: &mut Command, what: &str) -> anyhow::Result<()> {
    let output = meter::output(command).with_context(|| what.to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("E:")).take(3).collect();
    bail!("{what}: {}", if lines.is_empty() { text.trim().to_owned() } else { lines.join(" ") })
}

/// Returns the archive of Debian that the machine's own apt uses. Its origin is known once its
/// lists were fetched.
fn archive() -> anyhow::Result<String> {
    if let Some(archive) = own_archive() {
        return Ok(archive);
    }
    let mut update = Command::new("apt-get");
    finish(update.arg("update"), "the package lists cannot be fetched")?;
    own_archive().context(
        "apt knows no archive of Debian; name one in /etc/apt that has the releases of the drivers",
    )
}

fn own_archive() -> Option<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(ORIGIN)|$(COMPONENT)|$(REPO_URI)"])
        .output();
    let text = output.map(|output| output.stdout).unwrap_or_default();
    archive_in(&String::from_utf8_lossy(&text))
}

/// Returns the first main archive of Debian among lines of origin, component and address. Security
/// updates have their own.
fn archive_in(text: &str) -> Option<String> {
    let address = |line: &str| {
        let mut parts = line.splitn(3, '|');
        let is_main = parts.next() == Some("Debian") && parts.next() == Some("main");
        let address = parts.next()?.trim_end_matches('/');
        (is_main && !address.contains("security")).then(|| address.to_owned())
    };
    text.lines().find_map(address)
}

/// Returns the versions in the lines of `apt-cache madison`:
/// `package | version | address suite/component arch Packages`.
fn versions_in(text: &str, suite: &str) -> Vec<String> {
    let version = |line: &str| {
        let mut parts = line.split('|').map(str::trim).skip(1);
        let version = parts.next()?;
        let place = parts.next()?.split_whitespace().nth(1)?;
        (place.split('/').next() == Some(suite)).then(|| version.to_owned())
    };
    text.lines().filter_map(version).collect()
}

/// Returns the packages in a folder, by name.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "deb") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        bail!("apt left no packages in {}", folder.display());
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_release() {
        let text = "\
 mesa-vulkan-drivers | 26.1.6-1~bpo13+1 | http://mirror.example/debian trixie-backports/main \
            amd64 Packages
 mesa-vulkan-drivers | 25.0.7-2+deb13u1 | http://mirror.example/debian trixie/main amd64 Packages
 mesa-vulkan-drivers | 25.0.7-2~bpo12+1 | http://mirror.example/debian bookworm-backports/main \
            amd64 Packages
";
        assert_eq!(versions_in(text, "trixie"), ["25.0.7-2+deb13u1"]);
        assert_eq!(versions_in(text, "bookworm-backports"), ["25.0.7-2~bpo12+1"]);
        assert!(versions_in(text, "sid").is_empty());
    }

    #[test]
    fn the_archive_is_the_first_main_one_of_debian() {
        let text = "Docker|stable|https://docker.example/debian/\n\
            Debian|main|http://mirror.example/debian-security/\n\
            Debian|main|http://mirror.example/debian/\n";
        assert_eq!(archive_in(text).as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(archive_in("Ubuntu|main|http://ubuntu.example/\n"), None);
    }
}
