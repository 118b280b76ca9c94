//! What the packages of a release have in common.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use crate::programs::output;

/// The properties of a release.
pub(super) struct Release {
    /// The program's version.
    pub(super) version: String,
    /// The target that it was built for.
    pub(super) target: String,
    /// The time of every packed file, in seconds since 1970.
    pub(super) time: u64,
}

impl Release {
    /// Returns the release that the current state of the repository makes.
    pub(super) fn of(root: &Path) -> anyhow::Result<Self> {
        Ok(Self { version: version(root)?, target: target()?, time: commit_time(root)? })
    }
}

fn version(root: &Path) -> anyhow::Result<String> {
    let path = root.join("Cargo.toml");
    let manifest: toml::Table = std::fs::read_to_string(&path)?.parse()?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("the workspace has no version")?.to_owned())
}

/// Returns the target that cargo builds for by default.
fn target() -> anyhow::Result<String> {
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
