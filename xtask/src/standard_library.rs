//! Rust's standard library for other systems: the toolchain's or, if the toolchain cannot have it,
//! one built from Debian's package of its source.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::apt::Apt;
use crate::machine::is_program;
use crate::programs::{cargo, output};

/// The releases of Debian that have the sources of several compilers.
const SUITES: [&str; 3] = ["trixie-backports", "forky", "sid"];
/// The folder of the libraries built here, from the repository's root.
const FOLDER: &str = "target/standard-library";
/// Names what was built; written last.
const STAMP: &str = "built";

/// The purpose of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Programs are linked with it.
    Programs,
    /// Code is checked against it.
    Checks,
}

/// Returns the arguments with which cargo builds for a target.
///
/// # Errors
/// Returns an error if there is no library for it and none can be built.
pub(crate) fn arguments(
    root: &Path,
    target: &str,
    purpose: Purpose,
) -> anyhow::Result<Vec<String>> {
    let mut arguments = vec!["--target".to_owned(), target.to_owned()];
    if has_own(target)? {
        return Ok(arguments);
    }
    eprintln!("== standard library: rustup target add {target}");
    let add = Command::new("rustup")
        .args(["target", "add", target])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success());
    if add && has_own(target)? {
        return Ok(arguments);
    }
    let sysroot = root.join(FOLDER).join("sysroot");
    build(root, &sysroot, target, purpose)?;
    let flags = format!("target.{target}.rustflags=[\"--sysroot\", \"{}\"]", sysroot.display());
    arguments.extend(["--config".to_owned(), flags]);
    Ok(arguments)
}

/// Returns whether the toolchain has the library.
fn has_own(target: &str) -> anyhow::Result<bool> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    Ok(libraries(Path::new(sysroot.trim()), target).is_dir())
}

fn libraries(sysroot: &Path, target: &str) -> PathBuf {
    sysroot.join("lib/rustlib").join(target).join("lib")
}

/// Builds the library from its source into a folder of this repository's `target`.
fn build(root: &Path, sysroot: &Path, target: &str, purpose: Purpose) -> anyhow::Result<()> {
    let version = output(Command::new("rustc").arg("--version"))?;
    let stamp = format!("{} for {purpose:?}\n", version.trim());
    let place = libraries(sysroot, target);
    if std::fs::read_to_string(place.join(STAMP)).is_ok_and(|text| text == stamp) {
        return Ok(());
    }
    let number = version.split_whitespace().nth(1).context("rustc does not tell its version")?;
    eprintln!("== standard library: rustup has none for {target}; building that of {number}");
    let source = source(root, number)?;
    if place.exists() {
        std::fs::remove_dir_all(&place)?;
    }
    std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;

    let built = root.join(FOLDER).join("build");
    let how = if purpose == Purpose::Programs { "build" } else { "check" };
    let mut command = cargo(root);
    command
        .args([how, "--quiet", "--release", "--target", target, "--manifest-path"])
        .arg(source.join("sysroot/Cargo.toml"))
        .env("CARGO_TARGET_DIR", &built)
        // The library uses unstable features, and the crates that it consists of are not marked as
        // unstable.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zforce-unstable-if-unmarked -Cembed-bitcode=yes")
        .current_dir(&source);
    output(&mut command)?;
    let kind = if purpose == Purpose::Programs { "rlib" } else { "rmeta" };
    for entry in std::fs::read_dir(built.join(target).join("release/deps"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == kind) {
            std::fs::copy(&path, place.join(path.file_name().unwrap_or_default()))?;
        }
    }
    if target.ends_with("windows-gnu") && purpose == Purpose::Programs {
        for object in ["rsbegin", "rsend"] {
            let mut rustc = Command::new("rustc");
            rustc.args(["--crate-type", "lib", "--emit", "obj", "--target", target, "--sysroot"]);
            rustc.arg(sysroot).arg("-o").arg(place.join(format!("{object}.o")));
            rustc.arg(source.join(format!("rtstartup/{object}.rs")));
            output(rustc.env("RUSTC_BOOTSTRAP", "1"))?;
        }
    }
    std::fs::remove_dir_all(&built)?;
    std::fs::write(place.join(STAMP), stamp)?;
    Ok(())
}

/// Returns the folder `library` of a compiler's source.
fn source(root: &Path, number: &str) -> anyhow::Result<PathBuf> {
    let folder = root.join(FOLDER);
    let unpacked = folder.join("source");
    let library = unpacked.join(format!("usr/src/rustc-{number}/library"));
    if library.is_dir() {
        return Ok(library);
    }
    if !is_program("apt-get") {
        bail!("it takes rustup with a network, or Debian's apt");
    }
    let apt = Apt::new(&folder, "rust", &SUITES.join(" "))?;
    let mut versions = Vec::new();
    for suite in SUITES {
        versions.extend(apt.versions("rust-src", suite)?);
    }
    let is_wanted = |version: &&String| version.starts_with(&format!("{number}+"));
    let version = versions.iter().find(is_wanted).with_context(|| {
        format!("Debian has the source of {}, not of {number}", versions.join(", "))
    })?;
    for package in apt.download(&[format!("rust-src={version}")])? {
        output(Command::new("dpkg").arg("-x").arg(package).arg(&unpacked))?;
    }
    apt.clear()?;
    if !library.is_dir() {
        bail!("rust-src {version} has no {}", library.display());
    }
    Ok(library)
}
