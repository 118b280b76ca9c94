//! Finds the model for what was typed, for every command ([decision 012]).
//!
//! A name means, in this order: an embedded model, a path that exists, a preset, a repository in
//! the store, a name of the catalogue, and the last part of a name in the store. What stands in the
//! working directory under a word without a separator comes last unless it is a model by its ending
//! or by what the folder holds: a folder called `gemma4` hides nothing. A model that is
//! known but not on this machine is [`Resolved::Missing`], so that it can be fetched. A word that
//! could only be a model's name is never taken for a prompt.
//!
//! [decision 012]: ../../../../docs/decisions/012-models-on-this-machine.md

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use trine_hub::catalog::{self, Known, Refused};
use trine_hub::{Hub, Inventory, LocalModel, ModelName, Preset};
use trine_model::{Assistant, Model};
use trine_weights::{Checkpoint, DType};

use crate::failure::{Negative, usage};
use crate::finding::embedded::Embedded;
use crate::finding::fetch::Download;
use crate::finding::model_path::{
    close_paths, existing_path, has_file_end, is_bare, is_meant_as_file, is_plainly_a_path,
    looks_like_path, tell_path,
};
use crate::finding::suiting::Suited;
use crate::library::ModelLibrary;
use crate::{finding::fetch, words};

/// A model that exists.
#[derive(Debug, Clone)]
pub enum Source {
    /// A model inside this program.
    Embedded(Embedded),
    /// A file or folder.
    Path(PathBuf),
    /// A model of the store.
    Local(Box<LocalModel>),
}

/// A model that exists, together with the preset if a preset was named.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// The model.
    pub source: Source,
    /// The preset, merged with the presets that it is based on.
    pub preset: Option<Box<Preset>>,
}

/// A model that is known but not on this machine.
#[derive(Debug, Clone)]
pub struct Missing {
    /// The name that was typed, or the name of the model that the preset is based on.
    pub typed: String,
    /// The repository that the name means.
    pub name: ModelName,
    /// The approximate size in bytes, if the catalogue has it.
    pub bytes: Option<u64>,
    /// The preset that is based on the model.
    pub preset: Option<Box<Preset>>,
}

/// What a name means.
#[derive(Debug, Clone)]
pub enum Resolved {
    /// A model on this machine.
    Here(Chosen),
    /// A model that can be fetched.
    Missing(Missing),
    /// The name is not known.
    Unknown,
}

/// The meaning of the first of two possible arguments of `run`.
#[derive(Debug)]
pub enum ModelOrPrompt {
    /// A model.
    Model(Chosen),
    /// A prompt for the default model.
    Prompt(String),
}

impl Source {
    /// The demonstration model inside this program.
    pub const DEMO: Self = Source::Embedded(Embedded::Demo);
    /// Its draft model.
    pub const DEMO_DRAFT: Self = Source::Embedded(Embedded::Draft);

    /// Returns the name for people and reports, by which it can be asked for again: the short one
    /// if the catalogue has it.
    pub fn name(&self) -> String {
        match self {
            Source::Embedded(model) => model.name().to_owned(),
            Source::Path(path) => path.display().to_string(),
            Source::Local(model) => model.short.clone(),
        }
    }

    /// Returns the name that a preset based on this model keeps; it means the same from every
    /// folder, and with every catalogue.
    pub fn lasting_name(&self) -> String {
        match self {
            Source::Path(path) => {
                path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string()
            }
            Source::Local(model) => model.name.to_string(),
            Source::Embedded(_) => self.name(),
        }
    }

    /// Returns the size of the model's files in bytes; 0 if the system does not report it.
    pub fn file_bytes(&self) -> u64 {
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

    /// Opens the files without interpreting them as a model.
    ///
    /// # Errors
    /// Returns an error if the files are damaged or of an unknown format.
    pub fn open_checkpoint(&self) -> Result<Checkpoint> {
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

    /// Opens the model that guesses from the caches of another one, if it is one.
    ///
    /// # Errors
    /// Returns an error if the files are damaged.
    pub fn open_assistant(&self) -> Result<Option<Assistant>> {
        let checkpoint = self.open_checkpoint()?;
        if !Assistant::is_in(&checkpoint) {
            return Ok(None);
        }
        let opened = Assistant::from_checkpoint(checkpoint);
        opened.map(Some).with_context(|| format!("{} cannot guess", self.name()))
    }

    /// Opens the model and quantises its float matrices if `quantize` is given.
    ///
    /// # Errors
    /// Returns an error if the files are damaged or hold no model that trine can run.
    pub fn open(&self, quantize: Option<DType>) -> Result<Model> {
        let checkpoint = self.open_checkpoint()?;
        if Assistant::is_in(&checkpoint) {
            bail!(
                "{0} is no model of its own: it guesses for another one; name that one, with \
                 --draft {0}",
                words::harmless(&self.name())
            );
        }
        let model = Model::from_checkpoint(checkpoint).map_err(|error| {
            let names_itself = error.to_string().starts_with(&self.name());
            let error = anyhow::Error::from(error);
            match names_itself {
                true => error,
                false => error.context(format!("{} cannot be run", self.name())),
            }
        })?;
        Ok(match quantize {
            None => model,
            Some(dtype) => model.quantized(dtype),
        })
    }
}

/// Returns the model that an argument names; without an argument the library's own, else the
/// embedded one. A model that is not on this machine is fetched as `download` says.
///
/// # Errors
/// Returns an error if there is no such model, or it is not fetched; the message says what to do.
pub fn find(library: &ModelLibrary, typed: Option<&str>, download: Download) -> Result<Chosen> {
    let Some(typed) = typed.or(library.model.as_deref()) else {
        return Ok(Chosen { source: Source::DEMO, preset: None });
    };
    match resolve(library, typed)? {
        Resolved::Here(chosen) => Ok(chosen),
        Resolved::Missing(missing) => obtain(library, missing, download),
        Resolved::Unknown => Err(not_found(library, typed)),
    }
}

/// Returns the model that a chat is to go on with. One that is not on this machine is downloaded if
/// `may_download`, because a chat has no other place for the question.
///
/// # Errors
/// Returns an error if there is no such model, or [`Negative`] after a note if it has to be asked
/// for again.
pub fn find_for_chat(library: &ModelLibrary, typed: &str, may_download: bool) -> Result<Chosen> {
    let missing = match resolve(library, typed)? {
        Resolved::Here(chosen) => return Ok(chosen),
        Resolved::Unknown => return Err(not_found(library, typed)),
        Resolved::Missing(missing) => missing,
    };
    if may_download {
        return obtain(library, missing, Download::Always);
    }
    let size =
        missing.bytes.map_or(String::new(), |bytes| format!(", {}", words::about_bytes(bytes)));
    let misfit = missing.bytes.and_then(|bytes| fetch::misfit(library, &missing.name, bytes));
    let misfit = misfit.map_or(String::new(), |misfit| format!(" {misfit}"));
    library.note(format!(
        "{typed} is not on this machine.{misfit} Repeat /model {typed} to download it{size}"
    ));
    Err(Negative.into())
}

/// Decides whether the only argument of `run` is a model or a prompt.
///
/// # Errors
/// Returns an error if it can only be a model, and there is no such model.
pub fn model_or_prompt(
    library: &ModelLibrary,
    typed: &str,
    download: Download,
) -> Result<ModelOrPrompt> {
    let chosen = match resolve(library, typed)? {
        Resolved::Here(chosen) => chosen,
        Resolved::Missing(missing) => obtain(library, missing, download)?,
        Resolved::Unknown if looks_like_path(typed) || looks_like_name(typed) => {
            let hint =
                format!("; a prompt of one word is given after a model: trine run demo {typed:?}");
            return Err(anyhow!("{}{hint}", not_found(library, typed)));
        }
        Resolved::Unknown => return Ok(ModelOrPrompt::Prompt(typed.to_owned())),
    };
    Ok(ModelOrPrompt::Model(chosen))
}

/// Resolves a name on this machine. Opens no connection.
///
/// # Errors
/// Returns an error if the name means several models, one that cannot be run or read, or a damaged
/// preset.
pub fn resolve(library: &ModelLibrary, typed: &str) -> Result<Resolved> {
    if let Some(model) = Embedded::find(typed) {
        return Ok(here(Source::Embedded(model)));
    }
    let may_be_both = can_be_name(typed) && !is_plainly_a_path(typed);
    if may_be_both && Path::new(typed).exists() {
        let named = resolve_name(library, typed)?;
        if !matches!(named, Resolved::Unknown) {
            return Ok(named);
        }
    }
    if let Some(source) = existing_path(typed)? {
        if can_be_name(typed) && is_bare(typed) && !has_file_end(typed) {
            tell_path(library, typed);
        }
        return Ok(here(Source::Path(source)));
    }
    match can_be_name(typed) {
        true => resolve_name(library, typed),
        false => Ok(Resolved::Unknown),
    }
}

/// Resolves a name that is no path.
fn resolve_name(library: &ModelLibrary, typed: &str) -> Result<Resolved> {
    let hub = library.hub()?;
    let Some(preset) = hub.whole_preset(typed)? else {
        return resolve_model(library, &hub.inventory(), typed);
    };
    let base =
        base_of(library, &hub, &preset).with_context(|| format!("the preset {}", preset.name))?;
    match base {
        Resolved::Here(chosen) => {
            Ok(Resolved::Here(Chosen { preset: Some(Box::new(preset)), ..chosen }))
        }
        Resolved::Missing(missing) => {
            Ok(Resolved::Missing(Missing { preset: Some(Box::new(preset)), ..missing }))
        }
        Resolved::Unknown => bail!(
            "the preset {} stands on {}, which is not there any more; create it again from another \
             model, or remove it with `trine rm {0}`",
            preset.name,
            preset.from
        ),
    }
}

/// Resolves the model that a preset is based on.
fn base_of(library: &ModelLibrary, hub: &Hub, preset: &Preset) -> Result<Resolved> {
    if let Some(model) = Embedded::find(&preset.from) {
        return Ok(here(Source::Embedded(model)));
    }
    match existing_path(&preset.from)? {
        Some(path) => Ok(here(Source::Path(path))),
        None => resolve_model(library, &hub.inventory(), &preset.from),
    }
}

/// Returns the repository that a name means, for commands that fetch and remove models. The model
/// may be on this machine or not.
///
/// # Errors
/// Returns an error if the name can mean no model.
pub fn repository(library: &ModelLibrary, all: &Inventory<'_>, typed: &str) -> Result<ModelName> {
    if Embedded::find(typed).is_some() {
        return Err(usage(format!(
            "{typed} is a model inside this program; there is nothing to download or remove"
        )));
    }
    match catalog::find(typed) {
        Some(Known::Model(entry)) => return Ok(entry.model()),
        Some(Known::Refused(refused)) if all.short_name(typed)?.is_none() => {
            return Err(refusal(library, typed, &refused));
        }
        _ => {}
    }
    match ModelName::parse(typed) {
        // The user may have typed the name of a local model with other upper and lower case.
        Ok(name) if matches!(all.show(&name), Ok(Some(_))) => Ok(name),
        Ok(name) => match (all.short_name(typed)?, catalog::other_family(&name)) {
            (Some(local), _) => Ok(local),
            (None, Some(refused)) => Err(refusal(library, typed, &refused)),
            (None, None) => Ok(name),
        },
        Err(error) => match all.short_name(typed)? {
            Some(name) => Ok(name),
            None if looks_like_name(typed) && !looks_like_path(typed) => {
                Err(not_found(library, typed))
            }
            None => Err(usage(error.to_string())),
        },
    }
}

/// Resolves a name that is neither a path nor the name of a preset.
///
/// # Errors
/// Returns an error if the name means several models, or one that cannot be run.
pub fn resolve_model(library: &ModelLibrary, all: &Inventory<'_>, typed: &str) -> Result<Resolved> {
    let parsed = ModelName::parse(typed).ok();
    if let Some(name) = &parsed
        && let Some(model) = all.resolve(name)?
    {
        return Ok(here(Source::Local(Box::new(model))));
    }
    let known = catalog::find(typed);
    if let Some(Known::Model(entry)) = known {
        let name = entry.model();
        let found = match all.resolve(&name)? {
            Some(model) => Some(model),
            None => all.neighbour(entry)?,
        };
        return Ok(match found {
            Some(model) => here(Source::Local(Box::new(model))),
            None => missing(typed, name, Some(entry.bytes)),
        });
    }
    if let Some(name) = all.short_name(typed)? {
        return Ok(match all.resolve(&name)? {
            Some(model) => here(Source::Local(Box::new(model))),
            // The download of this model was interrupted.
            None => missing(typed, name, None),
        });
    }
    if let Some(Known::Refused(refused)) = known {
        return Err(refusal(library, typed, &refused));
    }
    Ok(match parsed {
        Some(name) if !is_meant_as_file(typed) => {
            if let Some(refused) = catalog::other_family(&name) {
                return Err(refusal(library, typed, &refused));
            }
            missing(typed, name, None)
        }
        _ => Resolved::Unknown,
    })
}

/// Returns the error for a model that trine does not run.
fn refusal(library: &ModelLibrary, typed: &str, refused: &Refused) -> anyhow::Error {
    let reason = refused.reason(Suited::unmeasured(library).best());
    anyhow!("{} does not run here: {reason}", words::harmless(typed))
}

fn here(source: Source) -> Resolved {
    Resolved::Here(Chosen { source, preset: None })
}

fn missing(typed: &str, name: ModelName, bytes: Option<u64>) -> Resolved {
    Resolved::Missing(Missing { typed: typed.to_owned(), name, bytes, preset: None })
}

/// Fetches a model that is not on this machine, if that is wanted.
fn obtain(library: &ModelLibrary, missing: Missing, download: Download) -> Result<Chosen> {
    let Missing { typed, name, bytes, preset } = missing;
    let hub = library.hub()?;
    match download {
        Download::Always => {}
        Download::Ask if library.callbacks.can_ask() => {
            fetch::ask(library, &hub, &typed, &name, bytes)?;
        }
        Download::Ask | Download::Never => {
            return Err(not_here(library, &hub, &typed, &name, bytes));
        }
    }
    let model = fetch::fetch(library, &hub, &name)?;
    Ok(Chosen { source: Source::Local(Box::new(model)), preset })
}

/// Returns whether a text can be anything but a path or a prompt.
fn can_be_name(typed: &str) -> bool {
    !(typed.is_empty()
        || typed.contains(char::is_whitespace)
        || Path::new(typed).is_absolute()
        || typed.starts_with(['.', '~']))
}

/// Returns whether a text is one word made of the characters of model names.
fn looks_like_name(typed: &str) -> bool {
    let is_part =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':' | '/' | '@');
    typed.chars().all(is_part) && typed.contains(|c: char| c.is_ascii_alphanumeric())
}

/// Returns the error for a model that could be fetched if there were a terminal to ask on.
fn not_here(
    library: &ModelLibrary,
    hub: &Hub,
    typed: &str,
    name: &ModelName,
    bytes: Option<u64>,
) -> anyhow::Error {
    let full = name.to_string();
    let size = bytes.map(words::about_bytes);
    let facts: Vec<String> =
        (full != typed).then(|| full.clone()).into_iter().chain(size).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
    let local = library.local_names();
    let local = match local.is_empty() {
        true => String::new(),
        false => format!(". On this machine: {}", local.join(", ")),
    };
    if let Some(share) = fetch::share_here(hub, name) {
        return anyhow!(
            "{typed} is here {share}{facts}. Its download goes on with `trine pull {typed}`, or in \
             this command with --yes{local}"
        );
    }
    anyhow!(
        "{typed} is not on this machine{facts}. Download it with `trine pull {typed}`, or let this \
         command download it with --yes{local}"
    )
}

/// Returns the error for a name that means no model.
fn not_found(library: &ModelLibrary, typed: &str) -> anyhow::Error {
    let path = Path::new(typed);
    let is_path = looks_like_path(typed);
    let mut close = close_paths(path);
    if !is_path || close.is_empty() {
        close.extend(close_models(library, typed));
    }
    close.truncate(5);
    let mut message = format!("there is no model {typed}");
    if is_path {
        message.push_str(": no such file or folder");
    }
    if let Some((last, others)) = close.split_last() {
        let others = others.join(", ");
        let or = if others.is_empty() { "" } else { " or " };
        message.push_str(&format!(
            ". Did you mean {others}{or}{last}? `trine list` and `trine search` show all names"
        ));
        return anyhow!(message);
    }
    if let Some(folder) =
        path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
    {
        message.push_str(&format!(" (the folder {} does not exist either).", folder.display()));
    } else {
        message.push('.');
    }
    message.push_str(
        " A model is a .gguf file, a folder with config.json, or a name: `trine list` shows those \
         of this machine, `trine search` those that can be downloaded, and owner/repo names any \
         repository of Hugging Face",
    );
    anyhow!(message)
}

/// Returns names of models that are spelled nearly like this one.
fn close_models(library: &ModelLibrary, typed: &str) -> Vec<String> {
    let mut close = catalog::close(typed);
    let mut names: Vec<String> =
        Embedded::ALL.into_iter().map(|model| model.name().to_owned()).collect();
    if let Ok(hub) = library.hub() {
        names.extend(hub.preset_names().unwrap_or_default());
        names.extend(hub.short_names());
    }
    names.extend(library.local_names());
    let local = words::close_names(typed, names.iter().map(String::as_str));
    // Names of models on this machine come first.
    let mut all: Vec<String> = local.into_iter().map(str::to_owned).collect();
    close.retain(|name| !all.contains(name));
    all.extend(close);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lone(typed: &str) -> Result<ModelOrPrompt> {
        model_or_prompt(&ModelLibrary::default(), typed, Download::Never)
    }

    #[test]
    fn lone_arguments() {
        assert!(matches!(
            lone("demo").unwrap(),
            ModelOrPrompt::Model(Chosen { source: Source::Embedded(_), preset: None })
        ));
        for prompt in ["Once upon", "Hello!", "why?", "Привет", "...", ""] {
            assert!(matches!(lone(prompt).unwrap(), ModelOrPrompt::Prompt(_)), "{prompt}");
        }
        assert!(matches!(
            lone("src").unwrap(),
            ModelOrPrompt::Model(Chosen { source: Source::Path(_), .. })
        ));
        let error = lone("src/mian.rs.gguf").unwrap_err().to_string();
        assert!(error.contains("src/mian.rs.gguf"), "{error}");
    }

    fn look(typed: Option<&str>) -> Result<Chosen> {
        find(&ModelLibrary::default(), typed, Download::Never)
    }

    #[test]
    fn close_paths_are_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("gemma.gguf"), "x").unwrap();
        let wrong = folder.path().join("gema.gguf");
        let error = look(wrong.to_str()).unwrap_err().to_string();
        assert!(error.contains("Did you mean") && error.contains("gemma.gguf?"), "{error}");
        assert!(!error.contains("?."), "{error}");
        // A file that is not a model is never suggested.
        for (other, wrong) in [("readme", "raedme"), ("ab", "-"), ("abcd", "abc")] {
            std::fs::create_dir(folder.path().join(other)).unwrap();
            let error = look(folder.path().join(wrong).to_str()).unwrap_err().to_string();
            assert!(!error.contains(&format!("{other}?")), "{error}");
        }
        let error = look(Some("gemma-3-4b-it")).unwrap_err().to_string();
        assert!(error.contains("gemma3:4b"), "{error}");
        let error = look(Some("/no/such/folder/m.gguf")).unwrap_err().to_string();
        assert!(error.contains("the folder /no/such/folder does not exist"), "{error}");
    }

    /// The link exists, so a different spelling would not help.
    #[cfg(unix)]
    #[test]
    fn links_that_lead_nowhere_are_named_as_such() {
        let folder = tempfile::tempdir().unwrap();
        for (name, target) in [("loop.gguf", "loop.gguf"), ("gone.gguf", "nothing.gguf")] {
            let link = folder.path().join(name);
            std::os::unix::fs::symlink(folder.path().join(target), &link).unwrap();
            let error = look(link.to_str()).unwrap_err().to_string();
            assert!(error.contains("link that cannot be followed"), "{error}");
            assert!(!error.contains("Did you mean"), "{error}");
        }
    }
}
