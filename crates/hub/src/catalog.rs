//! Well-known names and the repositories that they mean. The table is part of the program and needs
//! no network.
//!
//! The names are those of Ollama's library. The files are the text models that ggml-org publishes
//! without asking for a licence to be accepted first, and for Gemma 3n in 4 bits, which it has not,
//! those of unsloth. Those of Gemma 4 are Google's own, trained for their 4 bits. The sizes are
//! those of these files with their vision towers, rounded: they are shown as "about".

use crate::name::ModelName;
use crate::spelling::closest;

/// A model of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogModel {
    /// The family, before the colon: `gemma3`.
    family: &'static str,
    /// The tags that mean this model, the usual one first: `4b`, `4b-it-q4_K_M`.
    tags: &'static [&'static str],
    /// `owner/repo`.
    repository: &'static str,
    /// The quantisation, as the file's name spells it.
    quant: &'static str,
    /// The approximate size in bytes of the file, and of the vision tower that is pulled with it,
    /// if it is known without asking the server.
    pub bytes: Option<u64>,
}

/// A well-known family that trine does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedFamily {
    /// The name before the colon.
    pub name: &'static str,
    /// Why it does not run, and which model to use instead.
    pub reason: &'static str,
}

/// What the catalogue says about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// A model that can be downloaded.
    Model(&'static CatalogModel),
    /// A family that does not run here.
    Refused(&'static RefusedFamily),
}

/// The size of Gemma 3's vision tower in F16: 416 million weights of two bytes, and a table of
/// places in F32.
const TOWER_MEGABYTES: u64 = 850;
/// The tag of a name without one.
const LATEST: &str = "latest";

const fn gemma3(
    tags: &'static [&'static str],
    repository: &'static str,
    quant: &'static str,
    megabytes: u64,
) -> CatalogModel {
    CatalogModel { family: "gemma3", tags, repository, quant, bytes: Some(megabytes * 1_000_000) }
}

/// A model of Gemma 3 that reads pictures.
const fn seeing(
    tags: &'static [&'static str],
    repository: &'static str,
    quant: &'static str,
    megabytes: u64,
) -> CatalogModel {
    gemma3(tags, repository, quant, megabytes + TOWER_MEGABYTES)
}

const fn gemma3n(
    tags: &'static [&'static str],
    repository: &'static str,
    quant: &'static str,
    megabytes: u64,
) -> CatalogModel {
    CatalogModel { family: "gemma3n", ..gemma3(tags, repository, quant, megabytes) }
}

const fn gemma4(
    tags: &'static [&'static str],
    repository: &'static str,
    quant: &'static str,
) -> CatalogModel {
    CatalogModel { family: "gemma4", bytes: None, ..gemma3(tags, repository, quant, 0) }
}

const MODELS: [CatalogModel; 27] = [
    gemma3(&["270m", "270m-it-q8_0"], "ggml-org/gemma-3-270m-it-GGUF", "Q8_0", 292),
    gemma3(&["270m-it-qat"], "ggml-org/gemma-3-270m-it-qat-GGUF", "Q4_0", 241),
    gemma3(&["1b", "1b-it-q4_K_M"], "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M", 806),
    gemma3(&["1b-it-qat"], "ggml-org/gemma-3-1b-it-qat-GGUF", "Q4_0", 720),
    gemma3(&["1b-it-q8_0"], "ggml-org/gemma-3-1b-it-GGUF", "Q8_0", 1_070),
    gemma3(&["1b-it-fp16", "1b-it-f16"], "ggml-org/gemma-3-1b-it-GGUF", "f16", 2_010),
    seeing(&["4b", LATEST, "4b-it-q4_K_M"], "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2_490),
    seeing(&["4b-it-qat"], "ggml-org/gemma-3-4b-it-qat-GGUF", "Q4_0", 2_530),
    seeing(&["4b-it-q8_0"], "ggml-org/gemma-3-4b-it-GGUF", "Q8_0", 4_130),
    seeing(&["4b-it-fp16", "4b-it-f16"], "ggml-org/gemma-3-4b-it-GGUF", "f16", 7_770),
    seeing(&["12b", "12b-it-q4_K_M"], "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", 7_300),
    seeing(&["12b-it-qat"], "ggml-org/gemma-3-12b-it-qat-GGUF", "Q4_0", 7_130),
    seeing(&["12b-it-q8_0"], "ggml-org/gemma-3-12b-it-GGUF", "Q8_0", 12_510),
    seeing(&["12b-it-fp16", "12b-it-f16"], "ggml-org/gemma-3-12b-it-GGUF", "f16", 23_540),
    seeing(&["27b", "27b-it-q4_K_M"], "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M", 16_550),
    seeing(&["27b-it-qat"], "ggml-org/gemma-3-27b-it-qat-GGUF", "Q4_0", 15_910),
    seeing(&["27b-it-q8_0"], "ggml-org/gemma-3-27b-it-GGUF", "Q8_0", 28_710),
    seeing(&["27b-it-fp16", "27b-it-f16"], "ggml-org/gemma-3-27b-it-GGUF", "f16", 54_030),
    gemma3n(&["e2b", "e2b-it-q4_K_M"], "unsloth/gemma-3n-E2B-it-GGUF", "Q4_K_M", 3_030),
    gemma3n(&["e2b-it-q8_0"], "ggml-org/gemma-3n-E2B-it-GGUF", "Q8_0", 4_790),
    gemma3n(&["e4b", LATEST, "e4b-it-q4_K_M"], "unsloth/gemma-3n-E4B-it-GGUF", "Q4_K_M", 4_540),
    gemma3n(&["e4b-it-q8_0"], "ggml-org/gemma-3n-E4B-it-GGUF", "Q8_0", 7_350),
    gemma4(&["e2b", "e2b-it-qat"], "google/gemma-4-E2B-it-qat-q4_0-gguf", "Q4_0"),
    gemma4(&["e4b", LATEST, "e4b-it-qat"], "google/gemma-4-E4B-it-qat-q4_0-gguf", "Q4_0"),
    gemma4(&["12b", "12b-it-qat"], "google/gemma-4-12B-it-qat-q4_0-gguf", "Q4_0"),
    gemma4(
        &["26b", "26b-a4b", "26b-a4b-it-qat"],
        "google/gemma-4-26B-A4B-it-qat-q4_0-gguf",
        "Q4_0",
    ),
    gemma4(&["31b", "31b-it-qat"], "google/gemma-4-31B-it-qat-q4_0-gguf", "Q4_0"),
];

const REFUSED: [RefusedFamily; 5] = [
    RefusedFamily {
        name: "gemma2",
        reason: "trine runs Gemma 3, not the generations before; take a gemma3",
    },
    RefusedFamily {
        name: "gemma",
        reason: "trine runs Gemma 3, not the generations before; take a gemma3",
    },
    RefusedFamily {
        name: "codegemma",
        reason: "CodeGemma is of Gemma's first generation, and trine runs Gemma 3; take a gemma3",
    },
    RefusedFamily {
        name: "shieldgemma",
        reason: "ShieldGemma is of Gemma's second generation, and trine runs Gemma 3; take a gemma3",
    },
    RefusedFamily {
        name: "embeddinggemma",
        reason: "EmbeddingGemma's attention looks both ways, which trine does not compute yet; \
                 `trine serve --embeddings` makes embeddings with a gemma3",
    },
];

/// Families mostly from other makers, by the beginning of their names: a version or a variant may
/// follow.
const OTHERS: [RefusedFamily; 15] = {
    const fn other(name: &'static str) -> RefusedFamily {
        RefusedFamily {
            name,
            reason: "it is of another family, and trine runs Gemma 3; take a gemma3",
        }
    }
    [
        other("llama"),
        other("codellama"),
        other("tinyllama"),
        other("mistral"),
        other("mixtral"),
        other("ministral"),
        other("devstral"),
        other("qwen"),
        other("qwq"),
        other("phi"),
        other("deepseek"),
        other("gpt-oss"),
        other("granite"),
        other("smollm"),
        RefusedFamily {
            name: "medgemma",
            reason: "trine's list has no files of MedGemma; it is made of Gemma 3, so name a repository that has \
                     them (owner/repo), or take a gemma3",
        },
    ]
};

impl CatalogModel {
    /// Returns its usual name, with the tag: `gemma3:4b`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.family, self.tags[0])
    }

    /// Returns the last part of the repository's name, without the suffix for GGUF files:
    /// `gemma-3-4b-it`, `gemma-4-E4B-it-qat`.
    fn repository_part(&self) -> &'static str {
        let part = self.repository.rsplit('/').next().unwrap_or(self.repository);
        let part = part.strip_suffix("-GGUF").unwrap_or(part);
        part.strip_suffix("-q4_0-gguf").unwrap_or(part)
    }

    /// Returns all names that mean it, the usual one first.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.tags.iter().map(|tag| format!("{}:{tag}", self.family)).collect();
        if self.tags.contains(&LATEST) {
            names.push(self.family.to_owned());
        }
        names
    }

    /// Returns its name in the store and on Hugging Face.
    pub fn model(&self) -> ModelName {
        ModelName::parse(&format!("{}:{}", self.repository, self.quant))
            .expect("the table holds names that can be parsed, which a test shows")
    }

    /// Returns the quantisation, as the file's name spells it.
    pub fn quant(&self) -> &'static str {
        self.quant
    }
}

/// Returns all models of the catalogue, by family, smaller ones first.
pub fn models() -> &'static [CatalogModel] {
    &MODELS
}

/// Returns the well-known families that trine does not run.
pub fn refused() -> &'static [RefusedFamily] {
    &REFUSED
}

/// Returns what a name means, in upper or lower case: `gemma3:4b`, `gemma3` (the 4B),
/// `gemma3:latest`.
pub fn find(name: &str) -> Option<Known> {
    let name = name.strip_prefix("library/").unwrap_or(name);
    let (family, tag) = name.split_once(':').unwrap_or((name, LATEST));
    let is_model = |model: &&CatalogModel| {
        model.family.eq_ignore_ascii_case(family)
            && model.tags.iter().any(|other| other.eq_ignore_ascii_case(tag))
    };
    let is_other = |other: &&RefusedFamily| {
        let (start, rest) = family.split_at_checked(other.name.len()).unwrap_or_default();
        let is_word = !rest.starts_with(|next: char| next.is_ascii_alphabetic());
        start.eq_ignore_ascii_case(other.name) && is_word
    };
    let refused = || {
        let exact = REFUSED.iter().find(|other| other.name.eq_ignore_ascii_case(family));
        exact.or_else(|| OTHERS.iter().find(is_other))
    };
    match MODELS.iter().find(is_model) {
        Some(model) => Some(Known::Model(model)),
        None => refused().map(Known::Refused),
    }
}

/// Returns the models whose names, repository or quantisation contain every word of `text`; all
/// models if it is empty.
pub fn search(text: &str) -> Vec<&'static CatalogModel> {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    let holds = |model: &&CatalogModel| {
        let mut all = model.names().join(" ");
        all.push(' ');
        all.push_str(&model.model().to_string());
        let all = all.to_lowercase();
        words.iter().all(|word| all.contains(word.as_str()))
    };
    MODELS.iter().filter(holds).collect()
}

/// Returns names of the catalogue that are spelled almost like `name`, best first, at most five.
pub fn close(name: &str) -> Vec<String> {
    let wanted = name.to_lowercase();
    if let Some(model) = of_repository(&wanted) {
        return vec![model.name()];
    }
    // For a wrong tag of a known family, its usual sizes help more than names that are spelled
    // alike.
    let family = wanted.split(':').next().unwrap_or_default();
    let names: Vec<String> = MODELS.iter().flat_map(CatalogModel::names).collect();
    let mut close = closest(&wanted, &names);
    let parts: Vec<String> =
        MODELS.iter().map(|model| model.repository_part().to_owned()).collect();
    close.extend(
        closest(&wanted, &parts).iter().filter_map(|part| Some(of_repository(part)?.name())),
    );
    let usual =
        MODELS.iter().filter(|model| model.family == family && !model.tags[0].contains('-'));
    close.extend(usual.map(CatalogModel::name));
    let mut seen = std::collections::BTreeSet::new();
    close.retain(|name| seen.insert(name.clone()));
    close.truncate(5);
    close
}

/// Returns the usual model of a repository. `part` is the last part of its name, or of the name of
/// the repository that it was made from: `gemma-3-4b-it`, `gemma-3-4b-it-gguf`, `gemma-3-4b`.
fn of_repository(part: &str) -> Option<&'static CatalogModel> {
    let part = part.strip_suffix("-gguf").unwrap_or(part);
    let part = part.strip_suffix("-q4_0").unwrap_or(part);
    MODELS.iter().find(|model| {
        let own = model.repository_part();
        [own, own.strip_suffix("-it").unwrap_or(own)]
            .iter()
            .any(|own| own.eq_ignore_ascii_case(part))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::name::Selection;

    fn repository(name: &str) -> String {
        match find(name) {
            Some(Known::Model(model)) => model.model().to_string(),
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn names_of_ollama_mean_what_they_mean_there() {
        for (name, model) in [
            ("gemma3", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
            ("gemma3:latest", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
            ("Gemma3:4B", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
            ("library/gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
            ("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF:Q8_0"),
            ("gemma3:1b-it-qat", "ggml-org/gemma-3-1b-it-qat-GGUF:Q4_0"),
            ("gemma3:4b-it-q8_0", "ggml-org/gemma-3-4b-it-GGUF:Q8_0"),
            ("gemma3:12b-it-q4_K_M", "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M"),
            ("gemma3:27b-it-fp16", "ggml-org/gemma-3-27b-it-GGUF:f16"),
            ("gemma3n", "unsloth/gemma-3n-E4B-it-GGUF:Q4_K_M"),
            ("gemma3n:e2b", "unsloth/gemma-3n-E2B-it-GGUF:Q4_K_M"),
            ("gemma3n:e2b-it-q8_0", "ggml-org/gemma-3n-E2B-it-GGUF:Q8_0"),
            ("gemma4", "google/gemma-4-E4B-it-qat-q4_0-gguf:Q4_0"),
            ("gemma4:26B-A4B", "google/gemma-4-26B-A4B-it-qat-q4_0-gguf:Q4_0"),
            ("gemma4:26b", "google/gemma-4-26B-A4B-it-qat-q4_0-gguf:Q4_0"),
            ("gemma4:31b-it-qat", "google/gemma-4-31B-it-qat-q4_0-gguf:Q4_0"),
        ] {
            assert_eq!(repository(name), model, "{name}");
        }
        for unknown in ["gemma3:5b", "philosophy", "gemma3:", ":4b", "", "gemma-3-4b", "a/gemma3"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn families_that_do_not_run_have_a_reason() {
        for name in [
            "GEMMA2:9b",
            "embeddinggemma",
            "llama3",
            "Llama3.2:1b",
            "mistral",
            "qwen2.5-coder:7b",
            "deepseek-r1",
            "medgemma",
            "medgemma:27b",
            "medgemma-4b-it",
        ] {
            assert!(
                matches!(find(name), Some(Known::Refused(family)) if family.reason.contains("trine")),
                "{name}"
            );
        }
    }

    #[test]
    fn the_table_is_consistent() {
        let mut names = BTreeSet::new();
        for model in models() {
            assert!(matches!(model.model().selection(), Selection::Quant(_)), "{model:?}");
            for name in model.names() {
                assert!(names.insert(name.to_lowercase()), "{name} is there twice");
                assert_eq!(find(&name), Some(Known::Model(model)), "{name}");
            }
        }
    }

    /// Sizes follow from the number of parameters and the bits of a format.
    #[test]
    fn sizes_are_those_of_parameters_and_bits() {
        for (model, bytes) in models().iter().filter_map(|model| Some((model, model.bytes?))) {
            let parameters = match model.tags[0].split('-').next() {
                Some("270m") => 268e6,
                Some("1b") => 1.0e9,
                Some("4b") => 3.88e9,
                Some("12b") => 11.77e9,
                Some("27b") => 27.01e9,
                Some("e2b") => 4.46e9,
                Some("e4b") => 6.87e9,
                other => panic!("{other:?}"),
            };
            // Small models have large tables of embeddings, which stay in 6 or 8 bits.
            let bits = match model.quant {
                "f16" => 15.9..=16.2,
                "Q8_0" => 8.45..=8.8,
                "Q4_0" => 4.5..=7.3,
                "Q4_K_M" => 4.8..=6.6,
                other => panic!("{other}"),
            };
            let has_tower = ["4b", "12b", "27b"].iter().any(|size| model.tags[0].starts_with(size));
            let own = bytes - u64::from(has_tower) * TOWER_MEGABYTES * 1_000_000;
            let found = own as f64 * 8.0 / parameters;
            assert!(bits.contains(&found), "{}: {found:.2} bits", model.name());
        }
    }

    #[test]
    fn search_takes_words_in_any_order() {
        let names = |text: &str| -> Vec<String> {
            search(text).into_iter().map(CatalogModel::name).collect()
        };
        assert_eq!(names("").len(), models().len());
        assert_eq!(names("QAT gemma-3-4b"), ["gemma3:4b-it-qat"]);
        assert_eq!(names("gemma-3-1b q8"), ["gemma3:1b-it-q8_0"]);
        assert!(names("llama").is_empty());
    }

    #[test]
    fn mistyped_names_find_their_neighbours() {
        assert_eq!(close("gema3:4b")[0], "gemma3:4b");
        assert!(close("gemma3:5b").contains(&"gemma3:4b".to_owned()));
        assert!(close("gemma3n:e3b").contains(&"gemma3n:e4b".to_owned()));
        assert!(close("gemma3:4b-q8_0").contains(&"gemma3:4b-it-q8_0".to_owned()));
        assert!(close("gemma3:70b-it-nonsense-tag").contains(&"gemma3:27b".to_owned()));
        assert!(close("mistral-large-instruct").is_empty());
        assert!(close("gema-3-4b-it").contains(&"gemma3:4b".to_owned()));
    }

    #[test]
    fn names_of_hugging_face_find_the_model() {
        for (name, model) in [
            ("gemma-3-4b-it", "gemma3:4b"),
            ("Gemma-3-1B-it-GGUF", "gemma3:1b"),
            ("gemma-3-27b", "gemma3:27b"),
            ("gemma-3n-E2B-it", "gemma3n:e2b"),
            ("gemma-3-12b-it-qat-q4_0-gguf", "gemma3:12b-it-qat"),
            ("gemma-4-31B-it-qat-q4_0-gguf", "gemma4:31b"),
            ("gemma-4-12B-it-qat", "gemma4:12b"),
        ] {
            assert_eq!(close(name), [model], "{name}");
        }
        for part in MODELS.iter().map(CatalogModel::repository_part) {
            assert!(of_repository(&part.to_lowercase()).is_some(), "{part}");
        }
    }
}
