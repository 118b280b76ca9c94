//! The Vulkan backend's shaders: compiles them and validates the result.
//!
//! The compiler is a separate program (`src/bin/shaders`), built with the feature `shaders`,
//! because it needs a C++ compiler. Building it takes minutes, so a seal is committed with its
//! results: as long as neither the compiler nor a shader has changed since, `ci` does without it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::hash::Hash;
use crate::programs::cargo;
use crate::test_runs::TestRun;
use crate::timings::Timings;
use crate::{checks, drivers, meter};

/// The folder of the shaders, from the repository's root.
const FOLDER: &str = "crates/vulkan/shaders";
/// The folder of their compiler.
const COMPILER: &str = "xtask/src/bin/shaders";
/// Arguments of cargo that choose it.
const COMPILER_ARGUMENTS: [&str; 4] = ["--package", "xtask", "--features", "shaders"];
/// The packages that the compiler consists of.
const COMPILER_PACKAGES: [&str; 3] = ["glslang", "glslang-sys", "rspirv"];
/// The seal's file.
const SEAL: &str = "crates/vulkan/shaders/spv/seal";

/// Compiles every shader; with `check`, proves that the committed files are what would be written.
/// Validates the result if there is a validator that knows cooperative matrices.
///
/// Returns what could not be checked.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<Vec<String>> {
    if !check && !Seal::of(root)?.is_of_compiler(root) {
        check_compiler(root)?;
    }
    compile(root, check)?;
    if !check {
        let path = root.join(SEAL);
        let text = Seal::of(root)?.to_string();
        std::fs::write(&path, text).with_context(|| format!("cannot write {SEAL}"))?;
    }
    validate(root)
}

/// Does the same as [`run`] with `check`, and lints and tests the compiler, unless the seal shows
/// that all this was done.
pub(crate) fn check_unless_sealed(root: &Path) -> anyhow::Result<Vec<String>> {
    let seal = Seal::of(root)?;
    if !seal.is_of_compiler(root) {
        check_compiler(root)?;
    }
    if seal.is_of_all(root) {
        eprintln!("== shaders: as they were compiled");
    } else {
        eprintln!("== shaders: changed since {SEAL} was written; cargo xtask shaders writes it");
        compile(root, true)?;
    }
    validate(root)
}

/// Lints and tests the compiler.
fn check_compiler(root: &Path) -> anyhow::Result<()> {
    checks::lint(root, "lints of the shader compiler", &COMPILER_ARGUMENTS)?;
    let chosen = [&COMPILER_ARGUMENTS[..], &["--bin", "shaders"]].concat();
    let built = checks::build_tests(root, "building the tests of the shader compiler", &chosen)?;
    let tests = built.iter().filter(|program| program.is_test).collect();
    TestRun::new("tests of the shader compiler", tests).run(root, &Timings::default())
}

/// Hashes of everything that affects the committed files.
#[derive(Debug, PartialEq, Eq)]
struct Seal {
    compiler: String,
    shaders: String,
}

impl std::fmt::Display for Seal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(formatter, "{}  compiler\n{}  shaders", self.compiler, self.shaders)
    }
}

/// The part of `Cargo.lock` that is read.
#[derive(Deserialize)]
struct Lock {
    package: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    #[serde(default)]
    checksum: String,
}

impl Seal {
    /// Computes the seal of the current files.
    fn of(root: &Path) -> anyhow::Result<Self> {
        let lock =
            std::fs::read_to_string(root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
        let lock: Lock = toml::from_str(&lock).context("Cargo.lock is not in order")?;
        let mut compiler = Hash::default();
        for package in lock.package {
            if COMPILER_PACKAGES.contains(&package.name.as_str()) {
                [package.name, package.version, package.checksum]
                    .iter()
                    .for_each(|part| compiler.add(part.as_bytes()));
            }
        }
        compiler.add_files(root, COMPILER)?;
        let mut shaders = Hash::default();
        shaders.add_files(root, FOLDER)?;
        Ok(Self { compiler: compiler.end(), shaders: shaders.end() })
    }

    fn is_of_all(&self, root: &Path) -> bool {
        std::fs::read_to_string(root.join(SEAL)).is_ok_and(|sealed| sealed == self.to_string())
    }

    fn is_of_compiler(&self, root: &Path) -> bool {
        let sealed = std::fs::read_to_string(root.join(SEAL)).unwrap_or_default();
        sealed.lines().next() == self.to_string().lines().next()
    }
}

fn compile(root: &Path, check: bool) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    if !folder.is_dir() {
        bail!("there is no {FOLDER}");
    }
    let mut arguments = vec!["run", "--quiet", "--locked"];
    arguments.extend(COMPILER_ARGUMENTS);
    arguments.extend(["--bin", "shaders", "--", FOLDER]);
    arguments.extend(check.then_some("--check"));
    let status = meter::status(cargo(root).args(&arguments))
        .context("cannot start cargo for the shader compiler")?;
    if !status.success() {
        bail!("the shaders are not in order; repeat with: cargo {}", arguments.join(" "));
    }
    Ok(())
}

/// Checks each committed shader against the rules of SPIR-V and Vulkan.
fn validate(root: &Path) -> anyhow::Result<Vec<String>> {
    let Some(validator) = drivers::validator(root) else {
        let skipped = "validation of the shaders: no spirv-val of 2024 or later; \
            get one with: cargo xtask drivers";
        eprintln!("== SKIPPED: {skipped}");
        return Ok(vec![skipped.to_owned()]);
    };
    let folder = root.join(FOLDER).join("spv");
    let path = folder.join("manifest.json");
    let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let manifest: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))?;
    let shaders = manifest["shaders"].as_array().context("the manifest lists no shaders")?;
    let mut failed = 0_usize;
    for shader in shaders {
        let (Some(name), Some(target)) = (shader["name"].as_str(), shader["target"].as_str())
        else {
            bail!("{}: a shader without name or target", path.display());
        };
        let mut command = Command::new(&validator[0]);
        command
            .args(&validator[1..])
            .args(["--target-env", &format!("vulkan{target}")])
            .args(["--scalar-block-layout", "--workgroup-scalar-block-layout"])
            .arg(folder.join(format!("{name}.spv")));
        let output = meter::output(&mut command)
            .with_context(|| format!("cannot start {}", validator.join(" ")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned()
                + &String::from_utf8_lossy(&output.stdout);
            eprintln!("shaders: {name}: {}", said.trim());
            failed += 1;
        }
    }
    if failed > 0 {
        bail!("{failed} of {} shaders are not valid SPIR-V", shaders.len());
    }
    eprintln!("== shaders: {} are valid SPIR-V", shaders.len());
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"glslang\"\nversion = \"0.9.1\"\nchecksum = \"ab\"\n";

    #[test]
    fn a_seal_tells_what_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("Cargo.lock", LOCK);
        write(&format!("{COMPILER}/main.rs"), "fn main() {}");
        write(&format!("{FOLDER}/include/a.glsl"), "a");
        write(&format!("{FOLDER}/spv/a.spv"), "b");
        let state = || {
            let seal = Seal::of(root).unwrap();
            (seal.is_of_compiler(root), seal.is_of_all(root))
        };
        assert_eq!(state(), (false, false));
        write(SEAL, &Seal::of(root).unwrap().to_string());
        assert_eq!(state(), (true, true));

        for (name, text, changed) in [
            (format!("{FOLDER}/include/a.glsl"), "other", (true, false)),
            (format!("{FOLDER}/spv/a.spv"), "other", (true, false)),
            (format!("{FOLDER}/spv/more.spv"), "", (true, false)),
            (format!("{COMPILER}/more.rs"), "", (false, false)),
            ("Cargo.lock".to_owned(), &LOCK.replace("0.9.1", "0.9.2"), (false, false)),
        ] {
            let path = root.join(&name);
            let old = std::fs::read(&path).ok();
            write(&name, text);
            assert_eq!(state(), changed, "{name}");
            old.map_or_else(|| std::fs::remove_file(&path), |old| std::fs::write(&path, old))
                .unwrap();
            assert_eq!(state(), (true, true), "{name} as it was");
        }
    }
}
