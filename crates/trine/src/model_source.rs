//! From what was typed to a model: a path, a fetched model's name, or the embedded model.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use trine_hub::{Hub, HubConfig, HubError, LocalModel, ModelName};
use trine_model::Model;
use trine_weights::{Checkpoint, DType};

use crate::embedded::Embedded;
use crate::output;

/// A model that exists.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// One inside this program.
    Embedded(Embedded),
    /// A file or folder.
    Path(PathBuf),
    /// A model of the store.
    Local(Box<LocalModel>),
}

/// What the first of two possible arguments of `run` is.
#[derive(Debug)]
pub(crate) enum ModelOrPrompt {
    /// A model.
    Model(Source),
    /// A prompt for the embedded model.
    Prompt(String),
}

impl Source {
    /// What runs when no model is asked for.
    pub(crate) const DEMO: Self = Source::Embedded(Embedded::Demo);

    /// The model of an argument; the embedded one for none.
    ///
    /// # Errors
    /// If there is no such model; the message says where it was looked for.
    pub(crate) fn find(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else { return Ok(Source::DEMO) };
        match lookup(text)? {
            Some(source) => Ok(source),
            None => Err(not_found(text)),
        }
    }

    /// Name for people and reports.
    pub(crate) fn name(&self) -> String {
        match self {
            Source::Embedded(model) => model.name().to_owned(),
            Source::Path(path) => path.display().to_string(),
            Source::Local(model) => model.name.to_string(),
        }
    }

    /// Size of its files in bytes; 0 where the system does not tell.
    pub(crate) fn file_bytes(&self) -> u64 {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        match self {
            Source::Embedded(model) => model.bytes().len() as u64,
            Source::Local(model) => model.bytes,
            Source::Path(path) if path.is_dir() => {
                let files = std::fs::read_dir(path).into_iter().flatten().flatten();
                files.map(|file| size(&file.path())).sum()
            }
            Source::Path(path) => size(path),
        }
    }

    /// Opens the files without understanding them as a model.
    ///
    /// # Errors
    /// If they are damaged or of an unknown format.
    pub(crate) fn open_checkpoint(&self) -> Result<Checkpoint> {
        match self {
            Source::Embedded(model) => Ok(Checkpoint::from_static(model.bytes())?),
            Source::Path(path) => Ok(Checkpoint::open(path)?),
            Source::Local(model) => Checkpoint::open(&model.path).with_context(|| {
                format!(
                    "{} is damaged; remove it with `trine rm {0}` and pull it again",
                    model.name
                )
            }),
        }
    }

    /// Opens the model, its float matrices quantised if asked for.
    ///
    /// # Errors
    /// If the files are damaged or hold no model that trine can run.
    pub(crate) fn open(&self, quantize: Option<DType>) -> Result<Model> {
        let model = Model::from_checkpoint(self.open_checkpoint()?)
            .with_context(|| format!("{} cannot be run", self.name()))?;
        Ok(match quantize {
            None => model,
            Some(dtype) => model.quantized(dtype),
        })
    }
}

/// Decides what a lone argument of `run` is.
///
/// # Errors
/// If it can only be a model, and there is none.
pub(crate) fn model_or_prompt(text: &str) -> Result<ModelOrPrompt> {
    match lookup(text)? {
        Some(source) => Ok(ModelOrPrompt::Model(source)),
        None if looks_like_path(text) => Err(not_found(text)),
        None => Ok(ModelOrPrompt::Prompt(text.to_owned())),
    }
}

fn lookup(text: &str) -> Result<Option<Source>> {
    if let Some(model) = Embedded::find(text) {
        return Ok(Some(Source::Embedded(model)));
    }
    let path = Path::new(text);
    if !text.is_empty() && path.exists() {
        return Ok(Some(Source::Path(path.to_owned())));
    }
    if text.contains(char::is_whitespace) || path.is_absolute() || text.starts_with(['.', '~']) {
        return Ok(None);
    }
    let Ok(name) = ModelName::parse(text) else { return Ok(None) };
    match hub()?.resolve(&name)? {
        Some(model) => Ok(Some(Source::Local(Box::new(model)))),
        None => Err(not_local(text, &name)),
    }
}

/// Whether a text is meant as a path though nothing is there.
fn looks_like_path(text: &str) -> bool {
    let has_known_end = [".gguf", ".safetensors", ".bin", ".json"]
        .iter()
        .any(|end| text.to_ascii_lowercase().ends_with(end));
    let has_path_start =
        ["./", "../", "/", "~/", ".\\", "..\\"].iter().any(|start| text.starts_with(start));
    let is_one_word = !text.contains(char::is_whitespace);
    has_known_end || is_one_word && (has_path_start || text.contains(['/', '\\']))
}

/// The message for a name that could be in the store and is not.
fn not_local(text: &str, name: &ModelName) -> anyhow::Error {
    let close = close_paths(Path::new(text));
    let close = match close.is_empty() {
        true => String::new(),
        false => format!(" (close: {})", close.join(", ")),
    };
    let local = local_names();
    let local = if local.is_empty() { "none yet".to_owned() } else { local.join(", ") };
    anyhow!(
        "there is no file or folder {text}{close}, and no model of that name on this machine. \
         Fetch it with `trine pull {name}`, or choose one that is here: {local}"
    )
}

fn not_found(text: &str) -> anyhow::Error {
    let path = Path::new(text);
    let mut message = format!("there is no model {text}: no such file or folder");
    let close = close_paths(path);
    if !close.is_empty() {
        message.push_str(&format!(". Did you mean {}?", close.join(" or ")));
    } else if let Some(folder) =
        path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
    {
        message.push_str(&format!(" (the folder {} does not exist either)", folder.display()));
    }
    message.push_str(
        ". A model is a .gguf file, a folder with config.json, a fetched model's name (owner/repo, see `trine list`) \
         or demo; a prompt for the embedded model is given as: trine run demo \"...\"",
    );
    anyhow!(message)
}

/// Neighbours in the path's folder with a similar name.
fn close_paths(path: &Path) -> Vec<String> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let (Some(name), Ok(entries)) = (path.file_name(), std::fs::read_dir(folder)) else {
        return Vec::new();
    };
    let names: Vec<String> = entries
        .flatten()
        .take(4096)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    let close = output::close_names(&name.to_string_lossy(), names.iter().map(String::as_str));
    close.into_iter().map(|name| path.with_file_name(name).display().to_string()).collect()
}

/// The hub with its settings from the environment.
///
/// # Errors
/// If a setting cannot be used; the message names it.
pub(crate) fn hub() -> Result<Hub, HubError> {
    Hub::new(HubConfig::from_env()?)
}

/// Names of the complete local models, for messages.
fn local_names() -> Vec<String> {
    let entries = hub().and_then(|hub| hub.list()).unwrap_or_default();
    let complete = entries.iter().filter(|entry| entry.state == trine_hub::EntryState::Complete);
    complete.take(20).map(|entry| entry.name.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_path() {
        for path in ["./x", "/x y/z.gguf", "model.gguf", "a/b", "my model.GGUF", "~/m", "..\\m"] {
            assert!(looks_like_path(path), "{path}");
        }
        for prompt in ["Once upon a time", "hello", "why? and/or how", "", "tell me about a.b"] {
            assert!(!looks_like_path(prompt), "{prompt}");
        }
    }

    #[test]
    fn lone_arguments() {
        assert!(matches!(
            model_or_prompt("demo").unwrap(),
            ModelOrPrompt::Model(Source::Embedded(_))
        ));
        assert!(matches!(model_or_prompt("Once upon").unwrap(), ModelOrPrompt::Prompt(_)));
        assert!(matches!(model_or_prompt("src").unwrap(), ModelOrPrompt::Model(Source::Path(_))));
        let error = model_or_prompt("src/mian.rs.gguf").unwrap_err().to_string();
        assert!(error.contains("src/mian.rs.gguf"), "{error}");
    }

    #[test]
    fn close_paths_are_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gemma.gguf"), "x").unwrap();
        let wrong = folder.path().join("gema.gguf");
        let error = Source::find(Some(wrong.to_str().unwrap())).unwrap_err().to_string();
        assert!(error.contains("Did you mean") && error.contains("gemma.gguf"), "{error}");
        let error = Source::find(Some("/no/such/folder/m.gguf")).unwrap_err().to_string();
        assert!(error.contains("the folder /no/such/folder does not exist"), "{error}");
    }
}
