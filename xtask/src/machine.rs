//! This machine: the programs that it has, and the packages of its system.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::apt;

/// Installs packages of the system. Needs apt and root's rights only if there are any.
pub(crate) fn install(root: &Path, packages: &[&str]) -> anyhow::Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let command = format!("apt-get install {}", packages.join(" "));
    if !is_program("apt-get") {
        bail!("without apt, please install what Debian calls {}", packages.join(" "));
    }
    let user = Command::new("id").arg("-u").output().context("cannot start id")?;
    if user.stdout.trim_ascii() != b"0" {
        bail!("without root's rights; please do: sudo {command}");
    }
    eprintln!("== drivers: {command}");
    apt::install(root, packages)
}

/// Returns whether a program of this name is in the path.
pub(crate) fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
