//! The Vulkan backend's shaders: has them compiled, and validates the result.
//!
//! The compiler is a program of its own (`src/bin/shaders`), built with the feature `shaders`, because it takes a C++
//! compiler.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::drivers;

/// Where the shaders are, from the repository's root.
const FOLDER: &str = "crates/vulkan/shaders";

/// Compiles every shader; with `check`, proves that the committed files are what would be written. Validates the result
/// where a validator is found that knows cooperative matrices.
///
/// Returns what could not be checked.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<Vec<String>> {
    let folder = root.join(FOLDER);
    if !folder.is_dir() {
        bail!("there is no {FOLDER}");
    }
    let mut arguments =
        vec!["run", "--quiet", "--locked", "--package", "xtask", "--features", "shaders"];
    arguments.extend(["--bin", "shaders", "--", FOLDER]);
    arguments.extend(check.then_some("--check"));
    let status = crate::cargo(root)
        .args(&arguments)
        .status()
        .context("cannot start cargo for the shader compiler")?;
    if !status.success() {
        bail!("the shaders are not in order; repeat with: cargo {}", arguments.join(" "));
    }
    validate(root)
}

/// Holds each committed shader against the rules of SPIR-V and Vulkan.
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
        let output = Command::new(&validator[0])
            .args(&validator[1..])
            .args(["--target-env", &format!("vulkan{target}")])
            .args(["--scalar-block-layout", "--workgroup-scalar-block-layout"])
            .arg(folder.join(format!("{name}.spv")))
            .stdin(Stdio::null())
            .output()
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
