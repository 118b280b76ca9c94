//! Packages of the program: an archive, a Debian package, a bill of materials, and their checksums.
//! Decision 021 has the reasons.

mod bill;
mod debian;
mod inventory;
mod licences;
mod release;
mod tree;
mod trial;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use sha2::{Digest, Sha256};

pub(crate) use self::debian::is_possible;
use self::inventory::Inventory;
use self::release::Release;
use self::tree::Tree;
use crate::checks;
use crate::programs::{self, Program, finish};
use crate::timings::Timings;

/// The folder of the results, from the repository's root.
const RESULTS: &str = "target/dist";

/// The tests of the program on a model of an NPU.
const NPU_TESTS: &str = "program";

/// Builds the program, either for people or as the tests build it, and packs it.
pub(crate) fn run(root: &Path, dev: bool) -> anyhow::Result<()> {
    let programs = if dev {
        checks::build(root)?
    } else {
        let build = ["build", "--locked", "--package", "trine", "--release"];
        let mut programs = programs::build(root, "building trine", &build)?;
        // The tests that try the packed program are not optimised with it.
        let tests = ["--workspace", "--test", NPU_TESTS];
        programs.extend(checks::build_tests(root, "building the tests of an NPU", &tests)?);
        programs
    };
    let results = pack(root, &programs, &Timings::default())?;
    for path in results {
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
    let npu = programs.iter().find(is_npu_test).context("the tests of an NPU were not built")?;
    let folder = root.join(RESULTS);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {RESULTS}"))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {RESULTS}"))?;
    let release = Release::of(root)?;
    let inventory = Inventory::of_program(root, &release.target)?;

    let stripped = folder.join("trine");
    finish(Command::new("strip").arg("-o").arg(&stripped).arg(&program.path))?;
    let bill = folder.join(format!("trine-{}.cdx.json", release.version));
    std::fs::write(&bill, bill::write(&inventory, &release)?)?;
    let licences = licences::collect(root, &inventory)?;

    let tree = Tree::of_program(root, &stripped, &licences, &bill)?;
    let name = format!("trine-{}-{}", release.version, release.target);
    let mut results = vec![archive(&tree, &folder, &name, &release)?];
    if cfg!(target_os = "linux") {
        results.push(debian::package(root, &tree, &folder, &release)?);
    }
    results.push(bill);
    let sums = folder.join("SHA256SUMS");
    std::fs::write(&sums, checksums(&results)?)?;
    results.push(sums);
    std::fs::remove_file(&stripped)?;
    trial::run(root, &results, npu, timings)?;
    Ok(results)
}

fn archive(tree: &Tree, folder: &Path, name: &str, release: &Release) -> anyhow::Result<PathBuf> {
    let stage = folder.join("stage");
    tree.write(&stage.join(name), "")?;
    let path = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", release.time))
        .arg("--directory")
        .arg(&stage)
        // Leaves out the time of packing, so that the same files produce the same archive.
        .args(["--use-compress-program", "gzip --no-name"])
        .arg("--file")
        .arg(&path)
        .arg(name);
    finish(&mut tar)?;
    std::fs::remove_dir_all(&stage)?;
    Ok(path)
}

/// Returns lines that `sha256sum --check` reads.
fn checksums(files: &[PathBuf]) -> anyhow::Result<String> {
    let line = |path: &PathBuf| {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let sum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        anyhow::Ok(format!("{sum}  {name}\n"))
    };
    files.iter().map(line).collect()
}
