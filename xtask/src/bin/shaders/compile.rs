//! GLSL to SPIR-V with glslang.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use glslang::error::GlslangError;
use glslang::include::{IncludeHandler, IncludeResult, IncludeType};
use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderMessage, ShaderSource, ShaderStage,
    SourceLanguage, SpirvVersion, VulkanVersion,
};

use crate::inline::inline;
use crate::variants::{Target, Variant};

/// The compiler as the manifest names it: the version that the workspace's `Cargo.toml` pins.
pub(crate) const COMPILER: &str = "glslang 0.9.1";

/// Files may include each other this deep, so that a file that includes itself comes to an end.
const DEPTH_MAX: usize = 16;

/// A shader as compiled.
pub(crate) struct Compiled {
    pub(crate) words: Vec<u32>,
    /// The files that it was made of, the shader first, then each included one: (path from the
    /// folder, text).
    pub(crate) sources: Vec<(String, String)>,
}

/// Compiles a shader; errors name file and line.
pub(crate) fn compile(folder: &Path, variant: &Variant) -> anyhow::Result<Compiled> {
    let path = folder.join(&variant.source);
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    if text.contains('\0') {
        bail!("{} holds a zero byte", path.display());
    }
    let source = ShaderSource::from(text.as_str());
    let format = variant.defines.iter().find_map(|define| define.strip_prefix("FORMAT="));
    let mut includes = Includes {
        folder: folder.to_owned(),
        format: format.unwrap_or("FORMAT").to_owned(),
        read: vec![(variant.source.clone(), text)],
        failures: Vec::new(),
    };
    let result = translate(&source, &preamble(&variant.defines), variant.target, &mut includes);
    match result {
        Ok(words) => {
            let words = if variant.inline { inline(&words)? } else { words };
            Ok(Compiled { words, sources: includes.read })
        }
        Err(error) => {
            let mut message = includes.failures;
            message.extend(readable(&error, folder, &variant.source));
            Err(anyhow!("does not compile:\n{}", message.join("\n")))
        }
    }
}

fn translate(
    source: &ShaderSource,
    preamble: &str,
    target: Target,
    includes: &mut Includes,
) -> Result<Vec<u32>, GlslangError> {
    let (version, spirv_version) = match target {
        Target::Vulkan12 => (VulkanVersion::Vulkan1_2, SpirvVersion::SPIRV1_5),
        Target::Vulkan13 => (VulkanVersion::Vulkan1_3, SpirvVersion::SPIRV1_6),
    };
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: glslang::Target::Vulkan { version, spirv_version },
        version_profile: None,
        messages: ShaderMessage::SPV_RULES | ShaderMessage::VULKAN_RULES,
    };
    let compiler = Compiler::acquire().expect("glslang starts whenever its memory can be had");
    let no_defines = None::<&[(&str, Option<&str>)]>;
    let input =
        ShaderInput::new(source, ShaderStage::Compute, &options, no_defines, Some(includes))?;
    let mut builder = glslang::Shader::new(compiler, input);
    if !preamble.is_empty() {
        builder.preamble(preamble);
    }
    builder.parse()?.compile()
}

/// The macros as text before the shader's, in their order: the compiler's own table of them has
/// none.
fn preamble(defines: &[String]) -> String {
    let line = |define: &String| {
        let (name, value) = define.split_once('=').unwrap_or((define, "1"));
        format!("#define {name} {value}\n")
    };
    defines.iter().map(line).collect()
}

/// The compiler's log without empty lines; it calls the shader itself `0`.
fn readable(error: &GlslangError, folder: &Path, source: &str) -> Vec<String> {
    let text = match error {
        GlslangError::PreprocessError(log)
        | GlslangError::ParseError(log)
        | GlslangError::LinkError(log) => format!("{}{}", log.log, log.debug_log),
        other => other.to_string(),
    };
    let name = |line: &str| {
        let line = line.trim_end().replacen(": 0:", &format!(": {source}:"), 1);
        line.replacen(": ", &format!(": {}/", folder.display()), usize::from(is_located(&line)))
    };
    text.lines().filter(|line| !line.trim().is_empty()).map(name).collect()
}

/// Whether a line of the log begins `ERROR: file:line:`.
fn is_located(line: &str) -> bool {
    let mut parts = line.splitn(4, ':').skip(1);
    parts.next().is_some_and(|file| file.contains('.'))
        && parts.next().is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Finds included files beside the including one, then from the shader's folder.
struct Includes {
    folder: PathBuf,
    /// What `FORMAT` stands for in the path of an included file.
    format: String,
    read: Vec<(String, String)>,
    failures: Vec<String>,
}

impl Includes {
    fn find(
        &mut self,
        header: &str,
        includer: &str,
        depth: usize,
    ) -> anyhow::Result<IncludeResult> {
        if depth > DEPTH_MAX {
            bail!("files include each other more than {DEPTH_MAX} deep");
        }
        let header = &header.replace("FORMAT", &self.format);
        let beside = Path::new(includer).parent().unwrap_or(Path::new("")).join(header);
        for relative in [beside.as_path(), Path::new(header)] {
            let path = self.folder.join(relative);
            if !path.is_file() {
                continue;
            }
            let data = std::fs::read_to_string(&path)?;
            if data.contains('\0') {
                bail!("it holds a zero byte");
            }
            let name = relative.to_string_lossy().replace('\\', "/");
            if !self.read.iter().any(|(known, _)| *known == name) {
                self.read.push((name.clone(), data.clone()));
            }
            return Ok(IncludeResult { name, data });
        }
        bail!("not found from {}", self.folder.display())
    }
}

impl IncludeHandler for Includes {
    fn include(
        &mut self,
        _: IncludeType,
        header: &str,
        includer: &str,
        depth: usize,
    ) -> Option<IncludeResult> {
        match self.find(header, includer, depth) {
            Ok(result) => Some(result),
            Err(error) => {
                let failure = format!("#include \"{header}\": {error:#}");
                if !self.failures.contains(&failure) {
                    self.failures.push(failure);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(files: &[(&str, &str)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("include")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let variant = Variant {
            name: "shader".to_owned(),
            source: "shader.comp".to_owned(),
            defines: vec!["ONE".to_owned()],
            ..Variant::default()
        };
        let error = compile(folder.path(), &variant).err().expect("it cannot compile");
        error.to_string().replace(&folder.path().display().to_string(), "FOLDER")
    }

    const HEAD: &str = "#version 460\n#extension GL_GOOGLE_include_directive : require\n";

    #[test]
    fn errors_name_the_file_and_the_line() {
        let shader = format!("{HEAD}void main() {{\n    int x = ONE + missing;\n}}\n");
        let error = error_of(&[("shader.comp", &shader)]);
        assert!(error.contains("FOLDER/shader.comp:4: 'missing'"), "{error}");

        let shader = format!("{HEAD}#include \"include/a.glsl\"\nvoid main() {{}}\n");
        let error = error_of(&[("shader.comp", &shader), ("include/a.glsl", "\nint x = y;\n")]);
        assert!(error.contains("FOLDER/include/a.glsl:2: 'y'"), "{error}");
    }

    #[test]
    fn includes_that_do_not_end_or_do_not_exist_are_errors() {
        let shader = format!("{HEAD}#include \"include/a.glsl\"\nvoid main() {{}}\n");
        let error = error_of(&[("shader.comp", &shader)]);
        assert!(error.contains("#include \"include/a.glsl\": not found"), "{error}");

        let itself = "#include \"a.glsl\"\n";
        let error = error_of(&[("shader.comp", &shader), ("include/a.glsl", itself)]);
        assert!(error.contains("16 deep"), "{error}");
    }
}
