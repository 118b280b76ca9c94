//! Which files of a repository make up the requested model.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::HubError;
use crate::mmproj::{Towers, is_mmproj};
use crate::name::{ModelName, Selection, has_extension};
use crate::spelling::closest;
use crate::stems::{quant_of, split_suffix};

/// The quantisations in the order in which they are tried if none is named.
const PREFERRED: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];

/// The files that a folder of safetensors needs in addition to the weights.
const FOLDER_FILES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "config_sentence_transformers.json",
];

/// One GGUF model: a file or a split set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GgufSet {
    /// Path without `.gguf` and split suffix.
    stem: String,
    /// Quantisation as the file's name spells it.
    quant: Option<String>,
    /// The number of parts that a split set announces.
    parts: Option<u32>,
    /// Paths, in order.
    pub(crate) files: Vec<String>,
    present: BTreeSet<u32>,
    /// Path of the vision tower's file that goes with it.
    mmproj: Option<String>,
}

impl GgufSet {
    /// Returns the first missing part, if there is one.
    pub(crate) fn missing_part(&self) -> Option<u32> {
        let parts = self.parts?;
        // A hostile name can announce 99999 parts; the search gets no longer than that.
        (1..=parts).find(|part| !self.present.contains(part))
    }
}

/// The model that a name picks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pick {
    /// A GGUF file or split set.
    Gguf(GgufSet),
    /// The folder as a whole: safetensors with configuration and tokenizer.
    Folder(Vec<String>),
}

impl Pick {
    /// Returns the paths of all its files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &String> {
        self.own_files().iter().chain(self.mmproj())
    }

    /// Returns the paths of its files without that of a vision tower of its own: a model is whole
    /// without it.
    pub(crate) fn own_files(&self) -> &[String] {
        match self {
            Pick::Gguf(set) => &set.files,
            Pick::Folder(files) => files,
        }
    }

    /// Returns the path of the vision tower's file that goes with it, if it has one.
    pub(crate) fn mmproj(&self) -> Option<&String> {
        match self {
            Pick::Gguf(set) => set.mmproj.as_ref(),
            Pick::Folder(_) => None,
        }
    }

    /// Returns the same without a vision tower of its own.
    pub(crate) fn without_mmproj(mut self) -> Self {
        if let Pick::Gguf(set) = &mut self {
            set.mmproj = None;
        }
        self
    }
}

/// The models among the files of a repository, sorted out once for any number of names.
#[derive(Debug)]
pub(crate) struct Candidates {
    files: Vec<String>,
    sets: Vec<GgufSet>,
    /// The set of each file.
    by_file: HashMap<String, usize>,
    /// The first set that has a file of this name in lower case.
    by_lower_file: HashMap<String, usize>,
    /// The sets of each quantisation in lower case.
    by_quant: HashMap<String, Vec<usize>>,
    towers: Towers,
}

impl Candidates {
    pub(crate) fn new(files: Vec<String>) -> Self {
        let sets = gguf_sets(&files);
        let (mut by_file, mut by_lower_file) = (HashMap::new(), HashMap::new());
        let mut by_quant: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, set) in sets.iter().enumerate() {
            for file in &set.files {
                by_file.entry(file.clone()).or_insert(index);
                by_lower_file.entry(file.to_ascii_lowercase()).or_insert(index);
            }
            if let Some(quant) = &set.quant {
                by_quant.entry(quant.to_ascii_lowercase()).or_default().push(index);
            }
        }
        let towers = Towers::new(&files, sets.iter().map(|set| set.stem.as_str()));
        Self { files, sets, by_file, by_lower_file, by_quant, towers }
    }

    /// Picks a model and makes sure that all its files are there.
    pub(crate) fn choose(&self, name: &ModelName) -> Result<Pick, HubError> {
        let pick = self.pick(name)?;
        let unusable =
            |reason: String| HubError::Unusable { repository: name.repository(), reason };
        match &pick {
            Pick::Gguf(set) => {
                if let Some(part) = set.missing_part() {
                    let parts = set.parts.unwrap_or_default();
                    return Err(unusable(format!(
                        "part {part} of {parts} of {} is missing; choose another quantisation",
                        set.stem
                    )));
                }
            }
            Pick::Folder(files) => {
                if let Some(reason) = folder_gap(files) {
                    return Err(unusable(format!("{reason}; choose another repository")));
                }
            }
        }
        Ok(pick)
    }

    /// Picks a model, complete or not.
    pub(crate) fn pick(&self, name: &ModelName) -> Result<Pick, HubError> {
        let available = || self.names(name);
        match name.selection() {
            Selection::File(file) => self.pick_file(file).ok_or_else(|| {
                let ggufs: Vec<String> = self
                    .files
                    .iter()
                    .filter(|name| has_extension(name, ".gguf"))
                    .cloned()
                    .collect();
                HubError::FileNotFound {
                    repository: name.repository(),
                    file: file.clone(),
                    close: closest(file, &ggufs),
                    available: available(),
                }
            }),
            Selection::Quant(quant) => {
                let found = (0..3).find_map(|rank| self.one_of(name, quant, rank));
                found.unwrap_or_else(|| {
                    Err(HubError::NoMatch {
                        repository: name.repository(),
                        wanted: quant.clone(),
                        available: available(),
                    })
                })
            }
            Selection::Default if self.sets.is_empty() => {
                let folder = folder_files(&self.files);
                if folder.iter().any(|file| has_extension(file, ".safetensors")) {
                    return Ok(Pick::Folder(folder));
                }
                let reason = "it has neither GGUF nor safetensors files; choose another repository";
                Err(HubError::Unusable { repository: name.repository(), reason: reason.to_owned() })
            }
            Selection::Default => {
                let found = PREFERRED.iter().find_map(|quant| self.one_of(name, quant, 0));
                let any = || self.only(name, self.sets.iter().collect());
                found.or_else(any).expect("there is at least one set")
            }
        }
    }

    /// Returns the models, each with a name that picks exactly it.
    pub(crate) fn models(&self, name: &ModelName) -> Vec<(ModelName, Pick)> {
        let mut models: Vec<(ModelName, Pick)> =
            self.sets.iter().map(|set| (self.name_of(name, set), self.whole(set))).collect();
        let folder = folder_files(&self.files);
        if folder.iter().any(|file| has_extension(file, ".safetensors")) {
            models.push((name.with_selection(Selection::Default), Pick::Folder(folder)));
        }
        models
    }

    /// Returns a pick with one of the vision towers, if one fits; those that are `here` come first.
    pub(crate) fn with_mmproj(&self, mut pick: Pick, here: &[String]) -> Pick {
        if let Pick::Gguf(set) = &mut pick {
            set.mmproj = self.mmproj_of(set, here);
        }
        pick
    }

    /// Returns the only set of a quantisation at a rank; `None` if there is none.
    fn one_of(&self, name: &ModelName, quant: &str, rank: u32) -> Option<Result<Pick, HubError>> {
        let all = || self.sets.iter();
        let matches = match rank {
            0 => self.of_quant(quant).map(|index| &self.sets[index]).collect(),
            1 => all().filter(|set| has_quant_within(set, quant)).collect(),
            _ => all().filter(|set| is_named_by_end(set, quant)).collect(),
        };
        self.only(name, matches)
    }

    fn only(&self, name: &ModelName, matches: Vec<&GgufSet>) -> Option<Result<Pick, HubError>> {
        match matches.as_slice() {
            [] => None,
            [one] => Some(Ok(self.whole(one))),
            several => Some(Err(HubError::Ambiguous {
                name: name.to_string(),
                available: several.iter().map(|set| self.name_of(name, set).to_string()).collect(),
            })),
        }
    }

    fn of_quant(&self, quant: &str) -> impl Iterator<Item = usize> {
        let found = self.by_quant.get(&quant.to_ascii_lowercase());
        found.into_iter().flatten().copied()
    }

    fn pick_file(&self, file: &str) -> Option<Pick> {
        let lower = || self.by_lower_file.get(&file.to_ascii_lowercase());
        if let Some(index) = self.by_file.get(file).or_else(lower) {
            return Some(self.whole(&self.sets[*index]));
        }
        // A file that is not a model of its own, such as a vision tower, can be requested by name.
        let name = self.files.iter().find(|name| name.as_str() == file)?;
        let stem = name[..name.len() - ".gguf".len()].to_owned();
        let (files, present) = (vec![name.clone()], BTreeSet::new());
        Some(Pick::Gguf(GgufSet { stem, quant: None, parts: None, files, present, mmproj: None }))
    }

    /// Returns a set with the vision tower that goes with it.
    fn whole(&self, set: &GgufSet) -> Pick {
        Pick::Gguf(GgufSet { mmproj: self.mmproj_of(set, &[]), ..set.clone() })
    }

    /// Returns the file of the vision tower that goes with a set, if it is a model.
    fn mmproj_of(&self, set: &GgufSet, here: &[String]) -> Option<String> {
        if set.files.iter().any(|file| is_draft(file) || is_auxiliary(file)) {
            return None;
        }
        self.towers.of_model(&set.stem, here)
    }

    fn names(&self, name: &ModelName) -> Vec<String> {
        let mut names: Vec<String> =
            self.sets.iter().map(|set| self.name_of(name, set).to_string()).collect();
        if self.sets.is_empty() && self.files.iter().any(|file| has_extension(file, ".safetensors"))
        {
            names.push(name.repository());
        }
        names
    }

    /// Returns the shortest name that picks this set among all sets.
    fn name_of(&self, name: &ModelName, set: &GgufSet) -> ModelName {
        let by_file = || name.with_selection(Selection::File(set.files[0].clone()));
        let Some(quant) = &set.quant else { return by_file() };
        let is_only = self.of_quant(quant).count() == 1;
        if is_only { name.with_selection(Selection::Quant(quant.clone())) } else { by_file() }
    }
}

/// Picks a model of a list of files and makes sure that all its files are there.
pub(crate) fn choose(name: &ModelName, files: &[String]) -> Result<Pick, HubError> {
    Candidates::new(files.to_vec()).choose(name)
}

/// Returns what was chosen of a repository whose name says no format, and what else it has; `None`
/// if there was no choice.
pub(crate) fn chosen_among(name: &ModelName, files: &[String]) -> Option<String> {
    if *name.selection() != Selection::Default {
        return None;
    }
    let candidates = Candidates::new(files.to_vec());
    let Ok(Pick::Gguf(chosen)) = candidates.pick(name) else { return None };
    let quants =
        candidates.sets.iter().filter(|set| set.stem != chosen.stem).map(|set| set.quant.clone());
    let mut others: Vec<String> = quants.collect::<Option<_>>()?;
    others.sort_unstable();
    others.dedup();
    (!others.is_empty()).then(|| {
        let taken = chosen.quant.as_deref().unwrap_or(&chosen.stem);
        let more = if others.len() > 12 { ", ..." } else { "" };
        others.truncate(12);
        format!("taking {taken} of {}; it also has {}{more}", name.repository(), others.join(", "))
    })
}

/// The models in a folder of GGUF files that is no repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InFolder {
    /// No model.
    Nothing,
    /// One: its file, or the first of its parts.
    One(String),
    /// Several: their files, or the first of their parts.
    Several(Vec<String>),
}

/// Returns the models among the names of a folder's files. Vision towers, importance matrices and
/// drafts beside a model are none.
pub fn in_folder(names: &[String]) -> InFolder {
    let first = |set: &GgufSet| set.files.first().cloned();
    let mut models: Vec<String> = gguf_sets(names).iter().filter_map(first).collect();
    match models.len() {
        0 => InFolder::Nothing,
        1 => InFolder::One(models.remove(0)),
        _ => InFolder::Several(models),
    }
}

/// Returns what a folder of safetensors lacks, if anything.
pub(crate) fn folder_gap(files: &[String]) -> Option<String> {
    if !files.iter().any(|file| file == "config.json") {
        return Some("it has no config.json".to_owned());
    }
    let mut shards: BTreeMap<(&str, u32), BTreeSet<u32>> = BTreeMap::new();
    for file in files.iter().filter(|file| has_extension(file, ".safetensors")) {
        let stem = &file[..file.len() - ".safetensors".len()];
        if let Some((stem, part, parts)) = split_suffix(stem) {
            shards.entry((stem, parts)).or_default().insert(part);
        }
    }
    for ((stem, parts), present) in shards {
        if let Some(part) = (1..=parts).find(|part| !present.contains(part)) {
            return Some(format!("part {part} of {parts} of {stem} is missing"));
        }
    }
    None
}

/// Returns whether a set has a quantisation with a prefix such as `UD-`.
fn has_quant_within(set: &GgufSet, wanted: &str) -> bool {
    ends_with_segment(set.quant.as_deref().unwrap_or_default(), wanted)
}

/// Returns whether the name of a set's file ends in `wanted`.
fn is_named_by_end(set: &GgufSet, wanted: &str) -> bool {
    let stem = set.stem.rsplit('/').next().unwrap_or_default();
    let wanted = if has_extension(wanted, ".gguf") { &wanted[..wanted.len() - 5] } else { wanted };
    stem.eq_ignore_ascii_case(wanted) || ends_with_segment(stem, wanted)
}

/// Returns whether `text` ends in '-' or '.' and `end`.
fn ends_with_segment(text: &str, end: &str) -> bool {
    let Some(start) = text.len().checked_sub(end.len()).filter(|start| *start > 0) else {
        return false;
    };
    text.get(start..).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
        && text[..start].ends_with(['-', '.'])
}

fn gguf_sets(files: &[String]) -> Vec<GgufSet> {
    let mut sets: BTreeMap<(String, Option<u32>), GgufSet> = BTreeMap::new();
    let is_whole = |file: &&String| has_extension(file, ".gguf") && !is_auxiliary(file);
    let has_model = files.iter().any(|file| is_whole(&file) && !is_draft(file));
    for file in files.iter().filter(|file| is_whole(file) && !(has_model && is_draft(file))) {
        let whole = &file[..file.len() - ".gguf".len()];
        let (stem, part, parts) = match split_suffix(whole) {
            Some((stem, part, parts)) => (stem, Some(part), Some(parts)),
            None => (whole, None, None),
        };
        let set = sets.entry((stem.to_owned(), parts)).or_insert_with(|| GgufSet {
            stem: stem.to_owned(),
            quant: quant_of(stem.rsplit('/').next().unwrap_or_default()),
            parts,
            files: Vec::new(),
            present: BTreeSet::new(),
            mmproj: None,
        });
        set.files.push(file.clone());
        set.present.extend(part);
    }
    let mut sets: Vec<GgufSet> = sets.into_values().collect();
    for set in &mut sets {
        set.files.sort();
    }
    sets
}

/// Returns whether a file is a vision tower or an importance matrix: a GGUF file, but not a
/// language model.
pub(crate) fn is_auxiliary(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    is_mmproj(&name) || name.starts_with("imatrix")
}

/// Returns whether a file beside a model is named as the one that guesses for it is:
/// `mtp-gemma-4-31B-it.gguf`, or a file in a folder `MTP`.
fn is_draft(file: &str) -> bool {
    let mut parts = file.rsplit('/');
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    name.starts_with("mtp-") || parts.any(|folder| folder.eq_ignore_ascii_case("mtp"))
}

/// Returns whether a file is one of a module that sentence-transformers puts after a model, such as
/// `2_Dense/model.safetensors`.
fn is_module(file: &str) -> bool {
    let Some((folder, name)) = file.split_once('/') else { return false };
    let is_numbered = folder.split_once('_').is_some_and(|(number, kind)| {
        number.parse::<u8>().is_ok() && matches!(kind, "Pooling" | "Dense")
    });
    is_numbered && matches!(name, "config.json" | "model.safetensors")
}

fn folder_files(files: &[String]) -> Vec<String> {
    let wanted = |file: &&String| {
        FOLDER_FILES.contains(&file.as_str())
            || (has_extension(file, ".safetensors") && !file.contains('/'))
            || is_module(file)
    };
    files.iter().filter(wanted).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| file.to_string()).collect()
    }

    fn chosen(name: &str, files: &[&str]) -> Result<Vec<String>, HubError> {
        let name = ModelName::parse(name).unwrap();
        choose(&name, &list(files)).map(|pick| pick.files().cloned().collect())
    }

    const UNSLOTH: [&str; 9] = [
        "README.md",
        "config.json",
        "gemma-3-4b-it-BF16.gguf",
        "gemma-3-4b-it-Q4_0.gguf",
        "gemma-3-4b-it-Q4_K_M.gguf",
        "gemma-3-4b-it-Q8_0.gguf",
        "gemma-3-4b-it-UD-Q4_K_XL.gguf",
        "mmproj-BF16.gguf",
        "imatrix_unsloth.gguf",
    ];

    #[test]
    fn folders_of_embedding_models_come_with_their_modules() {
        let needed = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "config.json",
            "config_sentence_transformers.json",
            "model.safetensors",
            "modules.json",
        ];
        let others = ["2_Dense/pytorch_model.bin", "onnx/model.safetensors", "x_Dense/config.json"];
        let files = [&needed[..], &others].concat();
        let mut found = chosen("google/embeddinggemma-300m", &files).unwrap();
        found.sort();
        assert_eq!(found, needed);
    }

    #[test]
    fn the_named_quantisation_or_the_preferred_one() {
        let one = |name: &str| chosen(name, &UNSLOTH).unwrap();
        for (name, file) in [
            ("a/b", "gemma-3-4b-it-Q4_K_M.gguf"),
            ("a/b:q8_0", "gemma-3-4b-it-Q8_0.gguf"),
            ("a/b:bf16", "gemma-3-4b-it-BF16.gguf"),
            ("a/b:Q4_K_XL", "gemma-3-4b-it-UD-Q4_K_XL.gguf"),
            ("a/b:ud-q4_k_xl", "gemma-3-4b-it-UD-Q4_K_XL.gguf"),
            ("a/b:it-Q4_0", "gemma-3-4b-it-Q4_0.gguf"),
            ("a/b/gemma-3-4b-it-q8_0.gguf", "gemma-3-4b-it-Q8_0.gguf"),
        ] {
            assert_eq!(one(name), [file, "mmproj-BF16.gguf"], "{name}");
        }
        assert_eq!(one("a/b/mmproj-BF16.gguf"), ["mmproj-BF16.gguf"]);
        assert_eq!(chosen("a/b", &["x-Q4_0.gguf", "x-Q8_0.gguf"]).unwrap(), ["x-Q4_0.gguf"]);
        assert_eq!(chosen("a/b", &["x-Q8_0.gguf", "x-F16.gguf"]).unwrap(), ["x-Q8_0.gguf"]);
        let both = ["x-F16.gguf", "mmproj.gguf"];
        assert_eq!(chosen("a/b", &both).unwrap(), both);
    }

    #[test]
    fn what_cannot_be_chosen_lists_what_can() {
        let text = |name: &str, files: &[&str]| chosen(name, files).unwrap_err().to_string();
        let missing = text("a/b:Q5_K_M", &UNSLOTH);
        assert!(missing.contains("Q5_K_M") && missing.contains("a/b:UD-Q4_K_XL"), "{missing}");
        assert!(!missing.contains("mmproj"), "{missing}");
        let several = text("a/b", &["x-F16.gguf", "x-F32.gguf"]);
        assert!(several.contains("a/b:F16") && several.contains("a/b:F32"), "{several}");
        let same = text("a/b:Q4_0", &["x-Q4_0.gguf", "y-Q4_0.gguf"]);
        assert!(same.contains("a/b/x-Q4_0.gguf") && same.contains("a/b/y-Q4_0.gguf"), "{same}");
        let file = text("a/b/gemma-3-4b-it-Q4_1.gguf", &UNSLOTH);
        assert!(file.contains("close: gemma-3-4b-it-Q4_0.gguf"), "{file}");
        assert!(text("a/b", &["README.md"]).contains("neither GGUF nor safetensors"));
        assert!(text("a/b:Q4_0", &["config.json", "model.safetensors"]).contains("holds: a/b"));
    }

    /// The file that guesses for a model has its quantisation too, and is not meant by it.
    #[test]
    fn drafts_beside_a_model_are_files_of_their_own() {
        let files = ["g-26B-Q8_0.gguf", "mtp-g-26B-Q8_0.gguf", "MTP/g-26B-F16.gguf"];
        assert_eq!(chosen("a/b:Q8_0", &files).unwrap(), ["g-26B-Q8_0.gguf"]);
        assert_eq!(chosen("a/b", &files).unwrap(), ["g-26B-Q8_0.gguf"]);
        for draft in &files[1..] {
            assert_eq!(chosen(&format!("a/b/{draft}"), &files).unwrap(), [*draft]);
        }
        assert_eq!(chosen("a/b", &files[1..2]).unwrap(), ["mtp-g-26B-Q8_0.gguf"]);
        let with_tower = [files[1], "mmproj-F16.gguf"];
        assert_eq!(chosen("a/b", &with_tower).unwrap(), files[1..2]);
    }

    #[test]
    fn split_sets_come_whole() {
        let files = [
            "BF16/g-BF16-00001-of-00002.gguf",
            "BF16/g-BF16-00002-of-00002.gguf",
            "g-Q3_K-00001-of-00003.gguf",
            "g-Q3_K-00003-of-00003.gguf",
        ];
        assert_eq!(chosen("a/b:bf16", &files).unwrap(), files[..2]);
        assert_eq!(chosen("a/b/BF16/g-BF16-00002-of-00002.gguf", &files).unwrap(), files[..2]);
        let gap = chosen("a/b:Q3_K", &files).unwrap_err().to_string();
        assert!(gap.contains("part 2 of 3"), "{gap}");
    }

    #[test]
    fn folders_of_safetensors() {
        let files = [
            "README.md",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.safetensors",
            "preprocessor_config.json",
            "processor_config.json",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
        ];
        let folder = chosen("a/b", &files).unwrap();
        assert_eq!(folder.len(), 10);
        assert!(!folder.iter().any(|f| f.contains("onnx") || f.contains("README")));
        assert!(chosen("a/b", &files[3..]).unwrap_err().to_string().contains("config.json"));
        let gap: Vec<&str> = files.iter().copied().filter(|f| !f.contains("00002-of")).collect();
        assert!(chosen("a/b", &gap).unwrap_err().to_string().contains("part 2 of 2"));
    }

    #[test]
    fn every_listed_model_is_picked_by_its_name() {
        let files = list(&[
            "x-Q4_0.gguf",
            "y-Q4_0.gguf",
            "x-UD-Q4_K_XL.gguf",
            "plain.gguf",
            "d/z-F16-00001-of-00002.gguf",
            "d/z-F16-00002-of-00002.gguf",
        ]);
        let name = ModelName::parse("a/b").unwrap();
        let candidates = Candidates::new(files);
        for (model, expected) in candidates.models(&name) {
            let parsed = ModelName::parse(&model.to_string()).unwrap();
            assert_eq!(candidates.pick(&parsed).unwrap(), expected, "{model}");
        }
    }
}
