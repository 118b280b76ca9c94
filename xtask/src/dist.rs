//! Packages of the program: archives, a Debian package, a bill of materials, and what publishes
//! them. Decisions 021 and 066 have the reasons.

mod archive;
mod bill;
mod debian;
mod homebrew;
mod install;
mod inventory;
mod licences;
mod notes;
mod packages;
mod publish;
mod release;
mod tree;
mod trial;
mod winget;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

pub(crate) use self::debian::is_possible;
use self::inventory::Inventory;
pub(crate) use self::publish::ReleaseOptions;
use self::release::Release;
use self::tree::Tree;
use crate::checks;
use crate::driver::Driver;
use crate::programs::{self, Program, finish};
use crate::timings::Timings;

/// The folder of the results, from the repository's root.
const RESULTS: &str = "target/dist";

/// The tests of the program on a model of an NPU, which is one of Linux on x86-64.
const NPU_TESTS: &str = "program";
const HAS_NPU_TESTS: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

/// How an optimised program is built.
const BUILD: [&str; 5] = ["build", "--locked", "--package", "trine", "--release"];

/// Builds the program, either for people or as the tests build it, and packs it.
pub(crate) fn run(root: &Path, dev: bool) -> anyhow::Result<()> {
    let programs = if dev {
        checks::build(root)?
    } else {
        let mut programs = programs::build(root, "building trine", &BUILD)?;
        if HAS_NPU_TESTS {
            // The tests that try the packed program are not optimised with it.
            let tests = ["--workspace", "--test", NPU_TESTS];
            programs.extend(checks::build_tests(root, "building the tests of an NPU", &tests)?);
        }
        programs
    };
    for path in pack(root, &programs, &Timings::default())? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Packs the `trine` among built programs and tries the packages. Returns the resulting files.
pub(crate) fn pack(
    root: &Path,
    programs: &[Program],
    timings: &Timings,
) -> anyhow::Result<Vec<PathBuf>> {
    let program = programs::find(programs, "bin", "trine")?;
    let is_npu_test = |program: &&Program| program.is_test && program.name == NPU_TESTS;
    let built = || programs.iter().find(is_npu_test).context("the tests of an NPU were not built");
    let npu = HAS_NPU_TESTS.then(built).transpose()?;
    let release = Release::of(root)?;
    let (folder, tree, mut results) = prepare(root, &program.path, "strip", &release)?;
    results.push(archive::write(&tree, &folder, &release)?);
    if cfg!(target_os = "linux") {
        results.push(debian::package(root, &tree, &folder, &release)?);
    }
    trial::run(root, &results, npu, timings)?;
    results.extend(publish::write(root, &folder, &release)?);
    Ok(results)
}

/// Builds an optimised program for Windows by these arguments of cargo, and packs it.
pub(crate) fn for_windows(
    root: &Path,
    target: &str,
    arguments: &[String],
    strip: &str,
    driver: &Driver,
) -> anyhow::Result<()> {
    let arguments: Vec<&str> =
        BUILD.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let programs = programs::build(root, "building trine for Windows", &arguments)?;
    let program = programs::find(&programs, "bin", "trine")?;
    for path in pack_for_windows(root, target, program, strip, driver)? {
        println!("{}", path.display());
    }
    Ok(())
}

/// Packs a program for Windows and tries the archive by this driver. Returns the resulting files.
pub(crate) fn pack_for_windows(
    root: &Path,
    target: &str,
    program: &Program,
    strip: &str,
    driver: &Driver,
) -> anyhow::Result<Vec<PathBuf>> {
    let release = Release::for_target(root, target)?;
    let (folder, tree, mut results) = prepare(root, &program.path, strip, &release)?;
    let path = archive::write(&tree, &folder, &release)?;
    trial::by_driver(root, &path, &release, driver)?;
    results.push(path);
    results.extend(publish::write(root, &folder, &release)?);
    Ok(results)
}

/// Clears the folder of results and collects what every package has. Returns the folder, the files
/// of a package, and the results so far.
fn prepare(
    root: &Path,
    program: &Path,
    strip: &str,
    release: &Release,
) -> anyhow::Result<(PathBuf, Tree, Vec<PathBuf>)> {
    let folder = root.join(RESULTS);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {RESULTS}"))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {RESULTS}"))?;
    let inventory = Inventory::of_program(root, &release.target)?;
    let stripped = folder.join("trine");
    finish(Command::new(strip).arg("-o").arg(&stripped).arg(program))?;
    let bill = folder.join(format!("{}.cdx.json", release.name()));
    std::fs::write(&bill, bill::write(&inventory, release)?)?;
    let licences = licences::collect(root, &inventory)?;
    let tree = Tree::of_program(root, &stripped, release, &licences, &bill)?;
    std::fs::remove_file(&stripped)?;
    Ok((folder, tree, vec![bill]))
}

/// Writes what publishes the packages of all systems in `target/dist`, and says where.
pub(crate) fn publish(root: &Path, options: &ReleaseOptions) -> anyhow::Result<()> {
    publish::run(root, &root.join(RESULTS), options)
}
