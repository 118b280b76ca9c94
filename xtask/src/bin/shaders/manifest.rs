//! `spv/manifest.json`: what each committed shader was made of and what it asks of the device.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::reflect::{Facts, SpecConstant};
use crate::variants::Variant;

/// All shaders, by name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) compiler: String,
    pub(crate) shaders: Vec<Entry>,
}

/// One shader.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The shader's file, then the files it includes.
    pub(crate) sources: Vec<String>,
    /// Vulkan's version: 1.2 with SPIR-V 1.5, 1.3 with SPIR-V 1.6.
    pub(crate) target: String,
    pub(crate) defines: Vec<String>,
    /// Hash over the sources' names and texts, the target and the defines.
    pub(crate) source_sha256: String,
    /// Hash of the `.spv` file.
    pub(crate) spirv_sha256: String,
    pub(crate) push_constant_bytes: u32,
    pub(crate) spec_constants: Vec<SpecConstant>,
    pub(crate) capabilities: Vec<String>,
    pub(crate) extensions: Vec<String>,
}

impl Manifest {
    /// As the file holds it.
    pub(crate) fn to_json(&self) -> anyhow::Result<String> {
        let text = serde_json::to_string_pretty(self).context("the manifest is not JSON")?;
        Ok(text + "\n")
    }
}

impl Entry {
    /// Describes a compiled shader; `sources` as (name, text).
    pub(crate) fn new(
        variant: &Variant,
        sources: &[(String, String)],
        facts: Facts,
        spirv: &[u8],
    ) -> Self {
        Self {
            name: variant.name.clone(),
            sources: sources.iter().map(|(name, _)| name.clone()).collect(),
            target: variant.target.name().to_owned(),
            defines: variant.defines.clone(),
            source_sha256: source_hash(variant, sources),
            spirv_sha256: hexadecimal(&Sha256::digest(spirv)),
            push_constant_bytes: facts.push_constant_bytes,
            spec_constants: facts.spec_constants,
            capabilities: facts.capabilities,
            extensions: facts.extensions,
        }
    }
}

/// Each part goes in with its length, so that moving text from one part to the next gives another
/// hash.
fn source_hash(variant: &Variant, sources: &[(String, String)]) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    };
    add(variant.target.name());
    add(&variant.defines.join("\n"));
    if variant.inline {
        add("inline");
    }
    for (name, text) in sources {
        add(name);
        add(text);
    }
    hexadecimal(&hash.finalize())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
