//! The Debian package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::release::Release;
use super::tree::{Tree, folder_for_all, write};
use crate::machine::is_program;
use crate::programs::{finish, output};

/// The programs that make the package, from Debian's dpkg-dev.
const PROGRAMS: [&str; 2] = ["dpkg-deb", "dpkg-shlibdeps"];
/// Files of `packaging` and their places in the package.
const FILES: [(&str, &str, u32); 6] = [
    ("trine.service", "usr/lib/systemd/system/trine.service", 0o644),
    ("trine.sysusers", "usr/lib/sysusers.d/trine.conf", 0o644),
    ("trine.default", "etc/default/trine", 0o644),
    ("debian/postinst", "DEBIAN/postinst", 0o755),
    ("debian/prerm", "DEBIAN/prerm", 0o755),
    ("debian/postrm", "DEBIAN/postrm", 0o755),
];
/// The folder for settings, keys and certificates, which the service may read but not write.
const SETTINGS: &str = "etc/trine";
/// The files in which an administrator's changes are kept.
const CONFIGURATION: &str = "/etc/default/trine\n";

/// Returns whether packages can be made here.
pub(crate) fn is_possible() -> bool {
    PROGRAMS.into_iter().all(is_program)
}

/// Makes the package of a tree.
pub(super) fn package(
    root: &Path,
    tree: &Tree,
    folder: &Path,
    release: &Release,
) -> anyhow::Result<PathBuf> {
    if !is_possible() {
        bail!("{} are missing (Debian: dpkg-dev)", PROGRAMS.join(" and "));
    }
    let stage = folder.join("deb");
    tree.write(&stage, "usr")?;
    for (name, place, mode) in FILES {
        let path = root.join("packaging").join(name);
        let content = std::fs::read(&path).with_context(|| path.display().to_string())?;
        write(&stage.join(place), &content, mode)?;
    }
    folder_for_all(&stage.join(SETTINGS))?;
    let copyright = "trine is licensed under Apache-2.0 (LICENSE-APACHE) or MIT (LICENSE-MIT), at \
        your choice; the packages that it contains as THIRD-PARTY-LICENSES says.\n";
    write(&stage.join("usr/share/doc/trine/copyright"), copyright.as_bytes(), 0o644)?;
    write(&stage.join("DEBIAN/conffiles"), CONFIGURATION.as_bytes(), 0o644)?;
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let depends = depends(&stage, architecture)?;
    let control = control(&release.version, architecture, &depends, bytes(&stage)? / 1024);
    write(&stage.join("DEBIAN/control"), control.as_bytes(), 0o644)?;

    let path = folder.join(format!("trine_{}_{architecture}.deb", release.version));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "-z3", "--build"]).arg(&stage).arg(&path);
    build.env("SOURCE_DATE_EPOCH", release.time.to_string());
    finish(&mut build)?;
    std::fs::remove_dir_all(&stage)?;
    Ok(path)
}

fn control(version: &str, architecture: &str, depends: &str, kibibytes: u64) -> String {
    format!(
        "Package: trine
Version: {version}
Architecture: {architecture}
Maintainer: trine's maintainers <maintainers@trine.invalid>
Installed-Size: {kibibytes}
Depends: {depends}
Recommends: ca-certificates, libvulkan1, mesa-vulkan-drivers
Section: science
Priority: optional
Description: runs Gemma language models on one machine
 trine reads GGUF files and Hugging Face folders and writes text on a GPU
 through Vulkan or on the CPU: in a terminal, on a page in the browser, and
 for programs that speak the dialects of OpenAI, Anthropic and Ollama.
 .
 The package has a service that listens only on this machine.
"
    )
}

/// Returns the packages whose libraries the program is linked with.
fn depends(stage: &Path, architecture: &str) -> anyhow::Result<String> {
    // dpkg-shlibdeps reads a source package's control file.
    let source = stage.with_extension("source");
    let about = format!("Source: trine\n\nPackage: trine\nArchitecture: {architecture}\n");
    write(&source.join("debian/control"), about.as_bytes(), 0o644)?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.arg("-O").arg(stage.join("usr/bin/trine")).current_dir(&source);
    let text = output(&mut command)?;
    std::fs::remove_dir_all(&source)?;
    let depends = text.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    Ok(depends.context("dpkg-shlibdeps names no libraries")?.to_owned())
}

/// Returns the bytes of the files in a folder.
fn bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        sum += if about.is_dir() { bytes(&entry.path())? } else { about.len() };
    }
    Ok(sum)
}
