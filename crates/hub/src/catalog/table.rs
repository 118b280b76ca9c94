//! The table of the catalogue: names, repositories, sizes and shapes.

use super::parts::Parts;
use super::shapes::{self, Shape};
use crate::name::{ModelName, Selection};

/// A model of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CatalogModel {
    /// The family, before the colon: `gemma3`.
    pub(super) family: &'static str,
    /// The tags that mean this model, the usual one first: `4b`, `4b-it-q4_K_M`.
    pub(super) tags: &'static [&'static str],
    /// `owner/repo`.
    pub(super) repository: &'static str,
    /// The quantisation, as the file's name spells it.
    pub(super) quant: &'static str,
    /// The approximate size in bytes of the file, and of the vision tower that is pulled with it.
    pub bytes: u64,
    /// Whether it reads images here: a vision tower that trine computes is pulled with it.
    pub sees: bool,
    shape: &'static Shape,
}

/// What running a model takes, forecast from its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// The bytes of weights that a token reads.
    pub weight_bytes: u64,
    /// The bytes of keys and values that a token in the middle of the context reads.
    pub cache_bytes: u64,
    /// The operations of a token.
    pub operations: u64,
    /// The bytes of memory: all weights, the KV cache of a full context, and room to work in.
    pub memory_bytes: u64,
}

/// The size of Gemma 3's vision tower in F16: 416 million weights of two bytes, and a table of
/// places in F32.
pub(super) const TOWER_MEGABYTES: u64 = 850;
/// The tag of a name without one.
pub(super) const LATEST: &str = "latest";
/// The bytes that a program takes besides weights and caches: activations, the tokenizer, code.
const WORKING_BYTES: u64 = 400 << 20;

const fn row(
    family: &'static str,
    shape: &'static Shape,
    tags: &'static [&'static str],
    (repository, quant): (&'static str, &'static str),
    megabytes: u64,
) -> CatalogModel {
    let bytes = megabytes * 1_000_000;
    CatalogModel { family, tags, repository, quant, bytes, sees: false, shape }
}

const fn gemma3(
    shape: &'static Shape,
    tags: &'static [&'static str],
    file: (&'static str, &'static str),
    megabytes: u64,
) -> CatalogModel {
    row("gemma3", shape, tags, file, megabytes)
}

/// A model of Gemma 3 that reads pictures.
const fn seeing(
    shape: &'static Shape,
    tags: &'static [&'static str],
    file: (&'static str, &'static str),
    megabytes: u64,
) -> CatalogModel {
    CatalogModel { sees: true, ..gemma3(shape, tags, file, megabytes + TOWER_MEGABYTES) }
}

const fn gemma3n(
    shape: &'static Shape,
    tags: &'static [&'static str],
    file: (&'static str, &'static str),
    megabytes: u64,
) -> CatalogModel {
    row("gemma3n", shape, tags, file, megabytes)
}

/// A model of Gemma 3 that was trained further on medical texts and images.
const fn medgemma(
    family: &'static str,
    tags: &'static [&'static str],
    file: (&'static str, &'static str),
    megabytes: u64,
) -> CatalogModel {
    CatalogModel { family, ..seeing(&shapes::GEMMA3_4B, tags, file, megabytes) }
}

/// A model of Gemma 4, with the size of its tower.
const fn gemma4(
    shape: &'static Shape,
    tags: &'static [&'static str],
    file: (&'static str, &'static str),
    (megabytes, tower): (u64, u64),
) -> CatalogModel {
    CatalogModel { sees: true, ..row("gemma4", shape, tags, file, megabytes + tower) }
}

pub(super) const MODELS: [CatalogModel; 45] = {
    use shapes::*;
    [
        gemma3(
            &GEMMA3_270M,
            &["270m", "270m-it-q8_0"],
            ("ggml-org/gemma-3-270m-it-GGUF", "Q8_0"),
            292,
        ),
        gemma3(&GEMMA3_270M, &["270m-it-qat"], ("ggml-org/gemma-3-270m-it-qat-GGUF", "Q4_0"), 241),
        gemma3(&GEMMA3_1B, &["1b", "1b-it-q4_K_M"], ("ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M"), 806),
        gemma3(&GEMMA3_1B, &["1b-it-qat"], ("ggml-org/gemma-3-1b-it-qat-GGUF", "Q4_0"), 720),
        gemma3(&GEMMA3_1B, &["1b-it-q8_0"], ("ggml-org/gemma-3-1b-it-GGUF", "Q8_0"), 1_070),
        gemma3(
            &GEMMA3_1B,
            &["1b-it-fp16", "1b-it-f16"],
            ("ggml-org/gemma-3-1b-it-GGUF", "f16"),
            2_010,
        ),
        seeing(
            &GEMMA3_4B,
            &["4b", LATEST, "4b-it-q4_K_M"],
            ("ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M"),
            2_490,
        ),
        seeing(&GEMMA3_4B, &["4b-it-qat"], ("ggml-org/gemma-3-4b-it-qat-GGUF", "Q4_0"), 2_530),
        seeing(&GEMMA3_4B, &["4b-it-q8_0"], ("ggml-org/gemma-3-4b-it-GGUF", "Q8_0"), 4_130),
        seeing(
            &GEMMA3_4B,
            &["4b-it-fp16", "4b-it-f16"],
            ("ggml-org/gemma-3-4b-it-GGUF", "f16"),
            7_770,
        ),
        seeing(
            &GEMMA3_12B,
            &["12b", "12b-it-q4_K_M"],
            ("ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M"),
            7_300,
        ),
        seeing(&GEMMA3_12B, &["12b-it-qat"], ("ggml-org/gemma-3-12b-it-qat-GGUF", "Q4_0"), 7_130),
        seeing(&GEMMA3_12B, &["12b-it-q8_0"], ("ggml-org/gemma-3-12b-it-GGUF", "Q8_0"), 12_510),
        seeing(
            &GEMMA3_12B,
            &["12b-it-fp16", "12b-it-f16"],
            ("ggml-org/gemma-3-12b-it-GGUF", "f16"),
            23_540,
        ),
        seeing(
            &GEMMA3_27B,
            &["27b", "27b-it-q4_K_M"],
            ("ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M"),
            16_550,
        ),
        seeing(&GEMMA3_27B, &["27b-it-qat"], ("ggml-org/gemma-3-27b-it-qat-GGUF", "Q4_0"), 15_910),
        seeing(&GEMMA3_27B, &["27b-it-q8_0"], ("ggml-org/gemma-3-27b-it-GGUF", "Q8_0"), 28_710),
        seeing(
            &GEMMA3_27B,
            &["27b-it-fp16", "27b-it-f16"],
            ("ggml-org/gemma-3-27b-it-GGUF", "f16"),
            54_030,
        ),
        gemma3n(
            &GEMMA3N_E2B,
            &["e2b", "e2b-it-q4_K_M"],
            ("unsloth/gemma-3n-E2B-it-GGUF", "Q4_K_M"),
            3_030,
        ),
        gemma3n(&GEMMA3N_E2B, &["e2b-it-q8_0"], ("ggml-org/gemma-3n-E2B-it-GGUF", "Q8_0"), 4_790),
        gemma3n(
            &GEMMA3N_E4B,
            &["e4b", LATEST, "e4b-it-q4_K_M"],
            ("unsloth/gemma-3n-E4B-it-GGUF", "Q4_K_M"),
            4_540,
        ),
        gemma3n(&GEMMA3N_E4B, &["e4b-it-q8_0"], ("ggml-org/gemma-3n-E4B-it-GGUF", "Q8_0"), 7_350),
        gemma4(
            &GEMMA4_E2B,
            &["e2b", "e2b-it-qat"],
            ("google/gemma-4-E2B-it-qat-q4_0-gguf", "Q4_0"),
            (3350, 990),
        ),
        gemma4(
            &GEMMA4_E2B,
            &["e2b-it-q8_0"],
            ("ggml-org/gemma-4-E2B-it-GGUF", "Q8_0"),
            (4970, 560),
        ),
        gemma4(
            &GEMMA4_E4B,
            &["e4b", LATEST, "e4b-it-qat"],
            ("google/gemma-4-E4B-it-qat-q4_0-gguf", "Q4_0"),
            (5150, 990),
        ),
        gemma4(
            &GEMMA4_E4B,
            &["e4b-it-q4_K_M"],
            ("ggml-org/gemma-4-E4B-it-GGUF", "Q4_K_M"),
            (5340, 560),
        ),
        gemma4(
            &GEMMA4_E4B,
            &["e4b-it-q8_0"],
            ("ggml-org/gemma-4-E4B-it-GGUF", "Q8_0"),
            (8030, 560),
        ),
        gemma4(
            &GEMMA4_12B,
            &["12b", "12b-it-qat"],
            ("google/gemma-4-12B-it-qat-q4_0-gguf", "Q4_0"),
            (6980, 180),
        ),
        gemma4(
            &GEMMA4_12B,
            &["12b-it-q8_0"],
            ("ggml-org/gemma-4-12B-it-GGUF", "Q8_0"),
            (12700, 180),
        ),
        gemma4(
            &GEMMA4_12B,
            &["12b-it-bf16"],
            ("ggml-org/gemma-4-12B-it-GGUF", "BF16"),
            (23830, 180),
        ),
        gemma4(
            &GEMMA4_26B,
            &["26b", "26b-a4b", "26b-it-qat", "26b-a4b-it-qat"],
            ("google/gemma-4-26B-A4B-it-qat-q4_0-gguf", "Q4_0"),
            (14440, 1190),
        ),
        gemma4(
            &GEMMA4_26B,
            &["26b-a4b-it-q4_K_M"],
            ("ggml-org/gemma-4-26B-A4B-it-GGUF", "Q4_K_M"),
            (16800, 810),
        ),
        gemma4(
            &GEMMA4_26B,
            &["26b-a4b-it-q8_0"],
            ("ggml-org/gemma-4-26B-A4B-it-GGUF", "Q8_0"),
            (26860, 810),
        ),
        gemma4(
            &GEMMA4_31B,
            &["31b", "31b-it-qat"],
            ("google/gemma-4-31B-it-qat-q4_0-gguf", "Q4_0"),
            (17650, 1200),
        ),
        gemma4(
            &GEMMA4_31B,
            &["31b-it-q4_K_M"],
            ("ggml-org/gemma-4-31B-it-GGUF", "Q4_K_M"),
            (18690, 810),
        ),
        gemma4(
            &GEMMA4_31B,
            &["31b-it-q8_0"],
            ("ggml-org/gemma-4-31B-it-GGUF", "Q8_0"),
            (32640, 810),
        ),
        gemma4(
            &GEMMA4_31B,
            &["31b-it-bf16"],
            ("ggml-org/gemma-4-31B-it-GGUF", "BF16"),
            (61410, 1200),
        ),
        row(
            "embeddinggemma",
            &EMBEDDING_300M,
            &["300m", LATEST, "300m-q8_0"],
            ("ggml-org/embeddinggemma-300M-GGUF", "Q8_0"),
            334,
        ),
        row(
            "functiongemma",
            &GEMMA3_270M,
            &["270m", LATEST, "270m-it-q8_0"],
            ("unsloth/functiongemma-270m-it-GGUF", "Q8_0"),
            292,
        ),
        row(
            "translategemma",
            &GEMMA3_4B,
            &["4b", LATEST, "4b-it-q4_K_M"],
            ("mradermacher/translategemma-4b-it-GGUF", "Q4_K_M"),
            2_490,
        ),
        medgemma(
            "medgemma",
            &["4b", LATEST, "4b-it-q4_K_M"],
            ("unsloth/medgemma-4b-it-GGUF", "Q4_K_M"),
            2_490,
        ),
        medgemma("medgemma", &["4b-it-q8_0"], ("unsloth/medgemma-4b-it-GGUF", "Q8_0"), 4_130),
        row(
            "medgemma",
            &GEMMA3_27B,
            &["27b", "27b-it-q4_K_M"],
            ("lmstudio-community/medgemma-27b-text-it-GGUF", "Q4_K_M"),
            16_550,
        ),
        medgemma(
            "medgemma1.5",
            &["4b", LATEST, "4b-it-q4_K_M"],
            ("unsloth/medgemma-1.5-4b-it-GGUF", "Q4_K_M"),
            2_490,
        ),
        medgemma(
            "medgemma1.5",
            &["4b-it-q8_0"],
            ("unsloth/medgemma-1.5-4b-it-GGUF", "Q8_0"),
            4_130,
        ),
    ]
};

impl CatalogModel {
    /// Returns its usual name, with the tag: `gemma3:4b`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.family, self.tags[0])
    }

    /// Returns the last part of the repository's name, without the suffix for GGUF files:
    /// `gemma-3-4b-it`, `gemma-4-E4B-it-qat`.
    pub(super) fn repository_part(&self) -> &'static str {
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

    /// Returns what running it takes, with a conversation of `context` tokens.
    pub fn demand(&self, context: u64) -> Demand {
        let (weight_bytes, operations) = self.shape.token(self.quant);
        Demand {
            weight_bytes,
            cache_bytes: self.shape.cache_bytes(context / 2),
            operations,
            memory_bytes: self.bytes + self.shape.cache_bytes(context) + WORKING_BYTES,
        }
    }

    /// Returns whether it is the usual file of its size, of the families that are recommended:
    /// of the newest generation, and what is smaller than its smallest.
    pub(super) fn is_offered(&self) -> bool {
        let is_small = self.family == "gemma3" && matches!(self.tags[0], "270m" | "1b");
        is_small || self.family == "gemma4" && !self.tags[0].contains('-')
    }

    /// Returns the quality of its answers by the size of the file among those that are offered.
    pub(super) fn size(&self) -> f64 {
        self.shape.billions
    }

    pub(super) fn is_named(&self, family: &str, tag: &str) -> bool {
        self.family.eq_ignore_ascii_case(family)
            && self.tags.iter().any(|other| other.eq_ignore_ascii_case(tag))
    }

    /// Returns how much is lost against the weights as trained, as an order: 0 for nothing.
    /// Training for few bits makes up for a part of their loss.
    pub fn loss(&self) -> u8 {
        match self.quant {
            "f16" | "BF16" => 0,
            "Q8_0" => 1,
            _ if self.is_qat() => 2,
            _ => 3,
        }
    }

    /// Returns whether it was trained for its few bits.
    pub(super) fn is_qat(&self) -> bool {
        self.tags.iter().any(|tag| tag.contains("qat"))
    }

    /// Returns whether it has the format that a name says, if it says one.
    pub(super) fn has_quant(&self, parts: &Parts) -> bool {
        let own = self.quant.to_lowercase();
        parts.quant.as_ref().is_none_or(|wanted| own.starts_with(wanted.as_str()))
    }

    /// Returns whether it is of the training and the format that a name says.
    pub(super) fn is_of(&self, parts: &Parts) -> bool {
        self.has_quant(parts) && (!parts.qat || self.is_qat())
    }

    /// Returns whether a repository has the same model in the same format, by its name.
    pub(crate) fn is_copy(&self, name: &ModelName) -> bool {
        let Selection::Quant(quant) = name.selection() else { return false };
        let parts = Parts::of(name.repo()).filter(|parts| parts.unknown == 0);
        let same = |parts: Parts, own: Parts| {
            own.generation == parts.generation
                && own.size == parts.size
                && parts.qat == self.is_qat()
        };
        quant.eq_ignore_ascii_case(self.quant)
            && parts.zip(self.parts()).is_some_and(|(parts, own)| same(parts, own))
    }

    /// Returns whether both are the same model, in the same or in different formats.
    pub(super) fn is_sibling(&self, other: &Self) -> bool {
        self.family == other.family && std::ptr::eq(self.shape, other.shape)
    }

    /// Returns its parts, which all its names have.
    pub(super) fn parts(&self) -> Option<Parts> {
        Parts::of(&self.name())
    }
}

/// Returns all models of the catalogue, by family, smaller ones first.
pub fn models() -> &'static [CatalogModel] {
    &MODELS
}

/// Returns the models that are recommended, one of each size, smaller ones first.
pub fn offered() -> Vec<&'static CatalogModel> {
    let mut offered: Vec<_> = MODELS.iter().filter(|model| model.is_offered()).collect();
    offered.sort_by(|left, right| left.size().total_cmp(&right.size()));
    offered
}

/// Returns the model that most people can run: the usual one of the newest generation.
pub fn usual() -> &'static CatalogModel {
    let usual =
        MODELS.iter().find(|model| model.family == "gemma4" && model.tags.contains(&LATEST));
    usual.unwrap_or(&MODELS[0])
}

/// Returns the recommended model whose size is nearest to so many billions of parameters.
pub(super) fn nearest(billions: f64) -> &'static CatalogModel {
    let distance = |model: &CatalogModel| (model.size() / billions).ln().abs();
    let nearest =
        offered().into_iter().min_by(|left, right| distance(left).total_cmp(&distance(right)));
    nearest.unwrap_or_else(usual)
}
