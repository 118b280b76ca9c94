//! Other systems: Windows, whose programs are built with mingw-w64 and run under Wine, and macOS,
//! for which code is only checked.

mod trial;
mod wine;

use std::path::Path;

use anyhow::bail;

use crate::dist;
use crate::machine;
use crate::programs::{self, Program};
use crate::standard_library::{self, Purpose};
use crate::test_runs::TestRun;
use crate::timings::Timings;

use self::wine::Wine;

const WINDOWS: &str = "x86_64-pc-windows-gnu";
const MACOS: &str = "aarch64-apple-darwin";
/// The programs that building for Windows needs, and their packages in Debian.
const NEEDS: [(&str, &str); 2] =
    [(wine::COMPILER, "gcc-mingw-w64-x86-64-win32"), (wine::LAUNCHER, "wine")];
/// Takes the symbols out of a program for Windows; comes with the linker.
const STRIP: &str = "x86_64-w64-mingw32-strip";
/// The folders of the packages whose tests run under Wine. Those of the Vulkan backend need a
/// driver, and xtask's are about Debian.
const PORTABLE: [&str; 10] = [
    "crates/weights",
    "crates/model",
    "crates/backend",
    "crates/cpu",
    "crates/text",
    "crates/engine",
    "crates/hub",
    "crates/server",
    "crates/session",
    "crates/trine",
];
/// Keeps packages from compiling their C code for macOS, which would need Apple's headers: checked
/// code is not linked.
const NO_C: [&str; 4] = [
    "--config",
    "env.CC_aarch64_apple_darwin=\"true\"",
    "--config",
    "env.AR_aarch64_apple_darwin=\"true\"",
];
/// The whole workspace with its tests, by one command: another choice of packages would need other
/// features of their dependencies.
const EVERYTHING: [&str; 5] = ["--workspace", "--lib", "--bins", "--tests", "--locked"];

/// Builds the workspace for Windows, packs the program, and runs it and the tests of the portable
/// packages under Wine. With `release`, builds and packs the optimised program only.
pub(crate) fn windows(root: &Path, release: bool) -> anyhow::Result<()> {
    let missing = NEEDS.iter().filter(|(program, _)| !machine::is_program(program));
    let missing: Vec<&str> = missing.map(|&(_, package)| package).collect();
    machine::install(root, &missing)?;
    let target = standard_library::arguments(root, WINDOWS, Purpose::Programs)?;
    let wine = Wine::prepare(root)?;
    if release {
        return dist::for_windows(root, WINDOWS, &target, STRIP, &wine.driver);
    }

    let built = build(root, "building for Windows", &["test", "--no-run"], &target)?;
    let trine = programs::find(&built, "bin", "trine")?;
    trial::run(root, &wine.driver, trine)?;
    dist::pack_for_windows(root, WINDOWS, trine, STRIP, &wine.driver)?;
    let mut tests: Vec<&Program> = Vec::new();
    for folder in PORTABLE {
        let before = tests.len();
        tests.extend(built.iter().filter(|program| program.is_test_of(folder)));
        if tests.len() == before {
            bail!("cargo built no tests of {folder}");
        }
    }
    TestRun { driver: Some(&wine.driver), place: "Wine", ..TestRun::new("portable tests", tests) }
        .run(root, &Timings::default())
}

/// Checks the types of the workspace for macOS.
pub(crate) fn macos(root: &Path) -> anyhow::Result<()> {
    let mut target = standard_library::arguments(root, MACOS, Purpose::Checks)?;
    target.extend(NO_C.map(str::to_owned));
    build(root, "checking for macOS", &["check"], &target).map(drop)
}

fn build(
    root: &Path,
    name: &str,
    command: &[&str],
    target: &[String],
) -> anyhow::Result<Vec<Program>> {
    let target = target.iter().map(String::as_str);
    let arguments: Vec<&str> = command.iter().copied().chain(EVERYTHING).chain(target).collect();
    programs::build(root, name, &arguments)
}
