//! What the packages of a release have in common.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::programs::output;

/// The ending of hosts that belong to nobody (RFC 2606), which the address has until the repository
/// is published.
const NOBODYS: &str = ".invalid";

/// The endings of archives, for Windows and for other systems.
pub(super) const ENDINGS: [&str; 2] = [".zip", ".tar.gz"];

/// The properties of a release.
#[derive(Debug, Clone)]
pub(super) struct Release {
    /// The program's version.
    pub(super) version: String,
    /// The target that it was built for.
    pub(super) target: String,
    /// The time of every packed file, in seconds since 1970.
    pub(super) time: u64,
    /// The address of the repository.
    pub(super) address: Address,
}

/// The address of the repository, in the form of GitHub: `https://HOST/OWNER/NAME`. It is the field
/// `repository` of the workspace's `Cargo.toml`, and nowhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    url: String,
    owner: String,
}

impl Release {
    /// Returns the release that the current state of the repository makes for this machine.
    pub(super) fn of(root: &Path) -> anyhow::Result<Self> {
        Self::for_target(root, &host()?)
    }

    /// Returns the release that it makes for a target.
    pub(super) fn for_target(root: &Path, target: &str) -> anyhow::Result<Self> {
        let path = root.join("Cargo.toml");
        let manifest: toml::Table = std::fs::read_to_string(&path)?.parse()?;
        let field = |name: &str| {
            let value = manifest["workspace"]["package"].get(name).and_then(|value| value.as_str());
            value.with_context(|| format!("workspace.package.{name} is missing in Cargo.toml"))
        };
        Ok(Self {
            version: field("version")?.to_owned(),
            target: target.to_owned(),
            time: commit_time(root)?,
            address: Address::new(field("repository")?)?,
        })
    }

    /// Returns the name of the archive without its ending, and of the one folder in it.
    pub(super) fn name(&self) -> String {
        format!("trine-{}-{}", self.version, self.target)
    }

    /// Returns the file name of the archive.
    pub(super) fn archive(&self) -> String {
        let [zip, gzip] = ENDINGS;
        format!("{}{}", self.name(), if self.is_for_windows() { zip } else { gzip })
    }

    /// Returns the place of the program below a package's prefix.
    pub(super) fn program(&self) -> &'static str {
        if self.is_for_windows() { "bin/trine.exe" } else { "bin/trine" }
    }

    pub(super) fn is_for_windows(&self) -> bool {
        self.target.contains("-windows-")
    }

    /// Returns the tag of the commit that is released.
    pub(super) fn tag(&self) -> String {
        format!("v{}", self.version)
    }

    /// Returns the address of a file of the release.
    pub(super) fn download(&self, name: &str) -> String {
        format!("{}/releases/download/{}/{name}", self.address.url(), self.tag())
    }

    #[cfg(test)]
    pub(super) fn example() -> Self {
        Self {
            version: "1.2.3".into(),
            target: "x86_64-unknown-linux-gnu".into(),
            time: 1_000_000_000,
            address: Address::new("https://git.example/some-one/trine").unwrap(),
        }
    }
}

impl Address {
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let is_name = |part: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(is_part)
        };
        let parts: Vec<&str> =
            url.strip_prefix("https://").unwrap_or_default().split('/').collect();
        let [host, owner, name] = parts[..] else {
            bail!("the repository {url:?} is not https://HOST/OWNER/NAME");
        };
        ensure!(
            [host, owner, name].into_iter().all(is_name),
            "the repository {url:?} has a part that is no name"
        );
        Ok(Self { url: url.to_owned(), owner: owner.to_owned() })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the account that the repository belongs to.
    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    /// Returns whether it leads nowhere, because nothing is published.
    pub(super) fn is_placeholder(&self) -> bool {
        self.url.split('/').nth(2).is_some_and(|host| host.ends_with(NOBODYS))
    }
}

/// Returns the target that cargo builds for by default.
fn host() -> anyhow::Result<String> {
    let text = output(Command::new("rustc").args(["--version", "--verbose"]))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not tell its host")?.to_owned())
}

/// Returns the time of the last commit, or the current time if there is no repository.
fn commit_time(root: &Path) -> anyhow::Result<u64> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(root);
    if let Ok(text) = output(&mut git) {
        return text.trim().parse().context("git gives no time");
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    Ok(now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_an_owner_and_a_name() {
        let address = Address::new("https://github.com/some-one/trine").unwrap();
        assert_eq!((address.owner(), address.is_placeholder()), ("some-one", false));
        assert!(Address::new("https://git.invalid/o/trine").unwrap().is_placeholder());
        assert!(!Address::new("https://github.com/x.invalid/trine").unwrap().is_placeholder());
        for wrong in [
            "",
            "http://github.com/o/trine",
            "https://github.com/trine",
            "https://github.com/o/trine/",
            "https://github.com/o/trine/more",
            "https://github.com/o;rm/trine",
            "https://github.com/o/$(id)",
            "https://github.com/../trine",
            "https://u@github.com/o/trine",
        ] {
            Address::new(wrong).unwrap_err();
        }
    }

    #[test]
    fn files_of_a_release_have_its_version() {
        let release = Release::example();
        assert_eq!(
            release.download(&release.archive()),
            "https://git.example/some-one/trine/releases/download/v1.2.3/\
             trine-1.2.3-x86_64-unknown-linux-gnu.tar.gz"
        );
        let windows = Release { target: "x86_64-pc-windows-gnu".into(), ..release };
        assert_eq!(windows.archive(), "trine-1.2.3-x86_64-pc-windows-gnu.zip");
    }
}
