//! Which shaders there are: `variants.toml`, and the `.comp` files that it does not name.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;

/// What a shader is compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Target {
    /// Vulkan 1.2, SPIR-V 1.5.
    #[default]
    #[serde(rename = "1.2")]
    Vulkan12,
    /// Vulkan 1.3, SPIR-V 1.6.
    #[serde(rename = "1.3")]
    Vulkan13,
}

impl Target {
    /// As `variants.toml` and the manifest write it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vulkan12 => "1.2",
            Self::Vulkan13 => "1.3",
        }
    }
}

/// One shader: a source file compiled with some macros, or one such for each of some formats.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Variant {
    /// The `.spv` file's name without its ending.
    pub(crate) name: String,
    /// The `.comp` file's name.
    pub(crate) source: String,
    /// `NAME` or `NAME=VALUE`, in the order in which they are defined.
    #[serde(default)]
    pub(crate) defines: Vec<String>,
    #[serde(default)]
    pub(crate) target: Target,
    /// Whether functions are put where they are called, for drivers that do not.
    #[serde(default)]
    pub(crate) inline: bool,
    /// The lists of formats of weights, by name, for each of whose formats there is a shader. The
    /// format's name follows the shader's, and is `FORMAT`, also in the paths of included files.
    #[serde(default)]
    pub(crate) formats: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Lists of formats of weights.
    #[serde(default)]
    formats: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    shader: Vec<Variant>,
}

impl File {
    /// Returns the shaders of an entry.
    fn shaders(&self, entry: &Variant) -> anyhow::Result<Vec<Variant>> {
        if entry.formats.is_empty() {
            return Ok(vec![entry.clone()]);
        }
        let list = |name: &String| {
            let list = self.formats.get(name);
            list.with_context(|| format!("shader {}: there are no formats {name}", entry.name))
        };
        let formats = entry.formats.iter().map(list).collect::<anyhow::Result<Vec<_>>>()?;
        let variant = |format: &String| {
            let mut defines = vec![format!("FORMAT={format}")];
            defines.extend(entry.defines.iter().cloned());
            let name = format!("{}_{format}", entry.name);
            Variant { name, defines, formats: Vec::new(), ..entry.clone() }
        };
        Ok(formats.into_iter().flatten().map(variant).collect())
    }
}

/// Every shader of the folder, by name.
pub(crate) fn read(folder: &Path) -> anyhow::Result<Vec<Variant>> {
    let path = folder.join("variants.toml");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut sources = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".comp") {
            sources.push(name);
        }
    }
    sources.sort();
    choose(&text, &sources).with_context(|| path.display().to_string())
}

/// The entries of `text`, and one of its own name for each source that no entry names.
fn choose(text: &str, sources: &[String]) -> anyhow::Result<Vec<Variant>> {
    let file: File = toml::from_str(text)?;
    let mut variants = BTreeMap::new();
    let mut add = |variant: Variant| -> anyhow::Result<()> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if variant.name.is_empty() || !variant.name.chars().all(is_plain) {
            bail!("the name {:?} is not made of letters, digits and _", variant.name);
        }
        if !sources.contains(&variant.source) {
            bail!("shader {}: there is no {}", variant.name, variant.source);
        }
        if let Some(old) = variants.insert(variant.name.clone(), variant) {
            bail!("two shaders are named {}", old.name);
        }
        Ok(())
    };
    for source in sources {
        if !file.shader.iter().any(|variant| variant.source == *source) {
            let name = source.trim_end_matches(".comp").to_owned();
            add(Variant { name, source: source.clone(), ..Variant::default() })?;
        }
    }
    for entry in &file.shader {
        file.shaders(entry)?.into_iter().try_for_each(&mut add)?;
    }
    Ok(variants.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Vec<String> {
        vec!["matvec.comp".to_owned(), "norm.comp".to_owned()]
    }

    #[test]
    fn entries_replace_the_plain_shader_of_their_source() {
        let text = r#"
            [[shader]]
            name = "matvec_q8_0"
            source = "matvec.comp"
            defines = ["FORMAT=FORMAT_Q8_0", "WIDE"]
            target = "1.3"
        "#;
        let variants = choose(text, &sources()).unwrap();
        let names: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["matvec_q8_0", "norm"]);
        assert_eq!(variants[0].target, Target::Vulkan13);
        assert_eq!(variants[1].target, Target::Vulkan12);
    }

    #[test]
    fn an_entry_with_formats_is_a_shader_for_each() {
        let text = r#"
            formats = { float = ["f16"], block = ["q8_0", "q4_k"] }
            [[shader]]
            name = "matvec"
            source = "matvec.comp"
            formats = ["float", "block"]
            defines = ["WIDE"]
        "#;
        let variants = choose(text, &sources()).unwrap();
        let names: Vec<_> = variants.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["matvec_f16", "matvec_q4_k", "matvec_q8_0", "norm"]);
        assert_eq!(variants[1].defines, ["FORMAT=q4_k", "WIDE"]);
        let error = choose(&text.replace("\"float\",", "\"none\","), &sources()).unwrap_err();
        assert!(error.to_string().contains("no formats none"), "{error}");
    }

    #[test]
    fn wrong_entries_are_refused() {
        let entry = |name: &str, source: &str, more: &str| {
            format!("[[shader]]\nname = \"{name}\"\nsource = \"{source}\"\n{more}\n")
        };
        for (text, expected) in [
            (entry("../x", "norm.comp", ""), "letters"),
            (entry("x", "y.comp", ""), "there is no y.comp"),
            (entry("matvec", "norm.comp", ""), "two shaders"),
            (entry("x", "norm.comp", "target = \"1.1\""), "unknown variant"),
            (entry("x", "norm.comp", "define = []"), "unknown field"),
        ] {
            let error = choose(&text, &sources()).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }
}
