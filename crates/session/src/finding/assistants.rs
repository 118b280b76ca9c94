//! Finds the draft that was made for a model of Gemma 4, and tells those of its two kinds of files
//! apart ([decision 043]).
//!
//! A draft reads the caches of one size of model, which its backbone tells. Files that were trained
//! for quantisation (QAT) have drafts of their own, which only names tell.
//!
//! [decision 043]: ../../../../docs/decisions/043-drafts-that-read-caches.md

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use trine_hub::ModelName;
use trine_model::{Assistant, Family, Model};
use trine_weights::{Checkpoint, Metadata};

use crate::finding::model_source::Source;
use crate::library::ModelLibrary;
use crate::words;

/// The published sizes: the hidden size, and how names spell them.
const SIZES: [(usize, &str); 5] =
    [(1536, "E2B"), (2560, "E4B"), (3840, "12B"), (2816, "26B-A4B"), (5376, "31B")];
/// The most entries of a folder that are looked at.
const ENTRIES_MAX: usize = 4096;
/// The most places of a search that are opened.
const OPENED_MAX: usize = 64;
/// The most bytes of a `config.json` that are read.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// The keys of a GGUF file that name the model.
const NAME_KEYS: [&str; 5] = [
    "general.name",
    "general.basename",
    "general.finetune",
    "general.base_model.0.name",
    "general.base_model.0.repo_url",
];

/// How the weights of a model were trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Training {
    /// Without thought of quantisation.
    Plain,
    /// For quantisation to Q4_0.
    Qat,
    /// Unknown: neither file names, repositories nor metadata say it.
    Unknown,
}

impl Training {
    /// Returns what the names of a model tell: those of its files, and those in its metadata.
    pub fn of(source: &Source, checkpoint: &Checkpoint) -> Self {
        let mut names = match source {
            Source::Embedded(_) => Vec::new(),
            Source::Path(path) => vec![last_part(path)],
            Source::Local(model) => vec![model.name.to_string(), last_part(&model.path)],
        };
        match checkpoint.metadata() {
            Metadata::Gguf(metadata) => {
                let told = NAME_KEYS.iter().filter_map(|key| metadata.optional_str(key).ok()?);
                names.extend(told.map(str::to_owned));
            }
            Metadata::HuggingFace(files) => {
                let told = files.config.get("_name_or_path").and_then(|name| name.as_str());
                names.extend(told.map(str::to_owned));
            }
        }
        Self::of_names(&names)
    }

    fn of_names(names: &[String]) -> Self {
        let parts = |name: &String| -> Vec<String> {
            let words = name.split(|c: char| !c.is_ascii_alphanumeric());
            words.map(str::to_ascii_lowercase).collect()
        };
        let is_known = |parts: &Vec<String>| {
            parts.windows(2).any(|pair| pair[0] == "gemma" && pair[1] == "4")
                || parts.iter().any(|part| part == "gemma4")
        };
        let all: Vec<Vec<String>> = names.iter().map(parts).collect();
        if all.iter().flatten().any(|part| part == "qat") {
            Self::Qat
        } else if all.iter().any(is_known) {
            Self::Plain
        } else {
            Self::Unknown
        }
    }

    /// Returns whether a draft of this training was made for other weights than those of `model`.
    fn differs(self, model: Self) -> bool {
        matches!((self, model), (Self::Plain, Self::Qat) | (Self::Qat, Self::Plain))
    }
}

/// Returns the part of a path that names a model; an empty text if there is none.
fn last_part(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    whole.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

/// Returns the published size of models with a hidden size: `E4B`.
pub fn size_of(hidden: usize) -> Option<&'static str> {
    SIZES.iter().find(|(own, _)| *own == hidden).map(|(_, size)| *size)
}

/// Returns the repository of the draft that was made for models with a hidden size.
pub fn official(hidden: usize, training: Training) -> Option<String> {
    let size = size_of(hidden)?;
    let kind = match training {
        Training::Qat => "-qat-q4_0-unquantized",
        Training::Plain | Training::Unknown => "",
    };
    Some(format!("google/gemma-4-{size}-it{kind}-assistant"))
}

/// Says that a draft was made for other weights than those of a model of the same size, if so.
pub fn mismatch(draft: (&Source, &Assistant), source: &Source, model: &Model) -> Option<String> {
    let own = Training::of(draft.0, draft.1.checkpoint());
    let others = Training::of(source, model.checkpoint());
    if !own.differs(others) {
        return None;
    }
    let (weights, model_is) = match own {
        Training::Qat => ("weights that were trained for quantisation (QAT)", "has others"),
        Training::Plain | Training::Unknown => {
            ("weights that were not trained for quantisation", "has those that were (QAT)")
        }
    };
    let remedy = official(model.config().hidden, others).map_or(String::new(), |name| {
        format!("; `trine pull {name}` downloads the one that belongs to it")
    });
    Some(format!(
        "{} was made for {weights}, and {} {model_is}, so that fewer guesses are right{remedy}",
        words::harmless(&draft.0.name()),
        words::harmless(&source.name()),
    ))
}

/// The drafts on this machine that were made for a model, in the order in which they are tried: in
/// or beside the model's folder, beside its file, then in the store. Each is opened when its turn
/// comes.
pub struct Search {
    library: ModelLibrary,
    source: Source,
    model: Model,
    places: std::vec::IntoIter<Source>,
    /// How many places were opened.
    opened: usize,
    /// Whether people are told why drafts are passed over.
    tells: bool,
    has_found: bool,
    /// The first one that was made for other weights of the same size, and how it differs.
    refused: Option<(Source, String)>,
    /// Folders that were searched in part.
    cut_short: Vec<PathBuf>,
}

/// Returns the drafts on this machine that were made for a model. It tells why others are passed
/// over.
pub fn find(library: &ModelLibrary, source: &Source, model: &Model) -> Search {
    Search::new(library, source, model, true)
}

/// Returns the repository of the draft that was made for a model, if it is not on this machine.
pub fn missing(library: &ModelLibrary, source: &Source, model: &Model) -> Option<String> {
    if !is_guessed_for(model) || Search::new(library, source, model, false).next().is_some() {
        return None;
    }
    official(model.config().hidden, Training::of(source, model.checkpoint()))
}

/// Returns whether drafts are made for models of a family.
fn is_guessed_for(model: &Model) -> bool {
    matches!(model.config().family, Family::Gemma4(_))
}

impl Search {
    fn new(library: &ModelLibrary, source: &Source, model: &Model, tells: bool) -> Self {
        let DraftLocations { found, cut_short } = match is_guessed_for(model) {
            true => candidates(library, source, model),
            false => DraftLocations::default(),
        };
        Self {
            library: library.clone(),
            source: source.clone(),
            model: model.clone(),
            places: found.into_iter(),
            opened: 0,
            tells,
            has_found: false,
            refused: None,
            cut_short,
        }
    }

    /// Opens the draft at a place. Returns `None` if it was not made for the model.
    fn open(&mut self, place: &Source) -> Option<Assistant> {
        let draft = match place.open_assistant() {
            Ok(Some(draft)) if draft.config().backbone == self.model.config().hidden => draft,
            // It was made for another size, or is a model.
            Ok(_) => return None,
            Err(error) => {
                if self.tells && is_said_to_be_draft(place) {
                    self.library.warn(format_args!("{error:#}"));
                } else {
                    tracing::debug!("no draft: {error:#}");
                }
                return None;
            }
        };
        let Some(reason) = mismatch((place, &draft), &self.source, &self.model) else {
            return Some(draft);
        };
        self.refused.get_or_insert_with(|| (place.clone(), reason));
        None
    }

    /// Prints a note with the likely reason why no draft was found.
    fn tell(&mut self) {
        if let Some((place, reason)) = self.refused.take() {
            self.library.note(format!(
                "{reason}; it is not used unless --draft names it: {}",
                words::harmless(&place.name())
            ));
        }
        let left = std::mem::take(&mut self.places).len();
        if left > 0 {
            self.library.note(format!(
                "{} of {} files and folders that are named as drafts were opened; --draft names \
                 one that is among the others",
                self.opened,
                self.opened + left
            ));
        }
        for folder in self.cut_short.drain(..) {
            self.library.note(format!(
                "{} has more than {ENTRIES_MAX} entries, of which {ENTRIES_MAX} were searched for \
                 a draft; --draft names one that is among the others",
                words::harmless(&folder.display().to_string())
            ));
        }
    }
}

impl Iterator for Search {
    type Item = (Source, Assistant);

    fn next(&mut self) -> Option<Self::Item> {
        while self.opened < OPENED_MAX {
            let Some(place) = self.places.next() else { break };
            self.opened += 1;
            if let Some(draft) = self.open(&place) {
                self.has_found = true;
                return Some((place, draft));
            }
        }
        if self.tells && !self.has_found {
            self.tell();
        }
        None
    }
}

/// Places where a model's draft may be.
#[derive(Debug)]
struct DraftLocations<P = Source> {
    found: Vec<P>,
    /// Folders with more entries than are looked at.
    cut_short: Vec<PathBuf>,
}

impl<P> Default for DraftLocations<P> {
    fn default() -> Self {
        Self { found: Vec::new(), cut_short: Vec::new() }
    }
}

/// Returns the places where a model's draft may be, as far as something is there, each once.
fn candidates(library: &ModelLibrary, source: &Source, model: &Model) -> DraftLocations {
    let path = match source {
        Source::Embedded(_) => return DraftLocations::default(),
        Source::Path(path) => path,
        Source::Local(model) => &model.path,
    };
    let DraftLocations { found, cut_short } = beside(path);
    let mut found: Vec<Source> = found.into_iter().map(Source::Path).collect();
    let Ok(hub) = library.hub() else { return DraftLocations { found, cut_short } };
    let training = Training::of(source, model.checkpoint());
    let mut names: Vec<String> = official(model.config().hidden, training).into_iter().collect();
    if let Source::Local(model) = source {
        let repo = model.name.repo();
        let stem = repo.len().checked_sub(5).and_then(|end| repo.split_at_checked(end));
        let stem = stem.filter(|(_, end)| end.eq_ignore_ascii_case("-gguf"));
        let stem = stem.map_or(repo, |(stem, _)| stem);
        for owner in [model.name.owner(), "google"] {
            let name = format!("{owner}/{stem}-assistant");
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let stored = names.iter().filter_map(|name| {
        let model = hub.resolve(&ModelName::parse(name).ok()?).ok()??;
        Some(Source::Local(Box::new(model)))
    });
    found.extend(stored);
    DraftLocations { found, cut_short }
}

/// Returns the files and folders beside a model that are named as drafts are: beside the path as it
/// is given, and beside what it leads to, which differ if it is `.` or a link.
fn beside(path: &Path) -> DraftLocations<PathBuf> {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut places = DraftLocations::default();
    if path.is_dir() {
        places.found.push(path.join("assistant"));
        let folders = [path, &whole].into_iter().filter(|folder| folder.file_name().is_some());
        for folder in folders.clone() {
            for named in folders.clone().rev() {
                let name = named.file_name().unwrap_or_default().to_string_lossy();
                places.found.push(folder.with_file_name(format!("{name}-assistant")));
            }
        }
    } else {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let others = whole.parent().filter(|own| folder.canonicalize().is_ok_and(|it| it != **own));
        for folder in std::iter::once(folder).chain(others) {
            places.found.push(folder.join("assistant"));
            add_files(folder.to_owned(), &mut places);
            add_files(folder.join("MTP"), &mut places);
        }
    }
    let mut seen = HashSet::from([whole]);
    places.found.retain(|place| place.canonicalize().is_ok_and(|whole| seen.insert(whole)));
    places
}

/// Adds the files of a folder that are named as drafts are.
fn add_files(folder: PathBuf, places: &mut DraftLocations<PathBuf>) {
    let mut entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let first = entries.by_ref().take(ENTRIES_MAX).map(|entry| entry.path());
    let mut files: Vec<PathBuf> = first.filter(|file| is_named_as_draft(file)).collect();
    files.sort_unstable();
    places.found.append(&mut files);
    if entries.next().is_some() {
        places.cut_short.push(folder);
    }
}

/// Returns whether a file is named as a draft is. Of several parts, only the first one is.
fn is_named_as_draft(file: &Path) -> bool {
    let name = file.file_name().map_or(String::new(), |name| name.to_string_lossy().to_lowercase());
    let Some(stem) = name.strip_suffix(".gguf") else { return false };
    (name.starts_with("mtp-") || name.contains("assistant")) && !is_later_part(stem)
}

/// Returns whether a stem ends as that of a part of a model other than the first one:
/// `-00002-of-00003`.
fn is_later_part(stem: &str) -> bool {
    let number = |text: &str| -> Option<u32> {
        let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok())?
    };
    let part = || {
        let (before, parts) = stem.rsplit_once("-of-")?;
        number(parts)?;
        number(before.rsplit_once('-')?.1)
    };
    part().is_some_and(|part| part > 1)
}

/// Returns whether a place that does not open says that it is a draft. A folder `assistant` may be
/// anything, so that its `config.json` has to; other places say so by their names.
fn is_said_to_be_draft(place: &Source) -> bool {
    let Source::Path(path) = place else { return true };
    if !path.is_dir() || path.file_name().is_none_or(|name| name != "assistant") {
        return true;
    }
    let mut config = Vec::new();
    let file = File::open(path.join("config.json"));
    let read = file.and_then(|file| file.take(CONFIG_BYTES_MAX).read_to_end(&mut config));
    let config = read.ok().and_then(|_| serde_json::from_slice::<Value>(&config).ok());
    let kind = config.as_ref().and_then(|config| config.get("model_type")?.as_str());
    kind.is_some_and(|kind| kind.ends_with("_assistant"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_how_a_model_was_trained() {
        for (names, expected) in [
            (&["google/gemma-4-31B-it-qat-q4_0-gguf"][..], Training::Qat),
            (&["model.gguf", "Gemma 4 31B It Qat Q4_0 Unquantized"], Training::Qat),
            (&["unsloth/gemma-4-E4B-it-GGUF:Q4_K_M"], Training::Plain),
            (&["gemma4-26b.gguf"], Training::Plain),
            (&["assistant", "model.gguf"], Training::Unknown),
            (&["quatre.gguf", "gemma-3-4b-it-qatar"], Training::Unknown),
            (&[], Training::Unknown),
        ] {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(Training::of_names(&names), expected, "{names:?}");
        }
    }

    #[test]
    fn only_two_known_trainings_differ() {
        let all = [Training::Plain, Training::Qat, Training::Unknown];
        let differing = |own: Training| all.map(|model| own.differs(model));
        assert_eq!(all.map(differing), [[false, true, false], [true, false, false], [false; 3]]);
    }

    #[test]
    fn drafts_have_official_names_by_size() {
        let of = |hidden, training| official(hidden, training);
        let name = of(2816, Training::Unknown).unwrap();
        assert_eq!(name, "google/gemma-4-26B-A4B-it-assistant");
        let name = of(5376, Training::Qat).unwrap();
        assert_eq!(name, "google/gemma-4-31B-it-qat-q4_0-unquantized-assistant");
        assert_eq!(of(64, Training::Plain), None);
        for (hidden, _) in SIZES {
            for training in [Training::Plain, Training::Qat] {
                ModelName::parse(&of(hidden, training).unwrap()).unwrap();
            }
        }
    }

    #[test]
    fn drafts_are_named_as_such() {
        for (name, expected) in [
            ("mtp-gemma-4-31B-it.gguf", true),
            ("MTP-gemma-4-26B-A4B-it-Q8_0.gguf", true),
            ("gemma-4-E4B-it-assistant-Q8_0.gguf", true),
            ("gemma-4-E4B-it-Q8_0.gguf", false),
            ("mtp-notes.txt", false),
            ("mtp-gemma-4-31B-it-00001-of-00002.gguf", true),
            ("mtp-gemma-4-31B-it-00002-of-00002.gguf", false),
            ("out-of-assistant-7-of-9.gguf", true),
        ] {
            assert_eq!(is_named_as_draft(Path::new(name)), expected, "{name}");
        }
    }
}
