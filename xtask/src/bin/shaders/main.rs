//! Compiles the Vulkan backend's shaders to the SPIR-V that is committed; `cargo xtask shaders`
//! runs it.
//!
//! A program of its own, because it links glslang, which takes a C++ compiler that nothing else
//! here needs.

mod compile;
mod inline;
mod manifest;
mod reflect;
mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;

use crate::manifest::{Entry, Manifest};
use crate::variants::Variant;

/// The table of the shaders that the program is built with.
const LIST: &str = "list.inc";

/// Compiles every shader into `spv/NAME.spv`, describes them in `spv/manifest.json` and lists them
/// in `spv/list.inc`.
#[derive(Parser)]
struct Arguments {
    /// The folder of the `.comp` files and `variants.toml`.
    folder: PathBuf,
    /// Write nothing; fail if a file differs from what would be written.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.folder, arguments.check) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path, check: bool) -> anyhow::Result<()> {
    let variants = variants::read(folder)?;
    let mut files = BTreeMap::new();
    let mut entries = Vec::new();
    let mut failed = 0_usize;
    for variant in &variants {
        match build(folder, variant).with_context(|| format!("shader {}", variant.name)) {
            Ok((entry, bytes)) => {
                files.insert(format!("{}.spv", entry.name), bytes);
                entries.push(entry);
            }
            Err(error) => {
                eprintln!("{error:#}");
                failed += 1;
            }
        }
    }
    if failed == 0 {
        files.insert(LIST.to_owned(), list(&variants).into_bytes());
        let manifest = Manifest { compiler: compile::COMPILER.to_owned(), shaders: entries };
        files.insert("manifest.json".to_owned(), manifest.to_json()?.into_bytes());
    }
    let output = folder.join("spv");
    if check {
        if failed > 0 {
            bail!("{failed} of {} shaders do not compile", variants.len());
        }
        return compare(&output, &files);
    }
    write(&output, &files, failed == 0)?;
    if failed > 0 {
        bail!(
            "{failed} of {} shaders do not compile; the manifest is left as it was",
            variants.len()
        );
    }
    Ok(())
}

/// Returns the array of names and codes that `crates/vulkan/src/shaders.rs` includes.
fn list(variants: &[Variant]) -> String {
    let line = |Variant { name, .. }: &Variant| {
        format!("    (\"{name}\", include_bytes!(\"{name}.spv\")),\n")
    };
    let lines: String = variants.iter().map(line).collect();
    format!("// Written by cargo xtask shaders.\n[\n{lines}]\n")
}

/// Compiles one shader and describes the result.
fn build(folder: &Path, variant: &Variant) -> anyhow::Result<(Entry, Vec<u8>)> {
    let compiled = compile::compile(folder, variant)?;
    let facts = reflect::reflect(&compiled.words)?;
    let bytes: Vec<u8> = compiled.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Ok((Entry::new(variant, &compiled.sources, facts, &bytes), bytes))
}

/// Writes what differs, so that nothing is rebuilt for a file that stayed as it was, and, once
/// everything compiles, deletes the files of shaders that are gone.
fn write(output: &Path, files: &BTreeMap<String, Vec<u8>>, complete: bool) -> anyhow::Result<()> {
    std::fs::create_dir_all(output).with_context(|| format!("cannot make {}", output.display()))?;
    let mut written = 0_usize;
    for (name, bytes) in files {
        let path = output.join(name);
        if std::fs::read(&path).is_ok_and(|old| old == *bytes) {
            continue;
        }
        // Renamed into place: a build that runs meanwhile sees the old file or the new one.
        let partial = output.join(format!(".{name}.{}", std::process::id()));
        std::fs::write(&partial, bytes)
            .and_then(|()| std::fs::rename(&partial, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        written += 1;
    }
    let mut deleted = 0_usize;
    if complete {
        for name in generated(output)?.difference(&files.keys().cloned().collect()) {
            let path = output.join(name);
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot delete {}", path.display()))?;
            deleted += 1;
        }
    }
    eprintln!("== shaders: {} files, {written} written, {deleted} deleted", files.len());
    Ok(())
}

/// Fails unless the folder holds exactly these files.
fn compare(output: &Path, files: &BTreeMap<String, Vec<u8>>) -> anyhow::Result<()> {
    let mut complaints = Vec::new();
    for (name, bytes) in files {
        match std::fs::read(output.join(name)) {
            Ok(old) if old == *bytes => {}
            Ok(_) => complaints.push(format!("{name} is not what its source gives")),
            Err(error) => complaints.push(format!("{name}: {error}")),
        }
    }
    let known: BTreeSet<String> = files.keys().cloned().collect();
    let stale = generated(output)?;
    complaints.extend(stale.difference(&known).map(|name| format!("{name} belongs to no shader")));
    if complaints.is_empty() {
        eprintln!("== shaders: {} files are what their sources give", files.len());
        return Ok(());
    }
    complaints.iter().for_each(|complaint| eprintln!("shaders: {complaint}"));
    bail!("{} files differ; write them with: cargo xtask shaders", complaints.len())
}

/// Names of the `.spv` files in the folder, and of the manifest.
fn generated(output: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let entries = match std::fs::read_dir(output) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(names),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot list {}", output.display()));
        }
    };
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && (name.ends_with(".spv") || name == "manifest.json") {
            names.insert(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHADER: &str = r#"#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#include "include/output.glsl"
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint STEP = 4;
layout(push_constant, scalar) uniform Push { Output target; float factor[3]; } push;
void main() { push.target.x[gl_GlobalInvocationID.x * STEP] = push.factor[2] * SCALE; }
"#;
    const INCLUDE: &str =
        "layout(buffer_reference, scalar) writeonly buffer Output { float x[]; };\n";
    const VARIANTS: &str = r#"
[[shader]]
name = "scale_2"
source = "scale.comp"
defines = ["SCALE=2.0"]

[[shader]]
name = "scale_3"
source = "scale.comp"
defines = ["SCALE=3.0"]
target = "1.3"
"#;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("include")).unwrap();
        std::fs::write(folder.path().join("scale.comp"), SHADER).unwrap();
        std::fs::write(folder.path().join("include/output.glsl"), INCLUDE).unwrap();
        std::fs::write(folder.path().join("variants.toml"), VARIANTS).unwrap();
        folder
    }

    #[test]
    fn generated_files_pass_their_check_and_stale_ones_fail_it() {
        let folder = folder();
        run(folder.path(), false).unwrap();
        run(folder.path(), true).unwrap();

        let output = folder.path().join("spv");
        let manifest: Manifest =
            serde_json::from_slice(&std::fs::read(output.join("manifest.json")).unwrap()).unwrap();
        let [two, three] = manifest.shaders.as_slice() else { panic!("two shaders") };
        assert_eq!(two.name, "scale_2");
        assert_eq!(two.push_constant_bytes, 20);
        assert_eq!(three.target, "1.3");
        assert_eq!(two.spec_constants.len(), 2);
        assert_eq!(two.spec_constants[1].name, "STEP");
        assert_eq!(two.spec_constants[1].default, 4);
        assert!(two.capabilities.contains(&"PhysicalStorageBufferAddresses".to_owned()));
        assert_eq!(two.sources, ["scale.comp", "include/output.glsl"]);
        assert_ne!(two.source_sha256, three.source_sha256);
        // SPIR-V's version is the second word: 1.5 for Vulkan 1.2, 1.6 for Vulkan 1.3.
        assert_eq!(std::fs::read(output.join("scale_2.spv")).unwrap()[4..8], [0, 5, 1, 0]);
        assert_eq!(std::fs::read(output.join("scale_3.spv")).unwrap()[4..8], [0, 6, 1, 0]);

        std::fs::write(output.join("gone.spv"), b"old").unwrap();
        let error = run(folder.path(), true).unwrap_err();
        assert!(error.to_string().contains("1 files differ"), "{error}");
        run(folder.path(), false).unwrap();
        assert!(!output.join("gone.spv").exists());

        let changed = INCLUDE.replace("writeonly ", "");
        std::fs::write(folder.path().join("include/output.glsl"), changed).unwrap();
        run(folder.path(), true).unwrap_err();
    }

    #[test]
    fn a_shader_that_fails_leaves_the_others_and_the_manifest() {
        let folder = folder();
        run(folder.path(), false).unwrap();
        let manifest = std::fs::read(folder.path().join("spv/manifest.json")).unwrap();
        std::fs::write(folder.path().join("broken.comp"), "#version 460\nvoid main() { x = 1; }\n")
            .unwrap();
        let error = run(folder.path(), false).unwrap_err();
        assert!(error.to_string().starts_with("1 of 3 shaders"), "{error}");
        assert_eq!(std::fs::read(folder.path().join("spv/manifest.json")).unwrap(), manifest);
        assert!(folder.path().join("spv/scale_2.spv").exists());
    }
}
