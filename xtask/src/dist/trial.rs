//! Tries the packages: unpacked somewhere else, with nothing of the repository within reach.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::archive;
use super::release::{ENDINGS, Release};
use super::tree::{DOCUMENTS_PLACE, files};
use crate::driver::Driver;
use crate::machine::is_program;
use crate::programs::{Program, finish, output};
use crate::test_runs::TestRun;
use crate::timings::Timings;

/// The highest exposure that `systemd-analyze security` may report, in tenths of its scale from 0
/// to 10.
const EXPOSURE_MAX: &str = "18";

/// The folder in which packages are unpacked, from the repository's root.
const FOLDER: &str = "target/dist-trial";

/// Files that packages for Unix have below their prefix.
const EXPECTED_ON_UNIX: [&str; 2] =
    ["share/man/man1/trine-run.1", "share/bash-completion/completions/trine"];
/// Files that every package has there, in addition to the program.
const EXPECTED: [&str; 4] = [
    "share/doc/trine/LICENSE-MIT",
    "share/doc/trine/docs/command-line.md",
    "share/doc/trine/THIRD-PARTY-LICENSES",
    "share/doc/trine/trine.cdx.json",
];

/// The variable that names the program for the tests on the model of an NPU.
const NPU_PROGRAM: &str = "TRINE_NPU_PRELOAD_PROGRAM";

/// The fewest of these tests.
const NPU_TESTS_LEAST: u64 = 15;

/// Unpacks each package and writes a story with its program. Runs tests of an NPU that a library
/// below the program models, with the program of the archive.
pub(super) fn run(
    root: &Path,
    packages: &[PathBuf],
    npu: Option<&Program>,
    timings: &Timings,
) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    for path in packages {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let to = folder.join(&name);
        std::fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
        let prefix = if ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            let prefix = archive::unpack(path, &to)?;
            if let Some(npu) = npu {
                try_npu(root, &prefix.join("bin/trine"), npu, timings)?;
            }
            prefix
        } else if name.ends_with(".deb") {
            finish(Command::new("dpkg-deb").arg("-R").arg(path).arg(&to))?;
            try_debian(&to)?;
            to.join("usr")
        } else {
            continue;
        };
        try_files(&prefix, &EXPECTED_ON_UNIX)
            .and_then(|()| {
                let mut trine = Command::new(prefix.join("bin/trine"));
                try_program(trine.env_clear().env("HOME", &prefix), &prefix)
            })
            .with_context(|| format!("{name} is not whole"))?;
    }
    std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

/// Unpacks an archive and writes a story with its program, started by this driver.
pub(super) fn by_driver(
    root: &Path,
    path: &Path,
    release: &Release,
    driver: &Driver,
) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let prefix = archive::unpack(path, &folder)?;
    try_files(&prefix, &[])
        .and_then(|()| try_program(&mut driver.command(&prefix.join(release.program())), &prefix))
        .with_context(|| format!("{} is not whole", path.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
}

/// Looks for what every package has, and for more.
fn try_files(prefix: &Path, more: &[&str]) -> anyhow::Result<()> {
    for place in EXPECTED.iter().chain(more) {
        if std::fs::metadata(prefix.join(place)).map_or(0, |about| about.len()) == 0 {
            bail!("{place} is missing or empty");
        }
    }
    try_links(&prefix.join(DOCUMENTS_PLACE))
}

/// Writes a story with a program, in a folder.
fn try_program(trine: &mut Command, folder: &Path) -> anyhow::Result<()> {
    trine.args(["run", "demo", "Tell me a story", "--device", "cpu", "--max-tokens", "8"]);
    let story = output(trine.current_dir(folder))?;
    if story.split_whitespace().count() < 3 {
        bail!("its program wrote {story:?}");
    }
    Ok(())
}

/// Runs the tests of an NPU with an unmodified program.
fn try_npu(root: &Path, program: &Path, tests: &Program, timings: &Timings) -> anyhow::Result<()> {
    let run = TestRun {
        variable: Some((NPU_PROGRAM, program.as_os_str())),
        least: NPU_TESTS_LEAST,
        ..TestRun::new("the packed program on the model of an NPU", vec![tests])
    };
    run.run(root, timings)
}

/// Checks that the targets of the documents' links exist.
fn try_links(folder: &Path) -> anyhow::Result<()> {
    let is_document = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "md");
    for path in files(folder)?.into_iter().filter(is_document) {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let beside = path.parent().unwrap_or(folder);
        if let Some(link) = links(&text).find(|link| !beside.join(link).exists()) {
            bail!("{} links to {link}, which is not there", path.display());
        }
    }
    Ok(())
}

/// Returns the files that a Markdown document links to.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let paths = targets.filter(|target| !target.contains("://"));
    paths.map(|target| target.split('#').next().unwrap_or_default()).filter(|path| !path.is_empty())
}

/// Checks that the scripts are valid and, if systemd is here, that the unit is.
fn try_debian(folder: &Path) -> anyhow::Result<()> {
    for script in ["postinst", "prerm", "postrm"] {
        finish(Command::new("sh").arg("-n").arg(folder.join("DEBIAN").join(script)))?;
    }
    let unit = folder.join("usr/lib/systemd/system/trine.service");
    if !is_program("systemd-analyze") {
        return Ok(());
    }
    // systemd looks for the program at the path in the unit.
    let text = std::fs::read_to_string(&unit).with_context(|| unit.display().to_string())?;
    let program = folder.join("usr/bin/trine");
    std::fs::write(&unit, text.replace("/usr/bin/trine", &program.display().to_string()))?;
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&unit);
    let verified = analyze.output().context("cannot start systemd-analyze")?;
    let said = String::from_utf8_lossy(&verified.stderr);
    if !verified.status.success() || said.contains("trine.service") {
        bail!("systemd does not take the unit: {}", said.trim());
    }
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]);
    output(security.arg(&unit)).context("the unit exposes more than before").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_files_beside_the_document() {
        let text = "[a](docs/a.md#part) ![b](b.svg) [c](#here) [d](https://d.example/x) [e](../e)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["docs/a.md", "b.svg", "../e"]);
    }
}
