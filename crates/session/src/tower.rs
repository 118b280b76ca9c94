//! The vision tower that goes with a model.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use trine_hub::Origin;
use trine_hub::catalog::{self, Known};
use trine_model::{Family, Model, ModelError, Pixels, Tower, TowerConfig, TowerKind};
use trine_pictures::Preparation;

use crate::finding::model_source::Source;
use crate::library::ModelLibrary;
use crate::seeing::{SEEING, other};
use crate::words;

/// The hidden sizes of the Gemma 3 that were made for texts: 270M and 1B.
const TEXT_SIZES: [usize; 2] = [640, 1152];

/// Returns why no file has a vision tower for models of a family and hidden size; `None` if one may
/// have.
pub fn why_never(family: Family, hidden: usize) -> Option<&'static str> {
    match family {
        Family::Gemma3 if TEXT_SIZES.contains(&hidden) => {
            Some("no vision tower was made for models of its size")
        }
        Family::Gemma3n(_) => Some("the vision towers of Gemma 3n are not run"),
        Family::Embedding(_) => Some("EmbeddingGemma reads texts only"),
        Family::Gemma3 | Family::Gemma4(_) => None,
    }
}

/// Which vision tower a model is given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TowerChoice {
    /// The one in its own files, or in an mmproj file that goes with them.
    #[default]
    Found,
    /// The one in this file.
    File(PathBuf),
    /// None.
    Off,
}

/// Returns the model with its vision tower.
///
/// # Errors
/// Returns an error if it has none, or none that can be used; the message says what to do.
pub fn attach(source: &Source, model: Model, choice: &TowerChoice) -> Result<Model> {
    find(source, &model, choice)?.with_context(|| none(source, &model, choice))
}

/// Returns the model with its vision tower if it has one. A tower that cannot be used costs the
/// model its pictures only, unless its file was typed. A warning tells it, or a line of the log if
/// trine does not run towers of its kind, once for each state of its files.
///
/// # Errors
/// Returns an error if the typed file cannot be used.
pub fn attach_if_any(
    library: &ModelLibrary,
    source: &Source,
    model: Model,
    choice: &TowerChoice,
) -> Result<Model> {
    let may_have = files(source, &model);
    let (model, refused) = attach_usable(source, model, choice)?;
    if let Some(error) = refused {
        let text = format!("{} reads no images: {error:#}", words::harmless(&source.name()));
        if is_news(library, &text, &may_have) {
            match is_of_another_kind(&error) {
                true => tracing::info!("{text}"),
                false => library.warn(text),
            }
        }
    }
    Ok(model)
}

/// Returns the model with the vision tower that is found for it, if there is one.
///
/// # Errors
/// Returns an error if there are some and none can be used.
pub fn attach_if_usable(source: &Source, model: Model) -> Result<Option<Model>> {
    find(source, &model, &TowerChoice::Found)
}

/// Does what [`attach_if_any`] does, but returns why a tower cannot be used instead of telling it.
fn attach_usable(
    source: &Source,
    model: Model,
    choice: &TowerChoice,
) -> Result<(Model, Option<anyhow::Error>)> {
    match find(source, &model, choice) {
        Ok(Some(model)) => Ok((model, None)),
        Ok(None) => Ok((model, None)),
        Err(error) if !matches!(choice, TowerChoice::File(_)) => Ok((model, Some(error))),
        Err(error) => Err(error),
    }
}

/// Returns whether trine does not run towers of the kind that an error is about.
fn is_of_another_kind(error: &anyhow::Error) -> bool {
    let is_other = |error: &ModelError| {
        let inner = match error {
            ModelError::InFile { error, .. } => error,
            error => error,
        };
        matches!(inner, ModelError::UnsupportedTower { .. })
    };
    error.chain().filter_map(|cause| cause.downcast_ref()).any(is_other)
}

/// Returns whether a text about files was not told while they were as they are now.
fn is_news(library: &ModelLibrary, text: &str, files: &[PathBuf]) -> bool {
    let state = |path: &PathBuf| {
        let facts = std::fs::metadata(path).ok();
        facts.map(|facts| (facts.len(), facts.modified().ok()))
    };
    library.is_news((text, files.iter().map(|path| (path, state(path))).collect::<Vec<_>>()))
}

/// Returns why a model has no vision tower, and what to do.
fn none(source: &Source, model: &Model, choice: &TowerChoice) -> String {
    let name = words::harmless(&source.name()).into_owned();
    if *choice == TowerChoice::Off {
        return format!("{name} reads no images with --no-mmproj; leave it out");
    }
    let other = other();
    if let Some(why) = why_never(model.config().family, model.config().hidden) {
        return format!("{name} reads no images: {why}; {other}");
    }
    let facts = format!(
        "{name} reads no images: there is no vision tower in its files and no mmproj file beside it"
    );
    match source {
        Source::Local(local) if pulled_tower(&local.short) => {
            format!("{facts}; `trine pull {name}` downloads one")
        }
        Source::Local(local) if local.origin == Origin::Store => format!(
            "{facts}; `trine pull {name}` downloads one if its repository has one, --mmproj FILE \
             names one; else {other}"
        ),
        Source::Embedded(_) => format!("{name} reads no images; {other}"),
        Source::Local(_) | Source::Path(_) => {
            format!("{facts}; name its mmproj file with --mmproj FILE, or {other}")
        }
    }
}

/// Returns what to do in a chat whose model reads no images.
pub fn other_in_chat(model: &str) -> String {
    let model = words::harmless(model);
    match pulled_tower(&model) {
        true => format!(
            "{model} reads no images here; leave with /exit, and `trine pull {model}` downloads \
             what reads them, unless the chat was started with --no-mmproj"
        ),
        false => format!(
            "{model} reads no images; /model {SEEING} goes on with a model that does, unless the \
             chat was started with --no-mmproj"
        ),
    }
}

/// Returns whether a pull of this name comes with a vision tower.
fn pulled_tower(name: &str) -> bool {
    matches!(catalog::find(name), Some(Known::Model(model)) if model.sees)
}

/// Returns a model with its vision tower, if it has one: the one in its own files, or in the first
/// mmproj file that fits, first the one that it was fetched with, then those beside it, by name.
///
/// # Errors
/// Returns an error if there are some and none can be used: what is wrong with the last one.
fn find(source: &Source, model: &Model, choice: &TowerChoice) -> Result<Option<Model>> {
    let name = || words::harmless(&source.name()).into_owned();
    match choice {
        TowerChoice::Off => return Ok(None),
        TowerChoice::File(path) => {
            // Its errors name the file.
            return open(path, model).map(Some).context("--mmproj");
        }
        TowerChoice::Found => {}
    }
    if Tower::is_in(model.checkpoint()) {
        let tower = Tower::from_checkpoint(source.open_checkpoint()?);
        let whole = tower.and_then(|tower| model.clone().with_tower(tower));
        let fail = || format!("the vision tower of {} cannot be used", name());
        return whole.map(Some).with_context(fail);
    }
    let mut last = Ok(None);
    for path in files(source, model) {
        match open(&path, model) {
            Ok(whole) => return Ok(Some(whole)),
            Err(error) => last = Err(error),
        }
    }
    last
}

/// Returns a model with the tower in a file.
///
/// # Errors
/// Returns an error if it cannot be opened, or was not made for the model.
fn open(path: &Path, model: &Model) -> Result<Model> {
    Ok(model.clone().with_tower(Tower::open(path)?)?)
}

/// Returns the mmproj files that may go with a model, each once.
fn files(source: &Source, model: &Model) -> Vec<PathBuf> {
    let own = match source {
        Source::Local(local) => local.mmproj.clone(),
        Source::Embedded(_) | Source::Path(_) => None,
    };
    // A model inside the program is in no folder: nothing of the working directory is its own.
    let beside = match source {
        Source::Embedded(_) => Vec::new(),
        Source::Local(_) | Source::Path(_) => beside(model),
    };
    let mut seen = HashSet::new();
    let mut files: Vec<PathBuf> = own.into_iter().chain(beside).collect();
    files.retain(|file| seen.insert(file.canonicalize().unwrap_or_else(|_| file.clone())));
    files
}

/// Returns the mmproj files in the folder of a model, by name, and then those beside what it is a
/// link to.
fn beside(model: &Model) -> Vec<PathBuf> {
    let source = model.checkpoint().source();
    let mut folders = vec![folder_of(source)];
    folders.extend(source.canonicalize().ok().map(|whole| folder_of(&whole)));
    let is_tower = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        name.contains("mmproj") && name.ends_with(".gguf")
    };
    let mut all = Vec::new();
    for folder in folders {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_tower).collect();
        files.sort();
        all.extend(files);
    }
    all
}

/// Returns the folder that a model is, or is in.
fn folder_of(source: &Path) -> PathBuf {
    match source.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        _ if source.is_dir() => source.to_owned(),
        Some(parent) => parent.to_owned(),
        None => PathBuf::from("."),
    }
}

/// Returns how pictures are prepared for a tower.
///
/// # Errors
/// Returns an error if its numbers contradict one another.
pub fn preparation(config: &TowerConfig) -> Result<Preparation> {
    let [patch, pool] = [config.patch, config.pool].map(|size| size as u32);
    Ok(match config.pixels {
        Pixels::Square { side, mean, deviation } => {
            Preparation::square(side as u32, patch, pool, mean, deviation)?
        }
        Pixels::Budget { soft_tokens, .. } => Preparation::budget(patch, pool, soft_tokens as u32)?,
    })
}

/// What people are told of a vision tower.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Its kind.
    kind: &'static str,
    /// Its files.
    files: String,
    /// The bytes of its own file; `None` if it is in the model's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_bytes: Option<u64>,
    parameters: u64,
    /// Pixels on a side of a picture; `None` if pictures may have any shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    picture: Option<usize>,
    layers: usize,
    hidden: usize,
    /// The most rows of the text model that a picture takes.
    soft_tokens: usize,
}

/// Returns an error for rows of a picture that are not finite: what is computed with them is no
/// result.
///
/// `place` says where values first were not finite.
pub fn check_rows(model: &Model, rows: &[f32], place: impl FnOnce() -> String) -> Result<()> {
    if rows.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    let file = model.tower().map(|tower| words::shown(tower.checkpoint().source()));
    bail!(
        "{} makes rows of images that are not finite ({}): the vision tower's file is damaged or \
         its values overflow; download it again, or try --device reference to rule the device out",
        file.unwrap_or_default(),
        place()
    )
}

impl Report {
    /// Describes the tower of a model, if it has one.
    pub fn of(model: &Model) -> Option<Self> {
        let tower = model.tower()?;
        let config = tower.config();
        let (own, others) = (tower.checkpoint(), model.checkpoint());
        let weights = model.tower_plan(false).weights;
        Some(Self {
            kind: match config.kind {
                TowerKind::Siglip(_) => "SigLIP",
                TowerKind::Gemma4 { .. } => "Gemma 4's",
                TowerKind::Unified => "Gemma 4's, without layers",
            },
            files: own.source().display().to_string(),
            file_bytes: (own.source() != others.source()).then(|| own.file_bytes()),
            parameters: weights.iter().map(|weight| (weight.rows * weight.columns) as u64).sum(),
            picture: match config.pixels {
                Pixels::Square { side, .. } => Some(side),
                Pixels::Budget { .. } => None,
            },
            layers: config.kind.layers().map_or(0, |layers| layers.count),
            hidden: config.hidden,
            soft_tokens: config.soft_tokens(),
        })
    }

    /// Returns this in one line.
    pub fn short(&self) -> String {
        let Self { kind, parameters, layers, .. } = self;
        let (parameters, pictures) = (words::count(*parameters), self.pictures());
        format!("{kind}, {parameters} parameters, {layers} layers, {pictures}")
    }

    /// Returns which pictures it reads.
    fn pictures(&self) -> String {
        match self.picture {
            Some(side) => format!("{side} x {side} pixels"),
            None => "any shape".to_owned(),
        }
    }

    /// Returns this in two lines.
    pub fn lines(&self) -> [String; 2] {
        let place = match self.file_bytes {
            Some(bytes) => format!("{}, {}", words::harmless(&self.files), words::bytes(bytes)),
            None => "in the model's files".to_owned(),
        };
        [
            format!(
                "vision       {}, {} parameters, {place}",
                self.kind,
                words::count(self.parameters)
            ),
            format!(
                "  images     {}, {}{} soft tokens each; {} layers, hidden {}",
                self.pictures(),
                if self.picture.is_some() { "" } else { "up to " },
                self.soft_tokens,
                self.layers,
                self.hidden
            ),
        ]
    }
}

/// Whether a model is given a tower, and which.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TowerRequest {
    /// It takes texts only.
    #[default]
    None,
    /// The tower that was chosen, if the model has it.
    IfAny(TowerChoice),
    /// The tower that was chosen; there are pictures already.
    Needed(TowerChoice),
}

impl TowerRequest {
    /// Returns the model with the tower that is requested.
    ///
    /// # Errors
    /// As [`attach`] if it is needed, else as [`attach_if_any`].
    pub fn attach(&self, library: &ModelLibrary, source: &Source, model: Model) -> Result<Model> {
        match self {
            Self::None => Ok(model),
            Self::IfAny(choice) => attach_if_any(library, source, model, choice),
            Self::Needed(choice) => attach(source, model, choice),
        }
    }

    /// Does the same, without a word about a tower that cannot be used.
    ///
    /// # Errors
    /// As [`TowerRequest::attach`].
    pub fn attach_quietly(&self, source: &Source, model: Model) -> Result<Model> {
        match self {
            Self::IfAny(choice) => Ok(attach_usable(source, model, choice)?.0),
            Self::None => Ok(model),
            Self::Needed(choice) => attach(source, model, choice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_were_made_for_texts_have_no_towers() {
        let has = |hidden: usize| why_never(Family::Gemma3, hidden).is_none();
        // 270M, 1B; 4B, 12B, 27B, and one that is not published.
        assert!(!has(640) && !has(1152));
        assert!([2560, 3840, 5376, 64].into_iter().all(has));
    }

    #[test]
    fn what_is_told_of_a_file_is_told_once_for_each_state() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let files = [file.path().to_owned()];
        let library = ModelLibrary::default();
        let is_news = |text| is_news(&library.recording(), text, &files);
        assert!(is_news("a") && !is_news("a"));
        assert!(is_news("b") && !is_news("b"));
        std::fs::write(file.path(), "other").unwrap();
        assert!(is_news("a") && !is_news("a"));
    }
}
