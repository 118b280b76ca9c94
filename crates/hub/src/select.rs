//! Which files of a repository make up the requested model.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::HubError;
use crate::name::{ModelName, Selection, has_extension};
use crate::spelling::closest;

/// The quantisations in the order in which they are tried if none is named.
const PREFERRED: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];

/// The files that a folder of safetensors needs in addition to the weights.
const FOLDER_FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "preprocessor_config.json",
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
    pub(crate) fn files(&self) -> &[String] {
        match self {
            Pick::Gguf(set) => &set.files,
            Pick::Folder(files) => files,
        }
    }
}

/// Picks a model and makes sure that all its files are there.
pub(crate) fn choose(name: &ModelName, files: &[String]) -> Result<Pick, HubError> {
    let pick = pick(name, files)?;
    let unusable = |reason: String| HubError::Unusable { repository: name.repository(), reason };
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
pub(crate) fn pick(name: &ModelName, files: &[String]) -> Result<Pick, HubError> {
    let sets = gguf_sets(files);
    let available = || names_of(name, &sets, files);
    let one_of = |mut matches: Vec<&GgufSet>| match matches.len() {
        0 => None,
        1 => Some(Ok(Pick::Gguf(matches.remove(0).clone()))),
        _ => Some(Err(HubError::Ambiguous {
            name: name.to_string(),
            available: matches.iter().map(|set| name_of(name, set, &sets).to_string()).collect(),
        })),
    };
    match name.selection() {
        Selection::File(file) => pick_file(file, &sets, files).ok_or_else(|| {
            let ggufs: Vec<String> =
                files.iter().filter(|name| has_extension(name, ".gguf")).cloned().collect();
            HubError::FileNotFound {
                repository: name.repository(),
                file: file.clone(),
                close: closest(file, &ggufs),
                available: available(),
            }
        }),
        Selection::Quant(quant) => {
            let found = (0..3).find_map(|rank| {
                one_of(sets.iter().filter(|set| matches_quant(set, quant, rank)).collect())
            });
            found.unwrap_or_else(|| {
                Err(HubError::NoMatch {
                    repository: name.repository(),
                    wanted: quant.clone(),
                    available: available(),
                })
            })
        }
        Selection::Default if sets.is_empty() => {
            let folder = folder_files(files);
            if folder.iter().any(|file| has_extension(file, ".safetensors")) {
                return Ok(Pick::Folder(folder));
            }
            let reason = "it has neither GGUF nor safetensors files; choose another repository";
            Err(HubError::Unusable { repository: name.repository(), reason: reason.to_owned() })
        }
        Selection::Default => {
            let found = PREFERRED.iter().find_map(|quant| {
                one_of(sets.iter().filter(|set| matches_quant(set, quant, 0)).collect())
            });
            found.or_else(|| one_of(sets.iter().collect())).expect("there is at least one set")
        }
    }
}

/// Returns the models in a list of files, each with a name that picks exactly it.
pub(crate) fn models(name: &ModelName, files: &[String]) -> Vec<(ModelName, Pick)> {
    let sets = gguf_sets(files);
    let mut models: Vec<(ModelName, Pick)> =
        sets.iter().map(|set| (name_of(name, set, &sets), Pick::Gguf(set.clone()))).collect();
    let folder = folder_files(files);
    if folder.iter().any(|file| has_extension(file, ".safetensors")) {
        models.push((name.with_selection(Selection::Default), Pick::Folder(folder)));
    }
    models
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

fn pick_file(file: &str, sets: &[GgufSet], files: &[String]) -> Option<Pick> {
    let holds = |set: &&GgufSet| set.files.iter().any(|name| name == file);
    let holds_lower = |set: &&GgufSet| set.files.iter().any(|name| name.eq_ignore_ascii_case(file));
    if let Some(set) = sets.iter().find(holds).or_else(|| sets.iter().find(holds_lower)) {
        return Some(Pick::Gguf(set.clone()));
    }
    // A file that is not a model of its own, such as a projector, can be requested by name.
    let name = files.iter().find(|name| name.as_str() == file)?;
    let stem = name[..name.len() - ".gguf".len()].to_owned();
    let files = vec![name.clone()];
    Some(Pick::Gguf(GgufSet { stem, quant: None, parts: None, files, present: BTreeSet::new() }))
}

/// Returns whether a set matches a quantisation at a rank. Rank 0: the quantisation itself. Rank 1:
/// with a prefix such as `UD-`. Rank 2: the end of the file's name.
fn matches_quant(set: &GgufSet, wanted: &str, rank: u32) -> bool {
    let quant = set.quant.as_deref().unwrap_or_default();
    match rank {
        0 => quant.eq_ignore_ascii_case(wanted),
        1 => ends_with_segment(quant, wanted),
        _ => {
            let stem = set.stem.rsplit('/').next().unwrap_or_default();
            let wanted =
                if has_extension(wanted, ".gguf") { &wanted[..wanted.len() - 5] } else { wanted };
            stem.eq_ignore_ascii_case(wanted) || ends_with_segment(stem, wanted)
        }
    }
}

/// Returns whether `text` ends in '-' or '.' and `end`.
fn ends_with_segment(text: &str, end: &str) -> bool {
    let Some(start) = text.len().checked_sub(end.len()).filter(|start| *start > 0) else {
        return false;
    };
    text.get(start..).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
        && text[..start].ends_with(['-', '.'])
}

fn names_of(name: &ModelName, sets: &[GgufSet], files: &[String]) -> Vec<String> {
    let mut names: Vec<String> =
        sets.iter().map(|set| name_of(name, set, sets).to_string()).collect();
    if sets.is_empty() && files.iter().any(|file| has_extension(file, ".safetensors")) {
        names.push(name.repository());
    }
    names
}

/// Returns the shortest name that picks this set among all sets.
fn name_of(name: &ModelName, set: &GgufSet, sets: &[GgufSet]) -> ModelName {
    let by_file = || name.with_selection(Selection::File(set.files[0].clone()));
    let Some(quant) = &set.quant else { return by_file() };
    let same = sets.iter().filter(|other| matches_quant(other, quant, 0)).count();
    if same == 1 { name.with_selection(Selection::Quant(quant.clone())) } else { by_file() }
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

/// Returns whether a file is a projector of a vision model or an importance matrix: a GGUF file,
/// but not a language model.
fn is_auxiliary(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    name.contains("mmproj") || name.starts_with("imatrix")
}

/// Returns whether a file beside a model is named as the one that guesses for it is:
/// `mtp-gemma-4-31B-it.gguf`, or a file in a folder `MTP`.
fn is_draft(file: &str) -> bool {
    let mut parts = file.rsplit('/');
    let name = parts.next().unwrap_or_default().to_ascii_lowercase();
    name.starts_with("mtp-") || parts.any(|folder| folder.eq_ignore_ascii_case("mtp"))
}

/// Splits `stem-00002-of-00005` into stem, 2 and 5 (the naming of split GGUF and sharded
/// safetensors files).
fn split_suffix(stem: &str) -> Option<(&str, u32, u32)> {
    const LENGTH: usize = "-00001-of-00001".len();
    let start = stem.len().checked_sub(LENGTH)?;
    let suffix = stem.get(start..)?;
    let (part, parts) = suffix.strip_prefix('-')?.split_once("-of-")?;
    let number = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (part, parts) = (number(part)?, number(parts)?);
    (part >= 1 && part <= parts && start > 0).then(|| (&stem[..start], part, parts))
}

fn folder_files(files: &[String]) -> Vec<String> {
    let wanted = |file: &&String| {
        FOLDER_FILES.contains(&file.as_str())
            || (has_extension(file, ".safetensors") && !file.contains('/'))
    };
    files.iter().filter(wanted).cloned().collect()
}

/// Returns the quantisation in a file's name, e.g. `Q4_K_M` in `gemma-3-4b-it-Q4_K_M` or
/// `UD-Q4_K_XL`.
fn quant_of(stem: &str) -> Option<String> {
    let mut end = stem.len();
    // The segments between '-' and '.', last one first.
    loop {
        let start = stem[..end].rfind(['-', '.']).map_or(0, |at| at + 1);
        let segment = &stem[start..end];
        if is_quant(segment) {
            let dynamic = stem[..start].len() >= 3
                && stem.get(start - 3..start).is_some_and(|p| p.eq_ignore_ascii_case("UD-"))
                && !stem[..start - 3].ends_with(|c: char| c.is_ascii_alphanumeric());
            let start = if dynamic { start - 3 } else { start };
            return Some(stem[start..end].to_owned());
        }
        // "model_Q4_0": the quantisation follows an underscore.
        let inner = segment.match_indices('_').map(|(at, _)| &segment[at + 1..]);
        if let Some(quant) = inner.into_iter().find(|rest| is_quant(rest)) {
            return Some(quant.to_owned());
        }
        if start == 0 {
            return None;
        }
        end = start - 1;
    }
}

/// Returns whether a text is a quantisation's name: a known type, perhaps with suffixes such as
/// `_K_M`.
fn is_quant(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    let mut pieces = upper.split('_');
    let first = pieces.next().unwrap_or_default();
    let digits = |prefix: &str| {
        first
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.len() == 1 && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let plain = matches!(first, "F16" | "F32" | "BF16" | "FP16" | "FP32" | "MXFP4" | "NVFP4");
    let suffix = |piece: &str| {
        !piece.is_empty() && piece.len() <= 4 && piece.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    (plain || digits("Q") || digits("IQ") || digits("TQ")) && pieces.all(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| file.to_string()).collect()
    }

    fn chosen(name: &str, files: &[&str]) -> Result<Vec<String>, HubError> {
        let name = ModelName::parse(name).unwrap();
        choose(&name, &list(files)).map(|pick| pick.files().to_vec())
    }

    #[test]
    fn quantisations_in_names_people_use() {
        for (stem, quant) in [
            ("gemma-3-4b-it-q4_0", Some("q4_0")),
            ("gemma-3-4b-it-Q4_K_M", Some("Q4_K_M")),
            ("gemma-3-12b-it-qat-UD-Q4_K_XL", Some("UD-Q4_K_XL")),
            ("google_gemma-3-4b-it-Q6_K_L", Some("Q6_K_L")),
            ("gemma-3-27b-it.Q4_K_M", Some("Q4_K_M")),
            ("gemma-3-27b-it.i1-IQ3_XXS", Some("IQ3_XXS")),
            ("gemma-3-4b-it-q4_0_s", Some("q4_0_s")),
            ("gemma-3-1b-it-BF16", Some("BF16")),
            ("gemma-3-4b-it-f16", Some("f16")),
            ("model_Q8_0", Some("Q8_0")),
            ("gemma-3-4b-it-Q4_0-imat", Some("Q4_0")),
            ("Q4_0", Some("Q4_0")),
            ("gemma-3-4b-it", None),
            ("gemma", None),
            ("", None),
            ("ü-ä", None),
        ] {
            assert_eq!(quant_of(stem).as_deref(), quant, "{stem}");
        }
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
    fn the_named_quantisation_or_the_preferred_one() {
        let one = |name: &str| chosen(name, &UNSLOTH).unwrap();
        assert_eq!(one("a/b"), ["gemma-3-4b-it-Q4_K_M.gguf"]);
        assert_eq!(one("a/b:q8_0"), ["gemma-3-4b-it-Q8_0.gguf"]);
        assert_eq!(one("a/b:bf16"), ["gemma-3-4b-it-BF16.gguf"]);
        assert_eq!(one("a/b:Q4_K_XL"), ["gemma-3-4b-it-UD-Q4_K_XL.gguf"]);
        assert_eq!(one("a/b:ud-q4_k_xl"), ["gemma-3-4b-it-UD-Q4_K_XL.gguf"]);
        assert_eq!(one("a/b:it-Q4_0"), ["gemma-3-4b-it-Q4_0.gguf"]);
        assert_eq!(one("a/b/gemma-3-4b-it-q8_0.gguf"), ["gemma-3-4b-it-Q8_0.gguf"]);
        assert_eq!(one("a/b/mmproj-BF16.gguf"), ["mmproj-BF16.gguf"]);
        assert_eq!(chosen("a/b", &["x-Q4_0.gguf", "x-Q8_0.gguf"]).unwrap(), ["x-Q4_0.gguf"]);
        assert_eq!(chosen("a/b", &["x-Q8_0.gguf", "x-F16.gguf"]).unwrap(), ["x-Q8_0.gguf"]);
        assert_eq!(chosen("a/b", &["x-F16.gguf", "mmproj.gguf"]).unwrap(), ["x-F16.gguf"]);
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
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
        ];
        let folder = chosen("a/b", &files).unwrap();
        assert_eq!(folder.len(), 9);
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
        for (model, expected) in models(&name, &files) {
            let parsed = ModelName::parse(&model.to_string()).unwrap();
            assert_eq!(pick(&parsed, &files).unwrap(), expected, "{model}");
        }
    }
}
